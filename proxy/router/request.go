package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/tools"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// request is one request of a host that is being served.
type request struct {
	*server.Request
	s        *Session
	lifetime context.Context // ends with the session, or when the host cancels
	cancel   context.CancelCauseFunc

	call    *interceptor.Call  // set before the request is sent to a server
	servers []*upstream.Server // that may own the target, the likeliest first
	entry   catalog.Entry      // of the tool that is called
	ticket  ticket             // the place of the response on its way to the host

	// Guarded by s.mu.
	server string    // key of the server that it was sent to
	conn   conn.Conn // the connection that it was sent on
}

// Causes for which a request or a session ends.
var (
	errCancelledByHost = errors.New("cancelled by the host")
	errSessionClosed   = errors.New("the host's session ended")
	errWithdrawn       = errors.New("withdrawn by the server")
)

// cancelled is the cause of a request that its sender cancelled: errCancelledByHost or errWithdrawn,
// with the sender's reason.
type cancelled struct {
	error
	reason string
}

func (c cancelled) Error() string { return c.reason }
func (c cancelled) Unwrap() error { return c.error }

// Begin registers a request of the host as pending, so that a cancellation which arrives next
// finds it. The caller must serve what Begin returns.
func (s *Session) Begin(ctx context.Context, req *server.Request) server.Pending {
	r := &request{Request: req, s: s}
	if id := req.Identity; id.Issuer != "" && !s.SingleRequest {
		s.newest.Store(&id)
	}
	r.lifetime, r.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.pending[string(req.Msg.ID)]; taken {
		r.cancel(nil)
		return duplicateID{s, req.Msg, &wire.Error{Code: wire.CodeInvalidRequest, Message: "id " + string(req.Msg.ID) + " is already in use by a request in flight"}}
	}
	if name, _ := rawjson.GetString(req.Meta.ClientInfo, "name"); name != "" && s.scope.Own == nil { // a legacy host says it once
		s.setClient(name)
	}
	if s.lifetime.Err() != nil { // else Close finds the request
		r.cancel(errSessionClosed)
	}
	s.pending[string(req.Msg.ID)] = r
	return r
}

// Serve implements [server.Pending]: it runs the request down the chain and returns the reply. A
// panic becomes an internal error, so that one broken call does not end other sessions.
func (r *request) Serve() (reply server.Reply) {
	defer r.end(&reply)
	r.call = r.newCall()
	res, err := r.s.rt.Chain(r.lifetime, r.call, r.route())
	switch {
	case err == nil:
		return server.Reply{Message: wire.Message{Result: res.Body, Error: res.Error, Extra: res.Extra}}
	case errors.Is(context.Cause(r.lifetime), errCancelledByHost), r.Msg.Method == wire.MethodListen && r.lifetime.Err() != nil:
		return server.Reply{} // the host waits no longer, or its stream has ended
	}
	return r.s.rt.refusal(r, err)
}

// end forgets a request that was served, and answers a panic.
func (r *request) end(reply *server.Reply) {
	s := r.s
	if p := recover(); p != nil {
		s.rt.Log.Error("panic while serving a request", "method", r.Msg.Method, "panic", p, "stack", string(debug.Stack()))
		*reply = server.Reply{Message: wire.Message{Error: (&wire.Error{Code: wire.CodeInternal, Message: "internal error"}).JSON()}}
	}
	if reply.Result != nil || reply.Error != nil {
		reply.ID = r.Msg.ID
	}
	s.mu.Lock()
	delete(s.pending, string(r.Msg.ID))
	s.mu.Unlock()
	r.releaseServers()
	r.cancel(nil)
}

// useServers notes the servers that may own the target. A reload that removes one waits for the request.
func (r *request) useServers(servers []*upstream.Server) {
	r.servers = servers
	for _, srv := range servers {
		srv.Enter()
	}
}

// releaseServers ends what useServers and send begin.
func (r *request) releaseServers() {
	r.s.callEnded(r)
	for _, srv := range r.servers {
		srv.Leave()
	}
}

