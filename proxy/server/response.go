package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"
)

// writeChunk is how much is written under one deadline. So a large message may take long on a
// slow line, as long as it moves.
const writeChunk = 256 << 10

// statusHostGone is nginx's status for a request whose client has gone. Without a status, net/http would
// answer 200 with an empty body.
const statusHostGone = 499

// Header values of every reply, shared to spare allocations.
var (
	typeJSON   = []string{"application/json"}
	typeEvents = []string{"text/event-stream"}
	noCache    = []string{"no-cache, no-transform"}
	noBuffer   = []string{"no"}
)

// response is the response to a POST: its replies as JSON if there is nothing else to say, or an
// event stream.
type response struct {
	x      *exchange
	stream *stream
	conn   *streamConn

	session *legacySession // nil in the modern era
	req     *Request       // nil for a batch: then the replies are an array

	status     int                     // of a reply as JSON; in the modern era set before the stream's finish
	cancel     context.CancelCauseFunc // modern: the call ends with its response
	tokenValid func() bool             // of a stream that lasts; see sseWriter
	stop       <-chan struct{}         // modern: ends an event stream; nil for a call, which may finish

	once  sync.Once     // done when an event stream begins early, or when the calls are over
	early chan struct{} // closed when the event stream that began before the end of the calls is written; nil without one
}

// newResponse returns the response to a POST with a number of requests. Its stream has that id.
func newResponse(x *exchange, req *Request, id uint64, requests int, resume bool) *response {
	p := &response{x: x, req: req, status: http.StatusOK}
	p.stream, p.conn = newStream(x.r.Context(), id, requests, x.srv.opts.MaxQueue, resume, p.start)
	return p
}

// start begins the event stream, on another goroutine, unless the calls are over.
func (p *response) start() {
	p.once.Do(func() {
		p.early = make(chan struct{})
		go func() { defer close(p.early); p.write() }()
	})
}

// serve runs the calls of a POST on this goroutine, and then writes the response. If a message
// must be sent before that, or after a silence of wait, another goroutine starts the event
// stream. Two goroutines for every call would cost about 4 % more CPU a call at 100 B and 16
// clients.
func (p *response) serve(wait time.Duration, run func()) {
	if wait > 0 {
		defer time.AfterFunc(wait, p.conn.start).Stop()
	} else {
		p.start()
	}
	run()
	p.once.Do(func() {}) // from here on no stream begins early
	if p.early == nil {
		p.write()
	} else {
		<-p.early
	}
}

// write answers with what the stream has now.
func (p *response) write() {
	if p.cancel != nil {
		defer p.cancel(errHostGone) // no effect once the reply is there
	}
	defer p.stream.detach(p.conn)
	if p.x.r.Context().Err() != nil { // the host is gone, or has closed its half of the connection and still reads
		p.x.w.WriteHeader(statusHostGone)
		return
	}
	if l := p.session; l != nil && p.req != nil && p.req.Msg.Method == wire.MethodInitialize && l.lifetime.Err() == nil {
		p.x.w.Header().Set(wire.HeaderSession, l.id)
	}
	sse, replies := p.stream.begin()
	if !sse && len(replies) > 0 {
		p.writeReplies(replies)
		return
	}
	w := &sseWriter{w: p.x.w, stream: p.stream, tokenValid: p.tokenValid}
	prime := sse && p.session != nil && p.session.primes()
	// Without events or replies the call was cancelled. Hosts accept an empty stream best.
	if w.start(prime, 0) == nil && sse {
		w.pump(p.x.r.Context(), p.conn, p.stop)
	}
}

// replyBuffers are buffers of replies that were written, as *[]byte. Without them, a call with a
// result of 64 KB allocates 70 KB instead of 6 KB.
var replyBuffers = sync.Pool{New: func() any { return new([]byte) }}

// maxReplyKept is the size up to which the buffer of a reply is used again.
const maxReplyKept = 2 << 20

func (p *response) writeReplies(replies []Reply) {
	buf := replyBuffers.Get().(*[]byte)
	body := (*buf)[:0]
	if p.req == nil {
		body = append(body, '[')
	}
	for i, m := range replies {
		if i > 0 {
			body = append(body, ',')
		}
		body = m.Append(body)
	}
	if p.req == nil {
		body = append(body, ']')
	} else if challenge := p.x.stepUp(p.req, replies[0].MissingScopes); challenge != "" {
		p.x.w.Header().Set("WWW-Authenticate", challenge)
		p.status = http.StatusForbidden
	}
	setHead(p.x.w, p.status, len(body))
	if c := coalescingOf(p.x.r); c != nil && len(body) >= coalesceFrom && len(body) <= coalesceMax {
		c.startBuffering()
		defer c.flush()
		defer func() { _ = http.NewResponseController(p.x.w).Flush() }() // net/http's buffer
	}
	// After an error the host is gone, and HTTP/2 may still hold the body.
	if writeChunked(p.x.w, body) == nil && cap(body) <= maxReplyKept {
		*buf = body
		replyBuffers.Put(buf)
	}
}

// sseWriter writes the server-sent events of a stream to one connection.
type sseWriter struct {
	w          http.ResponseWriter
	stream     *stream
	buf        []byte
	tokenValid func() bool // whether the token of the request is still valid; nil: that does not matter
}

// pump writes the stream's events to the connection until the stream ends, the connection goes or
// is taken over, its token is revoked, or stop is closed.
func (w *sseWriter) pump(ctx context.Context, c *streamConn, stop <-chan struct{}) {
	for {
		if w.tokenValid != nil && !w.tokenValid() {
			return
		}
		first, events, more := w.stream.next(c)
		if len(events) > 0 && w.events(first, events) != nil || !more {
			return
		}
		select {
		case <-c.wake:
		case <-time.After(sseKeepAlive): // hosts ignore a comment, which keeps idle timeouts away
			w.buf = append(w.buf, ": keep-alive\n\n"...)
			if w.flush() != nil {
				return
			}
		case <-ctx.Done():
			return
		case <-stop:
			return
		}
	}
}

// start sends the response head, and a priming event with the id of the last event sent (which is
// how a host can resume before it saw anything) if prime.
func (w *sseWriter) start(prime bool, last uint64) error {
	h := w.w.Header()
	h["Content-Type"] = typeEvents
	h["Cache-Control"] = noCache
	h["X-Accel-Buffering"] = noBuffer // nginx would hold events back
	w.w.WriteHeader(http.StatusOK)
	if prime {
		w.id(last)
		w.buf = append(w.buf, "retry: 1000\ndata:\n\n"...)
	}
	return w.flush()
}

// events writes events with numbers from first on, and flushes.
func (w *sseWriter) events(first uint64, events [][]byte) error {
	for i, e := range events {
		w.buf = append(w.buf, "event: message\n"...)
		if w.stream.resume {
			w.id(first + uint64(i))
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

func (w *sseWriter) id(n uint64) { w.buf = fmt.Appendf(w.buf, "id: %d-%d\n", w.stream.id, n) }

func (w *sseWriter) flush() error {
	err := writeChunked(w.w, w.buf)
	if err == nil {
		err = http.NewResponseController(w.w).Flush()
	}
	if w.buf = w.buf[:0]; cap(w.buf) > writeChunk {
		w.buf = nil
	}
	return err
}

// writeChunked writes b piece by piece, each under a deadline of its own.
func writeChunked(w http.ResponseWriter, b []byte) error {
	for {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(ioTimeout)) // not supported by test recorders
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
