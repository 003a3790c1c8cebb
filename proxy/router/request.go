package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Keys of _meta that a host may set for foldgate. They are never forwarded.
const (
	metaBranchID    = wire.MetaPrefix + "branch_id"
	metaContext     = wire.MetaPrefix + "context"
	metaCorrelation = wire.MetaPrefix + "correlationId"
	// metaCorrelationLater is the later name of metaCorrelation.
	metaCorrelationLater = wire.MetaPrefix + "correlation_id"
)

// request is one request of a host that is being served.
type request struct {
	*edge.Exchange
	s      *Session
	ctx    context.Context
	cancel context.CancelCauseFunc
	unbind func() bool // ends the tie to the session's lifetime

	headers []catalog.Header // of the tool that is called
	tickets []ticket         // of the answers on their way to the host

	// Guarded by s.mu.
	call   *interceptor.Call // set once it is known
	server string            // key of the server that it was sent to
	conn   conn.Conn         // the connection that it was sent on
}

// Causes for which a request or a session ends.
var (
	errCancelledByHost = errors.New("cancelled by the host")
	errSessionClosed   = errors.New("the host's session ended")
)

// Begin registers a request of the host as pending, so that a cancellation which
// arrives next finds it. The caller must serve what Begin returns.
func (s *Session) Begin(ctx context.Context, ex *edge.Exchange) edge.Pending {
	r := &request{Exchange: ex, s: s}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.pending[string(ex.Msg.ID)]; taken {
		r.cancel(nil)
		return refused{s, &wire.Error{Code: wire.CodeInvalidRequest, Message: "id " + string(ex.Msg.ID) + " is already in use by a request in flight"}}
	}
	r.unbind = context.AfterFunc(s.lifetime, func() { r.cancel(errSessionClosed) })
	s.pending[string(ex.Msg.ID)] = r
	return r
}

// Serve implements [edge.Pending]: it runs the request down the chain and
// returns the reply.
func (r *request) Serve() edge.Reply {
	defer r.end()
	c, owner := r.describe()
	r.s.mu.Lock()
	r.call = c
	r.s.mu.Unlock()
	res, err := r.s.r.Chain.Run(r.ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		return owner.answer(ctx, r, c)
	})
	switch {
	case err == nil:
		return edge.Reply{Result: res.Body, Error: res.Error, Extra: res.Extra}
	case errors.Is(context.Cause(r.ctx), errCancelledByHost), r.Msg.Method == wire.MethodListen && r.ctx.Err() != nil:
		return edge.Reply{} // the host waits no longer, or its stream has ended
	}
	return r.s.r.refusal(r, err)
}

// end forgets a request that was served.
func (r *request) end() {
	s := r.s
	s.mu.Lock()
	delete(s.pending, string(r.Msg.ID))
	s.endGuesses(r.server)
	s.mu.Unlock()
	r.unbind()
	r.cancel(nil)
}

// owner answers a call at the end of the chain.
type owner interface {
	answer(ctx context.Context, r *request, c *interceptor.Call) (*interceptor.Result, error)
}

// local is an owner inside the router.
type local func(ctx context.Context, r *request, c *interceptor.Call) (*interceptor.Result, error)

func (f local) answer(ctx context.Context, r *request, c *interceptor.Call) (*interceptor.Result, error) {
	return f(ctx, r, c)
}

// refuse returns the owner of a call that is refused. The call runs down the
// chain, so that the trace has it.
func refuse(err error) owner {
	return local(func(context.Context, *request, *interceptor.Call) (*interceptor.Result, error) { return nil, err })
}

// refuseParams returns the owner of a call with params that can't be understood.
func refuseParams(c *interceptor.Call, err error) owner {
	c.Target.Metered = false
	return local(func(_ context.Context, _ *request, c *interceptor.Call) (*interceptor.Result, error) {
		c.Outcome.Decision = "invalid"
		return nil, err
	})
}

func invalidParams(format string, args ...any) error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

