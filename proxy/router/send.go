package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// remote is a list of servers that may own what a call names, the likeliest
// first.
type remote []*upstream.Server

// answer asks the servers in turn until one knows what the call names.
func (o remote) answer(ctx context.Context, r *request, c *interceptor.Call) (res *interceptor.Result, err error) {
	for _, srv := range o {
		r.Sent() // the answer of the server before is not delivered
		c.Target.Server, c.Target.To = srv.Key, "upstream:"+srv.Key
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
	return res, err
}

// send is the end of the chain: the call leaves for a server.
func (r *request) send(ctx context.Context, c *interceptor.Call, srv *upstream.Server) (*interceptor.Result, error) {
	cn, err := srv.Connection(ctx, r.s.scope)
	if err != nil {
		return nil, unavailable(ctx, srv, err)
	}
	r.s.mu.Lock()
	r.server, r.conn = srv.Key, cn
	r.s.mu.Unlock()
	ctx, cancel := limit(ctx, c, srv)
	defer cancel()
	ctx, end := r.s.r.Telemetry.Upstream(ctx, c, srv.Network(), cn.Info().Version)
	m, err := cn.Call(ctx, r.outgoing(c))
	r.awaitTurn(ctx)
	if err != nil {
		err = callFault(ctx, srv, c, err)
		end(nil, err)
		return nil, err
	}
	res := &interceptor.Result{Body: m.Result, Error: m.Error, Extra: m.Extra}
	end(res, nil)
	r.s.noteTask(m.Result, c)
	return res, nil
}

// outgoing returns the request for the connection.
func (r *request) outgoing(c *interceptor.Call) *conn.Request {
	params, header := withTraceparent(c), c.Target.Header
	if len(r.headers) > 0 { // they repeat the arguments that are sent, which Scrub may have changed
		arguments, _ := rawjson.Get(params, "arguments")
		header = catalog.SetHeaders(header, r.headers, arguments)
	}
	return &conn.Request{Method: c.Target.Method, Params: params, Extra: c.Target.Extra, Header: header, HostID: r.Msg.ID, Caller: r, Call: c}
}

// withTraceparent returns the params to send on, with the W3C trace context of
// the call in _meta. tracestate and baggage stay the host's.
func withTraceparent(c *interceptor.Call) json.RawMessage {
	traceparent := c.Outgoing()
	if traceparent == "" {
		return c.Target.Forward
	}
	return rawjson.Set(c.Target.Forward, rawjson.Quote(traceparent), "_meta", "traceparent")
}

// ownTools is the owner of foldgate's own tools.
type ownTools struct{}

func (ownTools) answer(ctx context.Context, r *request, c *interceptor.Call) (*interceptor.Result, error) {
	m, err := r.s.r.Tools.Call(ctx, &conn.Request{Method: c.Target.Method, Params: c.Target.Forward, HostID: r.Msg.ID, Caller: r, Call: c})
	if err != nil {
		return nil, err
	}
	return &interceptor.Result{Body: m.Result, Error: m.Error}, nil
}

// limit bounds a call by the server's timeout_seconds.
func limit(ctx context.Context, c *interceptor.Call, srv *upstream.Server) (context.Context, context.CancelFunc) {
	if srv.Config.TimeoutSeconds == 0 {
		return ctx, func() {}
	}
	timeout := time.Duration(srv.Config.TimeoutSeconds) * time.Second
	return context.WithTimeoutCause(ctx, timeout, &interceptor.Refusal{
		Reason: "timeout", Code: "upstream_timeout", Status: 504,
		Message: fmt.Sprintf("%s did not answer within %s (timeout_seconds of upstream %s) and was cancelled; ask for less, or have the limit raised", c.Target.Name, timeout, srv.Key),
	})
}

// unavailable is the error of a call that never left.
func unavailable(ctx context.Context, srv *upstream.Server, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return &interceptor.Refusal{Reason: "upstream", Code: "upstream_unavailable", Status: 502, Err: err,
		Message: fmt.Sprintf("%v. Nothing was sent; try again in a few seconds, or go on without the tools of %s", err, srv.Key)}
}

// callFault is the error of a call that left and has no response.
func callFault(ctx context.Context, srv *upstream.Server, c *interceptor.Call, err error) error {
	var ref *interceptor.Refusal
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return cause
	case errors.As(err, &ref):
		return err
	case errors.Is(err, conn.ErrClosed):
		return &interceptor.Refusal{Reason: "upstream", Code: "upstream_crashed", Status: 502, Err: err,
			Message: fmt.Sprintf("upstream %s ended while it handled %s: %v. The call may have had an effect; the upstream is started again with the next call", srv.Key, c.Target.Name, err)}
	}
	return &interceptor.Refusal{Reason: "upstream", Code: "upstream_failed", Status: 502, Err: err, Message: fmt.Sprintf("upstream %s: %v", srv.Key, err)}
}

