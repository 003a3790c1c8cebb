package proxy

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
)

var local = folding.Caller{Principal: "local", Session: "s1"}

// openAt makes a gateway without upstreams on a state directory.
func openAt(t *testing.T, dir string) *Gateway {
	t.Helper()
	cfg := config.Default()
	cfg.StateDir, cfg.Upstreams = dir, map[string]*config.Upstream{"files": {Builtin: "files", Roots: []string{dir}}}
	g, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g.served.Store(true)                                    // tests use the engine as hosts do
	t.Cleanup(func() { _ = g.Close(context.Background()) }) // closed before, where it matters
	return g
}

func openBranch(t *testing.T, g *Gateway, parent string) folding.Branch {
	t.Helper()
	b, err := g.Branches.Create(t.Context(), local, folding.CreateRequest{Description: "work", ParentID: parent})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func endBranch(t *testing.T, g *Gateway, b folding.Branch) {
	t.Helper()
	if _, err := g.Branches.Return(t.Context(), local, b.ID, "done"); err != nil {
		t.Fatal(err)
	}
}

// A parent's conclusion correlates to its push and to its children's.
func TestConclusionsCorrelate(t *testing.T) {
	dir := t.TempDir()
	g := openAt(t, dir)
	parent := openBranch(t, g, "")
	for range 2 {
		endBranch(t, g, openBranch(t, g, parent.ID))
	}
	endBranch(t, g, parent)
	var push string
	var children []string
	for r := range scan(t, dir, query.Filter{}) {
		switch {
		case r.Kind == trace.KindPush && r.Context == parent.ID:
			push = r.ID
		case r.Kind == trace.KindConclusion && r.Context != parent.ID:
			children = append(children, r.ID)
		case r.Kind == trace.KindConclusion:
			if want := append([]string{push}, children...); !slices.Equal(r.CorrelationID, want) || len(want) != 3 {
				t.Errorf("conclusion correlates to %v, want %v", r.CorrelationID, want)
			}
		}
	}
}

// A late conclusion correlates to its push and to the call that brought it,
// also after a restart.
func TestLateConclusionsCorrelate(t *testing.T) {
	dir := t.TempDir()
	for _, restart := range []bool{false, true} {
		g := openAt(t, dir)
		b := openBranch(t, g, "")
		if err := g.Branches.EndSession(t.Context(), local, "test"); err != nil {
			t.Fatal(err)
		}
		if restart {
			if err := g.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			g = openAt(t, dir)
		}
		endBranch(t, g, b)
		push, late := "", 0
		for r := range scan(t, dir, query.Filter{}) {
			switch {
			case r.Context != b.Context:
			case r.Kind == trace.KindPush:
				push = r.ID
			case r.Kind == trace.KindConclusion:
				if late++; !r.Audit.Late || !slices.Equal(r.CorrelationID, []string{push}) {
					t.Errorf("restart %v: the late conclusion correlates to %v, want its push %s", restart, r.CorrelationID, push)
				}
			}
		}
		if late != 1 {
			t.Errorf("restart %v: %d late conclusions, want 1", restart, late)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// stateParts are the files of a state directory that a process can die between.
var stateParts = map[string][]string{
	"books": {"foldgate.db", "foldgate.db-wal", "foldgate.db.progress"},
	"trace": {"trace/head.json", "trace/trace-000000000000001.jsonl", "trace/lock"}, // the head may be behind, not ahead
}

// snapshot copies a part of a state directory as a process that is killed now
// would leave it.
func snapshot(t *testing.T, part, from, to string) {
	t.Helper()
	for _, name := range stateParts[part] {
		raw, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(to, "trace"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that dies between writing the books and the trace leaves one
// behind the other. The next process brings them together: each push has one
// pop in the end, and the books say how it was, also of branches that it took over.
func TestTraceAndBooksAgree(t *testing.T) {
	for _, name := range []string{"books behind", "trace behind", "books behind, taken over", "trace behind, taken over"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, _, _ := strings.Cut(name, " ")
			dir, image := t.TempDir(), t.TempDir()
			g := openAt(t, dir)
			parent := openBranch(t, g, "")
			child := openBranch(t, g, parent.ID)
			if strings.HasSuffix(name, "taken over") {
				taken := t.TempDir()
				for part := range stateParts {
					snapshot(t, part, dir, taken)
				}
				time.Sleep(1100 * time.Millisecond) // recovery looks a second further back
				dir, g = taken, openAt(t, taken)
			}
			stays := openBranch(t, g, "")
			endBranch(t, g, openBranch(t, g, parent.ID))
			snapshot(t, old, dir, image)
			endBranch(t, g, parent) // and its child
			added := openBranch(t, g, "")
			for part := range stateParts {
				if part != old {
					snapshot(t, part, dir, image)
				}
			}

			g = openAt(t, image)
			status := func(b folding.Branch) folding.Branch {
				t.Helper()
				got, _, err := g.Branches.Status(t.Context(), local, folding.StatusRequest{BranchID: b.ID})
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			for _, b := range []folding.Branch{parent, child} {
				if got := status(b); !got.Status.Terminal() {
					t.Errorf("branch at depth %d is %s after the restart; its end was written", b.Depth, got.Status)
				}
			}
			if got := status(stays); got.Status != folding.StatusActive {
				t.Errorf("the branch that goes on is %s", got.Status)
			}
			switch got := status(added); {
			case old == "trace" && got.Status != folding.StatusActive:
				t.Errorf("the branch that was stored and not recorded is %q", got.Status)
			case old == "books" && got.ID != "":
				t.Errorf("the branch that was recorded and not stored is %+v", got)
			}
			if old == "books" { // the return was not answered: the agent repeats it
				r, err := g.Branches.Return(t.Context(), local, parent.ID, "again")
				if err != nil || !r.Branch.Late || r.Branch.Message != "again" {
					t.Errorf("repeated return = %+v, %v", r, err)
				}
			}
			if err := g.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			report, err := trace.Verify(t.Context(), filepath.Join(image, "trace"), trace.VerifyOptions{})
			if err != nil || !report.OK() {
				t.Errorf("Verify: %v, %+v", err, report.Faults)
			}
			for _, n := range report.Notes {
				if strings.Contains(n.String(), "is not closed") {
					t.Error(n)
				}
			}
			pushes, pops := map[string]int{}, map[string]int{}
			var of []string // the conclusion of the child that returned
			for r := range scan(t, image, query.Filter{}) {
				switch r.Kind {
				case trace.KindPush:
					pushes[r.Context]++
				case trace.KindPop:
					pops[r.Context]++
				case trace.KindConclusion:
					if r.Context != parent.Context {
						of = []string{r.ID}
					} else if !r.Audit.Late && !slices.Equal(r.CorrelationID[1:], of) {
						t.Errorf("the conclusion of the parent correlates to %v after its push, want %v", r.CorrelationID[1:], of)
					}
				}
			}
			for _, b := range []folding.Branch{parent, child, stays, added} {
				if pushes[b.Context] != 1 || pops[b.Context] != 1 {
					t.Errorf("%s has %d pushes and %d pops, want one of each", b.Context, pushes[b.Context], pops[b.Context])
				}
			}
		})
	}
}
