package folding

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

// retryAfter is how long the writer waits before it repeats an end that the
// repository refused.
const retryAfter = time.Second

// soon is how long a change may wait that nobody waits for.
const soon = 20 * time.Millisecond

// writer is the only one that changes the repository's active branches. It
// gathers what is put while a transaction runs and writes it in the next, so
// that concurrent charges share one commit.
type writer struct {
	repo Repository
	log  *slog.Logger
	wake chan struct{}
	quit chan struct{}
	done chan struct{}

	later *time.Timer // wakes

	mu    sync.Mutex // guards what follows
	next  *batch
	armed bool              // later is running
	ended map[string]Branch // finished branches that are not durable yet
}

// batch is one transaction. err may be read once done is closed.
type batch struct {
	changes []Change
	done    chan struct{}
	err     error
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// wait returns when the batch is durable, or why it is not.
func (b *batch) wait() error {
	<-b.done
	return b.err
}

// waitFor is wait with an end.
func (b *batch) waitFor(ctx context.Context) error {
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newWriter(repo Repository, log *slog.Logger) *writer {
	w := &writer{
		repo: repo, log: log, next: newBatch(), ended: map[string]Branch{},
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	w.later = time.AfterFunc(time.Hour, w.signal)
	w.later.Stop()
	go w.run()
	return w
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// put adds a change to the next transaction. The order of puts is the order
// of writes: call it under the lock that orders the changes themselves.
func (w *writer) put(op Op, b Branch) *batch {
	t := w.putQuietly(op, b)
	w.signal()
	return t
}

// putSoon is put for a change that nobody waits for: it goes with the next that
// somebody does, or after a moment.
func (w *writer) putSoon(op Op, b Branch) {
	w.putQuietly(op, b)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.armed {
		w.armed = true
		w.later.Reset(soon)
	}
}

// putQuietly is put for a change that can wait until the next one.
func (w *writer) putQuietly(op Op, b Branch) *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next.changes = append(w.next.changes, Change{op, b})
	if op == OpFinish {
		w.ended[b.ID] = b
	}
	return w.next
}

// pending returns a finished branch that is not in the repository yet.
func (w *writer) pending(id string) (Branch, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.ended[id]
	return b, ok
}

// close writes what is left and stops.
func (w *writer) close() {
	close(w.quit)
	<-w.done
}

func (w *writer) run() {
	defer close(w.done)
	var again []Change // ends that were refused
	for {
		var later <-chan time.Time
		if len(again) > 0 {
			later = time.After(retryAfter)
		}
		select {
		case <-w.wake:
			runtime.Gosched() // whoever is about to put a change joins this transaction
			again = w.flush(again)
		case <-later:
			again = w.flush(again)
		case <-w.quit:
			if again = w.flush(again); len(again) > 0 {
				w.log.Error("ends of branches were not stored; they will time out after a restart", "branches", len(again))
			}
			return
		}
	}
}

// flush writes the next batch, after the changes that an earlier one left, and
// returns what must be tried again: an end, because memory has moved on and
// only the repository still believes in the branch. Whoever waits for any
// other change is told that it failed and undoes it.
func (w *writer) flush(again []Change) []Change {
	w.mu.Lock()
	t := w.next
	w.next = newBatch()
	if w.armed {
		w.armed = false
		w.later.Stop()
	}
	w.mu.Unlock()
	changes := compact(append(again, t.changes...))
	if len(changes) > 0 {
		t.err = w.repo.Apply(context.Background(), changes)
	}
	again = nil
	w.mu.Lock()
	for _, c := range changes {
		if c.Op == OpFinish && t.err == nil {
			delete(w.ended, c.Branch.ID)
		} else if c.Op == OpFinish {
			again = append(again, c)
		}
	}
	w.mu.Unlock()
	if t.err != nil {
		w.log.Error("state was not stored", "changes", len(changes), "error", t.err)
	}
	close(t.done)
	return again
}

// compact drops progress that a later progress or end of the same branch in
// the same transaction replaces.
func compact(changes []Change) []Change {
	if len(changes) < 2 {
		return changes
	}
	replaced := make(map[string]bool, len(changes))
	keep := len(changes)
	for i := len(changes) - 1; i >= 0; i-- {
		c := changes[i]
		if c.Op == OpProgress && replaced[c.Branch.ID] {
			continue
		}
		if c.Op == OpProgress || c.Op == OpFinish {
			replaced[c.Branch.ID] = true
		}
		keep--
		changes[keep] = c
	}
	return changes[keep:]
}

// barrier returns the batch that is written next: when it is durable, so is
// all that was put before.
func (w *writer) barrier() *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.signal()
	return w.next
}
