package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
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
func startStdio(cfg *Config) (*stdioLink, error) {
	ch, err := startChild(cfg)
	if err != nil {
		return nil, &dialError{err}
	}
	l := &stdioLink{
		child:   ch,
		out:     newOutbox(cfg.MaxMessage, tryWriter(ch.stdin)),
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

func (l *stdioLink) Done() <-chan struct{} { return l.dead }

func (l *stdioLink) Err() error {
	select {
	case <-l.dead:
		return l.reason
	default:
		return nil
	}
}

func (l *stdioLink) Close() error {
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
	wg.Go(func() { logLines(l.child.stderr, l.cfg) })

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
		l.end(conn.ErrClosed)
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
		return fmt.Errorf("%w: %w", conn.ErrClosed, l.child.status)
	default:
		return fmt.Errorf("%w: process closed its stdout", conn.ErrClosed)
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
