package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/replicaid"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Limits on what one legacy session keeps for hosts that resume.
const (
	sessionKeepStreams = 64
	sessionKeepBytes   = 8 << 20
)

// versionPriming is the first revision with hosts that understand an SSE event with an id and no
// data.
const versionPriming = "2025-11-25"

var errHostSessionClosed = errors.New("the session is closed")

// legacySession is one Mcp-Session-Id with its streams.
type legacySession struct {
	id       string
	caller   interceptor.Identity // who opened it
	srv      *HTTP
	session  Session
	lifetime context.Context // of the session's requests
	cancel   context.CancelCauseFunc
	std      *stream // the GET stream

	// mu may be held while a stream's mu is taken, and not the other way round.
	mu      sync.Mutex
	nextID  uint64
	open    map[uint64]*stream // POST streams with replies still to come
	ended   []*stream          // streams that can be resumed, oldest first
	busy    int                // requests and connections
	used    time.Time          // the time busy fell to 0 or a message came
	closed  bool
	dropped struct { // notifications that no host waited for, since told, the time of the last log line
		count, bytes int
		told         time.Time
	}
}

// tellDropped is the time in which a session logs at most once that it drops notifications.
const tellDropped = 10 * time.Second

// openSession makes a session for an initialize. The caller must release it.
func (srv *HTTP) openSession(caller interceptor.Identity, can wire.Capabilities) (*legacySession, *wire.Error) {
	if fault := srv.makeRoom(caller.Principal); fault != nil {
		return nil, fault
	}
	replica := ""
	if srv.opts.Replicas != nil {
		replica = srv.opts.Replicas.Name()
	}
	l := &legacySession{
		id: replicaid.New("ses_", replica, uuid.NewString()), caller: caller, srv: srv, used: time.Now(), busy: 1,
		open: make(map[uint64]*stream), std: &stream{resume: true, limit: srv.opts.MaxQueue},
	}
	l.lifetime, l.cancel = context.WithCancelCause(srv.lifetime)
	l.session = srv.router.Open(Peer{ID: l.id, Identity: caller, Capabilities: can, Transport: "http", Era: wire.Legacy, Push: l.push})
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.sessions[l.id] = l
	srv.sessionCounts[caller.Principal]++
	return l, nil
}

// makeRoom makes sure that a principal may have one session more. If too many are open, it closes
// the session that was idle longest, if that is at least a minute: some hosts open one for each
// call and never end it. If there are several principals, none has more than half of all
// sessions, and each displaces only its own.
func (srv *HTTP) makeRoom(principal string) *wire.Error {
	srv.mu.Lock()
	all, own := len(srv.sessions), srv.sessionCounts[principal]
	srv.mu.Unlock()
	most, owner := srv.opts.MaxSessions, ""
	if half := max(most/2, 1); srv.opts.Access().Auth.Several() && own >= half {
		most, owner = half, principal
	} else if all < most {
		return nil
	}
	var oldest *legacySession
	since := time.Now().Add(-time.Minute)
	for _, l := range srv.allSessions() {
		if idle, at := l.idleSince(); idle && at.Before(since) && (owner == "" || l.caller.Principal == owner) {
			oldest, since = l, at
		}
	}
	if oldest == nil {
		return invalid(wire.CodeInternal, fmt.Sprintf("all %d sessions are in use; end one or try again later", most))
	}
	oldest.close("displaced by newer sessions")
	return nil
}

func (srv *HTTP) allSessions() []*legacySession {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return slices.Collect(maps.Values(srv.sessions))
}

// sessionOf returns the session that a request names. The caller must release it. If there is
// none, sessionOf refuses the request: 400 without an id, 404 for a session that is unknown,
// ended, or another principal's, which must look the same.
func (x *exchange) sessionOf(id []byte) (*legacySession, bool) {
	name := x.r.Header.Get(wire.HeaderSession)
	if name == "" {
		x.refuse(http.StatusBadRequest, id, invalid(wire.CodeInvalidRequest, "the Mcp-Session-Id header is missing; send initialize first"))
		return nil, false
	}
	x.srv.mu.Lock()
	l := x.srv.sessions[name]
	x.srv.mu.Unlock()
	if l == nil || !sameCaller(l.caller, x.caller.Identity) || !l.acquire() {
		x.refuse(http.StatusNotFound, id, invalid(wire.CodeInvalidRequest, "no such session; send initialize again"))
		return nil, false
	}
	return l, true
}

// expireSessions ends idle sessions and forgets old streams, until Shutdown.
func (srv *HTTP) expireSessions() {
	t := time.NewTicker(max(min(srv.opts.SessionIdle/4, time.Minute), time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-srv.drain:
			return
		}
		srv.closeSessions("idle for "+srv.opts.SessionIdle.String(), func(l *legacySession) bool {
			idle, at := l.idleSince()
			return idle && time.Since(at) >= srv.opts.SessionIdle
		})
		for _, l := range srv.allSessions() {
			l.mu.Lock()
			l.forget()
			l.mu.Unlock()
		}
	}
}

