package router

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Session is one session of a host: a connection with everything that hangs on it, or a single
// request of the modern era.
type Session struct {
	server.Peer
	rt       *Router
	lifetime context.Context
	cancel   context.CancelCauseFunc
	// scope selects the connections that its requests use: its own, or those that its group shares.
	scope upstream.Scope

	group              *groupLists
	own                sync.Map     // the *listCache of servers with lists that differ from the group's
	outgoing           queue        // notifications on their way to servers
	openServerRequests atomic.Int64 // that are not answered yet
	lastServerRequest  atomic.Int64 // its id, as the host knows it

	subscribed subscriptions
	tasks      *tasks // at its connections

	// greeted ends once the host has the answer to initialize, which greet tells; nil if the answer has a
	// stream of its own.
	greeted context.Context
	greet   context.CancelFunc

	// newest is who sent the latest request, if an issuer's token says it: a token that follows
	// another may have other roles and scopes.
	newest atomic.Pointer[interceptor.Identity]
	chosen *atomic.Int32 // by tools.mode: auto; of the group for a single request

	mu             sync.Mutex
	revision       string                    // negotiated by initialize; "" before it
	client         string                    // the name that the host gives itself
	traced         string                    // the name of the session in the trace
	pending        map[string]*request       // of the host, by id
	inFlight       map[*request]struct{}     // sent to a server and not over: the host's, and those of batches
	orderings      map[string]*ordering      // of the messages to the host, by server
	endedCalls     []endedCall               // the latest maxEndedCalls, oldest first
	lost           map[string]int            // connections that were lost soon, in a row, by server
	serverRequests map[string]*serverRequest // that the host has not answered, by the id that it knows
	logLevel       json.RawMessage           // params of the last logging/setLevel
	kept           int                       // bytes of initialize and logging/setLevel
	changes        map[string]bool           // list changes about to be announced
	closed         bool
}

// Open starts a session of a host. It implements [server.Router].
func (rt *Router) Open(p server.Peer) server.Session { return rt.NewSession(p) }

// NewSession starts a session of a host or of foldgate itself.
func (rt *Router) NewSession(p server.Peer) *Session {
	s := &Session{
		Peer: p, rt: rt, pending: map[string]*request{}, inFlight: map[*request]struct{}{}, orderings: map[string]*ordering{}, lost: map[string]int{}, serverRequests: map[string]*serverRequest{},
		scope: upstream.Scope{Group: upstream.Group{Principal: p.Principal, Capabilities: p.Capabilities}}, subscribed: subscriptions{count: &rt.subscribed, principal: p.Principal, open: map[subscription]int{}}, changes: map[string]bool{},
	}
	s.setClient("unknown")
	s.newest.Store(&p.Identity)
	rt.mu.Lock()
	s.group = rt.groupFor(s.scope.Group)
	s.chosen = &s.group.chosen
	if !p.SingleRequest {
		rt.sessions[s], s.chosen = struct{}{}, new(atomic.Int32)
	}
	rt.mu.Unlock()
	s.tasks = &s.group.tasks
	s.lifetime, s.cancel = context.WithCancelCause(rt.lifetime)
	if p.Ordered() {
		s.greeted, s.greet = context.WithCancel(s.lifetime)
	}
	if p.Era.OwnConnections {
		s.scope.Own, s.tasks = upstream.NewConnections(s.lifetime, s.scope.Group, s), &tasks{}
	}
	return s
}

// Close ends the session: its requests are cancelled, its branches returned by force, and its own
// connections closed. The second call does nothing.
func (s *Session) Close(reason string) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	initialized := s.revision != ""
	s.cancel(errSessionClosed)
	for _, r := range s.pending {
		r.cancel(errSessionClosed)
	}
	kept := s.kept
	s.mu.Unlock()
	s.rt.kept.change(s.Principal, -kept)
	s.subscribed.close()
	s.rt.mu.Lock()
	delete(s.rt.sessions, s)
	s.group.sessions--
	s.group.used = time.Now()
	s.rt.mu.Unlock()
	if reason == server.Shutdown {
		reason = folding.ReasonShutdown
	}
	if initialized && s.ID != "" {
		if err := s.rt.Branches.EndSession(context.WithoutCancel(s.lifetime), folding.Caller{Principal: s.Principal, Session: s.ID}, reason); err != nil {
			s.rt.Log.Error("branches of an ended session", "session", s.ID, "err", err)
		}
	}
	if s.scope.Own != nil {
		s.rt.wg.Go(s.scope.Own.Close)
	}
}

