package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"

	"github.com/google/uuid"
)

// Bounds of what one legacy session keeps for hosts that resume.
const (
	sessionKeepStreams = 64
	sessionKeepBytes   = 8 << 20
)

var errHostSessionClosed = errors.New("the session is closed")

// legacySession is one Mcp-Session-Id: the edge's half of a session of the core.
type legacySession struct {
	id        string
	principal string
	edge      *HTTP
	core      Session
	ctx       context.Context // of the session's exchanges
	cancel    context.CancelCauseFunc
	std       *stream // the GET stream

	mu      sync.Mutex
	version string // negotiated by initialize
	nextID  uint64
	open    map[uint64]*stream // POST streams whose reply is still to come
	ended   []endedStream      // streams that can be resumed, oldest first
	busy    int                // exchanges and connections
	used    time.Time          // when busy fell to 0 or a message came
	closed  bool
}

type endedStream struct {
	*stream
	at time.Time
}

// openLegacy makes a session for an initialize. It is in the table at once, but
// nobody knows its id before the reply is sent.
func (e *HTTP) openLegacy(principal string) (*legacySession, *wire.Error) {
	if fault := e.makeRoom(principal); fault != nil {
		return nil, fault
	}
	l := &legacySession{
		id: "ses_" + uuid.NewString(), principal: principal, edge: e, used: time.Now(),
		open: make(map[uint64]*stream), std: &stream{resume: true, limit: e.opts.MaxQueue},
	}
	l.ctx, l.cancel = context.WithCancelCause(e.ctx)
	l.core = e.core.Open(Peer{ID: l.id, Principal: principal, Transport: "http", Era: wire.Legacy, ImplicitBranch: true, Push: l.push})
	e.mu.Lock()
	e.sessions[l.id] = l
	e.held[principal]++
	e.mu.Unlock()
	return l, nil
}

// makeRoom sees to it that a principal may have one session more. Where there
// are several principals none has more than half of all, so that it displaces
// its own sessions before it comes near those of others.
func (e *HTTP) makeRoom(principal string) *wire.Error {
	e.mu.Lock()
	all, own := len(e.sessions), e.held[principal]
	e.mu.Unlock()
	most, whose := e.opts.MaxSessions, ""
	if half := max(most/2, 1); e.opts.Tokens.several() && own >= half {
		most, whose = half, principal
	} else if all < most {
		return nil
	}
	if e.evict(whose) {
		return nil
	}
	return &wire.Error{Code: wire.CodeInternal, Message: fmt.Sprintf("all %d sessions are in use; end one or try again later", most)}
}

// evict closes the session that was idle longest, if that is a minute at least:
// some hosts open one per call and never end it. With an owner it is one of theirs.
func (e *HTTP) evict(owner string) bool {
	var oldest *legacySession
	since := time.Now().Add(-time.Minute)
	for _, l := range e.allSessions() {
		if idle, at := l.idleSince(); idle && at.Before(since) && (owner == "" || l.principal == owner) {
			oldest, since = l, at
		}
	}
	if oldest == nil {
		return false
	}
	e.closeLegacy(oldest, "displaced by newer sessions")
	return true
}

func (e *HTTP) allSessions() []*legacySession {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*legacySession, 0, len(e.sessions))
	for _, l := range e.sessions {
		all = append(all, l)
	}
	return all
}

// legacyOf finds the session that a request names and holds it until release.
// It answers the request itself where there is none: 400 without an id, 404 for
// one that is unknown, ended, or another principal's, which must look the same.
func (e *HTTP) legacyOf(w http.ResponseWriter, r *http.Request, from sender, id []byte) (*legacySession, bool) {
	name := r.Header.Get(wire.HeaderSession)
	if name == "" {
		refuse(w, http.StatusBadRequest, id, &wire.Error{Code: wire.CodeInvalidRequest, Message: "the Mcp-Session-Id header is missing; send initialize first"})
		return nil, false
	}
	e.mu.Lock()
	l := e.sessions[name]
	e.mu.Unlock()
	if l == nil || l.principal != from.principal || !l.hold() {
		refuse(w, http.StatusNotFound, id, &wire.Error{Code: wire.CodeInvalidRequest, Message: "no such session; send initialize again"})
		return nil, false
	}
	return l, true
}