// task is what the methods of tasks need to know of the call that became a task.
type task struct {
	server string // its key
	tool   string
	branch string // id of the branch that pays for the result; "" in main
}

// tasks are the tasks of a session.
type tasks struct {
	byID map[string]task
	ids  []string // oldest first
}

// maxTasks is how many tasks a session remembers. It forgets the oldest first.
// The server of a forgotten task is found by asking each, and the caller pays.
const maxTasks = 1000

// task returns the task with that id, the zero value if it is not known.
func (s *Session) task(id string) task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks.byID[id]
}

// noteTask remembers the server that made a task, and by which call.
func (s *Session) noteTask(result []byte, c *interceptor.Call) {
	if _, asked := rawjson.Get(c.Target.Params, "task"); !asked && !strings.HasPrefix(c.Target.Method, "tasks/") {
		return
	}
	id, ok := rawjson.GetString(result, "task", "taskId")
	if !ok {
		if id, ok = rawjson.GetString(result, "taskId"); !ok {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, known := s.tasks.byID[id]
	if !known {
		if len(s.tasks.ids) == maxTasks {
			delete(s.tasks.byID, s.tasks.ids[0])
			s.tasks.ids = slices.Delete(s.tasks.ids, 0, 1)
		}
		s.tasks.ids = append(s.tasks.ids, id)
	}
	if t.server = c.Target.Server; c.Target.Method == "tools/call" {
		if t.tool = c.Target.Name; c.Attribution.Branch != nil {
			t.branch = c.Attribution.Branch.ID
		}
	}
	if s.tasks.byID == nil {
		s.tasks.byID = map[string]task{}
	}
	s.tasks.byID[id] = t
}

// refusal returns the reply that a host reads if foldgate refuses or fails a
// request: a tool result that the model can act on, or a JSON-RPC error. Nothing
// else decides this.
func (rt *Router) refusal(r *request, err error) server.Reply {
	var rpc *wire.Error
	if errors.As(err, &rpc) {
		return rt.clean(server.Reply{Error: rpc.JSON()})
	}
	var ref *interceptor.Refusal
	if !errors.As(err, &ref) {
		ref = &interceptor.Refusal{Code: "upstream_failed", Status: 502, Message: err.Error()}
		if cause := context.Cause(r.lifetime); cause != nil && errors.Is(err, cause) { // no server is to blame
			ref = &interceptor.Refusal{Code: "session_ended", Status: 503,
				Message: fmt.Sprintf("the request was cut off with its session (%v). It may have had an effect; ask again in another session", cause)}
		}
	}
	if r.Msg.Method != "tools/call" {
		return rt.clean(server.Reply{Error: (&wire.Error{Code: wire.CodeInternal, Message: ref.Message, Data: ref.JSON()}).JSON()})
	}
	return rt.clean(server.Reply{Result: ref.ToolResult(r.s.Era.TypedResults)})
}

// clean removes secrets from a refusal. It may quote what an agent wrote, and
// come from a layer outside Scrub.
func (rt *Router) clean(reply server.Reply) server.Reply {
	part := &reply.Error
	if reply.Error == nil {
		part = &reply.Result
	}
	msg := interceptor.Message{Body: *part, Always: true}
	if rt.Boundary.Inbound(rt.lifetime, &msg); msg.Verdict == interceptor.Withheld {
		return server.Reply{Error: (&wire.Error{Code: wire.CodeInternal,
			Message: "the request failed, and why could not be checked for secrets and was withheld; ask for less at a time, or raise scrub.timeout_ms"}).JSON()}
	}
	*part = msg.Body
	return reply
}

// errorObject returns the JSON-RPC error object of any error.
func errorObject(err error) []byte {
	var rpc *wire.Error
	if !errors.As(err, &rpc) {
		rpc = &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
	}
	return rpc.JSON()
}
