package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// session is one host session: a legacy connection with all it holds open, or
// the short life of one modern HTTP request.
type session struct {
	edge.Peer
	gw     *Gateway
	ctx    context.Context
	cancel context.CancelCauseFunc
	own    *upstream.Session // connections that are its own
	nextID atomic.Int64      // ids of requests to the host
	// answering counts the requests of its own upstreams that are under way.
	answering atomic.Int64

	mu         sync.Mutex
	initialize json.RawMessage // the host's initialize params; nil before it
	revision   string          // negotiated by initialize
	client     string          // the host's name for the trace
	flights    map[string]*inbound
	asks       map[string]*ask
	views      map[string]*view           // lists that differ from the shared ones
	subs       map[string]map[string]bool // subscribed URIs, by upstream key
	logLevel   json.RawMessage            // params of the last logging/setLevel
	tasks      map[string]task            // by taskId
	minted     []string                   // the keys of tasks, oldest first
	pending    map[string]bool            // list_changed about to be sent
	passages   map[string]*passage        // by upstream key
	closed     bool

	notes lane // notifications on their way to upstreams
}

// inbound is one request of the host that is being served.
type inbound struct {
	ex     *edge.Exchange
	s      *session
	ctx    context.Context
	cancel context.CancelCauseFunc
	leave  func() bool // ends the watch over the session's own end
	// call is what the chain knows of it, set once the route is known; to is
	// the upstream that it was sent to. Guarded by s.mu.
	call *interceptor.Call
	to   string
	// parked is the parked call that this round belongs to; guarded by s.mu.
	parked *parked
	// params are the header bindings of the tool that is called.
	params []paramHeader
	// modern says that the host speaks 2026-07-28 in this request.
	modern bool
	// departures are the answers to it that are on their way to the host.
	departures []departure
}

// asideTimeout bounds what goes on behind a host's back.
const asideTimeout = 5 * time.Second

// Causes for which a flight or a session ends.
var (
	errCancelledByHost = errors.New("cancelled by the host")
	errSessionClosed   = errors.New("the host's session ended")
)

// cancelReason carries the host's own words to the upstream.
type cancelReason struct{ text string }

func (c *cancelReason) Error() string        { return c.text }
func (c *cancelReason) Is(target error) bool { return target == errCancelledByHost }

// Open starts a session of a host; with it Gateway is an [edge.Core].
func (g *Gateway) Open(p edge.Peer) edge.Session { return g.newSession(p) }

// newSession starts a session of a host, or one of foldgate's own.
func (g *Gateway) newSession(p edge.Peer) *session {
	if p.Principal == "" {
		p.Principal = edge.LocalPrincipal
	}
	ctx, cancel := context.WithCancelCause(g.ctx)
	s := &session{
		Peer: p, gw: g, ctx: ctx, cancel: cancel, client: "unknown",
		flights: map[string]*inbound{}, asks: map[string]*ask{}, views: map[string]*view{},
		subs: map[string]map[string]bool{}, tasks: map[string]task{}, passages: map[string]*passage{},
	}
	s.own = upstream.NewSession(ctx, s)
	if !p.Modern || p.Transport == "stdio" {
		g.sessions.add(s)
	}
	return s
}

// Close ends s: its calls are cancelled, its branches force-returned, its
// upstream links closed.
func (s *session) Close(reason string) {
	g := s.gw
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	began := s.initialize != nil
	s.mu.Unlock()
	s.cancel(errSessionClosed)
	g.sessions.remove(s)
	if began && s.ID != "" {
		if err := g.branches.EndSession(context.WithoutCancel(s.ctx), folding.Caller{Principal: s.Principal, Session: s.ID}, reason); err != nil {
			g.log.Error("branches of an ended session", "session", s.ID, "err", err)
		}
	}
	g.background(s.own.Close)
}

// begin registers a request in flight, until end. It fails where the id is already in use.
func (s *session) begin(ctx context.Context, ex *edge.Exchange) (*inbound, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	fl := &inbound{ex: ex, s: s, ctx: ctx, cancel: cancel}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(ex.Msg.ID)
	if _, taken := s.flights[key]; taken {
		cancel(nil)
		return nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "id " + key + " is already in use by a request in flight"}
	}
	fl.leave = context.AfterFunc(s.ctx, func() { cancel(errSessionClosed) })
	s.flights[key] = fl
	return fl, nil
}

// end forgets a flight.
func (s *session) end(fl *inbound) {
	s.mu.Lock()
	delete(s.flights, string(fl.ex.Msg.ID))
	if fl.to != "" {
		s.endGuesses(fl.to)
	}
	s.mu.Unlock()
	fl.leave()
	fl.cancel(nil)
}

// host names the host for the trace.
func (s *session) host() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ID == "" {
		return "host:" + s.client
	}
	return "host:" + s.client + "#" + s.ID
}

// scope returns for whom s uses connections: a legacy host has its own, the
// modern hosts of a principal share one.
func (s *session) scope(modern bool) upstream.Scope {
	if modern {
		return upstream.Scope{Principal: s.Principal}
	}
	return upstream.Scope{Principal: s.Principal, Session: s.own}
}

// openLinks returns the links over which s reaches upstreams now.
func (s *session) openLinks() map[*upstream.Server]conn.Conn {
	out := map[*upstream.Server]conn.Conn{}
	s.mu.Lock()
	legacy := s.initialize != nil
	s.mu.Unlock()
	for _, u := range s.gw.ups {
		l := u.Live(s.scope(false))
		if l == nil && !legacy {
			l = u.Live(s.scope(true))
		}
		if l != nil {
			out[u] = l
		}
	}
	return out
}

// toHost delivers a message to the host: on the stream of the request that
// caused it, else on any other open one of the session.
func (s *session) toHost(fl *inbound, msg []byte) error {
	if fl != nil && fl.ex.Emit != nil {
		if err := fl.ex.Emit(msg); err == nil {
			return nil
		}
	}
	if s.Push == nil {
		return errSessionClosed
	}
	return s.Push(msg)
}

// anyFlight returns a request in flight of s that goes to upstream key: it lends
// its stream to what an upstream sends without saying on whose behalf, and is
// what caused it only where it is alone; see origin. nil where there is none.
func (s *session) anyFlight(key string) *inbound {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fl := range s.flights {
		if fl.to == key {
			return fl
		}
	}
	return nil
}

// An origin is the call for which an upstream sent something, and its branch. It
// is found when that arrives: later other calls are under way.
type origin struct {
	call      *interceptor.Call // nil if unknown
	branch    *folding.Branch
	ambiguous bool // it may have been that of another call
}

// origin returns the origin of what u just sent on the stream of fl. Where fl is a
// guess and other requests of s are at u, the call is not known, and the branch
// only if it is that of all of them.
func (s *session) origin(fl *inbound, guess bool, u *upstream.Server) origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl == nil || fl.call == nil {
		return origin{}
	}
	o := origin{call: fl.call, branch: fl.call.Attribution.Branch}
	if !guess {
		return o
	}
	for _, other := range s.flights {
		if other == fl || other.to != u.Key || other.call == nil {
			continue
		}
		o.call = nil
		if branchID(other.call.Attribution.Branch) != branchID(fl.call.Attribution.Branch) {
			o.branch, o.ambiguous = nil, true
		}
	}
	return o
}

// branchID is "" for main.
func branchID(b *folding.Branch) string {
	if b == nil {
		return ""
	}
	return b.ID
}
