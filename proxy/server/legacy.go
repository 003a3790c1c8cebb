package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// postLegacy serves one message of a revision with sessions.
func (e *HTTP) postLegacy(w http.ResponseWriter, r *http.Request, m wire.Message, from sender) {
	if m.Method == wire.MethodInitialize && m.IsRequest() {
		e.initialize(w, r, m, from)
		return
	}
	l, ok := e.legacyOf(w, r, from, m.ID)
	if !ok {
		return
	}
	defer l.release()
	if !m.IsRequest() {
		e.accept(l.core, m)
		e.taken(w)
		return
	}
	if !e.enter() {
		refuseShutdown(w, m.ID)
		return
	}
	s, c := l.newStream(1)
	e.attend(r.Context(), s, c, e.opts.SSEAfter, func() { l.run(s, m, endToEnd(r.Header), from.branch) }, func() { e.respond(w, r, l, s, c, false) })
}

// initialize opens a session and sends its id with the reply. The session stays
// only if the core takes it.
func (e *HTTP) initialize(w http.ResponseWriter, r *http.Request, m wire.Message, from sender) {
	if !e.enter() {
		refuseShutdown(w, m.ID)
		return
	}
	l, fault := e.openLegacy(from.principal)
	if fault != nil {
		e.leave()
		w.Header().Set("Retry-After", "60")
		refuse(w, http.StatusServiceUnavailable, m.ID, fault)
		return
	}
	if !l.hold() {
		e.leave()
		refuseShutdown(w, m.ID)
		return
	}
	defer l.release()
	s, c := l.newStream(1)
	e.attend(r.Context(), s, c, e.opts.SSEAfter, func() { l.run(s, m, endToEnd(r.Header), from.branch) }, func() {
		l.mu.Lock()
		open := !l.closed
		l.mu.Unlock()
		if open {
			w.Header().Set(wire.HeaderSession, l.id)
		}
		e.respond(w, r, l, s, c, false)
	})
}

// run serves one request of the session; a host that leaves does not end it.
func (l *legacySession) run(s *stream, m wire.Message, h http.Header, branch string) {
	defer l.edge.leave()
	l.conclude(s, m, serveGuarded(l.ctx, l.core, l.exchange(s, m, h, branch), l.edge.log))
}

// begin takes one request of a batch, and returns what serves it, which must be called.
func (l *legacySession) begin(s *stream, m wire.Message, h http.Header, branch string) (serve func()) {
	p := beginGuarded(l.ctx, l.core, l.exchange(s, m, h, branch), l.edge.log)
	return func() {
		defer l.edge.leave()
		l.conclude(s, m, p.Serve())
	}
}

func (l *legacySession) exchange(s *stream, m wire.Message, h http.Header, branch string) *Request {
	return &Request{Msg: m, Header: h, BranchID: branch, Emit: func(msg []byte) error {
		err := s.emit(msg)
		if err == errStreamLost {
			return l.push(msg) // the call goes on, so its messages take another way
		}
		return err
	}}
}

// conclude hands the reply to m to its stream.
func (l *legacySession) conclude(s *stream, m wire.Message, r Reply) {
	if m.Method == wire.MethodInitialize {
		if v, ok := rawjson.GetString(r.Result, "protocolVersion"); ok {
			l.mu.Lock()
			l.version = v
			l.mu.Unlock()
		}
		if r.Result == nil {
			l.edge.closeLegacy(l, "initialize failed")
		}
	}
	var msg []byte
	if !r.silent() {
		msg = r.encode(m.ID)
	}
	if s.finish(msg) {
		l.endStream(s)
	}
}

// accept hands a notification or a response to the core.
func (e *HTTP) accept(s Session, m wire.Message) {
	guard(e.log, "a message of the host", func() {
		if m.IsNotification() {
			s.Notify(m)
		} else {
			s.Answer(m)
		}
	})
}

