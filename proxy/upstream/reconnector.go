package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// errDown marks calls that were not tried.
var errDown = errors.New("the upstream is down")

// retryPause is the pause before a failed attempt to reach a server is repeated.
var retryPause = backoff.Backoff{First: 500 * time.Millisecond, Max: 30 * time.Second}

// reconnector keeps one connection to a server. It opens the connection when it is first needed,
// and again after it was lost, with back-off while that fails.
type reconnector struct {
	server *Server
	of     *Connections
	tasks  sync.WaitGroup // attempts, watches over lists, ends of connections; close waits for them

	mu      sync.Mutex
	current conn.Conn
	use     idler         // current without its translation; nil if it can't tell whether calls use it
	asked   time.Time     // when somebody last asked for a connection
	since   time.Time     // when the last connection opened; zero: there was none
	number  uint64        // of the last connection
	info    conn.Info     // what the server said of itself over it
	trying  chan struct{} // closed at the end of the current attempt; nil without an attempt
	began   time.Time     // the current attempt
	err     error         // of the last attempt
	fails   int           // in a row
	retryAt time.Time
	login   *time.Timer // looks for a login that the last attempt lacked; else nil
	closed  bool
}

// opened counts the connections of the process.
var opened atomic.Uint64

// State is what is known of the connection of a scope.
type State struct {
	Open   bool
	Number uint64    // of the last connection, which no other one of the process has; 0 if there was none
	Began  time.Time // when the running attempt to open it began; now if none runs
}

// State returns the state of the connection of a scope. To ask is no use of the connection.
func (s *Server) State(scope Scope) State {
	r := s.reconnector(scope)
	r.mu.Lock()
	defer r.mu.Unlock()
	st := State{r.open(), r.number, time.Now()}
	if r.trying != nil {
		st.Began = r.began
	}
	return st
}

// said returns what the server said of itself over the last connection.
func (r *reconnector) said() conn.Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info
}

// open reports whether the connection is open. The caller holds mu.
func (r *reconnector) open() bool { return r.current != nil && !isDone(r.current) }

// ConnectionIfOpen is [Server.Connection] for callers that open none: it returns nil unless the connection is open.
func (s *Server) ConnectionIfOpen(scope Scope) conn.Conn {
	r := s.reconnector(scope)
	r.mu.Lock()
	c, open := r.current, r.open()
	r.asked = time.Now()
	r.mu.Unlock()
	switch {
	case !open:
		return nil
	case scope.views(s):
		return s.View(scope)
	}
	return c
}

// View returns a session's view of the shared connection, nil if the session has not used it yet. A view
// outlives the connection.
func (s *Server) View(scope Scope) conn.Conn {
	if !scope.views(s) {
		return nil
	}
	scope.Own.mu.Lock()
	defer scope.Own.mu.Unlock()
	if v := scope.Own.views[s]; v != nil {
		return v.seen
	}
	return nil
}

// Connection returns the live connection of a scope, and opens it if need be. If ctx ends first,
// the attempt goes on for the next caller.
func (s *Server) Connection(ctx context.Context, scope Scope) (conn.Conn, error) {
	r := s.reconnector(scope)
	c, err := r.connection(ctx)
	if err == nil && scope.views(s) {
		c = scope.Own.view(r)
	}
	return c, err
}

// ConnectionUnlessDown is [Server.Connection] for callers that must not wait for a server that can't be
// reached: if the last attempt failed, it returns the error at once, and starts the next attempt if that is
// due.
func (s *Server) ConnectionUnlessDown(ctx context.Context, scope Scope) (conn.Conn, error) {
	if err := s.reconnector(scope).down(); err != nil {
		return nil, err
	}
	return s.Connection(ctx, scope)
}

func (r *reconnector) connection(ctx context.Context) (conn.Conn, error) {
	name := r.server.Key
	for {
		r.mu.Lock()
		if r.current != nil && isDone(r.current) {
			lost := r.current
			r.current = nil
			if time.Since(r.since) < backoff.Steady {
				r.failed(cmp.Or(lost.Err(), errDown))
			}
		}
		switch {
		case r.closed:
			r.mu.Unlock()
			return nil, fmt.Errorf("upstream %s: %w", name, cmp.Or(r.server.Gone(), errSessionEnded))
		case r.current != nil && r.trying == nil: // else its owner prepares it
			c := r.current
			r.asked = time.Now()
			r.mu.Unlock()
			return c, nil
		case r.trying == nil && time.Now().Before(r.retryAt) && r.fails > 1:
			defer r.mu.Unlock()
			return nil, fmt.Errorf("upstream %s: %w; next attempt in %s: %w", name, errDown, time.Until(r.retryAt).Round(100*time.Millisecond), r.err)
		case r.trying == nil:
			r.start()
		}
		trying := r.trying
		r.mu.Unlock()
		select {
		case <-trying:
		case <-ctx.Done():
			return nil, fmt.Errorf("upstream %s: not ready yet: %w", name, context.Cause(ctx))
		}
		r.mu.Lock()
		err := r.err
		r.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("upstream %s: %w", name, err)
		}
	}
}

