package server

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// batchMax bounds the messages of a batch: its requests run side by side, and
// each message that is none is answered at a multiple of its length.
const batchMax = 1000

// postBatch serves an array of messages, which revision 2025-03-26 allows.
func (e *HTTP) postBatch(w http.ResponseWriter, r *http.Request, body []byte, from sender) {
	bad := func(code int, text string) {
		refuse(w, http.StatusBadRequest, nil, &wire.Error{Code: code, Message: text})
	}
	if !rawjson.Valid(body, wire.MaxDepth) {
		bad(wire.CodeParse, "not valid JSON")
		return
	}
	l, ok := e.legacyOf(w, r, from, nil)
	if !ok {
		return
	}
	defer l.release()
	l.mu.Lock()
	version := l.version
	l.mu.Unlock()
	if version > versionBatch {
		bad(wire.CodeInvalidRequest, fmt.Sprintf("protocol version %s has no batches; send each message by itself", version))
		return
	}
	n := 0
	rawjson.Elements(body, func([]byte) bool { n++; return n <= batchMax })
	if n > batchMax {
		bad(wire.CodeInvalidRequest, fmt.Sprintf("a batch of more than %d messages; send several", batchMax))
		return
	}
	var all []wire.Message // but those that are faults
	var faults [][]byte
	requests := 0
	rawjson.Elements(body, func(v []byte) bool {
		m, err := wire.ParseMessage(v)
		switch {
		case err != nil:
			faults = append(faults, parseFault(err).Response(idOf(m)))
		case m.Method == wire.MethodInitialize:
			faults = append(faults, (&wire.Error{Code: wire.CodeInvalidRequest, Message: "initialize must not be in a batch"}).Response(m.ID))
		default:
			if all = append(all, m); m.IsRequest() {
				requests++
			}
		}
		return true
	})
	switch {
	case n == 0:
		bad(wire.CodeInvalidRequest, "empty batch")
	case requests+len(faults) == 0:
		for _, m := range all {
			e.accept(l.core, m)
		}
		e.taken(w)
	default:
		s, c := l.newStream(requests + len(faults))
		e.serveBatch(w, r, l, s, c, all, faults, from)
	}
}

// serveBatch takes the messages in their order, so that a cancellation finds the
// request before it, and then runs the requests side by side.
func (e *HTTP) serveBatch(w http.ResponseWriter, r *http.Request, l *legacySession, s *stream, c *streamConn, all []wire.Message, faults [][]byte, from sender) {
	for _, f := range faults {
		if s.finish(f) {
			l.endStream(s)
		}
	}
	var serve []func()
	for _, m := range all {
		switch {
		case !m.IsRequest():
			e.accept(l.core, m)
		case !e.enter():
			if s.finish((&wire.Error{Code: wire.CodeInternal, Message: errShutdown.Error()}).Response(m.ID)) {
				l.endStream(s)
			}
		default:
			serve = append(serve, l.begin(s, m, endToEnd(r.Header), from.branch))
		}
	}
	e.attend(r.Context(), s, c, e.opts.SSEAfter, func() {
		var running sync.WaitGroup
		for _, f := range serve {
			running.Go(f)
		}
		running.Wait()
	}, func() { e.respond(w, r, l, s, c, true) })
}
