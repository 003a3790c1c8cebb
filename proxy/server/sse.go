package server

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"
)

// writeChunk is how much is written under one deadline, so that a large message
// on a slow line is fine as long as it moves.
const writeChunk = 256 << 10

// Header values that are set on every reply, shared to spare allocations.
var (
	typeJSON   = []string{"application/json"}
	typeEvents = []string{"text/event-stream"}
	noCache    = []string{"no-cache, no-transform"}
	noBuffer   = []string{"no"}
)

// sseWriter writes server-sent events to one connection.
type sseWriter struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	ids     bool // give events their ids, of the stream named by stream
	stream  uint64
	buf     []byte
}

// start sends the response head, and a priming event with the id of the last
// event sent (which is how a host can resume before it saw anything) if prime.
func (w *sseWriter) start(prime bool, last uint64) error {
	h := w.w.Header()
	h["Content-Type"] = typeEvents
	h["Cache-Control"] = noCache
	h["X-Accel-Buffering"] = noBuffer // nginx would hold events back
	w.w.WriteHeader(http.StatusOK)
	if prime {
		w.buf = append(w.id(w.buf, last), "retry: 1000\ndata:\n\n"...)
	}
	return w.flush()
}

func (w *sseWriter) id(b []byte, n uint64) []byte {
	b = strconv.AppendUint(append(b, "id: "...), w.stream, 10)
	b = strconv.AppendUint(append(b, '-'), n, 10)
	return append(b, '\n')
}

// events writes events with numbers from first on, and flushes.
func (w *sseWriter) events(first uint64, events [][]byte) error {
	for i, e := range events {
		w.buf = append(w.buf, "event: message\n"...)
		if w.ids {
			w.buf = w.id(w.buf, first+uint64(i))
		}
		w.buf = append(w.buf, "data: "...)
		w.buf = append(w.buf, e...)
		w.buf = append(w.buf, "\n\n"...)
		if len(w.buf) > writeChunk {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return w.flush()
}

// comment writes a line that hosts ignore and that keeps idle timeouts away.
func (w *sseWriter) comment() error {
	w.buf = append(w.buf, ": keep-alive\n\n"...)
	return w.flush()
}

func (w *sseWriter) flush() error {
	err := writeChunked(w.w, w.rc, w.timeout, w.buf)
	if err == nil {
		err = w.rc.Flush()
	}
	if w.buf = w.buf[:0]; cap(w.buf) > writeChunk {
		w.buf = nil
	}
	return err
}

// writeChunked writes b piece by piece, each under a deadline of its own.
func writeChunked(w io.Writer, rc *http.ResponseController, timeout time.Duration, b []byte) error {
	for {
		_ = rc.SetWriteDeadline(time.Now().Add(timeout)) // not supported by test recorders
		if len(b) <= writeChunk {
			_, err := w.Write(b)
			return err
		}
		if _, err := w.Write(b[:writeChunk]); err != nil {
			return err
		}
		b = b[writeChunk:]
	}
}

// pump writes the stream's events to the connection until the stream ends
// (true), or the connection goes, is taken over or stop is closed (false).
func (e *HTTP) pump(ctx context.Context, w *sseWriter, s *stream, c *streamConn, stop <-chan struct{}) bool {
	t := time.NewTimer(e.opts.KeepAlive)
	defer t.Stop()
	for {
		first, events, end, alive := s.next(c)
		if !alive {
			return false
		}
		if len(events) > 0 {
			if w.events(first, events) != nil {
				return false
			}
			t.Reset(e.opts.KeepAlive)
		}
		if end {
			return true
		}
		select {
		case <-c.wake:
		case <-t.C:
			if w.comment() != nil {
				return false
			}
			t.Reset(e.opts.KeepAlive)
		case <-ctx.Done():
			return false
		case <-stop:
			return false
		}
	}
}