// newCall makes the call of the request.
func (r *request) newCall() *interceptor.Call {
	s, m := r.s, r.Msg
	if rawjson.KindOf(m.Params) == rawjson.Null { // some hosts write null for none
		m.Params = nil
	}
	sender, transport := r.Identity, "tcp" // in the terms of the OpenTelemetry semantic conventions
	if sender.Issuer == "" {
		sender = s.identity()
	}
	if s.Transport == "stdio" {
		transport = "pipe"
	}
	revision, ok := rawjson.GetString(r.Meta.ProtocolVersion)
	if !ok || s.scope.Own != nil { // a legacy host says it once
		revision = s.Revision()
	}
	return &interceptor.Call{
		Origin: interceptor.Origin{
			Direction: interceptor.FromHost, Identity: sender, Session: s.ID, From: s.traceName(), Revision: revision,
			Transport: transport, ID: m.ID,
		},
		Target:      interceptor.Target{To: "foldgate", Method: m.Method, Params: m.Params, Forward: m.Params, Extra: m.Extra, Header: r.Header},
		Attribution: interceptor.Attribution{Implicit: !s.SingleRequest && s.rt.Settings().Config.Attribution.Implicit == "legacy"},
		Cancel:      r.cancel,
	}
}

// readParams checks the params, and completes the call by what the URL and _meta say.
func (r *request) readParams() error {
	rt, c := r.s.rt, r.call
	if params := c.Target.Params; params != nil && rawjson.KindOf(params) != rawjson.Object {
		return invalidParams("params must be an object")
	}
	if err := wire.CheckUnambiguous(c.Target.Method, c.Target.Params); err != nil {
		return err
	}
	if r.BranchID != "" { // _meta wins over it
		c.Attribution.BranchID, c.Attribution.Source = r.BranchID, interceptor.SourceURL
	}
	return engine.TakeMeta(c, &r.Meta, rt.Recorder, rt.Settings().Config.Trace.Correlation == "strict")
}

