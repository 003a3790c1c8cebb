package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// ask is a request of an upstream that a host is to answer: sampling,
// elicitation, roots, or one that foldgate does not know.
type ask struct {
	id       string // under which the host knows it
	from     conn.Conn
	upstream json.RawMessage   // its id on the upstream's link
	answered chan wire.Message // capacity 1
	guess    bool              // it may belong to any call at from's upstream
	origin   origin
	server   string          // that upstream's key
	way      departure       // to the host
	ctx      context.Context // ends with what it was asked for, or when it is withdrawn
	cancel   context.CancelCauseFunc
}

// newAsk notes a request of an upstream, until endAsk: it may be withdrawn before
// it has reached the host. fl and guess are as for ask.
func (s *session) newAsk(fl *inbound, guess bool, u *upstream.Server, l conn.Conn, m wire.Message) *ask {
	a := &ask{id: strconv.FormatInt(s.nextID.Add(1), 10), from: l, upstream: m.ID, answered: make(chan wire.Message, 1), guess: guess, origin: s.origin(fl, guess, u), server: u.Key}
	if p := s.passage(u); p != nil {
		a.way = p.depart(s.gw)
	}
	parent := s.ctx
	if fl != nil && !guess {
		parent = fl.ctx
	}
	a.ctx, a.cancel = context.WithCancelCause(parent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks[a.id] = a
	return a
}

func (s *session) endAsk(a *ask) {
	s.mu.Lock()
	delete(s.asks, a.id)
	s.mu.Unlock()
	a.way.arrived()
	a.cancel(nil)
}

// ask forwards a request of an upstream to the host of s, on the stream of the
// request that caused it (fl, nil if unknown), and its answer back. guess says
// that fl is only likely: it lends its stream, and its end is not the end of the
// question.
func (g *Gateway) ask(s *session, fl *inbound, guess bool, u *upstream.Server, l conn.Conn, m wire.Message) {
	if fl != nil && fl.modern && m.Method != "ping" {
		fl.askParked(u, l, m) // the modern era has no requests to hosts
		return
	}
	g.answering(&s.answering, u, func() conn.Conn { return l }, m, func() func(conn.Conn) {
		if m.Method == "ping" {
			return func(l conn.Conn) { g.decline(l, m) }
		}
		a := s.newAsk(fl, guess, u, l, m)
		return func(l conn.Conn) {
			defer s.endAsk(a)
			g.passAnswer(s, fl, a, u, m)
		}
	})
}

// passAnswer puts a to the host of s and hands the answer to the upstream.
func (g *Gateway) passAnswer(s *session, fl *inbound, a *ask, u *upstream.Server, m wire.Message) {
	res, err := g.askHost(s, fl, a, u, m)
	if w := (*withdrawn)(nil); errors.As(err, &w) {
		return // nobody waits for the answer
	}
	answer := wire.Message{ID: m.ID}
	if err != nil {
		answer.Error = errorObject(&wire.Error{Code: wire.CodeInternal, Message: err.Error()})
	} else {
		answer.Result, answer.Error, answer.Extra = res.Body, res.Error, res.Extra
	}
	if err := a.from.Reply(s.ctx, answer); err != nil {
		u.Log.Debug("answer could not be delivered to the upstream", "method", m.Method, "err", err)
	}
}

// maxAnswering is how many requests of upstreams a session, or the modern hosts of
// a principal at one upstream, may have under way.
const maxAnswering = 1000

// answering calls begin for a request m of an upstream, and runs what it returns
// in the background. Of more than maxAnswering those in excess are declined, and
// where the upstream does not even take that, dropped: whoever asks without end
// must not fill the memory.
//
// at finds the link, which is not known to its session in its first moments.
func (g *Gateway) answering(n *atomic.Int64, u *upstream.Server, at func() conn.Conn, m wire.Message, begin func() (answer func(l conn.Conn))) {
	count := n.Add(1)
	if count > 2*maxAnswering {
		n.Add(-1)
		u.Log.Debug("request of an upstream dropped: too many are under way", "method", m.Method)
		return
	}
	var answer func(conn.Conn)
	if count <= maxAnswering {
		answer = begin()
	}
	g.background(func() {
		defer n.Add(-1)
		l := at()
		switch {
		case l == nil: // it has ended
		case answer == nil:
			g.refuse(l, m, wire.CodeInternal, fmt.Sprintf("%d requests are under way: wait for their answers first", maxAnswering))
		default:
			answer(l)
		}
	})
}

// askHost runs one request of an upstream down the chain and to the host. It
// returns the answer.
func (g *Gateway) askHost(s *session, fl *inbound, a *ask, u *upstream.Server, m wire.Message) (*interceptor.Result, error) {
	c := &interceptor.Call{
		Origin: interceptor.Origin{Direction: interceptor.FromUpstream, Session: s.ID, Principal: s.Principal, From: "upstream:" + u.Key, ID: m.ID},
		Target: interceptor.Target{To: s.host(), Server: u.Key, Method: m.Method, Params: m.Params, Forward: m.Params, Extra: m.Extra},
	}
	if fl != nil {
		if cause := fl.getCall(); cause != nil {
			c.Origin.Revision = cause.Origin.Revision
		}
	}
	c.Attribution.Branch, c.Attribution.Ambiguous = a.origin.branch, a.origin.ambiguous
	if cause := a.origin.call; cause != nil {
		c.Origin.Correlates, c.Origin.Traceparent = []string{cause.Outcome.Record}, cause.Outgoing()
	}
	return g.through(a.ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		a.way.wait(ctx)
		if ctx.Err() != nil { // the host need not hear of it
			return nil, context.Cause(ctx)
		}
		out := wire.Message{ID: json.RawMessage(a.id), Method: m.Method, Params: c.Target.Forward, Extra: c.Target.Extra}
		if err := s.toHost(fl, out.Encode()); err != nil {
			return nil, fmt.Errorf("the host can't be reached for %s: %w", m.Method, err)
		}
		a.way.arrived()
		select {
		case r := <-a.answered:
			return resultOf(r), nil
		case <-died(a.from):
			a.cancel(conn.ErrClosed)
			_ = s.toHost(fl, wire.Message{Method: wire.MethodCancelled, Params: a.cancelled(conn.ErrClosed)}.Encode())
			return nil, conn.ErrClosed
		case <-ctx.Done():
			_ = s.toHost(fl, wire.Message{Method: wire.MethodCancelled, Params: a.cancelled(context.Cause(ctx))}.Encode())
			return nil, context.Cause(ctx)
		}
	})
}