// respond answers a POST of a legacy session with what its stream has now.
func (e *HTTP) respond(w http.ResponseWriter, r *http.Request, l *legacySession, s *stream, c *streamConn, batch bool) {
	defer s.detach(c)
	if r.Context().Err() != nil {
		return // nobody reads
	}
	switch sse, replies := s.begin(); {
	case sse:
		sw := e.sseWriter(w, s.id, true)
		if sw.start(l.primes(), 0) == nil {
			e.pump(r.Context(), sw, s, c, nil)
		}
	case len(replies) == 0: // cancelled, so no response: hosts take an empty stream best
		_ = e.sseWriter(w, 0, false).start(false, 0)
	case batch:
		e.sendJSON(w, r, http.StatusOK, append(append([]byte{'['}, bytes.Join(replies, []byte{','})...), ']'))
	default:
		e.sendJSON(w, r, http.StatusOK, replies[0])
	}
}

// primes reports whether the host understands an event without data.
func (l *legacySession) primes() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version >= versionPriming
}

func (e *HTTP) sseWriter(w http.ResponseWriter, stream uint64, ids bool) *sseWriter {
	return &sseWriter{w: w, rc: http.NewResponseController(w), timeout: e.opts.IOTimeout, ids: ids, stream: stream}
}

// sendJSON writes a reply of any size, each piece under a deadline, and head
// and body at once if it can. It recycles body, which is the caller's alone.
func (e *HTTP) sendJSON(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = typeJSON
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	rc := http.NewResponseController(w)
	g := gatherOf(r)
	if g == nil || len(body) < gatherFrom {
		if writeChunked(w, rc, e.opts.IOTimeout, body) == nil {
			recycle(body)
		}
		return // after an error the host is gone, and HTTP/2 may still hold the body
	}
	g.hold()
	defer g.release()
	if writeChunked(w, rc, e.opts.IOTimeout, body) == nil {
		_ = rc.Flush() // net/http's buffer; what cannot flush does so after the release
		recycle(body)
	}
}

// get opens the session's own stream, or resumes the stream that Last-Event-ID
// names.
func (e *HTTP) get(w http.ResponseWriter, r *http.Request, from sender) {
	if !accepts(r.Header["Accept"], "text/event-stream") {
		refuse(w, http.StatusNotAcceptable, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "Accept must hold text/event-stream"})
		return
	}
	l, ok := e.legacyOf(w, r, from, nil)
	if !ok {
		return
	}
	defer l.release()
	s, after, ok := l.std, (*uint64)(nil), true
	if last := r.Header.Get(wire.HeaderLastEvent); last != "" {
		s, after, ok = l.resumed(last)
	}
	var c *streamConn
	if ok {
		c, ok = s.attach(after)
	}
	if !ok {
		status, text := http.StatusConflict, "this session has a GET stream already"
		if r.Header.Get(wire.HeaderLastEvent) != "" {
			status, text = http.StatusBadRequest, "Last-Event-ID names no event that can be resumed from"
		}
		refuse(w, status, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: text})
		return
	}
	defer s.detach(c)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	sw := e.sseWriter(w, s.id, true)
	if sw.start(l.primes(), s.last()) == nil {
		e.pump(ctx, sw, s, c, e.drain)
	}
}

// resumed finds the stream and the number in an event id of ours.
func (l *legacySession) resumed(id string) (*stream, *uint64, bool) {
	streamID, number, _ := strings.Cut(id, "-")
	sid, err1 := strconv.ParseUint(streamID, 10, 64)
	n, err2 := strconv.ParseUint(number, 10, 64)
	if err1 != nil || err2 != nil {
		return nil, nil, false
	}
	s := l.find(sid)
	return s, &n, s != nil
}

// delete ends a session at the host's wish.
func (e *HTTP) delete(w http.ResponseWriter, r *http.Request, from sender) {
	l, ok := e.legacyOf(w, r, from, nil)
	if !ok {
		return
	}
	defer l.release()
	e.closeLegacy(l, "ended by the host")
	w.WriteHeader(http.StatusNoContent)
}

func refuseShutdown(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusServiceUnavailable, id, &wire.Error{Code: wire.CodeInternal, Message: errShutdown.Error()})
}
