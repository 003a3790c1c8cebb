package scrub

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrTimeLimit is the error of a text that took longer than Options.Timeout.
var ErrTimeLimit = errors.New("scrub: over its time limit")

// A limit ends an examination that takes too long or that nobody waits for.
type limit struct {
	ctx      context.Context
	deadline time.Time // zero for none
	timeout  time.Duration
	checks   int64 // how often it was asked: the work that was done, roughly
}

func newLimit(ctx context.Context, timeout time.Duration) *limit {
	l := &limit{ctx: ctx, timeout: timeout}
	if timeout > 0 {
		l.deadline = time.Now().Add(timeout)
	}
	return l
}

func (l *limit) check() error {
	l.checks++
	if err := l.ctx.Err(); err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	if !l.deadline.IsZero() && time.Now().After(l.deadline) {
		return fmt.Errorf("%w of %v: raise scrub.timeout_ms or ask for less at once", ErrTimeLimit, l.timeout)
	}
	return nil
}
