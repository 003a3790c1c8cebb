package folding

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// NewMemory returns a Repository for tests that is lost with the process.
func NewMemory() Repository { return &memory{branches: map[string]Branch{}} }

type memory struct {
	mu       sync.Mutex
	branches map[string]Branch
}

func (r *memory) Active(context.Context) ([]Branch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Branch
	for _, b := range r.branches {
		if !b.Status.Terminal() {
			out = append(out, b)
		}
	}
	sortByAge(out)
	return out, nil
}

func (r *memory) Get(_ context.Context, id string) (Branch, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.branches[id]
	return b, ok, nil
}

func (r *memory) Apply(_ context.Context, branches []Branch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range branches {
		r.branches[b.ID] = b
	}
	return nil
}

func (r *memory) Progress(b Branch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.branches[b.ID]; ok && !old.Status.Terminal() {
		old.BudgetUsed, old.Activity = b.BudgetUsed, b.Activity
		r.branches[b.ID] = old
	}
	return nil
}

func (r *memory) Forget(_ context.Context, before, latest time.Time, limit int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for id, b := range r.branches {
		if b.CompletedAt.After(latest) {
			b.CompletedAt = latest
			r.branches[id] = b
		}
		if n < limit && b.Status.Terminal() && b.CompletedAt.Before(before) {
			delete(r.branches, id)
			n++
		}
	}
	return n, nil
}

func (r *memory) Close() error { return nil }

func sortByAge(list []Branch) {
	slices.SortFunc(list, func(a, b Branch) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
}