// down returns why the last attempt failed, nil if it did not. It starts the next attempt if that is due.
func (r *reconnector) down() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.err == nil || r.current != nil || MayLogIn(r.err) { // whether there is a login is known at once
		return nil
	}
	if r.trying == nil && time.Now().After(r.retryAt) {
		r.start()
	}
	return fmt.Errorf("upstream %s: %w: %w", r.server.Key, errDown, r.err)
}

// start begins an attempt. The caller holds mu.
func (r *reconnector) start() {
	r.trying, r.began = make(chan struct{}), time.Now()
	r.tasks.Go(r.attempt)
}

func (r *reconnector) attempt() {
	cs := r.of
	cs.mu.Lock()
	initialize := cs.initialize
	cs.mu.Unlock()
	host := conn.Host{Shared: cs.shared, Everyone: r.server.Everyone(), Initialize: initialize}
	in := &inbox{handler: handler{owner: cs.owner, server: r.server}}
	var raw, c conn.Conn
	login := r.server.set.logins.For(r.server.Key, r.server.Config, cs.group.Principal)
	loggedIn := login.Watch()
	err := r.server.places.take(cs.lifetime, r)
	if err == nil {
		if raw, err = r.server.dial(cs, in, host, login); err != nil {
			r.server.places.free(r)
		}
	}
	if err == nil {
		c = r.connect(raw, in, host)
	}
	use, _ := raw.(idler)
	r.mu.Lock()
	again, closed, trying := !r.since.IsZero() || r.login != nil || r.server.again, r.closed, r.trying
	switch {
	case errors.Is(err, ErrFull): // the next call may find a place
		r.err = err
	case MayLogIn(err):
		r.err = err
		r.await(loggedIn)
	case err != nil:
		r.failed(err)
	case !closed:
		r.current, r.use, r.since, r.asked, r.err, r.fails, r.login = c, use, time.Now(), time.Now(), nil, 0, nil
		r.number, r.info = opened.Add(1), raw.Info()
	}
	r.mu.Unlock()
	if err == nil {
		if closed {
			_ = c.Close()
		}
		r.tasks.Go(func() { r.keep(c, use) })
		if !closed {
			cs.owner.Opened(r.server, c, again)
		}
	}
	r.mu.Lock()
	r.trying = nil
	r.mu.Unlock()
	close(trying)
}

// loginPoll is how often a connection that lacks a login looks for one.
const loginPoll = time.Second

// await tries again when somebody has logged in: no host calls a tool that it has not seen. The caller
// holds mu.
func (r *reconnector) await(loggedIn func() bool) {
	if r.login != nil {
		r.login.Stop()
	}
	r.login = time.AfterFunc(loginPoll, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.closed || r.of.lifetime.Err() != nil || r.login == nil: // a connection needs no login any more
		case r.trying == nil && loggedIn():
			r.start()
		default:
			r.login.Reset(loginPoll)
		}
	})
}

// keep waits for the end of a connection, and ends it if it is idle for too long.
func (r *reconnector) keep(c conn.Conn, use idler) {
	limit := r.server.idle
	check := time.NewTimer(limit)
	defer check.Stop()
	if limit == 0 || use == nil {
		check.Stop()
	}
	for {
		select {
		case <-c.Done():
			if err := c.Err(); err != nil {
				r.server.Log.Warn("an upstream was lost", "err", err)
			}
			_ = c.Close() // waits for its child process
			r.server.places.free(r)
			return
		case <-check.C:
			left := limit
			if since, idle := r.idle(); idle {
				if left -= time.Since(since); left <= 0 {
					r.retire()
					left = limit
				}
			}
			check.Reset(left)
		}
	}
}

// idler is a connection that knows whether calls use it.
type idler interface {
	idle() (since time.Time, ok bool)
	retire() bool
}

// idle returns since when the connection is unused. ok is false if it is used, or not open.
func (r *reconnector) idle() (since time.Time, ok bool) {
	r.mu.Lock()
	c, use, asked := r.current, r.use, r.asked
	ok = use != nil && r.trying == nil && r.open()
	r.mu.Unlock()
	if !ok {
		return since, false
	}
	if since, ok = use.idle(); since.Before(asked) {
		since = asked
	}
	user, translated := c.(interface{ InUse() bool })
	return since, ok && !(translated && user.InUse()) && !r.of.owner.Uses(r.server)
}