// describe makes the Call of a request and finds its owner.
func (r *request) describe() (*interceptor.Call, owner) {
	s, m := r.s, r.Msg
	if rawjson.KindOf(m.Params) == rawjson.Null { // some hosts write what they don't have
		m.Params = nil
	}
	c := &interceptor.Call{
		Origin: interceptor.Origin{
			Direction: interceptor.FromHost, Session: s.ID, Principal: s.Principal, From: s.name(), Revision: s.revisionOf(r),
			Transport: s.network(), ID: m.ID,
		},
		Target:      interceptor.Target{To: "foldgate", Method: m.Method, Params: m.Params, Forward: m.Params, Extra: m.Extra, Header: paramHeaders(r.Header)},
		Attribution: interceptor.Attribution{Implicit: s.ImplicitBranch && s.r.Config.Attribution.Implicit == "legacy"},
	}
	if k := rawjson.KindOf(m.Params); m.Params != nil && k != rawjson.Object {
		return c, refuseParams(c, invalidParams("params must be an object"))
	}
	if err := s.r.readMeta(r, c); err != nil {
		return c, refuseParams(c, err)
	}
	if !s.Era.Has(m.Method) {
		return c, refuse(&wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: " + m.Method + " is not part of revision " + wire.VersionModern})
	}
	return c, s.r.ownerOf(r, c)
}

// paramHeaders returns the headers that travel on to the server: Mcp-Param-*, also
// those that foldgate does not know. The connection writes the others itself.
func paramHeaders(all http.Header) (kept http.Header) {
	for name, values := range all {
		if strings.HasPrefix(name, wire.HeaderParam) {
			if kept == nil {
				kept = http.Header{}
			}
			kept[name] = values
		}
	}
	return kept
}

// readMeta takes from params._meta what concerns foldgate: the branch, the
// context, the thread, causes and the trace context. Members that decide what the
// request is must be unambiguous.
func (rt *Router) readMeta(r *request, c *interceptor.Call) error {
	meta, err := wire.UnambiguousMeta(r.Msg.Method, c.Target.Params)
	if err != nil {
		return err
	}
	if bytes.Contains(meta, []byte(wire.MetaPrefix)) || bytes.IndexByte(meta, '\\') >= 0 { // a key may be spelled with escapes
		c.Target.Forward = wire.DropMeta(c.Target.Params, func(key string) bool { return strings.HasPrefix(key, wire.MetaPrefix) })
	}
	if id, ok := rawjson.GetString(meta, metaBranchID); ok && id != "" {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceMeta
	} else if r.BranchID != "" {
		c.Attribution.BranchID, c.Attribution.Source = r.BranchID, interceptor.SourceURL
	}
	c.Origin.Thread, c.Origin.Spawned = hostThread(meta)
	c.Origin.Traceparent, _ = rawjson.GetString(meta, "traceparent")
	if err := rt.correlate(c, meta); err != nil {
		return invalidParams("_meta[%q]: %v", metaCorrelation, err)
	}
	if err := rt.subContext(c, meta); err != nil {
		return invalidParams("_meta[%q]: %v", metaContext, err)
	}
	return nil
}

// What Codex says in _meta of each call: the thread that made it, and for a
// subagent the thread that started it. Threads share a connection.
const (
	metaThread       = "threadId"
	metaTurn         = "x-codex-turn-metadata"
	metaParentThread = "parent_thread_id"
)

// hostThread returns the thread that _meta names, "" for none, and whether
// another thread started it. It is no evidence of who calls: it only tells the
// calls of one connection apart.
func hostThread(meta []byte) (thread string, spawned bool) {
	thread, _ = rawjson.GetString(meta, metaThread)
	if len(thread) != 36 || uuid.Validate(thread) != nil { // nothing else gets into the trace
		return "", false
	}
	parent, _ := rawjson.GetString(meta, metaTurn, metaParentThread)
	return thread, parent != "" && parent != thread
}

// correlate reads the correlation ids that a host gives, under either name of
// the field. The deprecated form, a string, is taken or refused as
// trace.correlation says.
func (rt *Router) correlate(c *interceptor.Call, meta []byte) error {
	ids, has := rawjson.Get(meta, metaCorrelation)
	later, hasLater := rawjson.Get(meta, metaCorrelationLater)
	if !has && !hasLater {
		return nil
	}
	envelope := []byte(`{}`)
	if has {
		envelope = rawjson.Set(envelope, ids, "correlationId")
	}
	if hasLater {
		envelope = rawjson.Set(envelope, later, "correlation_id")
	}
	var err error
	c.Origin.Correlates, c.Origin.Deprecated, err = trace.DecodeCorrelation(envelope, trace.Mode(rt.Config.Trace.Correlation))
	rt.noteDeprecated(c.Origin.Deprecated)
	return err
}

// subContext reads the context that a host puts a call in, below the context of
// its branch. The object form of an earlier draft is taken or refused like a
// correlation that is a string.
func (rt *Router) subContext(c *interceptor.Call, meta []byte) error {
	value, ok := rawjson.Get(meta, metaContext)
	if !ok {
		return nil
	}
	if rawjson.KindOf(value) == rawjson.String { // Attribute refuses a bad path
		c.Attribution.SubContext = rawjson.Unquote(value)
		return nil
	}
	path, deprecated, err := contextpath.Decode(value)
	if err == nil && len(deprecated) > 0 && trace.Mode(rt.Config.Trace.Correlation) == trace.Strict {
		err = fmt.Errorf("an object is a form of an earlier draft, which trace.correlation: strict refuses; send the path as a string: %q", path)
	}
	if err != nil {
		return err
	}
	c.Attribution.SubContext, c.Origin.Deprecated = string(path), append(c.Origin.Deprecated, deprecated...)
	rt.noteDeprecated(deprecated)
	return nil
}

// noteDeprecated counts uses of deprecated forms.
func (rt *Router) noteDeprecated(codes []string) {
	for _, code := range codes {
		rt.Recorder.Deprecated(code)
	}
}

// refused is a pending request that was refused before it was registered.
type refused struct {
	s   *Session
	err error
}

func (p refused) Serve() edge.Reply {
	return p.s.r.clean(edge.Reply{Error: errorObject(p.err)})
}

func (refused) Sent() {}
