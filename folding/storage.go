package folding

import (
	"context"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Repository stores branches across restarts. It is safe for concurrent use.
type Repository interface {
	// Active returns the branches that have not ended, oldest first.
	Active(ctx context.Context) ([]Branch, error)
	// Get returns a branch, or false.
	Get(ctx context.Context, id string) (Branch, bool, error)
	// Apply stores branches in their order, all or none: active ones are new, of the others it stores the end.
	// When it returns, they survive the death of the process.
	Apply(ctx context.Context, branches []Branch) error
	// Progress writes BudgetUsed and Activity of an active branch. When it returns, they survive the
	// death of the process. For one branch it is called by one goroutine at a time.
	Progress(b Branch) error
	// Forget deletes up to limit branches that ended before a time. It returns how many. First those that ended
	// after latest, by a clock that was wrong, get that as the time of their end.
	Forget(ctx context.Context, before, latest time.Time, limit int) (int, error)
	// Close releases the repository.
	Close() error
}

// retryAfter is the wait before the writer repeats ends that the repository refused.
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
	ended map[string]*Branch // finished branches that are not durable as they are now
}

// commit is one transaction: of new branches, and of all ends that are not durable. err may be read once
// done is closed.
type commit struct {
	created []Branch
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
		repo: repo, log: log, next: &commit{done: make(chan struct{})}, ended: map[string]*Branch{},
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	return w
}

// put adds a new branch, or what is now known of one that has ended, to the next commit. If that fails, the
// ends are in the commits after it, until one succeeds. The last put of a branch is what is stored, so call it
// under the lock that orders the changes themselves.
func (w *writer) put(b Branch) *commit {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.Status.Terminal() {
		w.ended[b.ID] = &b
	} else {
		w.next.created = append(w.next.created, b)
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
	if b := w.ended[id]; b != nil {
		return *b, true
	}
	return Branch{}, false
}

// close writes the remaining changes and stops.
func (w *writer) close() {
	close(w.quit)
	<-w.done
}

func (w *writer) run() {
	defer close(w.done)
	refused := 0 // ends
	for {
		var retry <-chan time.Time
		if refused > 0 {
			retry = time.After(retryAfter)
		}
		select {
		case <-w.wake:
			runtime.Gosched() // a goroutine that is about to put a change shares this commit
			refused = w.flush()
		case <-retry:
			refused = w.flush()
		case <-w.quit:
			if refused = w.flush(); refused > 0 {
				w.log.Error("ends of branches were not stored; the next start stores those that the trace has", "branches", refused)
			}
			w.mu.Lock()
			w.next.err = Errorf(ErrClosed, "foldgate is shutting down: the change was not stored")
			close(w.next.done) // nothing waits for a flush that never comes
			w.mu.Unlock()
			return
		}
	}
}

// flush writes the next commit. It returns how many ends are to be tried again: memory has moved on, and only
// the repository still has the branches as active. Operations that wait for other changes receive the error and
// undo them.
func (w *writer) flush() (refused int) {
	w.mu.Lock()
	c, ended := w.next, slices.Collect(maps.Values(w.ended))
	w.next = &commit{done: make(chan struct{})}
	w.mu.Unlock()
	changes := c.created
	for _, b := range ended {
		changes = append(changes, *b)
	}
	if len(changes) > 0 {
		c.err = w.repo.Apply(context.Background(), changes)
	}
	if c.err != nil {
		w.log.Error("state was not stored", "changes", len(changes), "error", c.err)
		refused = len(ended)
	} else {
		w.mu.Lock()
		for _, b := range ended {
			if w.ended[b.ID] == b { // else it has changed meanwhile
				delete(w.ended, b.ID)
			}
		}
		w.mu.Unlock()
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
