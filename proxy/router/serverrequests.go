package router

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// source is where a message of a server comes from.
type source struct {
	server string // its key; "" for foldgate's own tools
	conn   conn.Conn
	r      *request // on whose stream the host gets the message; nil for none
	cause
	// inferred means that the server did not say for which request it sent the message: r is any of those in
	// flight at the server. On stdio this holds for every request of a server.
	inferred bool
}

// cause is the call for which a server sent something, as far as it is known.
type cause struct {
	call      *interceptor.Call // nil if unknown
	tool      string            // the tool, if all calls that it may be agree on it; "" if unknown
	branch    *folding.Branch   // the same for the branch
	ambiguous bool              // calls of several branches may be meant
}

func causeOf(c *interceptor.Call) cause {
	return cause{call: c, tool: c.Tool(), branch: c.Attribution.Branch}
}

// inferCause returns the cause of a message that names no request, and a request at the server, nil if there is none.
// If several are at it, the call is not known, and the tool and the branch only if all of them have the same. Without
// a request at the server, they are those of the last one.
func (s *Session) inferCause(server string) (r *request, found cause) {
	s.mu.Lock()
	for other := range s.inFlight {
		switch {
		case other.server != server:
		case r == nil:
			r, found = other, causeOf(other.call)
		default:
			found.call = nil
			if other.call.Tool() != r.call.Tool() {
				found.tool = ""
			}
			if branchID(other.call.Attribution.Branch) != branchID(r.call.Attribution.Branch) {
				found.branch, found.ambiguous = nil, true
			}
		}
	}
	s.mu.Unlock()
	if r == nil {
		found = s.recentlyEnded(server, "")
	}
	return r, found
}

// endedCall is a call that has ended. It may be the cause of a message for lateTime.
type endedCall struct {
	cause
	server string
	token  string // the wire.TokenKey of its progress token, "" for none
	ended  time.Time
}

const (
	lateTime      = 5 * time.Second
	maxEndedCalls = 64 // calls of a session
)

// recentlyEnded returns the last call at a server that has ended a moment ago: the one with a progress token,
// any for "".
func (s *Session) recentlyEnded(server, token string) cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, last := range slices.Backward(s.endedCalls) {
		if last.server == server && (token == "" || last.token == token) && time.Since(last.ended) < lateTime {
			return last.cause
		}
	}
	return cause{}
}

// callEnded forgets a request that was sent to a server, and remembers it for messages that come late. Once no other
// is at the server, it ends the requests of the server that name no call.
func (s *Session) callEnded(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.server == "" {
		return
	}
	delete(s.inFlight, r)
	if len(s.endedCalls) == maxEndedCalls {
		s.endedCalls = slices.Delete(s.endedCalls, 0, 1)
	}
	token, _ := rawjson.Get(r.Meta.Raw, "progressToken")
	s.endedCalls = append(s.endedCalls, endedCall{cause{tool: r.call.Tool(), branch: r.call.Attribution.Branch}, r.server, wire.TokenKey(token), time.Now()})
	for other := range s.inFlight {
		if other.server == r.server {
			return
		}
	}
	for _, req := range s.serverRequests {
		if req.inferred && req.server == r.server {
			req.cancel(errors.New("the call that asked is over"))
		}
	}
}

// branchID returns the id of a branch, "" for main.
func branchID(b *folding.Branch) string {
	if b == nil {
		return ""
	}
	return b.ID
}

// serverRequest is a request of a server that a host is to answer: sampling, elicitation, roots, or
// one that foldgate does not know.
type serverRequest struct {
	source
	session  *Session
	id       string            // under which the host knows it
	msg      wire.Message      // as the server sent it
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
	refused := s.rt.Recorder.AllowRequest(s.Principal, s.ID, from.server, n > maxServerRequests, len(m.Params)+len(m.Extra))
	switch {
	case n > 2*maxServerRequests:
		s.openServerRequests.Add(-1)
		s.rt.Log.Debug("request of an upstream dropped: too many are under way", "upstream", from.server, "method", m.Method)
		return
	case refused != nil:
		answer.Error = (&wire.Error{Code: wire.CodeInternal, Message: refused.Error()}).JSON()
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
	req := &serverRequest{source: from, session: s, id: strconv.FormatInt(s.lastServerRequest.Add(1), 10), msg: m, response: make(chan wire.Message, 1)}
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
		Target:      interceptor.Target{Server: req.server, ForTool: req.tool, To: s.traceName(), Method: m.Method, Params: m.Params, Forward: m.Params, Extra: m.Extra, Metered: m.Method != "roots/list"},
		Attribution: interceptor.Attribution{Branch: req.branch, Ambiguous: req.ambiguous},
	}
	if req.r != nil {
		c.Origin.Revision = req.r.call.Origin.Revision
	}
	if req.call != nil {
		c.Origin.Correlates, c.Origin.Traceparent = []string{req.call.Outcome.Record}, req.call.Outgoing()
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
		s.deliver(req.r, n, wire.Message{Method: wire.MethodCancelled, Params: wire.CancelledParams(json.RawMessage(req.id), err.Error())})
		return nil, err
	})
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