// closeSessions closes those sessions together, because each may wait for its branches' ends to be stored.
func (srv *HTTP) closeSessions(reason string, which func(*legacySession) bool) {
	var closing sync.WaitGroup
	for _, l := range srv.allSessions() {
		if which(l) {
			closing.Go(func() { l.close(reason) })
		}
	}
	closing.Wait()
}

// acquire keeps the session from expiring until release. It fails on a closed one.
func (l *legacySession) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.busy++
	}
	return !l.closed
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

// primes reports whether the host understands an event without data.
func (l *legacySession) primes() bool { return l.session.Revision() >= versionPriming }

// close ends the session: its calls are cancelled, its streams end, its id is answered with 404.
// The second call does nothing.
func (l *legacySession) close(reason string) {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if again {
		return
	}
	srv := l.srv
	srv.mu.Lock()
	delete(srv.sessions, l.id)
	if srv.sessionCounts[l.caller.Principal]--; srv.sessionCounts[l.caller.Principal] == 0 {
		delete(srv.sessionCounts, l.caller.Principal)
	}
	srv.mu.Unlock()
	l.cancel(errors.New(reason))
	closeSession(l.session, reason, srv.log)
	l.countDropped(0)
}

// response returns the response to a request, or to a batch of so many requests if req is nil.
func (l *legacySession) response(x *exchange, req *Request, requests int) *response {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextID++
	p := newResponse(x, req, l.nextID, requests, true)
	p.session, l.open[l.nextID] = l, p.stream
	return p
}

// serve runs a request that was entered, and answers it.
func (l *legacySession) serve(x *exchange, req *Request) {
	p := l.response(x, req, 1)
	p.serve(sseAfter, func() { l.begin(p.stream, req, &x.counted)() })
}

// begin registers a request that is counted in. The caller must call serve, which counts it out. The call goes on if
// its host leaves, and its messages take another way.
func (l *legacySession) begin(s *stream, req *Request, counted *countedRequest) (serve func()) {
	req.Emit = func(msg []byte) error {
		err := s.emit(msg)
		if err == errStreamLost {
			return l.push(msg)
		}
		return err
	}
	p := begin(req.Msg.ID, l.srv.log, func() Pending { return l.session.Begin(l.lifetime, req) })
	return func() {
		defer counted.leave()
		r := p.Serve()
		if req.Msg.Method == wire.MethodInitialize && r.Result == nil {
			l.close("initialize failed")
		}
		l.finish(s, r)
	}
}

// find returns the stream with the given id, open or ended, or nil.
func (l *legacySession) find(id uint64) *stream {
	if id == 0 {
		return l.std
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	for _, s := range l.ended {
		if s.id == id {
			return s
		}
	}
	return l.open[id]
}

// finish hands a reply to its stream. After the last one the stream is kept for hosts that
// resume, if they can.
func (l *legacySession) finish(s *stream, reply Reply) {
	last, resumable := s.finish(reply)
	if !last {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, s.id)
	if resumable {
		s.ended = time.Now()
		l.ended = append(l.ended, s)
		l.forget()
	}
}

// forget drops ended streams beyond the limits, oldest first. The newest stays at any size. The
// caller holds l.mu.
func (l *legacySession) forget() {
	total := 0
	for _, s := range l.ended {
		total += s.size()
	}
	old := time.Now().Add(-eventTTL)
	n := 0
	for n < len(l.ended) {
		s := l.ended[n]
		over := len(l.ended)-n > sessionKeepStreams || (total > sessionKeepBytes && len(l.ended)-n > 1)
		if !over && s.ended.After(old) {
			break
		}
		total -= s.size()
		n++
	}
	l.ended = slices.Delete(l.ended, 0, n)
}

// push delivers a message that belongs to no request: on the GET stream if one is open, else on
// any POST that is still waiting, else it is kept for the next GET stream.
func (l *legacySession) push(msg []byte) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errHostSessionClosed
	}
	var open []*stream
	if !l.std.attached() {
		open = slices.Collect(maps.Values(l.open))
	}
	l.mu.Unlock()
	for _, s := range open {
		if s.attached() && s.emit(msg) == nil {
			return nil
		}
	}
	dropped, err := l.std.keep(msg)
	if dropped != nil {
		l.countDropped(len(dropped))
	}
	return err
}

// countDropped counts a notification of so many bytes that was dropped, and logs those so far now and then. Of a closed
// session it logs what is left, if bytes is 0.
func (l *legacySession) countDropped(bytes int) {
	l.mu.Lock()
	d := &l.dropped
	if bytes > 0 {
		d.count++
		d.bytes += bytes
	}
	told := *d
	due := d.count > 0 && (l.closed || time.Since(d.told) >= tellDropped)
	if due {
		d.count, d.bytes, d.told = 0, 0, time.Now()
	}
	l.mu.Unlock()
	if due { // not under the lock: the log may block
		l.srv.log.Warn("notifications were dropped: too many wait for a GET stream", "session", l.id, "count", told.count, "bytes", told.bytes)
	}
}