// route returns the handler that answers the request at the end of the chain, and completes the call.
func (r *request) route() interceptor.Handler {
	s, method := r.s, r.call.Target.Method
	if err := r.readParams(); err != nil {
		return r.refuseParams(err)
	}
	if !s.Era.Has(method) {
		return refuse(&wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: " + s.rt.echo(method) + " is not part of revision " + wire.VersionModern})
	}
	if _, isList := catalog.KindOf(method); isList {
		return r.answerList
	}
	switch method {
	case "tools/call":
		return r.handlerOfTool()
	case "prompts/get":
		return r.handlerOfPrompt()
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		return r.handlerOfResource()
	case "completion/complete":
		return r.handlerOfCompletion()
	case "initialize":
		return r.answerInitialize
	case "server/discover":
		return r.answerDiscover
	case "logging/setLevel":
		return r.answerSetLevel
	case wire.MethodListen:
		return r.answerListen
	case "ping":
		return r.answerPing
	}
	return r.handlerOfOther()
}

// handlerOfTool finds the handler of a tools/call: foldgate's own tools or a server.
func (r *request) handlerOfTool() interceptor.Handler {
	rt, c := r.s.rt, r.call
	name, ok := rawjson.GetString(c.Target.Params, "name")
	c.Target.Name, c.Target.Metered = name, true
	if !ok {
		return r.refuseParams(invalidParams("tools/call needs params.name, a string"))
	}
	c.Target.Arguments, _ = rawjson.Get(c.Target.Params, "arguments")
	if name == config.CallTool && rt.Tools.Has(name) {
		if err := r.unwrap(); err != nil {
			return r.refuseParams(err)
		}
		name = c.Target.Name
	}
	if rt.Tools.Has(name) {
		rt.Tools.Attribute(r.lifetime, c)
		return r.callOwnTool
	}
	e, ok := r.s.findTool(r.lifetime, name)
	if !ok {
		return refuse(r.unknownTool(name, e))
	}
	if err := r.target(e, name, name); err != nil {
		return r.refuseParams(err)
	}
	r.entry = e
	return r.toServers(rt.Settings().One(e.Server))
}

// target points a tools/call at the owner of the tool, in the server's terms. shown is the name that hosts
// see, called the one in the call.
func (r *request) target(e catalog.Entry, shown, called string) error {
	c := r.call
	c.Target.Name = e.Name
	if err := withheld(catalog.Tools, e); err != nil {
		c.Target.Server = e.Server
		return err
	}
	if e.Shown == nil { // no list has it: it may be anything
		c.Target.Name = r.s.rt.echo(e.Name)
	} else {
		c.Target.Shown = shown
	}
	if e.Name != called {
		c.Target.Forward = rawjson.Set(c.Target.Forward, rawjson.Quote(e.Name), "name")
	}
	rest, id, given, err := e.TakeBranchID(c.Target.Arguments)
	if err != nil {
		return invalidParams("%v", err)
	}
	if given && id != "" {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceArgument
	}
	if e.Workflow != nil {
		meta, _ := rawjson.Get(c.Target.Params, "_meta")
		c.Target.Workflow, rest = e.Workflow.Take(rest, meta)
	}
	if !bytes.Equal(rest, c.Target.Arguments) {
		c.Target.Arguments = rest
		c.Target.Forward = rawjson.Set(c.Target.Forward, rest, "arguments")
	}
	return nil
}

// findTool looks a tool up in the list that the session sees. A name that is not there may belong
// to a server that was down when the list was made. ok is false, and the entry has a server, if the
// policy hides the tool.
func (s *Session) findTool(ctx context.Context, name string) (catalog.Entry, bool) {
	e, ok := s.lookup(ctx, catalog.Tools, name)
	st := s.rt.Settings()
	if !ok {
		if e, ok = st.Rules.Unlisted(name, func(server string) bool { return s.cacheOf(st.Server(server)).peek(catalog.Tools) != nil }); ok {
			s.judge(st, catalog.Tools, &e)
		}
	}
	return e, ok && !st.Rules.Hides(catalog.Tools, s.identity(), e)
}

// unknownTool returns the refusal of a tool that findTool does not find, and names the tool on the
// call. Only the trace tells a tool that is hidden from one that does not exist.
func (r *request) unknownTool(name string, e catalog.Entry) error {
	s, rt, c := r.s, r.s.rt, r.call
	down, st := "", rt.Settings()
	for _, srv := range st.Servers {
		if state, fault := srv.PublicStatus(); state == "failed" && !s.conceals(srv, s.cacheOf(srv).peek) {
			down += fmt.Sprintf("; upstream %s is down: %v", srv.Key, fault)
		}
	}
	ref := &interceptor.Refusal{Reason: trace.ReasonInvalid, Code: "unknown_tool", Status: 404}
	c.Target.Name = rt.echo(name)
	ref.Message = fmt.Sprintf("Unknown tool: %s (call tools/list for the tools there are%s%s)", c.Target.Name, s.similar(c.Origin.Identity, name), down)
	server, own, hidden := st.Rules.Hidden(name, func(server string) *catalog.List { return s.cacheOf(st.Server(server)).peek(catalog.Tools) })
	if e.Server != "" {
		server, own, hidden = e.Server, e.Name, true
		ref.Rule = st.Rules.Visible(catalog.Tools, c.Origin.Identity, e).Rule
	}
	if hidden {
		ref.Reason, c.Target.Server, c.Target.Name = trace.ReasonPolicy, server, rt.echo(own)
	}
	return ref
}

// echo returns what a host wrote for use in an error or a record: without secrets, and not long.
func (rt *Router) echo(text string) string {
	const longest = 200
	return folding.Shorten(rt.Boundary.Text(text), longest)
}

// toPrompt points a call at the owner of the prompt that its params name at path. It returns nil if there is no
// such prompt. For a held prompt that the policy hides from the caller it returns nil, too: a refusal
// would tell that it exists.
func (r *request) toPrompt(name string, path ...string) interceptor.Handler {
	rt, c := r.s.rt, r.call
	e, ok := r.s.lookup(r.lifetime, catalog.Prompts, name)
	if !ok || e.Held != "" && rt.Settings().Rules.Hides(catalog.Prompts, c.Origin.Identity, e) {
		return nil
	}
	c.Target.Name = e.Name
	if err := withheld(catalog.Prompts, e); err != nil {
		c.Target.Server = e.Server
		return refuse(err)
	}
	if e.Name != name {
		c.Target.Forward = rawjson.Set(c.Target.Forward, rawjson.Quote(e.Name), path...)
	}
	return r.toServers(rt.Settings().One(e.Server))
}

func (r *request) handlerOfPrompt() interceptor.Handler {
	rt, c := r.s.rt, r.call
	name, _ := rawjson.GetString(c.Target.Params, "name")
	c.Target.Name, c.Target.Metered = name, true
	if h := r.toPrompt(name, "name"); h != nil {
		return h
	}
	c.Target.Name = rt.echo(name)
	return refuse(rt.unknownPrompt(c.Target.Params))
}

func (rt *Router) unknownPrompt(params json.RawMessage) error {
	name, _ := rawjson.GetString(params, "name")
	return invalidParams("Unknown prompt: %s", rt.echo(name))
}

func (s *Session) unknownResource(uri string) error {
	uri = s.rt.echo(uri)
	return &wire.Error{Code: s.Era.UnknownResource, Message: "Resource not found: " + uri, Data: rawjson.Marshal(map[string]string{"uri": uri})}
}

var errUnknownRef = invalidParams("params.ref names no prompt or resource template that there is")

// handlerOfResource finds the handler of a method that names a resource by its URI.
func (r *request) handlerOfResource() interceptor.Handler {
	rt, c := r.s.rt, r.call
	uri, _ := rawjson.GetString(c.Target.Params, "uri")
	c.Target.Name, c.Target.Metered = uri, true
	if uri == "" {
		return r.refuseParams(invalidParams("params.uri is missing: name the resource, as resources/list does"))
	}
	owners := r.s.ownersOf(r.lifetime, uri)
	if len(owners) == 0 {
		return refuse(r.s.unknownResource(uri))
	}
	switch c.Target.Method {
	case "resources/subscribe":
		r.toServers(owners)
		return r.subscribe
	case "resources/unsubscribe":
		if one := rt.Settings().One(r.s.subscribed.owner(uri)); one != nil {
			owners = one
		}
		r.toServers(owners)
		return r.unsubscribe
	}
	return r.toServers(owners)
}

// ownersOf returns the servers that may have a resource: the one that lists it, else the first
// with a template that fits, else all with resources.
func (s *Session) ownersOf(ctx context.Context, uri string) []*upstream.Server {
	if e, ok := s.lookup(ctx, catalog.Resources, uri); ok {
		return s.rt.Settings().One(e.Server)
	}
	templates, _ := s.Catalog(ctx, listWait, catalog.Templates, nil)
	if e, ok := templates.Template(uri); ok {
		return s.rt.Settings().One(e.Server)
	}
	return slices.DeleteFunc(slices.Clone(s.rt.Settings().Servers), func(srv *upstream.Server) bool {
		info, _ := srv.InfoFor(s.listing())
		return info.Capability("resources") == nil
	})
}

// handlerOfCompletion finds the handler of the prompt or resource template that a
// completion/complete refers to. The type of the reference says which, to the policy too: a
// reference that has both names is refused, for a server may look at either.
func (r *request) handlerOfCompletion() interceptor.Handler {
	rt, c := r.s.rt, r.call
	c.Target.Metered = true
	kind, _ := rawjson.GetString(c.Target.Params, "ref", "type")
	own, other := "name", "uri"
	switch kind {
	case catalog.RefPrompt:
	case catalog.RefResource:
		own, other = other, own
	default:
		return r.refuseParams(invalidParams("params.ref.type must be %s or %s", catalog.RefPrompt, catalog.RefResource))
	}
	if v, ok := rawjson.Get(c.Target.Params, "ref", other); ok && rawjson.KindOf(v) != rawjson.Null {
		return r.refuseParams(invalidParams("params.ref of the type %s must not have %q: servers differ in which they read", kind, other))
	}
	name, ok := rawjson.GetString(c.Target.Params, "ref", own)
	switch {
	case !ok:
	case kind == catalog.RefResource:
		c.Target.Name = name
		if e, ok := r.s.lookup(r.lifetime, catalog.Templates, name); ok {
			return r.toServers(rt.Settings().One(e.Server))
		}
		if owners := r.s.ownersOf(r.lifetime, name); len(owners) > 0 {
			return r.toServers(owners)
		}
	default:
		if h := r.toPrompt(name, "ref", "name"); h != nil {
			return h
		}
	}
	return refuse(errUnknownRef)
}

// handlerOfOther finds the handler of methods that foldgate does not know, and of tasks. A task
// belongs to the server that made it; anything else goes to each server in turn until one knows
// the method.
func (r *request) handlerOfOther() interceptor.Handler {
	rt, c := r.s.rt, r.call
	st := rt.Settings()
	owners := st.Servers
	c.Target.Metered = true // a model may read the answer
	own := st.Config.LLM.Runs() && strings.HasPrefix(c.Target.Method, "tasks/")
	var t task // that the call names
	id, named := rawjson.GetString(c.Target.Params, "taskId")
	if named {
		t = r.s.tasks.task(id)
		// No server is asked for the task of a branch that is gone or another principal's.
		if rt.Tools.HasTask(c, id) || own && t.server == "" && folding.IsBranchID(id) {
			c.Target.Name, c.Target.Control = "branch_create", true
			return r.callOwnTool
		}
		if one := st.One(t.server); one != nil {
			owners = one
		}
		switch c.Target.Method {
		case interceptor.MethodTaskResult, interceptor.MethodTaskGet, "tasks/update": // of a tools/call, only later
			c.Target.Name = t.tool
			if c.Attribution.BranchID == "" && t.branch != "" {
				c.Attribution.BranchID, c.Attribution.Source = t.branch, interceptor.SourceCause
			}
		}
	}
	owners = slices.DeleteFunc(slices.Clone(owners), func(srv *upstream.Server) bool {
		// Over a connection of everyone a host could ask for the tasks of another principal.
		return srv.Builtin() || srv.Everyone() && strings.HasPrefix(c.Target.Method, "tasks/") && t.server != srv.Key
	})
	switch {
	case c.Target.Method == "tasks/list" && !r.s.Era.TypedResults && (own || len(owners) > 1):
		r.useServers(owners)
		return func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
			return r.answerTaskList(ctx, c, own)
		}
	case len(owners) > 0:
		return r.toServers(owners)
	case own && named:
		return r.callOwnTool
	}
	return refuse(methodNotFound(rt.echo(c.Target.Method)))
}

