package folding_test

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
)

// All ways to end a branch race. Exactly one wins, the others learn which, and
// the counters return to their values.
func TestOneEnd(t *testing.T) {
	clock := newManual()
	cfg := roomy()
	cfg.MaxConcurrentPerInstance = 3 // after a double decrement there would be room for more
	m, rec := open(t, cfg, folding.Options{Now: clock.now})
	wins := map[string]int{}
	for round := range 400 {
		p := create(t, m, alice, folding.CreateRequest{Budget: 100})
		b := create(t, m, alice, folding.CreateRequest{ParentID: p.ID, Budget: 100})
		late := begin(t, m, b.ID) // runs all the time
		spender := begin(t, m, b.ID)
		var returned, charged atomic.Bool
		start := make(chan struct{})
		var wg sync.WaitGroup
		racers, favoured := 0, round%6
		race := func(f func()) {
			behind := racers != favoured // each one gets a head start in turn
			racers++
			wg.Go(func() {
				<-start
				for range 8 {
					if behind {
						runtime.Gosched()
					}
				}
				f()
			})
		}
		race(func() {
			r, err := m.Return(ctx, alice, b.ID, "done")
			if err != nil {
				t.Errorf("Return = %v", err)
			}
			returned.Store(!r.Branch.Late)
			if r.Branch.Late != (r.Branch.Status != folding.StatusCompleted) {
				t.Errorf("Return says late=%v of a branch that is %s", r.Branch.Late, r.Branch.Status)
			}
		})
		race(func() { clock.advance(300 * time.Second); m.ActiveLeaf(alice) })
		race(func() {
			err := spender.Charge(1000)
			charged.Store(errors.Is(err, folding.ErrBudgetExhausted))
			if !charged.Load() && !errors.Is(err, folding.ErrNotActive) {
				t.Errorf("Charge = %v", err)
			}
		})
		race(func() {
			if _, err := m.Return(ctx, alice, p.ID, "parent done"); err != nil {
				t.Errorf("Return of the parent = %v", err)
			}
		})
		race(func() {
			if err := m.EndSession(ctx, alice, "gone"); err != nil {
				t.Errorf("EndSession = %v", err)
			}
		})
		race(func() {
			if n, err := late.ChargeUpTo(50); n != 50 && !errors.Is(err, folding.ErrNotActive) {
				t.Errorf("Take = %d, %v", n, err)
			}
		})
		close(start)
		wg.Wait()
		late.Release(folding.CallOutcome{})
		spender.Release(folding.CallOutcome{})

		got := status(t, m, alice, b.ID)
		wins[string(got.Status)+" "+got.Reason]++
		if returned.Load() != (got.Status == folding.StatusCompleted) || charged.Load() != (got.Reason == folding.ReasonBudgetExhausted) {
			t.Errorf("stored %s %s; Return won %v, Charge won %v", got.Status, got.Reason, returned.Load(), charged.Load())
		}
		ends := rec.ends()
		if i, j := slices.Index(ends, b.ID), slices.Index(ends, p.ID); i < 0 || j < 0 || i > j {
			t.Errorf("child ended at %d, parent at %d; want the child first", i, j)
		}
		for _, id := range []string{b.ID, p.ID} {
			n := 0
			for _, e := range ends {
				if e == id {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%d ends of one branch", n)
			}
		}
		if late.Err() == nil {
			t.Error("a call outlives its branch")
		}
		rec.mu.Lock()
		rec.events = nil
		rec.mu.Unlock()
	}
	t.Logf("wins: %v", wins)
	if len(wins) < 3 {
		t.Errorf("only %v ever won: this is no race", wins)
	}
	for range 3 { // the limits are free again
		create(t, m, alice, folding.CreateRequest{})
	}
	_, err := m.Create(ctx, alice, folding.CreateRequest{Description: "d"})
	wantErr(t, "4th of 3", err, folding.ErrInstanceFull)
}

// A child that is created while its parent returns ends with it or is refused.
func TestChildCreatedWhileParentReturns(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	for range 300 {
		p := create(t, m, alice, folding.CreateRequest{})
		var child folding.Branch
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { child, err = m.Create(ctx, alice, folding.CreateRequest{Description: "d", ParentID: p.ID}) })
		wg.Go(func() {
			if _, err := m.Return(ctx, alice, p.ID, ""); err != nil {
				t.Errorf("Return: %v", err)
			}
		})
		wg.Wait()
		if err == nil {
			if got := status(t, m, alice, child.ID); !got.Status.Terminal() {
				t.Fatalf("child is %s below a returned parent", got.Status)
			}
		} else {
			wantErr(t, "Create", err, folding.ErrNotActive)
		}
		if b, n := m.ActiveLeaf(alice); n != 0 {
			t.Fatalf("%s is left behind", b.ID)
		}
	}
}

// Creations that race with Close are refused or ended.
func TestCreateWhileClosing(t *testing.T) {
	for range 30 {
		repo := folding.NewMemory()
		m, err := folding.Open(ctx, roomy(), folding.Options{Repository: repo, Count: words, Scrub: redact})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					b, err := m.Create(ctx, alice, folding.CreateRequest{Description: "d"})
					if err != nil {
						if !errors.Is(err, folding.ErrClosed) && !errors.Is(err, folding.ErrNotActive) {
							t.Errorf("Create = %v", err)
						}
						return
					}
					if c, err := acquire(ctx, m, b.ID); err == nil {
						c.Charge(1)
						c.Release(folding.CallOutcome{})
					}
				}
			})
		}
		if err := m.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := m.Close(ctx); err != nil {
			t.Errorf("second Close: %v", err)
		}
		wg.Wait()
		if active, _ := repo.Active(ctx); len(active) > 0 {
			t.Errorf("%d branches are active after Close", len(active))
		}
	}
}
