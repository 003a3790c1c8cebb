package server

import (
	"context"
	"sync"
	"time"
)

// attend serves a POST: run makes its calls, on this goroutine, and respond
// answers with what the stream c holds has then. Where there is something to
// say before that, an event or after a silence of wait, respond is called at
// that moment on a goroutine of its own: most calls need none, and no
// switching between two.
func (e *HTTP) attend(ctx context.Context, s *stream, c *streamConn, wait time.Duration, run, respond func()) {
	var early sync.WaitGroup
	s.attend(c, func() { early.Go(respond) })
	if wait > 0 {
		defer time.AfterFunc(wait, func() { s.hurry(c) }).Stop()
	} else {
		s.hurry(c)
	}
	defer context.AfterFunc(ctx, func() { s.detach(c) })() // the host left: events take another way
	run()
	if s.attended(c) {
		early.Wait()
		return
	}
	respond()
}

// attend sets what starts the answer early. It must not block.
func (s *stream) attend(c *streamConn, early func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.early = early
	if len(s.events) > 0 {
		s.hurryLocked()
	}
}

// hurry starts the answer of c now, if it holds the stream and has not begun.
func (s *stream) hurry(c *streamConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c {
		s.hurryLocked()
	}
}

func (s *stream) hurryLocked() {
	if c := s.conn; c != nil && c.early != nil {
		c.early()
		c.early = nil
	}
}

// attended reports whether the answer was started early. If not, it never will be.
func (s *stream) attended(c *streamConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun := c.early == nil
	c.early = nil
	return begun
}
