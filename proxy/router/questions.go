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
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// question is a request of a server that a host is to answer: sampling, elicitation, roots, or
// one that foldgate does not know.
type question struct {
	origin
	session  *Session
	id       string            // under which the host knows it
	msg      wire.Message      // as the server sent it
	why      cause             // the call for which the server asks
	answered chan wire.Message // capacity 1
	ticket   ticket            // its place on the way to the host
	lifetime context.Context   // ends with the request it was asked for, or when it is withdrawn
	cancel   context.CancelCauseFunc
}

// maxAnswering is how many requests of servers a session may have under way.
const maxAnswering = 1000

// ask hands a request of a server to the host, and the host's answer to the server. The question
// is registered before ask returns, because the server may withdraw it at once; the rest goes on in the
// background. Requests over maxAnswering or askBurst are refused, and over twice maxAnswering dropped, so
// that a server can't fill the memory, the trace, or the host's screen.
func (s *Session) ask(o origin, m wire.Message) {
	answer := wire.Message{ID: m.ID}
	var q *question
	n := s.answering.Add(1)
	var refused error
	if m.Method != "ping" {
		refused = s.rt.RequestRate.Allow(s.Principal, s.ID, o.server, n > maxAnswering, len(m.Params)+len(m.Extra))
	}
	switch {
	case n > 2*maxAnswering:
		s.answering.Add(-1)
		s.rt.Log.Debug("request of an upstream dropped: too many are under way", "upstream", o.server, "method", m.Method)
		return
	case refused != nil:
		answer.Error = (&wire.Error{Code: wire.CodeInternal, Message: refused.Error()}).JSON()
	case m.Method == "ping": // about the connection, so foldgate answers it
		answer.Result = json.RawMessage(`{}`)
	default:
		q = s.register(o, m)
	}
	s.rt.wg.Go(func() {
		defer s.answering.Add(-1)
		if q != nil {
			defer q.forget()
			switch res, err := q.askHost(); {
			case errors.Is(err, errWithdrawn):
				return // the server does not wait for an answer
			case err != nil:
				answer.Error = (&wire.Error{Code: wire.CodeInternal, Message: err.Error()}).JSON()
			default:
				answer.Result, answer.Error, answer.Extra = res.Body, res.Error, res.Extra
			}
		}
		if err := o.conn.Send(s.rt.lifetime, answer); err != nil {
			s.rt.Log.Debug("answer could not be delivered to the upstream", "upstream", o.server, "err", err)
		}
	})
}

func (s *Session) register(o origin, m wire.Message) *question {
	q := &question{origin: o, session: s, id: strconv.FormatInt(s.asked.Add(1), 10), msg: m, why: s.causeOf(o), answered: make(chan wire.Message, 1)}
	if s.Ordered() {
		q.ticket = s.order(o.server).ticket(&s.rt.wg)
	}
	parent := s.lifetime
	if !o.guess {
		parent = o.r.lifetime
	}
	q.lifetime, q.cancel = context.WithCancelCause(parent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.questions[q.id] = q
	return q
}

func (q *question) forget() {
	s := q.session
	s.mu.Lock()
	delete(s.questions, q.id)
	s.mu.Unlock()
	q.ticket.done()
	q.cancel(nil)
}

// askHost runs the question down the chain and to the host, and returns the host's answer.
func (q *question) askHost() (*interceptor.Result, error) {
	s, m := q.session, q.msg
	c := &interceptor.Call{
		Origin:      interceptor.Origin{Direction: interceptor.ToHost, Identity: s.identity(), Session: s.ID, From: "upstream:" + q.server, ID: m.ID},
		Target:      interceptor.Target{Server: q.server, ForTool: q.why.tool, To: s.traceName(), Method: m.Method, Params: m.Params, Forward: m.Params, Extra: m.Extra, Metered: m.Method != "roots/list"},
		Attribution: interceptor.Attribution{Branch: q.why.branch, Ambiguous: q.why.ambiguous},
	}
	if q.r != nil {
		c.Origin.Revision = q.r.call.Origin.Revision
	}
	if q.why.call != nil {
		c.Origin.Correlates, c.Origin.Traceparent = []string{q.why.call.Outcome.Record}, q.why.call.Outgoing()
	}
	return s.rt.Chain(q.lifetime, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		q.ticket.wait(ctx)
		if ctx.Err() != nil { // the host need not hear of it
			return nil, context.Cause(ctx)
		}
		out := wire.Message{ID: json.RawMessage(q.id), Method: c.Target.Method, Params: c.Target.Forward, Extra: c.Target.Extra}
		c.Outcome.Forwarded = true
		if err := s.send(q.r, out); err != nil {
			return nil, fmt.Errorf("the host can't be reached for %s: %w", c.Target.Method, err)
		}
		q.ticket.done()
		select {
		case a := <-q.answered:
			return &interceptor.Result{Body: a.Result, Error: a.Error, Extra: a.Extra}, nil
		case <-q.conn.Done():
			q.cancel(conn.ErrClosed)
		case <-ctx.Done():
		}
		err := cmp.Or(context.Cause(q.lifetime), context.Cause(ctx))
		n := interceptor.Notification{From: "foldgate", Correlates: []string{c.Outcome.Record}, Context: c.Attribution.Context}
		s.deliver(q.r, n, "", wire.Message{Method: wire.MethodCancelled, Params: wire.CancelledParams(json.RawMessage(q.id), err.Error())})
		return nil, err
	})
}

// endGuesses ends the questions of a server at which no request is left that they could belong
// to. The caller holds s.mu.
func (s *Session) endGuesses(server string) {
	for r := range s.at {
		if r.server == server {
			return
		}
	}
	for _, q := range s.questions {
		if q.guess && q.server == server {
			q.cancel(errors.New("the call that asked is over"))
		}
	}
}

const maxReason = 200 // characters of a reason that the host is told

// withdraw ends the question that a server no longer wants answered. The host is told the reason,
// unless the reason must be withheld.
func (s *Session) withdraw(o origin, params json.RawMessage) {
	id, _ := rawjson.Get(params, "requestId")
	reason, _ := rawjson.GetString(params, "reason")
	msg := interceptor.Message{Server: o.server, Text: reason}
	if s.rt.Boundary.ToHost(s.lifetime, &msg); msg.Verdict >= interceptor.Blocked {
		msg.Text = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.questions {
		if q.conn == o.conn && string(q.msg.ID) == string(id) {
			q.cancel(cancelled{errWithdrawn, folding.Shorten(msg.Text, maxReason)})
		}
	}
}

// Answer takes the host's response to a question. It drops a response to no question: a late
// answer to a cancelled one.
func (s *Session) Answer(m wire.Message) {
	s.mu.Lock()
	q := s.questions[strconv.FormatInt(wire.OwnID(m.ID), 10)]
	s.mu.Unlock()
	if q == nil {
		s.rt.Log.Debug("response to no request of ours", "id", string(m.ID))
		return
	}
	select {
	case q.answered <- m:
	default:
	}
}
