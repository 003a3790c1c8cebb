package gosdk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/tools"
	"github.com/foldgate/foldgate/proxy/wire"
)

// request is a request of the client on its way through the chain.
type request struct {
	f    *Foldgate
	s    *session
	ss   *mcp.ServerSession
	next mcp.MethodHandler // what was mounted before foldgate, and the server
	req  mcp.Request
	ctx  context.Context // of the request
	call *interceptor.Call

	// What next returned, and the same as JSON. They are returned as they are if the chain does not
	// change the JSON.
	res mcp.Result
	err error
	raw json.RawMessage
}

// requestKey is the key of the request in the context of what it causes.
type requestKey struct{}

// requestOf returns the request that caused something, nil if there is none.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

var errTwo = errors.New("two foldgates stand in one server: each call would be charged twice; add one of them only")

func (f *Foldgate) receive(next mcp.MethodHandler) mcp.MethodHandler {
	var mounted atomic.Bool // with all that belongs to it
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if outer := requestOf(ctx); outer != nil && outer.f != f {
			return nil, errTwo
		} else if outer != nil { // mounted twice
			return next(ctx, method, req)
		}
		ss, ok := req.GetSession().(*mcp.ServerSession)
		if !ok {
			return nil, errors.New("fg.Receiving() is middleware for servers")
		}
		r := &request{f: f, s: f.sessionOf(ss, req), ss: ss, next: next, req: req, ctx: ctx}
		if !mounted.Load() {
			if err := r.mounted(); err != nil {
				f.engine.Log.Error(err.Error())
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
			}
			mounted.Store(true)
		}
		params, err := encode(req.GetParams())
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(method, "notifications/") {
			return r.notification(method, params)
		}
		r.call = r.newCall(method, params)
		res, err := f.engine.Chain(ctx, r.call, r.route())
		return r.reply(res, err)
	}
}

// encode returns a value of the SDK as JSON, nil for none.
func encode(v any) (json.RawMessage, error) {
	if p := reflect.ValueOf(v); !p.IsValid() || p.Kind() == reflect.Pointer && p.IsNil() {
		return nil, nil
	}
	return json.Marshal(v)
}

// sessionOf returns the session of a request. A request over HTTP without a session id stands alone.
func (f *Foldgate) sessionOf(ss *mcp.ServerSession, req mcp.Request) *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[ss]; s != nil {
		return s
	}
	id, identity, from := ss.ID(), f.identity(req), "host:unknown"
	if p, ok := req.GetParams().(*mcp.InitializeParams); ok && p != nil && p.ClientInfo != nil {
		from = "host:" + p.ClientInfo.Name
	} else if who, ok := req.(interface{ ClientInfo() *mcp.Implementation }); ok && who.ClientInfo() != nil {
		from = "host:" + who.ClientInfo().Name
	}
	if extra := req.GetExtra(); id == "" && extra != nil && extra.Header != nil {
		return &session{lifetime: f.alone.lifetime, identity: identity, from: from}
	}
	id = cmp.Or(id, "ses_"+uuid.NewString())
	s := &session{id: id, identity: identity, from: from + "#" + id}
	var end context.CancelFunc
	s.lifetime, end = context.WithCancel(f.alone.lifetime)
	f.sessions[ss] = s
	go f.endSession(ss, s, end)
	return s
}

// identity returns the client of a request.
func (f *Foldgate) identity(req mcp.Request) interceptor.Identity {
	if f.opts.Identity != nil {
		return f.opts.Identity(req)
	}
	extra := req.GetExtra()
	if extra == nil || extra.TokenInfo == nil || extra.TokenInfo.UserID == "" {
		return f.cfg.Identity(interceptor.LocalPrincipal)
	}
	id := f.cfg.Identity(extra.TokenInfo.UserID)
	id.Scopes = append(id.Scopes[:len(id.Scopes):len(id.Scopes)], extra.TokenInfo.Scopes...)
	return id
}

// newCall makes the call of a request.
func (r *request) newCall(method string, params json.RawMessage) *interceptor.Call {
	f, extra := r.f, r.req.GetExtra()
	c := &interceptor.Call{
		Origin: interceptor.Origin{Direction: interceptor.FromHost, Identity: f.identity(r.req), Session: r.s.id, From: r.s.from, Transport: "pipe"},
		Target: interceptor.Target{Server: f.opts.Server, To: trace.UpstreamName(f.opts.Server), Method: method, Params: params, Forward: params},
	}
	if extra != nil && extra.Header != nil {
		c.Origin.Transport = "tcp"
	}
	if v, ok := r.req.(interface{ ProtocolVersion() string }); ok {
		c.Origin.Revision = v.ProtocolVersion()
	}
	if f.has(Meter) {
		c.Attribution.Implicit = r.s.id != "" && f.cfg.Attribution.Implicit == "legacy"
	}
	return c
}

