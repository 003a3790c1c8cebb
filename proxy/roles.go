package proxy

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// maxRead is the most records of one answer to an auditor.
const maxRead = 10_000

// controlOf returns what answers a caller's request below server.ControlPath, nil if the caller has no
// role for it. An auditor reads: the trace, the open branches and what limits have left. An operator
// also ends branches and resets limits, but does not read the trace, which holds what others said.
// A reload is for those who have the file. Each use is recorded.
func (g *Gateway) controlOf(id interceptor.Identity, r *http.Request) http.Handler {
	c := &g.settings.Load().Config
	id = c.Complete(id)
	has := func(role string) bool { return role != "" && slices.Contains(id.Roles, role) }
	auditor, operates := has(c.Auth.Auditor), has(c.Auth.Operator)
	var h http.Handler
	switch {
	case r.URL.Path == "/v1/trace" && r.Method == http.MethodGet && auditor:
		h = http.HandlerFunc(g.serveTrace)
	case r.URL.Path == "/v1/trace":
	case r.Method == http.MethodGet && (auditor || operates), r.Method == http.MethodDelete && operates:
		h = control.Handler(operator{g})
	}
	if h == nil {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.recordAccess("principal:"+id.Principal, &trace.Audit{Principal: id.Principal, Team: id.Team}, r)
		h.ServeHTTP(w, r)
	})
}

// controlSocket returns what answers the operator on the socket. What changes something is recorded. Who
// can reach the socket can read the trace itself.
func (g *Gateway) controlSocket() http.Handler {
	h := control.Handler(operator{g})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			g.recordAccess("operator", nil, r)
		}
		h.ServeHTTP(w, r)
	})
}

// recordAccess records who asks for what, before it has an effect.
func (g *Gateway) recordAccess(from string, a *trace.Audit, r *http.Request) {
	query, err := url.QueryUnescape(r.URL.RawQuery)
	if err != nil {
		query = r.URL.RawQuery
	}
	facts := map[string]string{"method": r.Method, "path": g.Boundary.Text(r.URL.Path), "query": g.Boundary.Text(query)}
	if user := control.User(r); user != "" {
		facts["user"] = user
	}
	if by := control.By(r); by != "" {
		facts["by"] = g.Boundary.Text(by)
	}
	g.Recorder.Note(&trace.Record{From: from, To: []string{"foldgate"}, Kind: trace.KindAccess, Payload: rawjson.Marshal(facts), Audit: a})
}

// serveTrace answers with the records that the query selects, as lines of JSON.
func (g *Gateway) serveTrace(w http.ResponseWriter, r *http.Request) {
	q, malformed := url.ParseQuery(r.URL.RawQuery) // URL.Query leaves out what is malformed
	f := query.Filter{
		Principal: q.Get("principal"), Team: q.Get("team"), Session: q.Get("session"), Context: q.Get("context"), ID: q.Get("id"),
		Kinds: q["kind"], Servers: q["server"], Tools: q["tool"], Blocked: q.Has("blocked"), Scrubbed: q.Has("scrubbed"), Journal: q.Has("journal"),
	}
	var since, until, limit error
	f.Since, since = query.ParseTime(q.Get("since"), time.Now())
	f.Until, until = query.ParseTime(q.Get("until"), time.Now())
	f.Limit, limit = strconv.Atoi(cmp.Or(q.Get("limit"), "1000"))
	if limit != nil || f.Limit < 1 || f.Limit > maxRead {
		limit = fmt.Errorf("limit: %.40q is not a number from 1 to %d", q.Get("limit"), maxRead)
	}
	if err := cmp.Or(malformed, checkFilters(q), of("since", since), of("until", until), limit, f.Validate()); err != nil {
		http.Error(w, g.Boundary.Text(err.Error()), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	out := bufio.NewWriterSize(control.PatientWriter{ResponseWriter: w}, 64<<10)
	err := cmp.Or(render.Write(out, render.JSONL, query.SelectAll(r.Context(), []string{filepath.Join(g.Dir, "trace")}, f)), out.Flush())
	if err != nil && r.Context().Err() == nil {
		g.Log.Warn("the trace could not be read for an auditor", "err", err)
		panic(http.ErrAbortHandler) // the reader must not take a part for the whole
	}
}

// of names the filter that an error is about.
func of(filter string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", filter, err)
	}
	return err
}

// readFlags and readValues are the filters of serveTrace without a value and with one.
var (
	readFlags  = []string{"blocked", "scrubbed", "journal"}
	readValues = []string{"principal", "team", "session", "context", "id", "kind", "server", "tool", "since", "until", "limit"}
)

// checkFilters returns an error for a filter that there is not, or that lacks its value: without it the
// answer would have other records than the ones that were asked for.
func checkFilters(q url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case slices.Contains(readFlags, name):
			if value := q.Get(name); value != "" && value != "true" || len(q[name]) > 1 {
				return fmt.Errorf("%s: %.40q is not true: write true, or leave it out", name, value)
			}
		case !slices.Contains(readValues, name):
			return fmt.Errorf("%.40q: there is no such filter; use %s", name, strings.Join(slices.Concat(readValues, readFlags), ", "))
		case slices.Contains(q[name], ""):
			return fmt.Errorf("%s: is empty: give it a value, or leave it out", name)
		case len(q[name]) > 1 && !slices.Contains([]string{"kind", "server", "tool"}, name):
			return fmt.Errorf("%s: is there %d times: give it once", name, len(q[name]))
		}
	}
	return nil
}

// RecordRead writes to the trace of c that by reads a part of it with a command, such as a record by its id.
func RecordRead(c config.Config, by, part, name string) error {
	return engine.Record(c, func(r *interceptor.Recorder) {
		facts := map[string]string{"path": "/v1/read", "query": r.Boundary.Text(part + "=" + name), "user": strconv.Itoa(os.Getuid()), "by": r.Boundary.Text(by)}
		r.Note(&trace.Record{From: "operator", To: []string{"foldgate"}, Kind: trace.KindAccess, Payload: rawjson.Marshal(facts)})
	})
}

// RecordLogin writes a login of a person, by a command of the operator, to the trace of c.
func RecordLogin(c config.Config, e upstream.LoginEvent) error {
	return engine.Record(c, func(r *interceptor.Recorder) { recordLogin(r, e, strconv.Itoa(os.Getuid())) })
}

// recordLogin records a login of a person at an upstream. user is the number of the machine's user, "" if
// it is not known.
func recordLogin(r *interceptor.Recorder, e upstream.LoginEvent, user string) {
	if e.Failure != "" {
		n := interceptor.Notification{From: "upstream:" + e.Upstream, Server: e.Upstream, Principal: e.Principal, Method: "login"}
		r.Rejected(n, trace.ReasonPolicy, "upstream_login", e.Failure)
		return
	}
	facts := map[string]any{"action": e.Action}
	if len(e.Scopes) > 0 {
		facts["scopes"] = e.Scopes
	}
	if user != "" {
		facts["user"] = user
	}
	r.Note(&trace.Record{
		From: "operator", To: []string{"upstream:" + e.Upstream}, Kind: trace.KindAccess, Payload: rawjson.Marshal(facts),
		Audit: &trace.Audit{Principal: e.Principal, Server: e.Upstream},
	})
}
