package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	// versionBatch is the only revision in which a body may be a batch.
	versionBatch = "2025-03-26"
	// batchMax is the limit on messages of a batch: its requests run at the same time, and each
	// invalid message is answered at a multiple of its length.
	batchMax = 1000
)

// postLegacy serves one message of a revision with sessions.
func (x *exchange) postLegacy(req *Request) {
	if req.Msg.Method == wire.MethodInitialize && req.Msg.IsRequest() {
		x.initialize(req)
		return
	}
	l, ok := x.sessionOf(req.Msg.ID)
	if !ok {
		return
	}
	defer l.release()
	switch {
	case !req.Msg.IsRequest():
		accept(l.session, req.Msg, x.srv.log)
		x.accepted()
	case x.enter(req.Msg.ID, len(req.Msg.Raw)):
		defer x.counted.leave()
		l.serve(x, req)
	}
}

// initialize opens a session and sends its id with the reply. The session stays only if the
// router takes it.
func (x *exchange) initialize(req *Request) {
	if !x.enter(req.Msg.ID, len(req.Msg.Raw)) {
		return
	}
	defer x.counted.leave()
	l, fault := x.srv.openSession(x.caller.Identity, declared(req.Msg))
	if fault != nil {
		x.w.Header().Set("Retry-After", "60")
		x.refuse(http.StatusServiceUnavailable, req.Msg.ID, fault)
		return
	}
	defer l.release()
	l.serve(x, req)
}

// postBatch serves an array of messages, which revision 2025-03-26 allows. It takes the messages
// in their order, so that a cancellation finds the request before it, and then runs the requests
// at the same time.
func (x *exchange) postBatch(body []byte) {
	if !rawjson.Valid(body, wire.MaxDepth) {
		_, err := wire.ParseMessage(body)
		x.refuse(http.StatusBadRequest, nil, parseError(err))
		return
	}
	l, ok := x.sessionOf(nil)
	if !ok {
		return
	}
	defer l.release()
	if version := l.session.Revision(); version > versionBatch {
		x.refuse(http.StatusBadRequest, nil, invalid(wire.CodeInvalidRequest, fmt.Sprintf("protocol version %s has no batches; send each message by itself", version)))
		return
	}
	messages, faults, fault := x.readBatch(body)
	if fault != nil {
		x.refuse(http.StatusBadRequest, nil, fault)
		return
	}
	replies := len(faults)
	for _, m := range messages {
		if m.IsRequest() {
			replies++
		}
	}
	if replies == 0 {
		for _, m := range messages {
			accept(l.session, m, x.srv.log)
		}
		x.accepted()
		return
	}
	p := l.response(x, nil, replies)
	for _, m := range faults {
		l.finish(p.stream, Reply{Message: m})
	}
	var serve []func()
	for _, m := range messages {
		if !m.IsRequest() {
			accept(l.session, m, x.srv.log)
			continue
		}
		req := x.request(m)
		if err := x.srv.enter(x.caller.Principal, len(m.Raw)); err != nil {
			l.finish(p.stream, Reply{Message: invalid(wire.CodeInternal, err.Error()).Reply(m.ID)})
		} else {
			serve = append(serve, l.begin(p.stream, req, &countedRequest{x.srv, x.caller.Principal, len(m.Raw)}))
		}
	}
	p.serve(sseAfter, func() {
		var running sync.WaitGroup
		for _, f := range serve {
			running.Go(f)
		}
		running.Wait()
	})
}

// readBatch returns the messages of an array, and the replies to the invalid ones, of which the router is told. The
// error is for the whole array.
func (x *exchange) readBatch(body []byte) (messages, faults []wire.Message, err *wire.Error) {
	fault := func(e *wire.Error, id json.RawMessage) {
		x.refused(http.StatusBadRequest, e)
		faults = append(faults, e.Reply(id))
	}
	n := 0
	for v := range rawjson.Elements(body) {
		if n++; n > batchMax {
			return nil, nil, invalid(wire.CodeInvalidRequest, fmt.Sprintf("a batch of more than %d messages; send several", batchMax))
		}
		m, err := wire.ParseMessage(v)
		switch {
		case err != nil:
			fault(parseError(err), idOf(m))
		case m.Method == wire.MethodInitialize:
			fault(invalid(wire.CodeInvalidRequest, "initialize must not be in a batch"), m.ID)
		default:
			messages = append(messages, m)
		}
	}
	if n == 0 {
		return nil, nil, invalid(wire.CodeInvalidRequest, "empty batch")
	}
	return messages, faults, nil
}

// get opens the session's own stream, or resumes the stream that Last-Event-ID names.
func (x *exchange) get() {
	if !accepts(x.r.Header["Accept"], "text/event-stream") {
		x.refuse(http.StatusNotAcceptable, nil, invalid(wire.CodeInvalidRequest, "Accept must hold text/event-stream"))
		return
	}
	l, ok := x.sessionOf(nil)
	if !ok {
		return
	}
	defer l.release()
	status, text := http.StatusConflict, "this session has a GET stream already"
	s, after := l.std, (*uint64)(nil)
	if last := x.r.Header.Get(wire.HeaderLastEvent); last != "" {
		status, text = http.StatusBadRequest, "Last-Event-ID names no event that can be resumed from"
		s, after = l.resumed(last)
	}
	var c *streamConn
	if s != nil {
		c = s.attach(x.r.Context(), after)
	}
	if c == nil {
		x.refuse(status, nil, invalid(wire.CodeInvalidRequest, text))
		return
	}
	defer s.detach(c)
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	defer context.AfterFunc(l.lifetime, cancel)()
	sw := &sseWriter{w: x.w, stream: s, tokenValid: x.tokenCheck()}
	if sw.start(l.primes(), c.last) == nil {
		sw.pump(ctx, c, x.srv.drain)
	}
}

// resumed returns the stream and the number that an event id names; nil if there is no such
// stream.
func (l *legacySession) resumed(id string) (*stream, *uint64) {
	streamID, number, _ := strings.Cut(id, "-")
	sid, err1 := strconv.ParseUint(streamID, 10, 64)
	n, err2 := strconv.ParseUint(number, 10, 64)
	if err1 != nil || err2 != nil {
		return nil, nil
	}
	return l.find(sid), &n
}

func (x *exchange) delete() {
	l, ok := x.sessionOf(nil)
	if !ok {
		return
	}
	defer l.release()
	l.close("ended by the host")
	x.w.WriteHeader(http.StatusNoContent)
}
