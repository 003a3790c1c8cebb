package interceptor

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// A request of before the clock was set forward gets its response after a crash.
func TestLostCallBeforeAStep(t *testing.T) {
	start := time.Now()
	now := start
	live, image := filepath.Join(t.TempDir(), "trace"), filepath.Join(t.TempDir(), "trace")
	j, err := trace.Open(live, trace.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for _, r := range []*trace.Record{{From: "host", Kind: "mcp/request:tools/call"}, {From: "foldgate", Kind: trace.KindConfig}} {
		if err := j.Append(r); err != nil {
			t.Fatal(err)
		}
		now = start.AddDate(12, 0, 0)
	}
	if err := os.CopyFS(image, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	killed, err := trace.Open(image, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer killed.Close()
	repo, err := folding.OpenSQLite(filepath.Join(t.TempDir(), "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	r := &BranchRecords{Recorder: &Recorder{Journal: killed, Log: slog.New(slog.DiscardHandler)}}
	if _, err := r.Reconcile(t.Context(), repo, 10*time.Minute, start.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(image, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if text, err := os.ReadFile(files[0]); err != nil || !strings.Contains(string(text), `"kind":"mcp/response:tools/call"`) {
		t.Errorf("no response, %v:\n%s", err, text)
	}
}

// A workflow step that a killed process left is returned by the next start only: it may have been tried again since.
func TestLostStepIsReturnedOnce(t *testing.T) {
	live, image := filepath.Join(t.TempDir(), "trace"), filepath.Join(t.TempDir(), "trace")
	j, err := trace.Open(live, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := j.Append(&trace.Record{From: "host", Kind: "mcp/request:tools/call", Audit: &trace.Audit{Workflow: json.RawMessage(`{"context_id":"ctx_1","status":"working"}`)}}); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(image, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	repo, err := folding.OpenSQLite(filepath.Join(t.TempDir(), "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	now := time.Now().UTC().Truncate(time.Microsecond)
	b := folding.Branch{ID: "br_a", Context: "br_a", Depth: 1, Status: folding.StatusActive, BudgetTotal: 100, CreatedAt: now, ExpiresAt: now.Add(time.Minute)}
	if err := repo.Apply(t.Context(), []folding.Branch{b}); err != nil {
		t.Fatal(err)
	}
	for start, want := range [][]string{{"ctx_1"}, nil} {
		j, err := trace.Open(image, trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r := &BranchRecords{Recorder: &Recorder{Journal: j, Log: slog.New(slog.DiscardHandler)}}
		if got, err := r.Reconcile(t.Context(), repo, 10*time.Minute, time.Time{}); err != nil || !slices.Equal(got, want) {
			t.Errorf("start %d returns %q, %v; want %q", start, got, err, want)
		}
		j.Settle()
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A branch that began while the clock was set back goes on in the trace of the next process, too.
func TestBranchOfAStepBack(t *testing.T) {
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now().UTC().Truncate(time.Microsecond)
	dir := filepath.Join(t.TempDir(), "trace")
	repo, err := folding.OpenSQLite(filepath.Join(t.TempDir(), "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	b := folding.Branch{ID: "br_a", Context: "br_a", Depth: 1, Status: folding.StatusActive, BudgetTotal: 100, CreatedAt: start, ExpiresAt: start.Add(time.Minute)}
	if err := repo.Apply(t.Context(), []folding.Branch{b}); err != nil {
		t.Fatal(err)
	}
	process := func(do func(*BranchRecords)) {
		j, err := trace.Open(dir, trace.Options{Now: func() time.Time { return start.AddDate(-1, 0, 0) }})
		if err != nil {
			t.Fatal(err)
		}
		do(&BranchRecords{Recorder: &Recorder{Journal: j, Log: slog.New(slog.DiscardHandler)}, Counter: counter})
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	process(func(r *BranchRecords) { r.Event(folding.Event{Kind: folding.EventCreated, Branch: b}) })
	process(func(r *BranchRecords) {
		if _, err := r.Reconcile(t.Context(), repo, 10*time.Minute, start); err != nil {
			t.Fatal(err)
		}
		if r.open[b.ID].push == "" {
			t.Error("the begin of the branch was not found")
		}
	})
}
