package proxy

import (
	"encoding/json"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// This file takes what upstreams send of their own accord. All functions are
// called from a link's reader, in order, and do not block on hosts.

// fromCall takes a message that an upstream sent on behalf of a host's request.
func (g *Gateway) fromCall(fl *inbound, u *upstream.Server, l conn.Conn, m wire.Message) {
	if m.IsRequest() {
		g.ask(fl.s, fl, false, u, l, m)
		return
	}
	if changedKinds(m.Method) != nil {
		g.listChanged(fl.s.tenant(u), fl.s, m.Method)
		return
	}
	if m.Method == "notifications/cancelled" {
		fl.s.cancelAsk(u, l, m.Params)
		return
	}
	o := fl.s.origin(fl, false, u)
	fl.s.follow(u, len(m.Params), func() {
		if m.Method == wire.MethodProgress && fl.ctx.Err() != nil {
			return // the call failed meanwhile: after its end there is no progress
		}
		g.relay(fl.s, fl, o, u, m)
	})
}

// Unsolicited takes a message of a session's own link that belongs to no known
// call: any stream of that session will do.
func (s *session) Unsolicited(u *upstream.Server, m wire.Message) {
	g := s.gw
	fl := s.anyFlight(u.Key)
	switch {
	case m.IsRequest():
		l := u.Live(s.scope(false))
		if l == nil { // during its first moments: wait until the session knows it
			opened := func() conn.Conn { l, _ := u.Connection(s.ctx, s.scope(false)); return l }
			g.answering(&s.answering, u, opened, m, func() func(conn.Conn) {
				return func(l conn.Conn) { g.ask(s, s.anyFlight(u.Key), true, u, l, m) }
			})
			return
		}
		g.ask(s, fl, true, u, l, m)
	case changedKinds(m.Method) != nil:
		g.listChanged(s.tenant(u), s, m.Method)
	case m.Method == "notifications/cancelled":
		s.cancelAsk(u, u.Live(s.scope(false)), m.Params)
	default:
		o := s.origin(fl, true, u)
		s.follow(u, len(m.Params), func() { g.relay(s, fl, o, u, m) })
	}
}

// fromShared takes a message of a shared link that belongs to no known call.
func (g *Gateway) fromShared(st *tenant, m wire.Message) {
	u := st.up
	switch {
	case m.IsRequest():
		g.answering(&st.answering, u, st.conn, m, func() func(conn.Conn) {
			if l := st.conn(); l != nil && g.parkShared(st, l, m) { // now: it may be withdrawn at once
				return func(conn.Conn) {}
			}
			return func(l conn.Conn) { g.answerShared(st, l, m) }
		})
	case m.Method == wire.MethodCancelled: // of a question: no host knows its id
		g.parking.withdraw(st, m.Params)
	case changedKinds(m.Method) != nil:
		g.listChanged(st, nil, m.Method)
	case m.Method == "notifications/resources/updated":
		g.listens.updated(g, st, m)
	default:
		if fl := st.whose(m); fl != nil {
			g.relay(fl.s, fl, fl.s.origin(fl, true, u), u, m)
			return
		}
		// Of a link that several hosts share it is nobody's in particular.
		u.Log.Debug("notification without a call", "method", m.Method)
	}
}

// relay scrubs and records a notification and hands it to the host, on the stream
// of fl, if there is one.
func (g *Gateway) relay(s *session, fl *inbound, o origin, u *upstream.Server, m wire.Message) {
	if s.ctx.Err() != nil { // it waited until nobody was there to take it
		return
	}
	n := interceptor.Notification{From: "upstream:" + u.Key, To: s.host(), Session: s.ID, Method: m.Method}
	if o.call != nil {
		n.Correlates, n.Context = []string{o.call.Outcome.Record}, o.call.Attribution.Context
	} else if o.branch != nil {
		n.Context = string(o.branch.Context)
	}
	msg := interceptor.Message{Server: u.Key, Body: m.Params, Extra: m.Extra}
	g.boundary.Inbound(s.ctx, &msg)
	if err := g.recorder.Notification(s.ctx, n, &msg); err != nil {
		g.log.Error("notification withheld", "method", m.Method, "err", err)
		return
	}
	if msg.Verdict >= interceptor.Blocked {
		u.Log.Warn("notification withheld: it could not be checked for secrets, or holds one", "method", m.Method)
		return
	}
	m.Params, m.Extra = msg.Body, msg.Extra
	if err := s.toHost(fl, m.Encode()); err != nil {
		g.log.Debug("notification could not be delivered", "method", m.Method, "err", err)
	}
}

// listChanged drops the lists that changed and tells the hosts of the seat's
// principal. s is the session whose own link said so, nil for a shared link.
func (g *Gateway) listChanged(st *tenant, s *session, method string) {
	ks, u := changedKinds(method), st.up
	for _, any := range g.tenants.at(u) { // the others may have no link open to be told over
		any.lists.forget(ks...)
	}
	if s != nil {
		s.mu.Lock()
		v := s.views[u.Key]
		if v == nil && s.Transport != "stdio" {
			v = &view{}
			s.views[u.Key] = v
		}
		s.mu.Unlock()
		if v != nil {
			v.forget(ks...)
		}
		s.pushChange(method)
	} else {
		for _, other := range g.sessions.of(st.principal) {
			if u.Live(other.scope(false)) == nil { // those with a link of their own are told over it
				other.pushChange(method)
			}
		}
	}
	g.listens.changed(st.principal, method)
}

// changeDelay gathers bursts of list_changed into one message a list.
const changeDelay = 20 * time.Millisecond

// pushChange tells the host that a list changed, once for a burst.
func (s *session) pushChange(method string) {
	s.mu.Lock()
	if s.closed || s.initialize == nil || s.pending[method] {
		s.mu.Unlock()
		return
	}
	if s.pending == nil {
		s.pending = map[string]bool{}
	}
	s.pending[method] = true
	s.mu.Unlock()
	s.gw.background(func() {
		select {
		case <-time.After(changeDelay):
		case <-s.ctx.Done():
			return
		}
		s.mu.Lock()
		delete(s.pending, method)
		s.mu.Unlock()
		if err := s.gw.recorder.Notification(s.ctx, interceptor.Notification{From: "foldgate", To: s.host(), Session: s.ID, Method: method}, &interceptor.Message{}); err != nil {
			return
		}
		_ = s.toHost(nil, wire.Message{Method: method}.Encode())
	})
}

// recordHostNotification puts a host's notification into the trace.
func (g *Gateway) recordHostNotification(s *session, m wire.Message) {
	n := interceptor.Notification{From: s.host(), To: "foldgate", Session: s.ID, Method: m.Method}
	if err := g.recorder.Notification(s.ctx, n, &interceptor.Message{Body: m.Params}); err != nil {
		g.log.Error("notification not recorded", "method", m.Method, "err", err)
	}
}

func orEmpty(params json.RawMessage) json.RawMessage {
	if params == nil {
		return json.RawMessage(`{}`)
	}
	return params
}
