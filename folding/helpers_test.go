package folding_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
)

var (
	alice = folding.Caller{Principal: "alice", Session: "s1"}
	bob   = folding.Caller{Principal: "bob", Session: "s1"}
)

// words counts a token per word, which makes sums easy.
func words(s string) int { return len(strings.Fields(s)) }

// redact is a scrubber for the secret "hunter2" that fails on "unscrubbable".
func redact(_ context.Context, s string) (string, error) {
	switch {
	case strings.Contains(s, "unscrubbable"):
		return s, errors.New("no rules")
	case strings.Contains(s, "panic!"):
		panic("scrubber bug")
	}
	return strings.ReplaceAll(s, "hunter2", "[REDACTED]"), nil
}

// recorder collects events.
type recorder struct {
	mu     sync.Mutex
	events []folding.Event
}

func (r *recorder) on(e folding.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// kinds returns the kinds of a branch's events, in order.
func (r *recorder) kinds(id string) []folding.EventKind {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []folding.EventKind
	for _, e := range r.events {
		if e.Branch.ID == id {
			out = append(out, e.Kind)
		}
	}
	return out
}

// ends returns the ids of ended branches in the order of their ends.
func (r *recorder) ends() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, e := range r.events {
		if e.Kind == folding.EventConcluded || e.Kind == folding.EventEnded {
			out = append(out, e.Branch.ID)
		}
	}
	return out
}

// roomy is the default configuration with higher limits.
func roomy() folding.Config {
	cfg := folding.DefaultConfig()
	cfg.MaxConcurrentPerSession = 1 << 20
	cfg.MaxConcurrentPerInstance = 1 << 20
	cfg.MaxBranchesPerMinute = 1 << 20
	return cfg
}

// open returns a Manager that is closed with the test.
func open(t testing.TB, cfg folding.Config, opts folding.Options) (*folding.Manager, *recorder) {
	t.Helper()
	rec := &recorder{}
	if opts.Repository == nil {
		opts.Repository = folding.NewMemory()
	}
	if opts.Count == nil {
		opts.Count = words
	}
	if opts.Scrub == nil {
		opts.Scrub = redact
	}
	if opts.OnEvent == nil {
		opts.OnEvent = rec.on
	}
	m, err := folding.Open(context.Background(), cfg, opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return m, rec
}

func create(t testing.TB, m *folding.Manager, c folding.Caller, req folding.CreateRequest) folding.Branch {
	t.Helper()
	if req.Description == "" {
		req.Description = "explore"
	}
	b, err := m.Create(context.Background(), c, req)
	if err != nil {
		t.Fatalf("Create(%+v): %v", req, err)
	}
	return b
}

// lease is a call in a branch, with its context.
type lease struct {
	*folding.Lease
	context.Context
}

func acquire(ctx context.Context, m *folding.Manager, id string) (lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	l, err := m.Acquire(ctx, cancel, id)
	return lease{l, ctx}, err
}

func begin(t testing.TB, m *folding.Manager, id string) lease {
	t.Helper()
	c, err := acquire(context.Background(), m, id)
	if err != nil {
		t.Fatalf("Begin(%s): %v", id, err)
	}
	return c
}

func status(t testing.TB, m *folding.Manager, c folding.Caller, id string) folding.Branch {
	t.Helper()
	b, ok, err := m.Status(context.Background(), c, folding.StatusRequest{BranchID: id})
	if err != nil || !ok {
		t.Fatalf("Status(%s) = %v, %v", id, ok, err)
	}
	return b
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func wantKinds(t testing.TB, r *recorder, id string, want ...folding.EventKind) {
	t.Helper()
	if got := r.kinds(id); !slices.Equal(got, want) {
		t.Errorf("events of %s = %v, want %v", id, got, want)
	}
}

// manual is a clock that the test moves.
type manual struct {
	mu sync.Mutex
	t  time.Time
}

func newManual() *manual { return &manual{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *manual) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *manual) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}