func methodNotFound(method string) error {
	return &wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: " + method}
}

// toServers returns the handler that asks servers, and notes them on the request and the call. A
// single server is the target; of several, the strictest policy holds.
func (r *request) toServers(servers []*upstream.Server) interceptor.Handler {
	if len(servers) == 0 { // removed since its name was looked up
		return refuse(errRemoved())
	}
	r.useServers(servers)
	t := &r.call.Target
	if len(servers) == 1 {
		t.Server, t.To = servers[0].Key, servers[0].Name
	} else {
		for _, srv := range servers {
			t.Candidates = append(t.Candidates, srv.Key)
		}
	}
	return r.askServers
}

// errRemoved refuses a call to a server that a reload removed.
func errRemoved() error {
	return &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "upstream_unavailable", Status: 502,
		Message: "the configuration no longer has the upstream of this; list what there is again"}
}

// askServers asks the servers of the request in turn until one knows the target.
func (r *request) askServers(ctx context.Context, c *interceptor.Call) (res *interceptor.Result, err error) {
	var forbidden error
	for _, srv := range r.servers {
		r.ticket.done() // of the previous server: its answer is not delivered
		c.Target.Server, c.Target.To = srv.Key, srv.Name
		if forbidden = r.permit(c); forbidden != nil {
			continue
		}
		res, err = r.send(ctx, c, srv)
		if errors.Is(err, conn.ErrSessionGone) && ctx.Err() == nil { // it forgot the session and did nothing
			res, err = r.send(ctx, c, srv)
		}
		if err != nil || res.Error == nil {
			return res, err
		}
		switch wire.ErrorCode(res.Error) {
		case wire.CodeResourceNotFound, wire.CodeInvalidParams, wire.CodeMethodNotFound:
		default:
			return res, nil
		}
	}
	if res == nil {
		return nil, forbidden
	}
	return res, err
}

