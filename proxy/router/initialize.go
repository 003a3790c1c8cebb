package router

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/tools"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// maxKept bounds a request of which a session keeps a part for as long as it lasts, in bytes, and maxAllKept those of all
// sessions together.
const maxKept, maxAllKept = 1 << 20, 256 << 20

// keepable refuses a request that is too large to be kept.
func (r *request) keepable() error {
	if len(r.Msg.Raw) > maxKept {
		return invalidParams("%s can have at most %d bytes", r.Msg.Method, maxKept)
	}
	return nil
}

// keep counts n bytes more that the session keeps. several means that there are several principals. The caller holds mu.
func (s *Session) keep(n int, several bool) error {
	switch {
	case s.closed:
		return errSessionClosed
	case !s.rt.kept.take(s.Principal, several, n):
		return invalidParams("all sessions together keep at most %d bytes of initialize and logging/setLevel, and those of one of several principals half of them: send less, or end a session first", maxAllKept)
	}
	s.kept += n
	return nil
}

// answerInitialize serves initialize with the capabilities of foldgate and all servers. It does
// not start servers with cached server info.
func (r *request) answerInitialize(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	s, several := r.s, r.s.rt.several()
	if err := r.keepable(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.revision != "" {
		s.mu.Unlock()
		return nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "initialize was already called on this connection"}
	}
	s.revision = wire.VersionLegacy
	if v, ok := rawjson.GetString(c.Target.Params, "protocolVersion"); ok && slices.Contains(wire.LegacyVersions, v) {
		s.revision = v
	}
	if name, ok := rawjson.GetString(c.Target.Params, "clientInfo", "name"); ok && name != "" {
		s.setClient(name)
	}
	revision := s.revision
	err := s.keep(len(c.Target.Forward), several)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s.scope.Own.Initialize(bytes.Clone(c.Target.Forward))
	capabilities, instructions := s.discover(ctx)
	out := append([]byte(`{"protocolVersion":`), rawjson.Quote(revision)...)
	out = append(append(out, `,"capabilities":`...), capabilities...)
	out = append(append(out, `,"serverInfo":`...), serverInfo()...)
	out = append(append(out, `,"instructions":`...), rawjson.Quote(instructions)...)
	return &interceptor.Result{Body: append(out, '}')}, nil
}

func (r *request) answerDiscover(ctx context.Context, _ *interceptor.Call) (*interceptor.Result, error) {
	rt := r.s.rt
	capabilities, instructions := r.s.discover(ctx)
	scope := "public"
	if rt.Settings().Config.Authenticates() { // principals may see different things
		scope = "private"
	}
	out := append([]byte(`{"resultType":"complete","supportedVersions":`), rawjson.Marshal(wire.Versions)...)
	out = append(append(out, `,"capabilities":`...), capabilities...)
	out = append(append(out, `,"instructions":`...), rawjson.Quote(instructions)...)
	out = append(append(out, `,"ttlMs":0,"cacheScope":"`+scope+`","_meta":{"`+wire.MetaServerInfo+`":`...), serverInfo()...)
	return &interceptor.Result{Body: append(out, '}', '}')}, nil
}

func (r *request) answerPing(context.Context, *interceptor.Call) (*interceptor.Result, error) {
	return &interceptor.Result{Body: json.RawMessage(`{}`)}, nil
}

// serverInfo is how foldgate introduces itself to hosts.
func serverInfo() []byte {
	return rawjson.Marshal(map[string]string{"name": "foldgate", "title": "foldgate", "version": version.String()})
}

// discover returns what a greeting says of the servers. It starts only servers without server info for
// their present configuration, and, if each principal has a login there, for the principal. One that has not
// answered when the host's patience ends may have any capability, and its instructions are missing.
func (s *Session) discover(ctx context.Context) (capabilities []byte, instructions string) {
	wait := s.patience()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var wg sync.WaitGroup
	servers := s.rt.Settings().Servers
	for _, srv := range servers {
		if _, known := srv.InfoFor(s.listing()); !known {
			wg.Go(func() {
				waiting, cancel := context.WithDeadline(waiting, srv.State(s.listing()).Began.Add(wait))
				defer cancel()
				_, _ = srv.ConnectionUnlessDown(waiting, s.listing()) // srv.Status has the fault
			})
		}
	}
	wg.Wait()
	return s.serverCapabilities(), s.instructions(ctx, waiting)
}

