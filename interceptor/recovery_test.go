package interceptor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// order says which of the two files of a process gets a change of a branch first, the database or the journal. Both
// are possible: different goroutines write them.
type order string

const (
	databaseFirst order = "the database first"
	journalFirst  order = "the journal first"
	refused       order = "the database refuses ends"
)

// killable is a process with branches. step is called between any two writes to its files.
type killable struct {
	t       *testing.T
	dir     string
	order   order
	step    func(image)
	journal *trace.Journal
	records *BranchRecords
	folding.Repository
	m       *folding.Manager
	ordered atomic.Bool // from the start of the manager on

	mu        sync.Mutex
	stored    map[string]bool // what the database has
	delivered map[string]bool // what the journal has
	changed   chan struct{}
	lines     int // of the journal
}

// key names a state of a branch.
func key(b folding.Branch) string { return fmt.Sprint(b.ID, b.Status.Terminal(), b.Late) }

func (p *killable) note(m map[string]bool, keys ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys {
		m[k] = true
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// wait returns once m has all keys.
func (p *killable) wait(m map[string]bool, keys ...string) {
	for {
		p.mu.Lock()
		missing, changed := slices.ContainsFunc(keys, func(k string) bool { return !m[k] }), p.changed
		p.mu.Unlock()
		if !missing {
			return
		}
		<-changed
	}
}

func keys(branches []folding.Branch) (all []string) {
	for _, b := range branches {
		all = append(all, key(b))
	}
	return all
}

var errRefused = errors.New("no room")

// Apply implements [folding.Repository].
func (p *killable) Apply(ctx context.Context, branches []folding.Branch) error {
	if p.ordered.Load() && p.order == refused && slices.ContainsFunc(branches, func(b folding.Branch) bool { return b.Status.Terminal() }) {
		return errRefused
	}
	if p.ordered.Load() && p.order == journalFirst {
		p.wait(p.delivered, keys(branches)...)
	}
	p.snapshot()
	err := p.Repository.Apply(ctx, branches)
	p.snapshot()
	p.note(p.stored, keys(branches)...)
	return err
}

func (p *killable) event(e folding.Event) {
	if p.order == databaseFirst && (e.Branch.Status.Terminal() || e.Kind == folding.EventCreated) {
		p.wait(p.stored, key(e.Branch))
	}
	p.snapshot()
	p.records.Event(e)
	p.snapshot()
	p.note(p.delivered, key(e.Branch))
}

// snapshot calls step with copies of the files: one for each record that was written since the last call.
func (p *killable) snapshot() {
	if p.step == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	file, lines := lastSegment(p.t, p.dir)
	for n := min(p.lines, len(lines)-1); n < len(lines); n++ {
		dir := p.t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(p.dir)); err != nil {
			p.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "trace", file), bytes.Join(lines[:n+1], nil), 0o600); err != nil {
			p.t.Fatal(err)
		}
		p.step(image{dir, maps.Clone(p.stored)})
	}
	p.lines = len(lines)
}

