package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Both sides of the gateway speak stdio: one message a line.

const (
	lineBuffer = 32 << 10 // of a reader; longer lines are gathered in another buffer
	lineKept   = 2 << 20  // the largest such buffer that is used again, by any reader
	lineEdge   = 4 << 10  // kept of either end of a line that is too long
)

// OneLine replaces line ends by spaces, in place. In valid JSON they stand only between tokens.
func OneLine(b []byte) {
	for _, c := range []byte{'\n', '\r'} {
		for i := 0; ; i++ {
			n := bytes.IndexByte(b[i:], c)
			if n < 0 {
				break
			}
			i += n
			b[i] = ' '
		}
	}
}

// Line is one line of a stream. Head is without the line's end, Size counts it.
type Line struct {
	Bounded
	Borrowed bool // Head is valid only until the next line is read
}

// LineReader cuts a stream into lines. It stores at most max bytes of a line and skips the
// rest.
type LineReader struct {
	br  *bufio.Reader
	max int
	big *[]byte // of longLines: holds the last line; nil if br does
}

var longLines = sync.Pool{New: func() any { return new([]byte) }} // buffers of lines longer than lineBuffer

// NewLineReader returns a reader of lines of at most max bytes.
func NewLineReader(r io.Reader, max int) *LineReader {
	return &LineReader{br: bufio.NewReaderSize(r, lineBuffer), max: max}
}

// Next returns the next line. At the end of the stream an unfinished line comes first, then the
// error.
func (r *LineReader) Next() (Line, error) {
	if r.big != nil {
		longLines.Put(r.big)
		r.big = nil
	}
	line, err := r.br.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		if len(line) == 0 {
			return Line{}, err
		}
		if len(line) <= r.max {
			return Line{Bounded{Head: bytes.TrimRight(line, "\r\n"), Size: len(line)}, true}, nil
		}
	}
	buf := longLines.Get().(*[]byte)
	b := Bounded{Max: r.max, Head: (*buf)[:0]}
	b.Add(line)
	for err == bufio.ErrBufferFull {
		line, err = r.br.ReadSlice('\n')
		b.Add(line)
	}
	if b.Tail == nil && cap(b.Head) <= lineKept {
		*buf, r.big = b.Head, buf
	}
	b.Head = bytes.TrimRight(b.Head, "\r\n")
	return Line{b, r.big != nil}, nil
}

// Bounded gathers bytes: all of them up to Max, and beyond that only both ends.
type Bounded struct {
	Max  int
	Head []byte
	Tail []byte // nil as long as Head holds everything
	Size int
}

// Add appends p.
func (b *Bounded) Add(p []byte) {
	b.Size += len(p)
	switch {
	case b.Tail != nil:
		b.Tail = lastBytes(b.Tail, p)
	case b.Size <= b.Max:
		if b.Size > cap(b.Head) { // append would grow by a quarter, and copy a large line five times
			b.Head = append(make([]byte, 0, max(b.Size, min(2*cap(b.Head), b.Max))), b.Head...)
		}
		b.Head = append(b.Head, p...)
	default:
		all := append(b.Head, p...)
		b.Head = bytes.Clone(all[:min(len(all), lineEdge, b.Max)])
		b.Tail = lastBytes(nil, all)
	}
}

// lastBytes returns the last lineEdge bytes of tail followed by more, in memory of its own.
func lastBytes(tail, more []byte) []byte {
	if n := len(more) - lineEdge; n >= 0 {
		return bytes.Clone(more[n:])
	}
	if n := len(tail) + len(more) - lineEdge; n > 0 {
		tail = tail[n:]
	}
	return append(bytes.Clone(tail), more...)
}

// ErrWriterClosed is the fault of a LineWriter that is closed.
var ErrWriterClosed = errors.New("the writer is closed")

// QueueFullError is the fault of a line that is refused because the other side does not read.
type QueueFullError struct {
	Waiting int // bytes in the queue
}

// Error gives the number of bytes that are waiting.
func (e *QueueFullError) Error() string { return fmt.Sprintf("%d bytes are waiting", e.Waiting) }

// LineWriter writes whole lines from a queue, in one goroutine. Lines that arrive during a
// write go out together in the next. After a failed write nothing more is written, since a line
// may be torn.
type LineWriter struct {
	out   io.Writer
	limit int           // bytes that may wait before a line is refused
	done  chan struct{} // closed at the end of the goroutine

	mu      sync.Mutex
	changed sync.Cond // one of the following changed
	queue   []byte
	hurried bool // Write refuses instead of waiting
	closing bool
	err     error // of the failed write
}

// NewLineWriter returns a writer to out. Its goroutine ends after Close.
func NewLineWriter(out io.Writer, limit int) *LineWriter {
	w := &LineWriter{out: out, limit: limit, done: make(chan struct{})}
	w.changed.L = &w.mu
	go w.run()
	return w
}

func (w *LineWriter) run() {
	defer close(w.done)
	var spare []byte
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.queue) == 0 && !w.closing {
			w.changed.Wait()
		}
		if len(w.queue) == 0 {
			return
		}
		lines := w.queue
		w.queue = spare[:0]
		w.changed.Broadcast()
		w.mu.Unlock()
		_, err := w.out.Write(lines)
		w.mu.Lock()
		if err != nil {
			w.err, w.queue = err, nil
			w.changed.Broadcast()
			return
		}
		if spare = lines; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

// Offer queues a line and does not wait. build appends the line without its end. The fault is a
// *QueueFullError, ErrWriterClosed or that of a write.
func (w *LineWriter) Offer(build func([]byte) []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.add(build)
}

// Write queues a line as Offer does, but waits while the queue is full.
func (w *LineWriter) Write(build func([]byte) []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > w.limit && w.err == nil && !w.hurried && !w.closing {
		w.changed.Wait()
	}
	return w.add(build)
}

func (w *LineWriter) add(build func([]byte) []byte) error {
	switch {
	case w.err != nil:
		return w.err
	case w.closing:
		return ErrWriterClosed
	case len(w.queue) > w.limit:
		return &QueueFullError{len(w.queue)}
	}
	w.queue = append(build(w.queue), '\n')
	w.changed.Broadcast()
	return nil
}

// Hurry makes Write refuse instead of wait from now on.
func (w *LineWriter) Hurry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hurried = true
	w.changed.Broadcast()
}

// Close takes no more lines. What is queued is still written.
func (w *LineWriter) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
	w.changed.Broadcast()
}

// Done is closed when everything is written after Close, or a write failed. Before Close, only a failed write closes it.
func (w *LineWriter) Done() <-chan struct{} { return w.done }

// Err returns the fault of the failed write; nil if there was none.
func (w *LineWriter) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
