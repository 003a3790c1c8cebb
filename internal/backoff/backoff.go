// Package backoff waits between attempts. Each wait is twice as long as the one before, with
// jitter, so that clients that failed together do not return together.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Steady is the age from which the loss of a connection does not count as a failure.
const Steady = 5 * time.Second

// A Backoff doubles the wait after each failure, from First up to Max.
type Backoff struct {
	First, Max time.Duration
}

// Delay returns the wait before retry n, counted from 0: a random time between half of the bound
// and the bound, which is First doubled n times, at most Max.
func (b Backoff) Delay(n int) time.Duration {
	d := b.First
	for ; n > 0 && d < b.Max; n-- {
		d *= 2
	}
	d = min(d, b.Max)
	return d/2 + rand.N(d/2+1)
}

// Wait is [Sleep] for Delay(n).
func (b Backoff) Wait(ctx context.Context, n int) error { return Sleep(ctx, b.Delay(n)) }

// Sleep waits for d and returns nil. If ctx ends first, it returns the cause of ctx at once.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