func lastSegment(t *testing.T, dir string) (name string, lines [][]byte) {
	files, err := filepath.Glob(filepath.Join(dir, "trace", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	name = filepath.Base(files[len(files)-1])
	text, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		t.Fatal(err)
	}
	return name, slices.Collect(bytes.Lines(text))
}

var wordCounter = sync.OnceValue(func() *budget.Counter {
	c, err := budget.NewCounter("o200k_base")
	if err != nil {
		panic(err)
	}
	return c
})

// startKillable starts a process on dir as the gateway does. late is the time since the first process.
func startKillable(t *testing.T, from image, o order, late time.Duration, step func(image)) (*killable, error) {
	t.Helper()
	now := func() time.Time { return time.Now().Add(late) }
	p := &killable{t: t, dir: from.dir, order: o, step: step, stored: maps.Clone(from.stored), delivered: map[string]bool{}, changed: make(chan struct{})}
	var err error
	if p.journal, err = trace.Open(filepath.Join(from.dir, "trace"), trace.Options{Interval: time.Hour, Sync: trace.SyncNever, Now: now}); err != nil {
		t.Fatal(err)
	}
	_, lines := lastSegment(t, from.dir)
	p.lines = len(lines)
	p.records = &BranchRecords{Recorder: &Recorder{Journal: p.journal, Log: slog.New(slog.DiscardHandler)}, Counter: wordCounter()}
	if p.Repository, err = folding.OpenSQLite(filepath.Join(from.dir, "foldgate.db")); err != nil {
		t.Fatal(err)
	}
	p.snapshot()
	if _, err = p.records.Reconcile(t.Context(), p, 10*time.Minute, time.Time{}); err != nil {
		t.Fatal(err)
	}
	p.snapshot()
	p.ordered.Store(true)
	cfg := folding.DefaultConfig()
	cfg.MaxBranchesPerMinute, cfg.MaxConcurrentPerSession = 100, 100
	m, err := folding.Open(t.Context(), cfg, folding.Options{
		Repository: p, Count: wordCounter().Count, OnEvent: p.event, Now: now,
		Scrub: func(_ context.Context, s string) (string, error) { return s, nil },
	})
	if err != nil {
		return p, err
	}
	p.m = m
	p.snapshot()
	p.journal.Settle()
	p.snapshot()
	return p, nil
}

// close ends the process in good order.
func (p *killable) close() {
	if p.m != nil {
		_ = p.m.Close(context.Background())
	} else {
		_ = p.Repository.Close()
	}
	if err := p.journal.Close(); err != nil {
		p.t.Fatal(err)
	}
	p.snapshot()
}

func (p *killable) open(parent string, seconds int) folding.Branch {
	b, err := p.m.Create(p.t.Context(), me, folding.CreateRequest{Description: "work", ParentID: parent, TimeoutSeconds: seconds})
	if err != nil && p.order != refused {
		p.t.Fatal(err)
	}
	return b
}

func (p *killable) returns(b folding.Branch) {
	if _, err := p.m.Return(p.t.Context(), me, b.ID, "done"); err != nil && p.order != refused {
		p.t.Fatal(err)
	}
}

// Processes are killed between any two writes to the database and to the trace, and so are those that come after
// them; or they are shut down. However that is, in the end each branch has one begin and one end in the trace, and
// an end in the database.
func TestKilledAtEachStep(t *testing.T) {
	for _, first := range []order{databaseFirst, journalFirst, refused} {
		for _, second := range []order{databaseFirst, journalFirst, refused} {
			t.Run(fmt.Sprintf("%s, then %s", first, second), func(t *testing.T) {
				t.Parallel()
				seen, states := 0, map[string]bool{}
				isNew := func(i image, by string) bool {
					state := by + i.state(t)
					defer func() { seen, states[state] = seen+1, true }()
					return !states[state]
				}
				third := func(i image) {
					if isNew(i, "second ") {
						p, err := startKillable(t, i, databaseFirst, 3*time.Minute, nil)
						if err != nil {
							t.Fatal(err)
						}
						p.close()
						checkEnds(t, i.dir)
					}
				}
				p, err := startKillable(t, image{t.TempDir(), map[string]bool{}}, first, 0, func(i image) {
					if isNew(i, "first ") {
						p, _ := startKillable(t, i, second, 2*time.Minute, third)
						p.close()
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				p.work()
				p.close()
				t.Logf("%d kills, %d states", seen, len(states))
			})
		}
	}
}

// work begins and ends branches, each in another way.
func (p *killable) work() {
	parent, expires := p.open("", 600), p.open("", 60)
	child := p.open(parent.ID, 600)
	p.returns(child)
	if _, err := p.m.End(p.t.Context(), expires.ID, folding.ReasonOperator, "enough"); err != nil && p.order != refused {
		p.t.Fatal(err)
	}
	p.returns(expires) // late
	p.returns(parent)
	p.open("", 60)
}

// image is a copy of the files of a process.
type image struct {
	dir    string
	stored map[string]bool // see killable
}

// state describes what the files say of branches.
func (i image) state(t *testing.T) string {
	_, lines := lastSegment(t, i.dir)
	lock, err := os.ReadFile(filepath.Join(i.dir, "trace", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprintf("%d %v\n", bytes.Count(lock, []byte("\n")), slices.Sorted(maps.Keys(i.stored)))
	for _, line := range lines {
		r, _, err := trace.ParseLine(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind != trace.KindJournal {
			out += r.Kind + " " + r.Context + "\n"
		}
	}
	return out
}

// checkEnds checks the branches after a process that was closed in good order.
func checkEnds(t *testing.T, dir string) {
	t.Helper()
	begins, ends, conclusions, story := map[string]int{}, map[string]int{}, map[string]int{}, map[string]string{}
	for r, err := range query.Scan(t.Context(), filepath.Join(dir, "trace"), query.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Kind == trace.KindPush:
			begins[r.Context]++
		case r.Kind == trace.KindPop:
			ends[r.Context]++
		case r.Kind == trace.KindConclusion && !r.AuditOrEmpty().Late:
			conclusions[r.Context]++
		}
		story[r.Context] += strings.TrimPrefix(r.Kind, "context/") + " "
	}
	for _, context := range slices.Sorted(maps.Keys(story)) {
		if context != "" && (begins[context] != 1 || ends[context] != 1 || conclusions[context] > 1) {
			t.Errorf("the records of branch %s: %s", context, story[context])
		}
	}
	report, err := trace.Verify(t.Context(), filepath.Join(dir, "trace"), trace.VerifyOptions{})
	if err != nil || !report.OK() {
		t.Errorf("trace verify: %v, %v", err, report.Faults)
	}
	repo, err := folding.OpenSQLite(filepath.Join(dir, "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	active, err := repo.Active(t.Context())
	if err != nil || len(active) > 0 {
		t.Errorf("%d branches are still active, %v", len(active), err)
	}
}
