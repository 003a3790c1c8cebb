package edge

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
	var requests []wire.Message
	var faults [][]byte
	rawjson.Elements(body, func(v []byte) bool {
		m, err := wire.ParseMessage(v)
		switch {
		case err != nil:
			faults = append(faults, parseFault(err).Response(idOf(m)))
		case m.Method == wire.MethodInitialize:
			faults = append(faults, (&wire.Error{Code: wire.CodeInvalidRequest, Message: "initialize must not be in a batch"}).Response(m.ID))
		case m.IsRequest():
			requests = append(requests, m)
		default:
			e.accept(l.core, m)
		}
		return true
	})
	switch {
	case n == 0:
		bad(wire.CodeInvalidRequest, "empty batch")
	case len(requests)+len(faults) == 0:
		e.taken(w)
	default:
		e.serveBatch(w, r, l, requests, faults, from)
	}
}

func (e *HTTP) serveBatch(w http.ResponseWriter, r *http.Request, l *legacySession, requests []wire.Message, faults [][]byte, from sender) {
	s, c := l.newStream(len(requests) + len(faults))
	for _, f := range faults {
		if s.finish(f) {
			l.endStream(s)
		}
	}
	var running sync.WaitGroup
	for _, m := range requests {
		if !e.enter() {
			if s.finish((&wire.Error{Code: wire.CodeInternal, Message: errShutdown.Error()}).Response(m.ID)) {
				l.endStream(s)
			}
			continue
		}
		running.Go(func() { l.run(s, m, endToEnd(r.Header), from.branch) })
	}
	e.attend(r.Context(), s, c, e.opts.SSEAfter, running.Wait, func() { e.respond(w, r, l, s, c, true) })
}