// route returns the handler that answers the request at the end of the chain, and completes the call.
func (r *request) route() interceptor.Handler {
	f, c, method, params := r.f, r.call, r.call.Target.Method, r.call.Target.Params
	var refused error
	if f.engine.Recorder != nil {
		meta := wire.ReadMeta(params)
		refused = engine.TakeMeta(c, &meta, f.engine.Recorder, f.cfg.Trace.Correlation == "strict")
	}
	switch method {
	case "initialize", "server/discover", "ping", "logging/setLevel", wire.MethodListen, "tools/list", "prompts/list", "resources/list", "resources/templates/list":
	default: // a model may read the answer
		c.Target.Metered = true
		for _, path := range [][]string{{"name"}, {"uri"}, {"ref", "name"}, {"ref", "uri"}} {
			if c.Target.Name == "" {
				c.Target.Name, _ = rawjson.GetString(params, path...)
			}
		}
	}
	if method == "tools/call" && refused == nil {
		if p, ok := r.req.GetParams().(*mcp.CallToolParamsRaw); ok {
			c.Target.Arguments = p.Arguments // as the client wrote them: encoding may change what they cost
		}
		if f.owns(c.Target.Name) {
			c.Target.Server, c.Target.To = "", "foldgate"
			f.engine.Tools.Attribute(r.ctx, c)
			return r.callOwnTool
		}
		if f.has(Meter) && bytes.Contains(c.Target.Arguments, []byte("branch_id")) {
			refused = r.takeBranchID()
		}
	}
	if refused != nil {
		c.Target.Metered = false
		return func(context.Context, *interceptor.Call) (*interceptor.Result, error) { return nil, refused }
	}
	return r.askServer
}

// takeBranchID takes the branch_id that foldgate added to a tool's schema out of the arguments.
func (r *request) takeBranchID() error {
	c := r.call
	e, err := r.entry(c.Target.Name)
	if err != nil {
		return err
	}
	rest, id, given, err := e.TakeBranchID(c.Target.Arguments)
	switch {
	case err != nil:
		return &wire.Error{Code: wire.CodeInvalidParams, Message: err.Error()}
	case !given:
		return nil
	case id != "":
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceArgument
	}
	c.Target.Arguments, c.Target.Forward = rest, rawjson.Set(c.Target.Forward, rest, "arguments")
	return nil
}

// callOwnTool answers a call of one of foldgate's own tools.
func (r *request) callOwnTool(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	r.res = &mcp.CallToolResult{}
	c.Outcome.Forwarded = true
	body, err := r.f.engine.Tools.Call(ctx, &tools.Request{Call: c, Requester: r})
	if err != nil {
		return nil, err
	}
	return &interceptor.Result{Body: body}, nil
}

// ownKey marks the context of a message of foldgate itself, which is free.
type ownKey struct{}

// Notify implements [tools.Requester]: it sends the progress of a batch.
func (r *request) Notify(m wire.Message) {
	var p mcp.ProgressNotificationParams
	if json.Unmarshal(m.Params, &p) == nil {
		ctx := context.WithValue(context.WithValue(r.ctx, requestKey{}, r), ownKey{}, true)
		_ = r.ss.NotifyProgress(ctx, &p) // the client may have gone
	}
}

// askServer answers a call by the server that foldgate is mounted on.
func (r *request) askServer(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	req := r.req
	if !bytes.Equal(c.Target.Forward, c.Target.Params) {
		var err error
		if req, err = withParams(req, c.Target.Forward); err != nil {
			return nil, err
		}
	}
	c.Outcome.Forwarded = true
	answer, err := r.next(context.WithValue(ctx, requestKey{}, r), c.Target.Method, req)
	res, err := r.outcome(ctx, answer, err)
	if err != nil || res.Error != nil {
		return res, err
	}
	switch c.Target.Method {
	case "tools/list":
		res.Body = r.f.shownTools(res.Body)
	case "initialize", "server/discover":
		if r.f.has(Meter | Fold) {
			own, _ := rawjson.GetString(res.Body, "instructions")
			res.Body = rawjson.Set(res.Body, rawjson.Quote(strings.TrimPrefix(own+"\n\n"+tools.Instructions, "\n\n")), "instructions")
		}
	}
	return res, nil
}

// outcome notes what the server or the client answered, and returns it for the chain.
func (r *request) outcome(ctx context.Context, res mcp.Result, err error) (*interceptor.Result, error) {
	r.res, r.err = res, err
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		r.raw = errorObject(err)
		return &interceptor.Result{Error: r.raw}, nil
	}
	r.raw, err = encodeResult(res)
	return &interceptor.Result{Body: r.raw}, err
}

// encodeResult returns a result as JSON. The SDK's encoder copies a text five times, which would cost
// more than the rest of foldgate.
func encodeResult(res mcp.Result) (json.RawMessage, error) {
	t, ok := res.(*mcp.CallToolResult)
	if !ok || t == nil || t.InputRequests != nil || t.RequestState != "" {
		return json.Marshal(res)
	}
	rest := *t
	rest.Content = []mcp.Content{}
	out, err := json.Marshal(&rest) // it ends with what follows the content
	if err != nil || len(t.Content) == 0 {
		return out, err
	}
	blocks := []byte{'['}
	for i, c := range t.Content {
		if i > 0 {
			blocks = append(blocks, ',')
		}
		if c, ok := c.(*mcp.TextContent); ok && c != nil && c.Meta == nil && c.Annotations == nil {
			blocks = append(rawjson.AppendQuote(append(blocks, `{"type":"text","text":`...), c.Text), '}')
			continue
		}
		block, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, block...)
	}
	return rawjson.Set(out, append(blocks, ']'), "content"), nil
}

