package router

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// serverRequest is a request of a server that a host is to answer: sampling, elicitation, roots, or
// one that foldgate does not know.
type serverRequest struct {
	source
	session  *Session
	id       string            // under which the host knows it
	msg      wire.Message      // as the server sent it
	cause    causingCall       // the call for which the server asks
	response chan wire.Message // capacity 1
	ticket   ticket            // its place on the way to the host
	lifetime context.Context   // ends with the request it was asked for, or when it is withdrawn
	cancel   context.CancelCauseFunc
}

// maxServerRequests is how many requests of servers a session may have under way.
const maxServerRequests = 1000

// forwardServerRequest hands a request of a server to the host, and the host's response to the server. The
// request is registered before forwardServerRequest returns, because the server may withdraw it at once; the
// rest goes on in the background. Requests over maxServerRequests or askBurst are refused, and over twice
// maxServerRequests dropped, so that a server can't fill the memory, the trace, or the host's screen.
func (s *Session) forwardServerRequest(from source, m wire.Message) {
	answer := wire.Message{ID: m.ID}
	var req *serverRequest
	n := s.openServerRequests.Add(1)
	var refused error
	if m.Method != "ping" {
		refused = s.rt.RequestRate.Allow(s.Principal, s.ID, from.server, n > maxServerRequests, len(m.Params)+len(m.Extra))
	}
	switch {
	case n > 2*maxServerRequests:
		s.openServerRequests.Add(-1)
		s.rt.Log.Debug("request of an upstream dropped: too many are under way", "upstream", from.server, "method", m.Method)
		return
	case refused != nil:
		answer.Error = (&wire.Error{Code: wire.CodeInternal, Message: refused.Error()}).JSON()
	case m.Method == "ping": // about the connection, so foldgate answers it
		answer.Result = json.RawMessage(`{}`)
	default:
		req = s.newServerRequest(from, m)
	}
	s.rt.wg.Go(func() {
		defer s.openServerRequests.Add(-1)
		if req != nil {
			defer req.end()
			switch res, err := req.askHost(); {
			case errors.Is(err, errWithdrawn):
				return // the server does not wait for an answer
			case err != nil:
				answer.Error = (&wire.Error{Code: wire.CodeInternal, Message: err.Error()}).JSON()
			default:
				answer.Result, answer.Error, answer.Extra = res.Body, res.Error, res.Extra
			}
		}
		if err := from.conn.Send(s.rt.lifetime, answer); err != nil {
			s.rt.Log.Debug("answer could not be delivered to the upstream", "upstream", from.server, "err", err)
		}
	})
}

func (s *Session) newServerRequest(from source, m wire.Message) *serverRequest {
	req := &serverRequest{source: from, session: s, id: strconv.FormatInt(s.lastServerRequest.Add(1), 10), msg: m, cause: s.causeOf(from), response: make(chan wire.Message, 1)}
	if s.Ordered() {
		req.ticket = s.order(from.server).ticket(&s.rt.wg)
	}
	parent := s.lifetime
	if !from.inferred {
		parent = from.r.lifetime
	}
	req.lifetime, req.cancel = context.WithCancelCause(parent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serverRequests[req.id] = req
	return req
}

func (req *serverRequest) end() {
	s := req.session
	s.mu.Lock()
	delete(s.serverRequests, req.id)
	s.mu.Unlock()
	req.ticket.done()
	req.cancel(nil)
}

// askHost runs the request down the chain and to the host, and returns the host's response.
func (req *serverRequest) askHost() (*interceptor.Result, error) {
	s, m := req.session, req.msg
	c := &interceptor.Call{
		Origin:      interceptor.Origin{Direction: interceptor.ToHost, Identity: s.identity(), Session: s.ID, From: trace.UpstreamName(req.server), ID: m.ID},
		Target:      interceptor.Target{Server: req.server, ForTool: req.cause.tool, To: s.traceName(), Method: m.Method, Params: m.Params, Forward: m.Params, Extra: m.Extra, Metered: m.Method != "roots/list"},
		Attribution: interceptor.Attribution{Branch: req.cause.branch, Ambiguous: req.cause.ambiguous},
	}
	if req.r != nil {
		c.Origin.Revision = req.r.call.Origin.Revision
	}
	if req.cause.call != nil {
		c.Origin.Correlates, c.Origin.Traceparent = []string{req.cause.call.Outcome.Record}, req.cause.call.Outgoing()
	}
	return s.rt.Chain(req.lifetime, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		req.ticket.wait(ctx)
		if ctx.Err() != nil { // the host need not hear of it
			return nil, context.Cause(ctx)
		}
		out := wire.Message{ID: json.RawMessage(req.id), Method: c.Target.Method, Params: c.Target.Forward, Extra: c.Target.Extra}
		c.Outcome.Forwarded = true
		if err := s.send(req.r, out); err != nil {
			return nil, fmt.Errorf("the host can't be reached for %s: %w", c.Target.Method, err)
		}
		req.ticket.done()
		select {
		case a := <-req.response:
			return &interceptor.Result{Body: a.Result, Error: a.Error, Extra: a.Extra}, nil
		case <-req.conn.Done():
			req.cancel(conn.ErrClosed)
		case <-ctx.Done():
		}
		err := cmp.Or(context.Cause(req.lifetime), context.Cause(ctx))
		n := interceptor.Notification{From: "foldgate", Correlates: []string{c.Outcome.Record}, Context: c.Attribution.Context}
		s.deliver(req.r, n, "", wire.Message{Method: wire.MethodCancelled, Params: wire.CancelledParams(json.RawMessage(req.id), err.Error())})
		return nil, err
	})
}

// cancelOrphaned ends the requests of a server that name no call, once no call is in flight there. The
// caller holds s.mu.
func (s *Session) cancelOrphaned(server string) {
	for r := range s.inFlight {
		if r.server == server {
			return
		}
	}
	for _, req := range s.serverRequests {
		if req.inferred && req.server == server {
			req.cancel(errors.New("the call that asked is over"))
		}
	}
}

const maxReason = 200 // characters of a reason that the host is told

// withdrawServerRequest ends a request that its server no longer wants answered. The host is told the reason,
// unless the reason must be withheld.
func (s *Session) withdrawServerRequest(from source, params json.RawMessage) {
	id, _ := rawjson.Get(params, "requestId")
	reason, _ := rawjson.GetString(params, "reason")
	msg := interceptor.Message{Server: from.server, Text: reason}
	if s.rt.Boundary.ToHost(s.lifetime, &msg); msg.Verdict >= interceptor.Blocked {
		msg.Text = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.serverRequests {
		if req.conn == from.conn && string(req.msg.ID) == string(id) {
			req.cancel(cancelled{errWithdrawn, folding.Shorten(msg.Text, maxReason)})
		}
	}
}

// HandleResponse takes the host's response to a server's request. It drops a response to no request: a late
// one to a cancelled request.
func (s *Session) HandleResponse(m wire.Message) {
	s.mu.Lock()
	req := s.serverRequests[strconv.FormatInt(wire.OwnID(m.ID), 10)]
	s.mu.Unlock()
	if req == nil {
		s.rt.Log.Debug("response to no request of ours", "id", string(m.ID))
		return
	}
	select {
	case req.response <- m:
	default:
	}
}
