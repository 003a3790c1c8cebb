package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/proxy/conn"
)

// errUpstreamDown marks calls that were not even tried.
var errUpstreamDown = errors.New("the upstream is down")

// retryBackoff holds the waits between attempts to reach an upstream, or to
// make a subscription again.
var retryBackoff = backoff.Backoff{First: 500 * time.Millisecond, Max: 30 * time.Second}

// A link that lived for steadyAfter is reopened at once when it dies.
const steadyAfter = 5 * time.Second

// slot holds one supervised link: it is opened when first needed, and again
// when it died, with back-off and jitter while that fails.
type slot struct {
	name string
	// dial opens the link; up is called after each success, again says that
	// it is not the first.
	dial    func(ctx context.Context) (conn.Conn, error)
	up      func(l conn.Conn, again bool)
	timeout time.Duration
	ctx     context.Context // ends with whoever owns the slot

	mu      sync.Mutex
	cur     conn.Conn
	since   time.Time
	opened  bool          // was up at least once
	dialing chan struct{} // closed when the attempt under way is over
	begun   time.Time     // when the attempt under way began
	err     error         // of the last attempt
	fails   int
	retryAt time.Time
	closed  bool
}

// peek returns the live link, or nil.
func (s *slot) peek() conn.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == nil || isDone(s.cur) {
		return nil
	}
	return s.cur
}

// get returns the live link, opening it if need be. The attempt goes on when
// ctx ends, for the next one who asks.
func (s *slot) get(ctx context.Context) (conn.Conn, error) {
	for {
		s.mu.Lock()
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, fmt.Errorf("upstream %s: %w", s.name, errSessionClosed)
		case s.cur != nil && !isDone(s.cur):
			l := s.cur
			s.mu.Unlock()
			return l, nil
		case s.cur != nil: // it died
			if time.Since(s.since) < steadyAfter {
				s.failed(linkFault(s.cur))
			}
			s.cur = nil
			s.mu.Unlock()
			continue
		case s.dialing == nil && time.Now().Before(s.retryAt) && s.fails > 1:
			err := fmt.Errorf("upstream %s: %w; next attempt in %s: %w", s.name, errUpstreamDown, time.Until(s.retryAt).Round(100*time.Millisecond), s.err)
			s.mu.Unlock()
			return nil, err
		case s.dialing == nil:
			s.start()
		}
		wait := s.dialing
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("upstream %s: not ready yet: %w", s.name, context.Cause(ctx))
		}
		s.mu.Lock()
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("upstream %s: %w", s.name, err)
		}
	}
}

// start begins an attempt; the caller holds mu.
func (s *slot) start() {
	s.dialing, s.begun = make(chan struct{}), time.Now()
	go s.attempt()
}

// slow returns an error where get would likely wait in vain: the last attempt
// failed, or the one under way has taken long already. It sees to it that there
// is an attempt all the same, for the next who asks.
func (s *slot) slow() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || (s.cur != nil && !isDone(s.cur)):
		return nil
	case s.dialing != nil && time.Since(s.begun) > listWait:
		return fmt.Errorf("upstream %s: starting since %s", s.name, time.Since(s.begun).Round(time.Second))
	case s.err == nil || s.cur != nil:
		return nil
	case s.dialing == nil && time.Now().After(s.retryAt):
		s.start()
	}
	return fmt.Errorf("upstream %s: %w: %w", s.name, errUpstreamDown, s.err)
}

// attempt dials once. It runs in a goroutine that close waits for, through
// the dialing channel.
func (s *slot) attempt() {
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.timeout, fmt.Errorf("no answer within %s (connect_seconds)", s.timeout))
	defer cancel()
	l, err := s.dial(ctx)
	s.mu.Lock()
	again := s.opened
	switch {
	case err != nil:
		s.failed(err)
	case s.closed:
		err = errSessionClosed
	default:
		s.cur, s.since, s.err, s.fails, s.opened = l, time.Now(), nil, 0, true
	}
	done := s.dialing
	closed := s.closed
	s.mu.Unlock()
	if l != nil && closed {
		_ = l.Close()
	} else if err == nil && s.up != nil {
		s.up(l, again)
	}
	s.mu.Lock()
	s.dialing = nil
	s.mu.Unlock()
	close(done)
}

// failed notes a failure; the caller holds mu.
func (s *slot) failed(err error) {
	s.err = err
	s.fails++
	s.retryAt = time.Now().Add(retryBackoff.Delay(s.fails - 1))
}

// close ends the link, and waits for an attempt under way.
func (s *slot) close() {
	s.mu.Lock()
	s.closed = true
	l, wait := s.cur, s.dialing
	s.cur = nil
	s.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	if wait != nil {
		<-wait
	}
}

func isDone(l conn.Conn) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

func linkFault(l conn.Conn) error {
	if err := l.Err(); err != nil {
		return err
	}
	return errUpstreamDown
}