// errRetired is why an idle connection takes no call. The next attempt opens another one.
var errRetired = fmt.Errorf("%w: it was idle and is closed", conn.ErrSessionGone)

// retire closes an idle connection. It returns false if a call uses it. The next one is like the first:
// nothing was lost.
func (r *reconnector) retire() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.current
	if c == nil || r.use == nil || !r.use.retire() {
		return false
	}
	r.current, r.since = nil, time.Time{}
	r.tasks.Go(func() {
		r.of.owner.Retired(r.server)
		_ = c.Close()
	})
	return true
}

// connect ties a new connection to the owner, translated into the era of its hosts. The built-in
// server speaks both eras.
func (r *reconnector) connect(c conn.Conn, in *inbox, host conn.Host) conn.Conn {
	in.conn = &c
	var h conn.Handler = in.handler
	if raw := c; !r.server.Builtin() {
		c, h = r.server.set.options.Bridge(r.server.Key, host, raw, h)
		if raw.Info().Modern() {
			r.tasks.Go(func() { r.watchLists(raw, h) })
		}
	}
	in.open(h)
	return c
}

// handler hands what a server sends on a connection to its owner.
type handler struct {
	owner  Owner
	server *Server
	conn   *conn.Conn // as the owner knows it
}

// Unsolicited implements [conn.Handler].
func (h handler) Unsolicited(m wire.Message) { h.owner.Unsolicited(h.server, *h.conn, m) }

// Undelivered implements [conn.Handler].
func (h handler) Undelivered(r conn.Undelivered) { h.owner.Undelivered(h.server, r) }

// maxEarly bounds the messages that a server sends before its connection is up, maxEarlyBytes their size.
const (
	maxEarly      = 1000
	maxEarlyBytes = 16 << 20
)

// inbox is the handler of a connection that is being opened. It keeps messages until the
// connection's own handler is known.
type inbox struct {
	handler // hears what is not delivered

	mu    sync.Mutex
	own   conn.Handler
	early []wire.Message
	bytes int // in early
}

// Unsolicited implements [conn.Handler].
func (in *inbox) Unsolicited(m wire.Message) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.own != nil:
		in.own.Unsolicited(m)
	case len(in.early) == 0 || len(in.early) < maxEarly && in.bytes+len(m.Raw) <= maxEarlyBytes:
		in.early = append(in.early, m)
		in.bytes += len(m.Raw)
	default:
		in.Undelivered(conn.Undelivered{Message: m, Rule: conn.RuleTooMany, Text: "too many messages wait until the server is initialized"})
	}
}

// open hands the messages so far, and all later ones, to h.
func (in *inbox) open(h conn.Handler) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, m := range in.early {
		h.Unsolicited(m)
	}
	in.own, in.early = h, nil
}

// failed notes a failure. The caller holds mu.
func (r *reconnector) failed(err error) {
	r.err = err
	r.fails++
	r.retryAt = time.Now().Add(retryPause.Delay(r.fails - 1))
}

// close ends the connection, and waits for the goroutines.
func (r *reconnector) close() {
	r.mu.Lock()
	r.closed = true
	c := r.current
	r.current = nil
	r.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
	r.tasks.Wait()
}

func isDone(c conn.Conn) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// watchLists asks a modern server for changes of its lists for as long as c lasts, and hands them
// to h as a legacy server sends them. After a break every list may have changed.
func (r *reconnector) watchLists(c conn.Conn, h conn.Handler) {
	flags := map[string]bool{}
	for _, list := range wire.Lists {
		if v, _ := rawjson.Get(c.Info().Capability(list), "listChanged"); string(v) == "true" {
			flags[list+"ListChanged"] = true
		}
	}
	if len(flags) == 0 {
		return
	}
	l := conn.Listener{Notifications: rawjson.Marshal(flags), Log: r.server.Log, Listened: func(m wire.Message) {
		for _, list := range wire.Lists {
			if m.Method == wire.ListChanged(list) {
				h.Unsolicited(wire.Message{Method: m.Method, Params: m.Params, Extra: m.Extra})
			}
		}
	}, Acknowledged: func(again bool) {
		for _, list := range wire.Lists {
			if again && c.Info().Capability(list) != nil {
				h.Unsolicited(wire.Message{Method: wire.ListChanged(list)})
			}
		}
	}}
	l.KeepOn(r.of.lifetime, c)
}
