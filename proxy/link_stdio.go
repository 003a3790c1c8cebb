package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// stdioLink speaks MCP with a child process, one message per line. Its
// goroutines: reader (stdout), writer (stdin), stderr, the child's keeper, and
// supervise, which sees the end of all others.
type stdioLink struct {
	duplex
	child *child
	out   *outbox

	closing chan struct{} // closed by close
	once    sync.Once
	dead    chan struct{} // closed when no call can succeed any more
	gone    chan struct{} // closed when all goroutines have ended
	reason  error         // set before dead is closed
}

// startStdio starts cfg.Command. The caller must close the link.
func startStdio(cfg *linkConfig) (*stdioLink, error) {
	ch, err := startChild(cfg)
	if err != nil {
		return nil, &dialError{err}
	}
	l := &stdioLink{
		child:   ch,
		out:     newOutbox(cfg.MaxMessage),
		closing: make(chan struct{}),
		dead:    make(chan struct{}),
		gone:    make(chan struct{}),
	}
	l.incoming.init(cfg, l.sendRefusal)
	l.send = func(_ context.Context, build func([]byte) []byte) error { return l.out.put(build) }
	l.async = func(send func()) { send() } // the outbox never blocks
	go l.supervise()
	return l, nil
}

// dialError says that an upstream could not be reached at all.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

func (l *stdioLink) start() {}

func (l *stdioLink) done() <-chan struct{} { return l.dead }

func (l *stdioLink) err() error {
	select {
	case <-l.dead:
		return l.reason
	default:
		return nil
	}
}

func (l *stdioLink) close() error {
	l.once.Do(func() { close(l.closing) })
	<-l.gone
	return nil
}

// supervise runs the link from its first to its last moment.
func (l *stdioLink) supervise() {
	defer close(l.gone)
	var wg sync.WaitGroup
	wg.Go(func() { defer close(l.child.quiet); l.read() })
	wg.Go(func() { l.out.drain(l.child.stdin) })
	wg.Go(func() { logLines(l.child.stderr, l.cfg.Log) })

	select {
	case <-l.closing:
	case <-l.child.exited:
		// What it wrote last is still to be read; its heirs get no more time.
		_ = l.child.stdout.SetReadDeadline(time.Now().Add(exitDelay))
		<-l.child.quiet
		<-l.child.reaped
	case <-l.child.quiet:
		// A child that ends closes its stdout a moment before it has a status.
		select {
		case <-l.child.reaped:
		case <-l.closing:
		case <-time.After(exitDelay):
		}
	}
	select {
	case <-l.closing:
		l.end(errLinkClosed)
	default:
		l.reason = l.deathReason()
		l.end(l.reason)
	}
	l.child.stop()
	wg.Wait()
	l.child.closePipes()
}

// end fails what is under way and what is yet to come.
func (l *stdioLink) end(err error) {
	l.out.close(err)
	l.flights.fail(err)
	close(l.dead)
}

func (l *stdioLink) deathReason() error {
	select {
	case <-l.child.reaped:
		return fmt.Errorf("%w: %w", errLinkClosed, l.child.status)
	default:
		return fmt.Errorf("%w: process closed its stdout", errLinkClosed)
	}
}

// read takes messages until the child's stdout ends.
func (l *stdioLink) read() {
	in := newFrameReader(l.child.stdout, l.cfg.MaxMessage)
	for {
		f, err := in.next()
		switch {
		case err != nil:
			if err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) {
				l.cfg.Log.Debug("reading stdout", "err", err)
			}
			return
		case f.tail != nil:
			l.unreadable(f.data, f.tail, tooLarge(f.size, l.cfg.MaxMessage), nil)
		default:
			l.receive(f.data, f.borrowed, nil)
		}
	}
}

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

// logLines logs what a child says on stderr, at most stderrRate lines a second.
func logLines(r io.Reader, log *slog.Logger) {
	br := bufio.NewReaderSize(r, stderrLine)
	window, lines, dropped := time.Now(), 0, 0
	for cut := false; ; {
		line, more, err := br.ReadLine()
		if err != nil {
			break
		}
		rest := cut // the rest of a line whose beginning is logged
		cut = more
		if rest {
			continue
		}
		if now := time.Now(); now.Sub(window) >= time.Second {
			if dropped > 0 {
				log.Warn("stderr lines dropped", "lines", dropped)
			}
			window, lines, dropped = now, 0, 0
		}
		if lines++; lines > stderrRate {
			dropped++
			continue
		}
		log.Info("stderr", "line", string(line))
	}
	if dropped > 0 {
		log.Warn("stderr lines dropped", "lines", dropped)
	}
}

const (
	stderrLine = 4 << 10
	stderrRate = 50
)
