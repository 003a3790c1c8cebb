package interceptor

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// However branches end, nothing of them is kept.
func TestBranchRecordsForget(t *testing.T) {
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	j, err := trace.Open(filepath.Join(t.TempDir(), "trace"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	r := &BranchRecords{Recorder: &Recorder{Journal: j, Log: slog.New(slog.DiscardHandler)}, Counter: counter}
	repo, err := folding.OpenSQLite(filepath.Join(t.TempDir(), "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := folding.Open(t.Context(), folding.DefaultConfig(), folding.Options{
		Repository: repo, Count: counter.Count, OnEvent: r.Event, Scrub: func(_ context.Context, s string) (string, error) { return s, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	open := func(parent string) folding.Branch {
		t.Helper()
		b, err := m.Create(t.Context(), me, folding.CreateRequest{Description: "work", ParentID: parent})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	end := func(b folding.Branch) {
		t.Helper()
		defer r.Returning(m, &Call{Origin: Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session}}, b.ID)()
		if _, err := m.Return(t.Context(), me, b.ID, "done"); err != nil {
			t.Fatal(err)
		}
	}
	parent := open("")
	end(open(parent.ID)) // by itself
	open(open(parent.ID).ID)
	end(parent) // with children
	forced := open("")
	if err := m.EndSession(t.Context(), me, "test"); err != nil {
		t.Fatal(err)
	}
	end(forced) // late
	if n := len(r.open); n > 0 {
		t.Errorf("%d entries are left", n)
	}
}

// A branch whose end was recorded and not stored ended by its deadline, whatever the clock says now.
func TestEndOfAKilledBranch(t *testing.T) {
	b := folding.Branch{ExpiresAt: time.Now().Add(-time.Hour)}
	for _, reason := range []string{folding.ReasonTimeout, folding.ReasonBudgetExhausted, ""} {
		if got := endedAs(b, reason); !got.CompletedAt.Equal(b.ExpiresAt) {
			t.Errorf("%q: it ended at %v, after its deadline at %v", reason, got.CompletedAt, b.ExpiresAt)
		}
	}
}
