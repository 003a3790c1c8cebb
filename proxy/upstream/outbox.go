package upstream

import (
	"fmt"
	"io"
	"sync"
)

// outbox gathers messages for a pipe, so that callers never wait for a child
// that does not read, and many small messages become one write. Who puts a
// message while nobody writes tries to write it, which spares waking another
// goroutine; what the pipe does not take at once is left to drain.
type outbox struct {
	limit int
	try   func([]byte) (int, error) // writes what can be written without waiting; nil: leave all to drain
	wake  chan struct{}             // capacity 1: drain has something to look at

	mu     sync.Mutex // guards what follows; not held while writing
	owner  outboxOwner
	buf    []byte // messages that nobody writes yet
	rest   []byte // what is left of those before them
	spare  []byte
	failed error // of a write: all after it is thrown away, for a line may be torn
	closed bool
	err    error // what put returns once closed
}

// outboxOwner says who writes, so that bytes stay in order.
type outboxOwner byte

const (
	ownedByNobody outboxOwner = iota
	ownedByCaller
	ownedByDrain
)

// newOutbox returns an outbox that refuses messages while more than limit
// bytes wait to be read. try may be nil; one owner at a time calls it.
func newOutbox(limit int, try func([]byte) (int, error)) *outbox {
	return &outbox{limit: limit, try: try, wake: make(chan struct{}, 1)}
}

// put appends one message, to which it adds the line end. It does not block.
// After a write that failed it takes messages and throws them away: the link
// learns of a broken pipe from stdout.
func (o *outbox) put(build func([]byte) []byte) error {
	o.mu.Lock()
	switch {
	case o.closed:
		err := o.err
		o.mu.Unlock()
		return err
	case o.failed != nil:
		o.mu.Unlock()
		return nil
	case len(o.buf) > o.limit:
		n := len(o.buf)
		o.mu.Unlock()
		return fmt.Errorf("upstream does not read: %d bytes are waiting for it", n)
	}
	o.buf = append(build(o.buf), '\n')
	switch {
	case o.owner != ownedByNobody: // who looks again before it is done
		o.mu.Unlock()
	case o.try == nil:
		o.mu.Unlock()
		o.signal()
	default:
		o.owner = ownedByCaller
		full := o.takeBuf()
		o.mu.Unlock()
		n, err := o.try(full)
		o.tried(full, n, err)
	}
	return nil
}

// tried ends a caller's attempt to write full, of which n bytes went out. What
// there is still to do becomes drain's.
func (o *outbox) tried(full []byte, n int, err error) {
	o.mu.Lock()
	if n == len(full) && err == nil && len(o.buf) == 0 && !o.closed {
		o.recycle(full)
		o.owner = ownedByNobody
		o.mu.Unlock()
		return
	}
	o.rest, o.failed, o.owner = full[n:], err, ownedByDrain
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// takeBuf and recycle exchange buffers; o.mu is held.
func (o *outbox) takeBuf() []byte {
	full := o.buf
	o.buf, o.spare = o.spare[:0], nil
	return full
}

func (o *outbox) recycle(b []byte) {
	if cap(b) <= 4*frameBuffer {
		o.spare = b
	}
}

// close ends the outbox: drain writes what waits and returns.
func (o *outbox) close(err error) {
	o.mu.Lock()
	o.closed, o.err = true, err
	o.mu.Unlock()
	o.signal()
}

// drain writes to w what is put and not written by who put it, until close,
// then closes w.
func (o *outbox) drain(w io.WriteCloser) {
	defer w.Close()
	for range o.wake {
		for {
			full, ended := o.next()
			if ended {
				return
			}
			if full == nil {
				break
			}
			_, err := w.Write(full)
			o.wrote(full, err)
		}
	}
}

// next makes drain the owner of what is to be written next: nil if there is
// nothing, or a caller is at it; ended once there will never be anything.
func (o *outbox) next() (full []byte, ended bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owner == ownedByCaller {
		return nil, false
	}
	if o.failed != nil {
		o.rest, o.buf = nil, nil
	}
	if full, o.rest = o.rest, nil; len(full) == 0 && len(o.buf) > 0 {
		full = o.takeBuf()
	}
	if len(full) == 0 {
		o.owner = ownedByNobody
		return nil, o.closed
	}
	o.owner = ownedByDrain
	return full, false
}

// wrote notes drain's write of full.
func (o *outbox) wrote(full []byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = err
	o.recycle(full)
}
