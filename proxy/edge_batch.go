package proxy

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// postBatch serves an array of messages, which revision 2025-03-26 allows.
func (e *httpEdge) postBatch(w http.ResponseWriter, r *http.Request, body []byte, from sender) {
	bad := func(code int, text string) {
		refuse(w, http.StatusBadRequest, nil, &rpcError{Code: code, Message: text})
	}
	if !rawjson.Valid(body, maxDepth) {
		bad(codeParse, "not valid JSON")
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
		bad(codeInvalidRequest, fmt.Sprintf("protocol version %s has no batches; send each message by itself", version))
		return
	}
	var requests []Message
	var faults [][]byte
	n := 0
	rawjson.Elements(body, func(v []byte) bool {
		n++
		m, err := ParseMessage(v)
		switch {
		case err != nil:
			faults = append(faults, parseFault(err).response(idOf(m)))
		case m.Method == methodInitialize:
			faults = append(faults, (&rpcError{Code: codeInvalidRequest, Message: "initialize must not be in a batch"}).response(m.ID))
		case m.IsRequest():
			requests = append(requests, m)
		default:
			e.accept(l.core, m)
		}
		return true
	})
	switch {
	case n == 0:
		bad(codeInvalidRequest, "empty batch")
	case len(requests)+len(faults) == 0:
		w.WriteHeader(http.StatusAccepted)
	default:
		e.serveBatch(w, r, l, requests, faults, from)
	}
}

func (e *httpEdge) serveBatch(w http.ResponseWriter, r *http.Request, l *legacySession, requests []Message, faults [][]byte, from sender) {
	s, c := l.newStream(len(requests) + len(faults))
	for _, f := range faults {
		if s.finish(f) {
			l.endStream(s)
		}
	}
	var running sync.WaitGroup
	for _, m := range requests {
		if !e.enter() {
			if s.finish((&rpcError{Code: codeInternal, Message: errShutdown.Error()}).response(m.ID)) {
				l.endStream(s)
			}
			continue
		}
		running.Go(func() { l.run(s, m, endToEnd(r.Header), from.branch) })
	}
	e.attend(r.Context(), s, c, e.opts.SSEAfter, running.Wait, func() { e.respond(w, r, l, s, c, true) })
}
