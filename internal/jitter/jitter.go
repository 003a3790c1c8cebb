// Package jitter waits before something is tried again, so that many who failed
// together do not come back together.
package jitter

import (
	"context"
	"math/rand/v2"
	"time"
)

// Wait returns nil after a time between half of d and d, drawn anew each time,
// or the cause of ctx as soon as ctx ends.
func Wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
