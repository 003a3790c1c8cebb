package proxy

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/server"
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
		h = control.Handler(operator{g}, server.ControlPath)
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
	h := control.Handler(operator{g}, "")
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
	f, err := readFilter(q)
	if err = cmp.Or(malformed, err); err != nil {
		http.Error(w, g.Boundary.Text(err.Error()), http.StatusBadRequest)
		return
	}
	dirs := []string{filepath.Join(g.Dir, "trace")}
	if err := f.Resolve(r.Context(), dirs); err != nil {
		status, text := http.StatusInternalServerError, "the trace can't be read; the gateway's log says why"
		if wrong, ok := errors.AsType[*query.UsageError](err); ok {
			status, text = http.StatusBadRequest, wrong.Field+": "+wrong.Err.Error()
		} else {
			g.Log.Warn("the trace could not be read for an auditor", "err", err)
		}
		http.Error(w, g.Boundary.Text(text), status)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	out := bufio.NewWriterSize(control.PatientWriter{ResponseWriter: w}, 64<<10)
	err = cmp.Or(render.Write(out, render.JSONL, query.SelectAll(r.Context(), dirs, f)), out.Flush())
	if err != nil && r.Context().Err() == nil {
		g.Log.Warn("the trace could not be read for an auditor", "err", err)
		panic(http.ErrAbortHandler) // the reader must not take a part for the whole
	}
}

// readFilter reads a filter of serveTrace. Without a name that is spelled wrong, or has no value, the answer would
// have other records than the ones that were asked for.
func readFilter(q url.Values) (f query.Filter, err error) {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		i := slices.IndexFunc(query.InAddress, func(f query.Field) bool { return f.Name == name })
		switch {
		case i < 0 && name != "limit":
			return f, fmt.Errorf("%.40q: there is no such filter; use %s or limit", name, strings.Join(query.AddressNames(), ", "))
		case i >= 0 && query.InAddress[i].IsFlag() && q.Get(name) == "":
			q.Set(name, "true")
		case slices.Contains(q[name], ""):
			return f, fmt.Errorf("%s: is empty: give it a value, or leave it out", name)
		}
	}
	f, err = query.FromAddress(q)
	if wrong, ok := errors.AsType[*query.UsageError](err); ok {
		return f, fmt.Errorf("%s: %w", wrong.Field, wrong.Err) // the command line has the flag --Field
	}
	if f.Limit, err = strconv.Atoi(cmp.Or(q.Get("limit"), "1000")); err != nil || f.Limit < 1 || f.Limit > maxRead {
		err = fmt.Errorf("limit: %.40q is not a number from 1 to %d", q.Get("limit"), maxRead)
	}
	return f, err
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
		n := interceptor.Notification{From: trace.UpstreamName(e.Upstream), Server: e.Upstream, Principal: e.Principal, Method: "login"}
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
		From: "operator", To: []string{trace.UpstreamName(e.Upstream)}, Kind: trace.KindAccess, Payload: rawjson.Marshal(facts),
		Audit: &trace.Audit{Principal: e.Principal, Server: e.Upstream},
	})
}
