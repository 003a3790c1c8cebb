package backoff

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
			if err := (Backoff{time.Second, time.Second}).Wait(t.Context(), 0); err != nil {
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

func TestDelayDoubles(t *testing.T) {
	b := Backoff{First: 500 * time.Millisecond, Max: 30 * time.Second}
	for n, bound := range map[int]time.Duration{
		0: b.First, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: b.Max, 7: b.Max, 1 << 40: b.Max,
	} {
		for range 100 {
			if d := b.Delay(n); d < bound/2 || d > bound {
				t.Fatalf("Delay(%d) = %v, want %v to %v", n, d, bound/2, bound)
			}
		}
	}
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(gone) })
		began := time.Now()
		if err := (Backoff{time.Hour, time.Hour}).Wait(ctx, 0); !errors.Is(err, gone) || time.Since(began) != time.Second {
			t.Errorf("Wait = %v after %v, want %v after 1s", err, time.Since(began), gone)
		}
	})
}