// permit returns the refusal of a call that the policy forbids at its server. It decides about what
// is sent, so it stands at the end of the chain.
func (r *request) permit(c *interceptor.Call) error {
	rt := r.s.rt
	d, unknown := rt.Settings().Rules.Permit(c, r.entry)
	switch {
	case d.Warned:
		c.Outcome.Warned = d.Rule
		return nil
	case d.Allowed:
		return nil
	case d == catalog.Removed:
		return errRemoved()
	}
	ref := &interceptor.Refusal{Reason: trace.ReasonPolicy, Code: d.Code, Rule: d.Rule, Status: 403, Message: d.Message, Scopes: d.Scopes}
	if unknown {
		switch c.Target.Method {
		case "tools/call":
			name, _ := rawjson.GetString(r.Msg.Params, "name")
			return r.unknownTool(name, r.entry)
		case "prompts/get":
			ref.Err = rt.unknownPrompt(r.Msg.Params)
		case "completion/complete":
			ref.Err = errUnknownRef
		case "resources/read", "resources/subscribe", "resources/unsubscribe":
			ref.Err = r.s.unknownResource(c.Target.Name)
		}
	}
	return ref
}

// send sends the call to one server.
func (r *request) send(ctx context.Context, c *interceptor.Call, srv *upstream.Server) (*interceptor.Result, error) {
	cn, err := srv.Connection(ctx, r.s.scope)
	if err != nil {
		return nil, unavailable(ctx, srv, err)
	}
	if err := r.checkDefinition(ctx, c, srv); err != nil {
		return nil, err
	}
	r.s.mu.Lock()
	r.server, r.conn = srv.Key, cn
	r.s.inFlight[r] = struct{}{}
	r.s.mu.Unlock()
	if timeout := r.s.rt.Settings().Config.Timeout(srv.Key); timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, &interceptor.Refusal{
			Reason: trace.ReasonTimeout, Code: "upstream_timeout", Status: 504,
			Message: fmt.Sprintf("%s did not answer within %s (timeout_seconds of upstream %s) and was cancelled; ask for less, or have the limit raised", c.Target.NameOrMethod(), timeout, srv.Key),
		})
		defer cancel()
	}
	c.Outcome.Forwarded = true
	ctx, end := r.s.rt.Telemetry.Upstream(ctx, c, srv.Network(), cn.Info().Version)
	m, err := cn.Call(ctx, r.outgoing(c))
	r.ticket.wait(ctx)
	if err == nil && r.lifetime.Err() != nil { // the layers would refuse the answer, for another reason
		err = context.Cause(r.lifetime)
	}
	if err != nil {
		err = callFault(ctx, srv, c, err)
		end(nil, err)
		return nil, err
	}
	res := &interceptor.Result{Body: m.Result, Error: m.Error, Extra: m.Extra}
	end(res, nil)
	r.s.tasks.note(m.Result, c, cn.Info().Modern())
	return res, nil
}