// died is closed when l is dead; a question without a link lasts.
func died(l conn.Conn) <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.Done()
}

// endGuesses ends the questions of an upstream at which no call is left that
// they could belong to. The caller holds s.mu.
func (s *session) endGuesses(server string) {
	for _, fl := range s.flights {
		if fl.to == server {
			return
		}
	}
	for _, a := range s.asks {
		if a.guess && a.server == server {
			a.cancel(errors.New("the call that asked is over"))
		}
	}
}

// cancelled are the params with which the host is told that a is over.
func (a *ask) cancelled(cause error) json.RawMessage {
	out := append([]byte(`{"requestId":`), a.id...)
	return append(rawjson.AppendQuote(append(out, `,"reason":`...), cause.Error()), '}')
}

// withdrawn is the cause for which an ask ends that the upstream took back.
type withdrawn struct{ reason string }

func (w *withdrawn) Error() string { return w.reason }

// Answer takes the host's response to an ask. One that answers nothing is
// dropped: a late answer to a cancelled request.
func (s *session) Answer(m wire.Message) {
	s.mu.Lock()
	a := s.asks[string(m.ID)]
	if a == nil { // some hosts answer a number with a string
		a = s.asks[rawjson.Unquote(m.ID)]
	}
	s.mu.Unlock()
	if a == nil {
		s.gw.log.Debug("response to no request of ours", "id", string(m.ID))
		return
	}
	select {
	case a.answered <- m:
	default:
	}
}

// cancelAsk ends the ask that an upstream no longer wants answered. The host is
// told the reason, unless that must be withheld.
func (s *session) cancelAsk(u *upstream.Server, l conn.Conn, params json.RawMessage) {
	id, _ := rawjson.Get(params, "requestId")
	reason, _ := rawjson.GetString(params, "reason")
	said := interceptor.Message{Server: u.Key, Text: reason}
	if s.gw.boundary.Inbound(s.ctx, &said); said.Verdict >= interceptor.Blocked {
		said.Text = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asks {
		if a.from == l && string(a.upstream) == string(id) {
			a.cancel(&withdrawn{said.Text})
		}
	}
}

// answerShared takes a request that a shared upstream sent without saying for
// which call; see parking.suited.
func (g *Gateway) answerShared(st *tenant, l conn.Conn, m wire.Message) {
	if !g.parkShared(st, l, m) {
		g.decline(l, m)
	}
}

// parkShared reports whether there was a call to give the request to.
func (g *Gateway) parkShared(st *tenant, l conn.Conn, m wire.Message) bool {
	p := g.parking.suited(st, m)
	if p != nil {
		p.ask(g, question{l: l, m: m, guess: true})
	}
	return p != nil
}

// decline answers a request of an upstream that has no host to go to. A ping
// is about the connection, so foldgate answers it.
func (g *Gateway) decline(l conn.Conn, m wire.Message) {
	if m.Method == "ping" {
		_ = l.Reply(g.ctx, wire.Message{ID: m.ID, Result: json.RawMessage(`{}`)})
		return
	}
	g.refuse(l, m, wire.CodeMethodNotFound, "no host is waiting on this connection for "+m.Method)
}

// refuse answers a request of an upstream with an error.
func (g *Gateway) refuse(l conn.Conn, m wire.Message, code int, text string) {
	_ = l.Reply(g.ctx, wire.Message{ID: m.ID, Error: errorObject(&wire.Error{Code: code, Message: text})})
}