// Sessions returns the sessions that outlive a request, all or those of one principal.
func (rt *Router) Sessions(principal string) (open []*Session) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for s := range rt.sessions {
		if principal == "" || s.Principal == principal {
			open = append(open, s)
		}
	}
	return open
}

// identity returns who the session's host is now.
func (s *Session) identity() interceptor.Identity {
	return s.rt.Settings().Config.Complete(*s.newest.Load())
}

// Revision returns the protocol revision that initialize negotiated, "" before it.
func (s *Session) Revision() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// clientName returns the name that the host gives itself.
func (s *Session) clientName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// traceName returns the name of the session in the trace.
func (s *Session) traceName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traced
}

// setClient notes the name that the host gives itself. s.mu is held, or nothing else has s.
func (s *Session) setClient(name string) {
	s.client, s.traced = name, "host:"+name
	if s.ID != "" {
		s.traced += "#" + s.ID
	}
}

// send delivers a message to the host: on the stream of the request that caused it, else on
// another open one of the session.
func (s *Session) send(r *request, m wire.Message) error {
	msg := m.Encode()
	if r != nil && r.Emit != nil && r.Emit(msg) == nil {
		return nil
	}
	if s.Push == nil {
		return errSessionClosed
	}
	return s.Push(msg)
}

// Reloaded scrubs the lists by the rules in force, and announces those that changed between before and
// the settings in force. It forgets what belonged to servers and principals that are gone. A list that a
// server has not given yet counts as different.
func (rt *Router) Reloaded(before *Settings) {
	st := rt.Settings()
	lists := rt.groups()
	for _, c := range rt.caches() {
		c.rescrub()
	}
	rt.mu.Lock()
	maps.DeleteFunc(rt.lists, func(g upstream.Group, _ *groupLists) bool { return !st.Config.Knows(g.Principal) })
	rt.mu.Unlock()
	rt.Repin(nil) // pins may have another mode
	gone := slices.DeleteFunc(slices.Clone(before.Servers), func(srv *upstream.Server) bool { return slices.Contains(st.Servers, srv) })
	for _, p := range lists {
		for _, srv := range gone {
			p.caches.Delete(srv)
		}
		for k := range catalog.Kinds {
			if p.reload(before, st, k) {
				rt.tell(p.group, k.Changed())
			}
		}
	}
	for _, s := range rt.Sessions("") {
		s.subscribed.keep(func(server string) bool { return st.Server(server) != nil })
		for _, srv := range gone {
			s.own.Delete(srv)
		}
	}
}

// Shared returns the owner of the connections that a group shares.
func (rt *Router) Shared(g upstream.Group) upstream.Owner { return groupOwner{rt, g} }

// groupOwner takes what servers send on the shared connections of a group.
type groupOwner struct {
	rt    *Router
	group upstream.Group
}

// lists returns the lists that are read over the connections.
func (o groupOwner) lists() []*groupLists {
	return slices.DeleteFunc(o.rt.groups(), func(p *groupLists) bool { return !o.group.Includes(p.group) })
}

// Opened implements [upstream.Owner]: after a restart the lists may differ.
func (o groupOwner) Opened(srv *upstream.Server, c conn.Conn, again bool) {
	supply{o.rt, srv, o.group}.instructions(o.rt.lifetime, c.Info(), true)
	for _, l := range o.lists() {
		l.of(srv).tellMissed(c.Info())
	}
	if again {
		o.rt.allChanged(srv, c.Info(), o.group, nil)
	}
}

// Retired implements [upstream.Owner].
func (o groupOwner) Retired(srv *upstream.Server) {
	for _, l := range o.lists() {
		l.of(srv).markStale()
	}
}

// Uses implements [upstream.Owner]. Subscriptions of modern hosts, and what servers ask them, are open calls, or
// known to the bridge.
func (o groupOwner) Uses(srv *upstream.Server) bool {
	return slices.ContainsFunc(o.lists(), func(l *groupLists) bool { return l.tasks.open(srv.Key) }) ||
		srv.SharesConnections() && slices.ContainsFunc(o.rt.Sessions(o.group.Principal), func(s *Session) bool { return o.group.Includes(s.scope.Group) && s.Uses(srv) })
}

// Unsolicited implements [upstream.Owner]. The bridge hands on no other messages.
func (o groupOwner) Unsolicited(srv *upstream.Server, _ conn.Conn, m wire.Message) {
	if catalog.ChangedKinds(m.Method) != nil {
		o.rt.listChanged(srv, o.group, nil, m.Method)
	}
}

// Undelivered implements [upstream.Owner].
func (o groupOwner) Undelivered(srv *upstream.Server, r conn.Undelivered) {
	o.rt.undelivered(interceptor.Notification{Principal: o.group.Principal}, srv.Key, r)
}
