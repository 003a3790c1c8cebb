package folding

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

// Repository stores branches across restarts. It is safe for concurrent use.
type Repository interface {
	// Active returns the branches that have not ended, oldest first.
	Active(ctx context.Context) ([]Branch, error)
	// Get returns a branch that is not archived, or false.
	Get(ctx context.Context, id string) (Branch, bool, error)
	// Apply writes changes in their order, all or none. When it returns, they survive the death
	// of the process.
	Apply(ctx context.Context, changes []Change) error
	// Progress writes BudgetUsed and Activity of an active branch. When it returns, they survive the
	// death of the process. For one branch it is called by one goroutine at a time.
	Progress(b Branch) error
	// Archive archives up to limit branches that ended before a time: it keeps their figures and
	// deletes their texts. It returns how many.
	Archive(ctx context.Context, before time.Time, limit int) (int, error)
	// Close releases the repository.
	Close() error
}

// Change is one write. Branch holds absolute values, so a change can be repeated.
type Change struct {
	Op     Op
	Branch Branch
}

// Op says which fields of a branch a [Change] writes.
type Op int

// The kinds of changes.
const (
	// OpInsert stores a new branch.
	OpInsert Op = iota
	// OpFinish stores the end of a branch.
	OpFinish
	// OpLate stores Message, Late and ReturnedBy of a branch that has ended.
	OpLate
)

// retryAfter is the wait before the writer repeats an end that the repository refused.
const retryAfter = time.Second

// writer writes the begins and ends of branches. While one transaction runs it collects changes for
// the next, so that concurrent ends share a commit.
type writer struct {
	repo Repository
	log  *slog.Logger
	wake chan struct{}
	quit chan struct{}
	done chan struct{}

	mu    sync.Mutex // guards the fields below
	next  *commit
	ended map[string]Branch // finished branches that are not durable yet
}

// commit is one transaction. err may be read once done is closed.
type commit struct {
	changes []Change
	done    chan struct{}
	err     error
}

// wait returns nil when the commit is durable, or its error.
func (c *commit) wait() error { return c.waitFor(context.Background()) }

// waitFor is wait with a limit.
func (c *commit) waitFor(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newWriter(repo Repository, log *slog.Logger) *writer {
	w := &writer{
		repo: repo, log: log, next: &commit{done: make(chan struct{})}, ended: map[string]Branch{},
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	return w
}

// put adds a change to the next commit. The order of puts is the order of writes, so call it
// under the lock that orders the changes themselves.
func (w *writer) put(op Op, b Branch) *commit {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next.changes = append(w.next.changes, Change{op, b})
	if op == OpFinish {
		w.ended[b.ID] = b
	}
	signal(w.wake)
	return w.next
}

// barrier returns the next commit: when it is durable, so are all changes that were put before.
func (w *writer) barrier() *commit {
	w.mu.Lock()
	defer w.mu.Unlock()
	signal(w.wake)
	return w.next
}

// pending returns a finished branch that is not durable yet.
func (w *writer) pending(id string) (Branch, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.ended[id]
	return b, ok
}

// close writes the remaining changes and stops.
func (w *writer) close() {
	close(w.quit)
	<-w.done
}

func (w *writer) run() {
	defer close(w.done)
	var refused []Change // ends that the repository refused
	for {
		var retry <-chan time.Time
		if len(refused) > 0 {
			retry = time.After(retryAfter)
		}
		select {
		case <-w.wake:
			runtime.Gosched() // a goroutine that is about to put a change shares this commit
			refused = w.flush(refused)
		case <-retry:
			refused = w.flush(refused)
		case <-w.quit:
			if refused = w.flush(refused); len(refused) > 0 {
				w.log.Error("ends of branches were not stored; they will time out after a restart", "branches", len(refused))
			}
			w.mu.Lock()
			w.next.err = Errorf(ErrClosed, "foldgate is shutting down: the change was not stored")
			close(w.next.done) // nothing waits for a flush that never comes
			w.mu.Unlock()
			return
		}
	}
}

// flush writes the next commit, after the ends that an earlier one could not write. It returns
// the ends to try again: memory has moved on, and only the repository still has the branches as
// active. Operations that wait for other changes receive the error and undo them.
func (w *writer) flush(refused []Change) []Change {
	w.mu.Lock()
	c := w.next
	w.next = &commit{done: make(chan struct{})}
	w.mu.Unlock()
	changes := append(refused, c.changes...)
	if len(changes) > 0 {
		c.err = w.repo.Apply(context.Background(), changes)
	}
	refused = nil
	w.mu.Lock()
	for _, change := range changes {
		if change.Op == OpFinish && c.err == nil {
			delete(w.ended, change.Branch.ID)
		} else if change.Op == OpFinish {
			refused = append(refused, change)
		}
	}
	w.mu.Unlock()
	if c.err != nil {
		w.log.Error("state was not stored", "changes", len(changes), "error", c.err)
	}
	close(c.done)
	return refused
}

// signal wakes the goroutine that receives from c, a channel with room for one signal.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
