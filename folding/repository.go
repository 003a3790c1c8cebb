package folding

import (
	"context"
	"sync"
	"time"
)

// Op says which part of a branch a [Change] writes.
type Op int

// The changes of a branch.
const (
	// OpInsert stores a new branch.
	OpInsert Op = iota
	// OpProgress stores BudgetUsed and Activity of a branch that is not final.
	OpProgress
	// OpFinish stores everything about the end of a branch.
	OpFinish
	// OpLate stores Message and Late of a branch that has ended.
	OpLate
)

// Change is one write. Branch holds absolute values, so a change can be
// repeated, and a later change of a branch replaces an earlier one of the
// same Op.
type Change struct {
	Op     Op
	Branch Branch
}

// Repository keeps branches across restarts. Its methods are safe for
// concurrent use.
type Repository interface {
	// Active returns the branches that have not ended, oldest first.
	Active(ctx context.Context) ([]Branch, error)
	// Get returns a branch that has not been archived; false if there is none.
	Get(ctx context.Context, id string) (Branch, bool, error)
	// Apply writes changes in their order, all or none, and returns when they
	// would survive the death of the process.
	Apply(ctx context.Context, changes []Change) error
	// Archive puts away up to limit branches that ended before a time, their
	// figures without their texts, and returns how many those were.
	Archive(ctx context.Context, before time.Time, limit int) (int, error)
	// Close releases the repository.
	Close() error
}

// NewMemory returns a Repository that forgets everything with the process.
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

func (r *memory) Apply(_ context.Context, changes []Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		switch b := r.branches[c.Branch.ID]; c.Op {
		case OpInsert, OpFinish:
			r.branches[c.Branch.ID] = c.Branch
		case OpProgress:
			b.BudgetUsed, b.Activity = c.Branch.BudgetUsed, c.Branch.Activity
			r.branches[c.Branch.ID] = b
		case OpLate:
			b.Message, b.Late = c.Branch.Message, c.Branch.Late
			r.branches[c.Branch.ID] = b
		}
	}
	return nil
}

func (r *memory) Archive(_ context.Context, before time.Time, limit int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for id, b := range r.branches {
		if n < limit && b.Status.Terminal() && b.CompletedAt.Before(before) {
			delete(r.branches, id)
			n++
		}
	}
	return n, nil
}

func (r *memory) Close() error { return nil }
