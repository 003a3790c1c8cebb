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
	timeout  time.Duration // 0 for none
	deadline time.Time     // known after the first check
	checks   int64         // how often it was asked: the work that was done, roughly
	spent    int           // bytes since the last check
}

// grain is after how many bytes of short texts the time is checked: asking what
// time it is costs as much as looking at a short string.
const grain = 4096

// spend counts n bytes that are about to be examined.
func (l *limit) spend(n int) error {
	if l.spent += n; l.spent < grain {
		return nil
	}
	return l.check()
}

// check fails when the time is over. It begins with the first check.
func (l *limit) check() error {
	l.checks++
	l.spent = 0
	if err := l.ctx.Err(); err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	if l.timeout <= 0 {
		return nil
	}
	now := time.Now()
	if l.deadline.IsZero() {
		l.deadline = now.Add(l.timeout)
	}
	if now.After(l.deadline) {
		return fmt.Errorf("%w of %v: raise scrub.timeout_ms or ask for less at once", ErrTimeLimit, l.timeout)
	}
	return nil
}
