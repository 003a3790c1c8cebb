package link

import (
	"fmt"
	"io"
	"sync"
)

// outbox gathers messages for a pipe, so that callers never wait for a child
// that does not read, and many small messages become one write.
type outbox struct {
	limit int
	wake  chan struct{} // capacity 1

	mu     sync.Mutex // guards what follows; not held while writing
	buf    []byte
	closed bool
	err    error // what put returns once closed
}

// newOutbox returns an outbox that refuses messages while more than limit
// bytes wait to be read.
func newOutbox(limit int) *outbox { return &outbox{limit: limit, wake: make(chan struct{}, 1)} }

// put appends one message, to which it adds the line end.
func (o *outbox) put(build func([]byte) []byte) error {
	o.mu.Lock()
	switch {
	case o.closed:
		err := o.err
		o.mu.Unlock()
		return err
	case len(o.buf) > o.limit:
		n := len(o.buf)
		o.mu.Unlock()
		return fmt.Errorf("upstream does not read: %d bytes are waiting for it", n)
	}
	o.buf = append(build(o.buf), '\n')
	o.mu.Unlock()
	o.signal()
	return nil
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// close ends the outbox: drain writes what waits and returns.
func (o *outbox) close(err error) {
	o.mu.Lock()
	o.closed, o.err = true, err
	o.mu.Unlock()
	o.signal()
}

// drain writes to w what is put, until close, then closes w. After an error of
// w it throws away the rest: the link learns of a broken pipe from stdout.
func (o *outbox) drain(w io.WriteCloser) {
	defer w.Close()
	var spare []byte
	var failed error
	for range o.wake {
		o.mu.Lock()
		full, closed := o.buf, o.closed
		o.buf = spare[:0]
		o.mu.Unlock()
		if failed == nil && len(full) > 0 {
			_, failed = w.Write(full)
		}
		if spare = full; cap(spare) > 4*frameBuffer {
			spare = nil
		}
		if closed {
			return
		}
	}
}
