package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// stdioConn speaks MCP with a child process, one message a line. supervise owns the goroutines
// for stdin, stdout and stderr.
type stdioConn struct {
	connection
	child *child
	out   *wire.LineWriter
}

// startStdio starts cfg.Command. The caller must close the connection.
func startStdio(cfg *Config) (*stdioConn, error) {
	ch, err := startChild(cfg)
	if err != nil {
		return nil, &dialError{err}
	}
	s := &stdioConn{child: ch, out: wire.NewLineWriter(ch.stdin, cfg.MaxMessage)}
	s.connection.init(cfg, s)
	s.queues = true
	s.Go(s.supervise)
	return s, nil
}

// dialError means that a server could not be reached at all.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// send queues a message. It does not wait for a child that does not read. If a write fails, supervise
// ends the connection.
func (s *stdioConn) send(_ context.Context, m wire.Message, _ *call) error {
	err := s.out.Offer(m.AppendLine)
	full, is := errors.AsType[*wire.QueueFullError](err)
	switch {
	case is:
		return fmt.Errorf("upstream does not read: %d bytes are waiting for it", full.Waiting)
	case err == wire.ErrWriterClosed:
		return s.fault()
	}
	return nil
}

func (s *stdioConn) start() {}

// Close ends the child process with its group, and waits for the goroutines.
func (s *stdioConn) Close() error {
	s.lose(nil)
	s.group.Wait()
	return nil
}

// supervise runs the connection from its first to its last moment.
func (s *stdioConn) supervise() {
	var wg sync.WaitGroup
	wg.Go(func() { defer close(s.child.quiet); s.read() })
	said := &complaint{over: make(chan struct{})}
	wg.Go(func() { defer close(said.over); logLines(s.child.stderr, s.cfg, said) })

	// A child that ends closes its pipes a moment before it has a status.
	var late <-chan time.Time
	select {
	case <-s.lifetime.Done(): // closed, or after a panic
	case <-s.child.exited:
	case <-s.child.quiet:
		late = time.After(exitDelay)
	case <-s.out.Done(): // a write failed
		late = time.After(exitDelay)
	}
	select {
	case <-s.lifetime.Done():
	case <-late:
	case <-s.child.exited:
		// Its last messages are still to be read. Child processes that inherited the pipe get
		// no grace period.
		_ = s.child.stdout.SetReadDeadline(time.Now().Add(exitDelay))
		<-s.child.quiet
		<-s.child.reaped
	}
	if s.fault() == nil {
		s.lose(s.loss(said))
	}
	s.out.Close()
	wg.Go(func() { <-s.out.Done(); s.child.stdin.Close() })
	s.child.stop()
	wg.Wait()
	s.child.closePipes()
}

// loss returns why the connection ended by itself, with what the child said about it.
func (s *stdioConn) loss(said *complaint) error {
	select {
	case <-s.child.reaped:
		select {
		case <-said.over:
		case <-time.After(exitDelay): // another process holds the pipe
		}
		return fmt.Errorf("%w: %w%s", conn.ErrClosed, s.child.status, said.text(s.cfg))
	default:
	}
	if s.out.Err() != nil {
		return fmt.Errorf("%w: process closed its stdin", conn.ErrClosed)
	}
	return fmt.Errorf("%w: process closed its stdout", conn.ErrClosed)
}

// read takes messages until the child's stdout ends.
func (s *stdioConn) read() {
	in := wire.NewLineReader(s.child.stdout, s.cfg.MaxMessage)
	for {
		line, err := in.Next()
		switch {
		case err != nil:
			if err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) {
				s.cfg.Log.Debug("reading stdout", "err", err)
			}
			return
		case line.Tail != nil:
			s.unreadable(line.Head, line.Tail, tooLarge(line.Size, s.cfg.MaxMessage), nil)
		default:
			s.receive(line.Head, line.Borrowed, nil)
		}
	}
}

const maxLogLine = 4 << 10 // bytes of a line of stderr

// complaint is what a child process said about its end: its first two lines that tell of an error,
// else its last line.
type complaint struct {
	over  chan struct{} // closed at the end of stderr
	mu    sync.Mutex
	tells [][]byte
	last  []byte
}

var tellsError = regexp.MustCompile(`(?i)error|exception|fatal|panic|denied|not found|cannot|can't|no such|missing|invalid`)

// add takes note of a line, which it does not keep.
func (c *complaint) add(line []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if line = bytes.TrimSpace(line); len(line) > 0 {
		c.last = append(c.last[:0], line...)
	}
	if len(c.tells) < 2 && tellsError.Match(line) {
		c.tells = append(c.tells, bytes.Clone(line))
	}
}

// text returns what there is for an error, after a colon; "" if the child said nothing.
func (c *complaint) text(cfg *Config) (out string) {
	const most = 300 // bytes of a line
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := c.tells
	if len(lines) == 0 && len(c.last) > 0 {
		lines = [][]byte{c.last}
	}
	for i, line := range lines {
		text := cfg.clean(line)
		out += []string{": ", "; "}[i] + text[:min(len(text), most)]
	}
	return out
}

// keyBlock tells which lines are of a private key. The rules for secrets see each line of a log by itself.
type keyBlock struct {
	mu     sync.Mutex
	inside bool
}

const redactedKey = "[REDACTED:private-key]"

var (
	keyBegins = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY`)
	// keyGoes is a line between begin and end: much base64 behind any prefix, nothing but base64, or a header.
	keyGoes = regexp.MustCompile(`[A-Za-z0-9+/]{40,}={0,2}\W*$|^\s*[A-Za-z0-9+/]*={0,2}\s*$|^\s*(?:Proc-Type|DEK-Info|Version|Comment):`)
)

// holds reports whether the next line is one of a key, behind its first.
func (k *keyBlock) holds(line []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch at := keyBegins.FindIndex(line); {
	case at != nil:
		k.inside = !bytes.Contains(line[at[1]:], []byte("-----END"))
		return false
	case k.inside:
		k.inside = keyGoes.Match(line)
	}
	return k.inside
}

// logLines logs what a child process writes to stderr, and notes what it says about its end.
func logLines(r io.Reader, cfg *Config, said *complaint) {
	var n rateLimitedLog
	var key keyBlock
	br := bufio.NewReaderSize(r, maxClean)
	for rest := false; ; {
		line, more, err := br.ReadLine()
		if err != nil {
			break
		}
		switch {
		case rest: // of a line that is too long
		case key.holds(line):
			n.log(cfg.Log, slog.LevelInfo, "stderr", "line", redactedKey)
		default:
			text := string(line)
			if len(line) > maxLogLine {
				text = cfg.clean(line)
				text = text[:min(len(text), maxLogLine)]
			}
			n.log(cfg.Log, slog.LevelInfo, "stderr", "line", text)
			said.add(line)
		}
		rest = more
	}
	if n.dropped > 0 {
		cfg.Log.Warn("lines of upstream not logged", "lines", n.dropped)
	}
}