// hold keeps the session from expiring; it fails on a closed one.
func (l *legacySession) hold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.busy++
	return true
}

func (l *legacySession) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	l.used = time.Now()
}

func (l *legacySession) idleSince() (bool, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy == 0, l.used
}

// closeLegacy ends a session: its calls are cancelled, its streams end, its id
// answers 404. The second call does nothing.
func (e *HTTP) closeLegacy(l *legacySession, reason string) {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if !first {
		return
	}
	e.mu.Lock()
	delete(e.sessions, l.id)
	if e.held[l.principal]--; e.held[l.principal] == 0 {
		delete(e.held, l.principal)
	}
	e.mu.Unlock()
	l.cancel(errors.New(reason))
	guard(e.log, "closing a session", func() { l.core.Close(reason) })
}

// newStream registers the stream of a POST with so many requests.
func (l *legacySession) newStream(replies int) (*stream, *streamConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextID++
	s, c := newStream(l.nextID, replies, l.edge.opts.MaxQueue, true)
	l.open[s.id] = s
	return s, c
}

// endStream takes a stream out of the open ones, and keeps it for hosts that
// resume if they can.
func (l *legacySession) endStream(s *stream) {
	s.mu.Lock()
	keep := s.sse || len(s.events) > 0 // which the event stream is about to begin with
	s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, s.id)
	if keep {
		l.ended = append(l.ended, endedStream{s, time.Now()})
		l.forget()
	}
}

// forget drops ended streams beyond the bounds, oldest first; the newest stays
// whatever its size. l.mu is held.
func (l *legacySession) forget() {
	total := 0
	for _, s := range l.ended {
		total += s.size()
	}
	old := time.Now().Add(-l.edge.opts.EventTTL)
	n := 0
	for n < len(l.ended) {
		s := l.ended[n]
		over := len(l.ended)-n > sessionKeepStreams || (total > sessionKeepBytes && len(l.ended)-n > 1)
		if !over && s.at.After(old) {
			break
		}
		total -= s.size()
		l.ended[n].stream = nil
		n++
	}
	l.ended = append([]endedStream(nil), l.ended[n:]...)
}

// find returns the stream with the given id, open or ended.
func (l *legacySession) find(id uint64) *stream {
	if id == 0 {
		return l.std
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	for _, s := range l.ended {
		if s.id == id {
			return s.stream
		}
	}
	return l.open[id]
}

// push delivers a message that belongs to no exchange: on the GET stream if one
// is open, else on any POST that is still waiting, else it is kept for the next
// GET stream.
func (l *legacySession) push(msg []byte) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errHostSessionClosed
	}
	var open []*stream
	if !l.std.attached() {
		for _, s := range l.open {
			open = append(open, s)
		}
	}
	l.mu.Unlock()
	for _, s := range open {
		if s.attached() && s.emit(msg) == nil {
			return nil
		}
	}
	dropped, err := l.std.park(msg)
	if dropped != nil {
		l.edge.log.Warn("dropped a notification: too many wait for a GET stream", "session", l.id, "bytes", len(dropped))
	}
	return err
}

// sweepLoop ends idle sessions and forgets old streams, until Shutdown.
func (e *HTTP) sweepLoop() {
	defer close(e.sweep)
	t := time.NewTicker(max(min(e.opts.SessionIdle/4, time.Minute), time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-e.drain:
			return
		}
		for _, l := range e.allSessions() {
			if idle, at := l.idleSince(); idle && time.Since(at) >= e.opts.SessionIdle {
				e.closeLegacy(l, "idle for "+e.opts.SessionIdle.String())
				continue
			}
			l.mu.Lock()
			l.forget()
			l.mu.Unlock()
		}
	}
}