func (r *request) outgoing(c *interceptor.Call) *conn.Request {
	params, header := withoutLogin(withTraceparent(c)), c.Target.Header
	if len(r.entry.Headers) > 0 { // they repeat the arguments that are sent, which Scrub may have changed
		arguments, _ := rawjson.Get(params, "arguments")
		header = catalog.SetHeaders(header, r.entry.Headers, arguments)
	}
	return &conn.Request{Method: c.Target.Method, Params: params, Extra: c.Target.Extra, Header: header, Receiver: r, Call: c}
}

// withTraceparent returns the params to send on, with the W3C trace context of the call in _meta.
// tracestate and baggage stay the host's.
func withTraceparent(c *interceptor.Call) json.RawMessage {
	traceparent := c.Outgoing()
	if traceparent == "" {
		return c.Target.Forward
	}
	return rawjson.Set(c.Target.Forward, rawjson.Quote(traceparent), "_meta", "traceparent")
}

// callOwnTool serves a call of foldgate's own tools, or a request about a task of one.
func (r *request) callOwnTool(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	c.Outcome.Forwarded = true
	body, err := r.s.rt.Tools.Call(ctx, &tools.Request{Call: c, Requester: r})
	if err != nil {
		return nil, err
	}
	return &interceptor.Result{Body: body}, nil
}
