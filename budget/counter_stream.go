package budget

import (
	"errors"
	"math"
)

// ErrLimit is what writing to a Stream returns once its limit is exceeded.
var ErrLimit = errors.New("text exceeds the token limit")

// errClosed is what writing to a closed Stream returns.
var errClosed = errors.New("write to a closed token stream")

// A Stream counts text that arrives in parts, cut anywhere, as Count does for
// the whole. It is an io.WriteCloser and serves one goroutine at a time.
type Stream struct {
	counter *Counter
	limit   int
	tokens  int
	buf     []byte
	closed  bool
}

// Stream returns a stream without a limit.
func (c *Counter) Stream() *Stream {
	return &Stream{counter: c, limit: math.MaxInt}
}

// SetLimit makes Write and Close return ErrLimit as soon as it is certain that
// the text has more than n tokens.
func (s *Stream) SetLimit(n int) { s.limit = n }

// Write counts p, which it does not keep.
func (s *Stream) Write(p []byte) (int, error) {
	if s.closed {
		return 0, errClosed
	}
	s.buf = append(s.buf, p...)
	return len(p), nil
}

// WriteString counts p.
func (s *Stream) WriteString(p string) (int, error) {
	if s.closed {
		return 0, errClosed
	}
	s.buf = append(s.buf, p...)
	return len(p), nil
}

// Close ends the text and makes Tokens the count of all of it.
func (s *Stream) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.tokens = s.counter.CountBytes(s.buf)
	if s.tokens > s.limit {
		return ErrLimit
	}
	return nil
}

// Tokens returns the count of the text: exact after Close, and until then a
// number that it will not go below.
func (s *Stream) Tokens() int { return s.tokens }