// serverCapabilities returns what the servers can do together, as far as it is known. A server that has not
// answered may have any capability.
func (s *Session) serverCapabilities() []byte {
	st := s.rt.Settings()
	servers := st.Servers
	all := make([][]byte, len(servers))
	for i, srv := range servers {
		if info, known := srv.InfoFor(s.listing()); known {
			if all[i], known = rawjson.Get(info.Result, "capabilities"); !known {
				all[i] = []byte(`{}`)
			}
		}
	}
	if st.Config.LLM.Runs() {
		all = slices.Insert(all, 0, []byte(ownTasks(s.Era)))
	}
	return catalog.Capabilities(all)
}

// ownTasks are the capabilities of foldgate's own tools that can be tasks.
func ownTasks(e wire.Era) string {
	if e.TypedResults {
		return `{"extensions":{"` + wire.TasksExtension + `":{}}}`
	}
	return `{"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}`
}

// instructions returns the instructions of foldgate, then those of each server under its name.
// It leaves out instructions that can't be checked for secrets, that are held, or whose server is hidden
// from the caller. The waits for lists end with waiting.
func (s *Session) instructions(ctx, waiting context.Context) string {
	text := tools.Instructions
	if s.choice() != decidedList {
		text += " If find_tools is listed, it finds the tools that are not; call_tool calls them."
	}
	for _, srv := range s.rt.Settings().Servers {
		info, _ := srv.InfoFor(s.listing())
		own := supply{s.rt, srv, s.scope.Group}.instructions(ctx, info, false)
		if own != "" && !s.conceals(srv, func(k catalog.Kind) *catalog.List {
			l, _ := s.list(waiting, s.patience(), srv, k, nil)
			return l
		}) {
			text += "\n\n# " + srv.Key + "\n" + own
		}
	}
	return text
}

// conceals reports whether a server must stay hidden from a caller: the policy has unlisted: unknown, and
// shows the caller nothing of the server's lists. list returns one of them, nil if it is not known.
func (s *Session) conceals(srv *upstream.Server, list func(catalog.Kind) *catalog.List) bool {
	rules := s.rt.Settings().Rules
	if !rules.HidesUnlisted() {
		return false
	}
	for k := range catalog.Kinds {
		l := list(k)
		if l == nil {
			continue
		}
		for _, raw := range l.Items {
			if _, e, _, ok := rules.Entry(k, srv.Key, l, raw); ok && rules.Visible(k, s.identity(), e).Allowed {
				return false
			}
		}
	}
	return true
}

// answerSetLevel serves logging/setLevel: it is for every server that the session uses, and for
// those that it will use later. It starts no server. No server keeps the others from it.
func (r *request) answerSetLevel(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	level, _ := rawjson.GetString(c.Target.Forward, "level")
	if !slices.Contains(wire.LogLevels, level) { // it would go into every later request
		return nil, invalidParams("invalid log level %.64q: use %s", level, strings.Join(wire.LogLevels, ", "))
	}
	if err := r.keepable(); err != nil {
		return nil, err
	}
	s, several := r.s, r.s.rt.several()
	s.mu.Lock()
	err := s.keep(len(c.Target.Forward)-len(s.logLevel), several)
	if err == nil {
		s.logLevel = bytes.Clone(c.Target.Forward)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, listWait, fmt.Errorf("logging/setLevel was not answered within %s", listWait))
	defer cancel()
	var told sync.WaitGroup
	for _, srv := range s.rt.Settings().Servers {
		if info, _ := srv.InfoFor(s.listing()); info.Capability("logging") == nil {
			continue
		}
		told.Go(func() {
			cn := srv.View(s.scope) // keeps the level for its next connection
			if srv.State(s.scope).Open {
				cn, _ = srv.Connection(limit, s.scope)
			}
			if cn == nil {
				return // Opened sets it
			}
			m, err := cn.Call(limit, &conn.Request{Method: c.Target.Method, Params: c.Target.Forward})
			if m.Error != nil {
				err = &wire.AnswerError{Raw: m.Error}
			} else if err == nil || limit.Err() == nil || ctx.Err() != nil { // if the connection was lost, Opened sets it on the next one
				return
			}
			srv.Log.Warn("the server keeps its log level", "err", err)
		})
	}
	told.Wait()
	return &interceptor.Result{Body: json.RawMessage(`{}`)}, nil
}
