package gosdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/wire"
)

// sendKey is the key of the foldgate that has seen what a server sends.
type sendKey struct{}

func (f *Foldgate) send(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if seen, ok := ctx.Value(probeKey{}).(*bool); ok {
			*seen = true
			return nil, nil
		}
		if ctx.Value(sendKey{}) == f { // mounted twice
			return next(ctx, method, req)
		}
		ctx = context.WithValue(ctx, sendKey{}, f)
		params, err := encode(req.GetParams())
		if err != nil {
			return nil, err
		}
		ss, ok := req.GetSession().(*mcp.ServerSession)
		if !ok {
			return nil, errors.New("fg.Sending() is middleware for servers")
		}
		out := &outgoing{f: f, s: f.knownSession(ctx, ss), next: next, method: method, req: req}
		if r := requestOf(ctx); r != nil {
			out.cause = r.call
		}
		switch {
		case method == "ping":
			return next(ctx, method, req)
		case strings.HasPrefix(method, "notifications/"):
			return nil, out.notify(ctx, params)
		}
		return out.ask(ctx, params)
	}
}

// knownSession returns the session of what a server sends.
func (f *Foldgate) knownSession(ctx context.Context, ss *mcp.ServerSession) *session {
	if r := requestOf(ctx); r != nil && r.f == f {
		return r.s
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[ss]; s != nil {
		return s
	}
	return &session{lifetime: f.alone.lifetime, identity: f.cfg.Identity(interceptor.LocalPrincipal), from: "host:unknown"}
}

// outgoing is a message of the server to the client.
type outgoing struct {
	f      *Foldgate
	s      *session
	cause  *interceptor.Call // during which the server sends it; nil if it is not known
	next   mcp.MethodHandler
	method string
	req    mcp.Request
}

// notify sends a notification, if foldgate lets it go.
func (o *outgoing) notify(ctx context.Context, params json.RawMessage) error {
	f := o.f
	n := interceptor.Notification{
		From: trace.UpstreamName(f.opts.Server), To: o.s.from, Session: o.s.id, Principal: o.s.identity.Principal, Team: o.s.identity.Team, Server: f.opts.Server, Method: o.method,
	}
	if o.cause != nil {
		c := o.cause
		n.Correlates, n.Context, n.ForTool = []string{c.Outcome.Record}, c.Attribution.Context, c.Tool()
		if c.Attribution.Branch != nil {
			n.Branch = c.Attribution.Branch.ID
		}
		if c.Origin.Revision >= wire.VersionModern {
			n.Revision = c.Origin.Revision
		}
	}
	if ctx.Value(ownKey{}) != nil {
		n.From, n.Server = "foldgate", ""
	}
	m := interceptor.Message{Method: n.Method, Body: params}
	err := f.engine.Admit(ctx, n, &m)
	req := o.req
	if err == nil && m.Verdict == interceptor.Redacted {
		req, err = withParams(o.req, m.Body)
	}
	if err == nil {
		_, err = o.next(ctx, o.method, req)
	}
	return err
}

// ask runs a request of the server down the chain, and returns the client's answer.
func (o *outgoing) ask(ctx context.Context, params json.RawMessage) (mcp.Result, error) {
	f := o.f
	if f.has(Trace) {
		if err := f.engine.Recorder.AllowRequest(o.s.identity.Principal, o.s.id, f.opts.Server, false, len(params)); err != nil {
			return nil, fmt.Errorf("foldgate did not ask the client: %w", err)
		}
	}
	c := &interceptor.Call{
		Origin: interceptor.Origin{Direction: interceptor.ToHost, Identity: o.s.identity, Session: o.s.id, From: trace.UpstreamName(f.opts.Server)},
		Target: interceptor.Target{Server: f.opts.Server, To: o.s.from, Method: o.method, Params: params, Forward: params, Metered: o.method != "roots/list"},
	}
	if o.cause != nil {
		why := o.cause
		c.Target.ForTool = why.Tool()
		c.Origin.Correlates, c.Origin.Revision, c.Origin.Traceparent = []string{why.Outcome.Record}, why.Origin.Revision, why.Outgoing()
		c.Attribution.Branch = why.Attribution.Branch
	}
	r := &request{f: f, s: o.s, ctx: ctx, call: c}
	res, err := f.engine.Chain(ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		req := o.req
		if !bytes.Equal(c.Target.Forward, params) {
			var err error
			if req, err = withParams(o.req, c.Target.Forward); err != nil {
				return nil, err
			}
		}
		c.Outcome.Forwarded = true
		answer, err := o.next(ctx, o.method, req)
		return r.outcome(ctx, answer, err)
	})
	return r.reply(res, err)
}
