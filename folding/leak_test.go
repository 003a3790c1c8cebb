package folding

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Ended branches leave nothing in memory.
func TestNothingIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.MaxBranchesPerMinute = 1000
		m, err := Open(context.Background(), cfg, Options{
			Repository: NewMemory(),
			Count:      func(s string) int { return 1 },
			Scrub:      func(_ context.Context, s string) (string, error) { return s, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			c := Caller{Principal: "alice", Session: fmt.Sprint("s", i), Thread: "t"}
			b, err := m.Create(context.Background(), c, CreateRequest{Description: "d", TimeoutSeconds: 5})
			if err != nil {
				t.Fatal(err)
			}
			m.Join(Caller{Principal: "alice", Session: "other", Thread: "t"}, b.ID)
			call, err := m.Acquire(context.Background(), func(error) {}, b.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := call.ChargeUpTo(10); err != nil {
				t.Fatal(err)
			}
			switch i % 3 {
			case 0:
				_, err = m.Return(context.Background(), c, b.ID, "")
			case 1:
				err = m.EndSession(context.Background(), c, "")
			case 2:
				time.Sleep(6 * time.Second)
			}
			if err != nil {
				t.Fatal(err)
			}
			call.Release(CallOutcome{})
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		m.mu.Lock()
		m.w.mu.Lock()
		if len(m.live)+len(m.sessions)+len(m.joined)+len(m.made)+len(m.events)+len(m.w.ended)+len(m.w.next.created) > 0 || !m.next.IsZero() {
			t.Errorf("kept: %d branches, %d sessions, %d joined, %d principals under limits, %d events, %d ends, %d changes, next deadline %v",
				len(m.live), len(m.sessions), len(m.joined), len(m.made), len(m.events), len(m.w.ended), len(m.w.next.created), m.next)
		}
		m.w.mu.Unlock()
		m.mu.Unlock()
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
		// The bubble fails the test if a goroutine is left.
	})
}
