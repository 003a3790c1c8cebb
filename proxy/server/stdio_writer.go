package server

import (
	"errors"
	"io"
	"sync"
	"time"
)

// maxQueue is how many bytes may wait for one host that does not read: one
// largest message and room beside it.
const maxQueue = stdioMaxLine + 16<<20

var (
	errSlowHost = errors.New("the host does not read what it is sent")
	errHostGone = errors.New("the host is gone")
)

// lineWriter writes whole lines to out from one goroutine. Lines that gather
// while a write is under way go out together in the next one.
type lineWriter struct {
	out    io.Writer
	limit  int           // bytes that may wait
	failed chan struct{} // closed when out failed
	done   chan struct{} // closed when the goroutine is over

	mu      sync.Mutex
	changed sync.Cond // pending grew or shrank, or closing or fault was set
	pending []byte
	hurried bool // write refuses instead of waiting
	closing bool
	fault   error
}

func newLineWriter(out io.Writer, limit int) *lineWriter {
	w := &lineWriter{out: out, limit: limit, failed: make(chan struct{}), done: make(chan struct{})}
	w.changed.L = &w.mu
	go w.run()
	return w
}

func (w *lineWriter) run() {
	defer close(w.done)
	var spare []byte
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.pending) == 0 && !w.closing {
			w.changed.Wait()
		}
		if len(w.pending) == 0 {
			return
		}
		batch := w.pending
		w.pending = spare[:0]
		w.changed.Broadcast()
		w.mu.Unlock()
		_, err := w.out.Write(batch)
		w.mu.Lock()
		if err != nil {
			w.fault = err
			w.pending = nil
			close(w.failed)
			w.changed.Broadcast()
			return
		}
		if spare = batch; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

// write queues one message and waits while too much is queued already.
func (w *lineWriter) write(msg []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.pending) > w.limit && w.fault == nil && !w.hurried {
		w.changed.Wait()
	}
	if len(w.pending) > w.limit {
		return errSlowHost
	}
	return w.add(msg)
}

// hurry makes write behave like offer from now on, and ends those that wait.
func (w *lineWriter) hurry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hurried = true
	w.changed.Broadcast()
}

// offer queues one message and never blocks: it refuses where too much waits.
func (w *lineWriter) offer(msg []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > w.limit {
		return errSlowHost
	}
	return w.add(singleLine(msg))
}

// add appends to the queue; w.mu is held.
func (w *lineWriter) add(msg []byte) error {
	if w.fault != nil {
		return w.fault
	}
	if w.closing {
		return errHostGone
	}
	w.pending = append(append(w.pending, msg...), '\n')
	w.changed.Broadcast()
	return nil
}

func (w *lineWriter) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault
}

// close writes what is queued and ends the goroutine. It waits at most grace: a
// write that hangs on a host that does not read ends with the process.
func (w *lineWriter) close(grace time.Duration) {
	w.mu.Lock()
	w.closing = true
	w.changed.Broadcast()
	w.mu.Unlock()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-w.done:
	case <-t.C:
	}
}
