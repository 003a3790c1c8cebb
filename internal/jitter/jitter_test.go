package jitter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := map[time.Duration]bool{}
		for range 100 {
			began := time.Now()
			if err := Wait(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			if took < time.Second/2 || took > time.Second {
				t.Fatalf("Wait(1s) took %v, want 0.5s to 1s", took)
			}
			times[took] = true
		}
		if len(times) < 50 {
			t.Errorf("100 waits took %d different times, want nearly 100", len(times))
		}
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(gone) })
		began := time.Now()
		if err := Wait(ctx, time.Hour); !errors.Is(err, gone) || time.Since(began) != time.Second {
			t.Errorf("Wait = %v after %v, want %v after 1s", err, time.Since(began), gone)
		}
	})
}
