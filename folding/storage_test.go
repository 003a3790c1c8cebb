package folding_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/folding"
)

// faulty is a repository that can be told to refuse writes.
type faulty struct {
	folding.Repository
	mu     sync.Mutex
	broken bool
	hang   chan struct{} // Apply and Forget wait for it if not nil
}

func (r *faulty) set(broken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = broken
}

func (r *faulty) Apply(ctx context.Context, c []folding.Branch) error {
	if r.disk() {
		return errors.New("disk full")
	}
	return r.Repository.Apply(ctx, c)
}

func (r *faulty) Progress(b folding.Branch) error {
	if r.disk() {
		return errors.New("disk full")
	}
	return r.Repository.Progress(b)
}

func (r *faulty) Forget(ctx context.Context, before, latest time.Time, limit int) (int, error) {
	r.disk()
	return r.Repository.Forget(ctx, before, latest, limit)
}

// disk waits if the disk hangs and reports whether it is broken.
func (r *faulty) disk() bool {
	r.mu.Lock()
	broken, hang := r.broken, r.hang
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return broken
}

// A charge that can't be stored is refunded, and its result not delivered.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := &faulty{Repository: folding.NewMemory()}
		m, rec := open(t, roomy(), folding.Options{Repository: repo})
		b := create(t, m, alice, folding.CreateRequest{})
		c := begin(t, m, b.ID)
		repo.set(true)

		wantErr(t, "Charge", c.Charge(10), folding.ErrStorage)
		n, err := c.ChargeUpTo(10)
		wantErr(t, "Take", err, folding.ErrStorage)
		if n != 0 {
			t.Errorf("Take granted %d tokens that are not stored", n)
		}
		if got := status(t, m, alice, b.ID).BudgetUsed; got != 1 {
			t.Errorf("used %d after refused charges, want 1", got)
		}
		_, err = m.Create(ctx, alice, folding.CreateRequest{Description: "d"})
		wantErr(t, "Create", err, folding.ErrStorage)
		if folding.StatusCode(err) != 500 || folding.Code(err) != "storage_failed" {
			t.Errorf("Create: %d %s", folding.StatusCode(err), folding.Code(err))
		}
		if _, n := m.ActiveLeaf(alice); n != 1 {
			t.Errorf("%d branches are open, want the one from before", n)
		}
		// A return is not refused: it delivers nothing that was not charged.
		r, err := m.Return(ctx, alice, b.ID, "done")
		if err != nil || r.Branch.Status != folding.StatusCompleted {
			t.Errorf("Return = %+v, %v", r, err)
		}
		if got := status(t, m, alice, b.ID); got.Status != folding.StatusCompleted {
			t.Errorf("status of an end that is not stored yet: %s", got.Status)
		}
		if got, _, _ := repo.Get(ctx, b.ID); got.Status != folding.StatusActive {
			t.Fatalf("the repository took %s while broken", got.Status)
		}
		wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventConcluded)

		repo.set(false)
		time.Sleep(time.Minute) // virtual: the writer tries again by itself
		synctest.Wait()
		if got, _, _ := repo.Get(ctx, b.ID); got.Status != folding.StatusCompleted || got.Message != "done" {
			t.Errorf("the repository was not told of the end: %s %q", got.Status, got.Message)
		}
		create(t, m, alice, folding.CreateRequest{})
	})
}

// EndSession and Close are bounded even if the disk hangs.
func TestCleanupIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := &faulty{Repository: folding.NewMemory()}
		m, err := folding.Open(ctx, roomy(), folding.Options{Repository: repo, Count: words, Scrub: redact})
		if err != nil {
			t.Fatal(err)
		}
		b := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 600})
		hang := make(chan struct{})
		repo.mu.Lock()
		repo.hang = hang
		repo.mu.Unlock()
		start := time.Now()
		wantErr(t, "EndSession on a hanging disk", m.EndSession(ctx, alice, "bye"), folding.ErrStorage)
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("EndSession took %v, want 30s", took)
		}
		if got := status(t, m, alice, b.ID); got.Status != folding.StatusFailed || got.Reason != folding.ReasonSessionEnded {
			t.Errorf("after 30 s: %s %s, want failed", got.Status, got.Reason)
		}
		time.Sleep(2 * time.Minute) // virtual: until the expiry loop hangs in Forget
		start = time.Now()
		wantErr(t, "Close on a hanging disk", m.Close(ctx), folding.ErrStorage)
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("Close took %v, want 30s", took)
		}
		close(hang)
		synctest.Wait()
		if active, _ := repo.Active(ctx); len(active) != 0 {
			t.Error("the end was not written when the disk came back")
		}
	})
}

// Branches past their retention are deleted, the others stay.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := folding.NewMemory()
		m, _ := open(t, roomy(), folding.Options{Repository: repo})
		var old []folding.Branch
		for range 150 { // more than one batch
			b := create(t, m, alice, folding.CreateRequest{})
			if _, err := m.Return(ctx, alice, b.ID, ""); err != nil {
				t.Fatal(err)
			}
			old = append(old, b)
		}
		time.Sleep(23 * time.Hour)
		fresh := create(t, m, alice, folding.CreateRequest{})
		if _, err := m.Return(ctx, alice, fresh.ID, ""); err != nil {
			t.Fatal(err)
		}
		status(t, m, alice, old[0].ID) // still known
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		for _, b := range old {
			if _, ok, _ := repo.Get(ctx, b.ID); ok {
				t.Fatalf("%s is kept after %v", b.ID, time.Since(b.CreatedAt))
			}
		}
		status(t, m, alice, fresh.ID)
	})
}

// The steady clock goes back once a step back counts. Retention goes on.
func TestForgetAfterAStepBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := folding.NewMemory()
		var off atomic.Int64 // ns
		m, _ := open(t, roomy(), folding.Options{Repository: repo, Now: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		time.Sleep(time.Hour)
		off.Store(int64(-365 * 24 * time.Hour))
		b := create(t, m, alice, folding.CreateRequest{})
		if _, err := m.Return(ctx, alice, b.ID, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if _, ok, _ := repo.Get(ctx, b.ID); ok {
			t.Errorf("%s is kept after %v", b.ID, 25*time.Hour)
		}
	})
}

// A branch that ended while the clock was far ahead does not stay until then.
func TestForgetOfATimeToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := folding.NewMemory()
		var off atomic.Int64 // ns
		m, _ := open(t, roomy(), folding.Options{Repository: repo, Steady: time.Now, Now: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		off.Store(int64(12 * 365 * 24 * time.Hour))
		b := create(t, m, alice, folding.CreateRequest{})
		if _, err := m.Return(ctx, alice, b.ID, ""); err != nil {
			t.Fatal(err)
		}
		off.Store(0)
		time.Sleep(23 * time.Hour)
		status(t, m, alice, b.ID) // still known
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if _, ok, _ := repo.Get(ctx, b.ID); ok {
			t.Errorf("%s is kept after %v", b.ID, 25*time.Hour)
		}
	})
}
