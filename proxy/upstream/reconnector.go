package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// errDown marks calls that were not tried.
var errDown = errors.New("the upstream is down")

// Backoff is the pause before a failed attempt to reach a server is repeated.
var Backoff = backoff.Backoff{First: 500 * time.Millisecond, Max: 30 * time.Second}

// steadyAfter is the age at which the loss of a connection is not a failure: it
// is opened again at once.
const steadyAfter = 5 * time.Second

// reconnector keeps one connection to a server. It opens the connection when it
// is first needed, and again after it was lost, with back-off while that fails.
type reconnector struct {
	server   *Server
	owner    Owner
	session  *Session        // nil: the connection is shared
	lifetime context.Context // the session's, or the set's
	tasks    sync.WaitGroup  // attempts and watches over lists; close waits for them

	mu      sync.Mutex
	current conn.Conn
	since   time.Time     // when current opened
	opened  bool          // at least once
	trying  chan struct{} // closed at the end of the current attempt; nil: there is none
	began   time.Time     // the current attempt
	err     error         // of the last attempt
	fails   int           // in a row
	retryAt time.Time
	closed  bool
}

// Unsolicited makes a reconnector the connection's [conn.Handler].
func (r *reconnector) Unsolicited(m wire.Message) { r.owner.Unsolicited(r.server, m) }

// live returns the connection if it is open, else nil.
func (r *reconnector) live() conn.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil || isDone(r.current) {
		return nil
	}
	return r.current
}

// connection returns the live connection, and opens it if need be.
func (r *reconnector) connection(ctx context.Context) (conn.Conn, error) {
	name := r.server.Key
	for {
		r.mu.Lock()
		if r.current != nil && isDone(r.current) {
			if time.Since(r.since) < steadyAfter {
				r.failed(lossOf(r.current))
			}
			r.current = nil
		}
		switch {
		case r.closed:
			r.mu.Unlock()
			return nil, fmt.Errorf("upstream %s: %w", name, errSessionEnded)
		case r.current != nil:
			defer r.mu.Unlock()
			return r.current, nil
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

// slow returns an error if connection would likely keep its caller waiting for
// longer than limit. It starts an attempt if that is due.
func (r *reconnector) slow(limit time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || (r.current != nil && !isDone(r.current)):
		return nil
	case r.trying != nil && time.Since(r.began) > limit:
		return fmt.Errorf("upstream %s: starting since %s", r.server.Key, time.Since(r.began).Round(time.Second))
	case r.err == nil || r.current != nil:
		return nil
	case r.trying == nil && time.Now().After(r.retryAt):
		r.start()
	}
	return fmt.Errorf("upstream %s: %w: %w", r.server.Key, errDown, r.err)
}

// start begins an attempt. The caller holds mu.
func (r *reconnector) start() {
	r.trying, r.began = make(chan struct{}), time.Now()
	r.tasks.Go(r.attempt)
}

// attempt opens the connection once.
func (r *reconnector) attempt() {
	var initialize json.RawMessage
	if r.session != nil {
		r.session.mu.Lock()
		initialize = r.session.initialize
		r.session.mu.Unlock()
	}
	c, err := r.server.dial(r.lifetime, r, initialize, r.session == nil)
	r.mu.Lock()
	again, closed, trying := r.opened, r.closed, r.trying
	switch {
	case err != nil:
		r.failed(err)
	case !closed:
		r.current, r.since, r.err, r.fails, r.opened = c, time.Now(), nil, 0, true
	}
	r.mu.Unlock()
	switch {
	case err != nil:
	case closed:
		_ = c.Close()
	default:
		if c.Info().Modern() {
			r.tasks.Go(func() { r.watchLists(c) })
		}
		r.owner.Opened(r.server, c, again)
	}
	r.mu.Lock()
	r.trying = nil
	r.mu.Unlock()
	close(trying)
}

// failed notes a failure. The caller holds mu.
func (r *reconnector) failed(err error) {
	r.err = err
	r.fails++
	r.retryAt = time.Now().Add(Backoff.Delay(r.fails - 1))
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

// lossOf returns why c was lost.
func lossOf(c conn.Conn) error {
	if err := c.Err(); err != nil {
		return err
	}
	return errDown
}