// withParams returns a copy of a request with other params.
func withParams(req mcp.Request, params json.RawMessage) (mcp.Request, error) {
	out := reflect.New(reflect.TypeOf(req).Elem())
	out.Elem().Set(reflect.ValueOf(req).Elem())
	p := reflect.New(reflect.TypeOf(req.GetParams()).Elem())
	if err := json.Unmarshal(params, p.Interface()); err != nil {
		return nil, err
	}
	out.Elem().FieldByName("Params").Set(p)
	return out.Interface().(mcp.Request), nil
}

// errorObject returns an error as the SDK writes it.
func errorObject(err error) json.RawMessage {
	id, _ := jsonrpc.MakeID("")
	line, fault := jsonrpc.EncodeMessage(&jsonrpc.Response{ID: id, Error: err})
	if raw, ok := rawjson.Get(line, "error"); ok && fault == nil {
		return raw
	}
	return (&wire.Error{Code: wire.CodeInternal, Message: err.Error()}).JSON()
}

// reply turns what the chain returned into a result of the SDK.
func (r *request) reply(res *interceptor.Result, err error) (mcp.Result, error) {
	if err != nil {
		return r.refusal(err)
	}
	if res.Error != nil {
		if r.err != nil && bytes.Equal(res.Error, r.raw) {
			return nil, r.err
		}
		return nil, decodeError(res.Error)
	}
	if bytes.Equal(res.Body, r.raw) {
		return r.res, nil
	}
	return decode(r.res, res.Body)
}

// decode returns a result of the type of like. What the SDK holds as any stays JSON.
func decode(like mcp.Result, body json.RawMessage) (mcp.Result, error) {
	if like == nil {
		like = &mcp.CallToolResult{}
	}
	out := reflect.New(reflect.TypeOf(like).Elem()).Interface().(mcp.Result)
	if err := json.Unmarshal(body, out); err != nil {
		return nil, err
	}
	switch out := out.(type) {
	case *mcp.CallToolResult:
		if raw, ok := rawjson.Get(body, "structuredContent"); ok {
			out.StructuredContent = json.RawMessage(raw)
		}
	case *mcp.ListToolsResult:
		all, _ := rawjson.Get(body, "tools")
		i := 0
		for item := range rawjson.Elements(all) {
			for name, field := range map[string]*any{"inputSchema": &out.Tools[i].InputSchema, "outputSchema": &out.Tools[i].OutputSchema} {
				if raw, ok := rawjson.Get(item, name); ok {
					*field = json.RawMessage(raw)
				}
			}
			i++
		}
	}
	return out, nil
}

func decodeError(raw json.RawMessage) error {
	out := &jsonrpc.Error{Code: jsonrpc.CodeInternalError}
	if err := json.Unmarshal(raw, out); err != nil {
		out.Message = "the error could not be read"
	}
	return out
}

// refusal returns the answer to a request that foldgate refuses or fails.
func (r *request) refusal(err error) (mcp.Result, error) {
	if cause := r.ctx.Err(); cause != nil && errors.Is(err, cause) { // the client waits no longer
		return nil, err
	}
	m := engine.Refusal(r.f.engine.Boundary, r.call.Target.Method, r.call.Origin.Revision >= wire.VersionModern, err)
	if m.Error != nil {
		return nil, decodeError(m.Error)
	}
	return decode(nil, m.Result)
}

// notification takes a notification of the client.
func (r *request) notification(method string, params json.RawMessage) (mcp.Result, error) {
	f, req := r.f, r.req
	m := interceptor.Message{Server: f.opts.Server, Body: params}
	f.engine.Boundary.ToServer(r.ctx, &m)
	if f.has(Trace) {
		n := interceptor.Notification{
			From: r.s.from, To: trace.UpstreamName(f.opts.Server), Session: r.s.id, Principal: r.s.identity.Principal, Team: r.s.identity.Team, Method: method,
		}
		if err := f.engine.Recorder.Notification(n, &m); err != nil {
			f.engine.Log.Error("notification withheld", "method", method, "err", err)
			return nil, nil
		}
	}
	if m.Verdict >= interceptor.Blocked {
		f.engine.Log.Warn("notification of the client withheld: it could not be checked for secrets, or holds one", "method", method)
		return nil, nil
	}
	if m.Verdict == interceptor.Redacted {
		var err error
		if req, err = withParams(req, m.Body); err != nil {
			return nil, err
		}
	}
	return r.next(context.WithValue(r.ctx, requestKey{}, r), method, req)
}
