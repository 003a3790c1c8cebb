package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

var errNoStream = errors.New("a modern host hears of this only on subscriptions/listen")

// postModern serves one message of the era without sessions: the request is its
// own session, and the connection is its life.
func (e *HTTP) postModern(w http.ResponseWriter, r *http.Request, m wire.Message, meta requestMeta, from sender) {
	if m.IsResponse() {
		refuse(w, http.StatusBadRequest, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "this protocol version has no requests to answer"})
		return
	}
	if fault := e.checkModern(from.principal, r.Header, m, meta); fault != nil {
		status := statusOf(fault.Code)
		if status == http.StatusOK {
			status = http.StatusBadRequest
		}
		refuse(w, status, m.ID, fault)
		return
	}
	if !e.enter() {
		refuseShutdown(w, m.ID)
		return
	}
	p := Peer{Principal: from.principal, Transport: "http", Era: wire.Modern, SingleRequest: true, Push: func([]byte) error { return errNoStream }}
	if m.IsNotification() {
		defer e.leave()
		s := e.core.Open(p)
		e.accept(s, m)
		e.closeCore(s, "notification taken")
		e.taken(w)
		return
	}
	e.serveModern(w, r, m, p, from.branch)
}

func (e *HTTP) closeCore(s Session, reason string) {
	guard(e.log, "closing a session", func() { s.Close(reason) })
}

func (e *HTTP) serveModern(w http.ResponseWriter, r *http.Request, m wire.Message, p Peer, branch string) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(errShutdown) })()
	st, c := newStream(0, 1, e.opts.MaxQueue, false)
	listen := m.Method == wire.MethodListen
	if listen {
		p.Push = st.emit
	}
	s := e.core.Open(p)
	status := http.StatusOK // written before finish, read after
	wait := e.opts.SSEAfter
	if listen {
		wait = 0
	}
	e.attend(r.Context(), st, c, wait, func() {
		defer e.leave()
		ex := &Request{Msg: m, Header: endToEnd(r.Header), BranchID: branch, Emit: st.emit}
		rep := serveGuarded(ctx, s, ex, e.log)
		var msg []byte
		if !rep.silent() {
			msg = rep.encode(m.ID)
		}
		if rep.Error != nil {
			status = statusOf(wire.ErrorCode(rep.Error))
		}
		e.closeCore(s, "request answered")
		st.finish(msg)
	}, func() {
		e.respondModern(w, r, st, c, listen, &status)
		cancel(errHostGone) // no-op once the reply is there
	})
}

func (e *HTTP) respondModern(w http.ResponseWriter, r *http.Request, st *stream, c *streamConn, listen bool, status *int) {
	defer st.detach(c)
	if r.Context().Err() != nil {
		return // nobody reads
	}
	switch sse, replies := st.begin(); {
	case sse:
		sw := e.sseWriter(w, 0, false)
		if sw.start(false, 0) == nil {
			stop := e.drain
			if !listen {
				stop = nil // a call may finish
			}
			e.pump(r.Context(), sw, st, c, stop)
		}
	case len(replies) == 0: // nobody waits for a response: an empty stream
		_ = e.sseWriter(w, 0, false).start(false, 0)
	default:
		e.sendJSON(w, r, *status, replies[0])
	}
}

// checkModern applies the rules for headers and _meta, the most telling first:
// what is missing, what contradicts the body, what is not supported.
func (e *HTTP) checkModern(principal string, h http.Header, m wire.Message, meta requestMeta) *wire.Error {
	version, fault := single(h, wire.HeaderVersion)
	if fault != nil {
		return fault
	}
	if rawjson.KindOf(meta.version) != rawjson.String && (m.IsRequest() || meta.modern()) {
		return badMeta(wire.MetaProtocolVersion, "a string")
	}
	if inBody := rawjson.Unquote(meta.version); meta.modern() && version != inBody {
		return mismatch(wire.HeaderVersion, version, inBody)
	}
	if m.IsRequest() {
		if fault := meta.check(); fault != nil {
			return fault
		}
	} else if version != wire.VersionModern { // a notification may leave _meta out
		return wire.UnsupportedVersion(version)
	}
	if fault := checkStandardHeaders(h, m); fault != nil {
		return fault
	}
	if e.opts.CheckParams != nil {
		return e.opts.CheckParams(principal, m.Method, m.Params, h)
	}
	return nil
}

// checkStandardHeaders compares Mcp-Method and Mcp-Name with the body. They let
// intermediaries route without reading it, so a difference is an attack or a bug.
func checkStandardHeaders(h http.Header, m wire.Message) *wire.Error {
	method, fault := single(h, wire.HeaderMethod)
	if fault != nil {
		return fault
	}
	if method != m.Method && (method != "" || m.IsRequest()) {
		return mismatch(wire.HeaderMethod, method, m.Method)
	}
	key, required := wire.NameMember(m.Method)
	if key == "" {
		return nil
	}
	name, fault := single(h, wire.HeaderName)
	if fault != nil {
		return fault
	}
	if name == "" && !required {
		return nil
	}
	inBody, ok := rawjson.GetString(m.Params, key)
	if !ok && name != "" || ok && name == "" {
		return mismatch(wire.HeaderName, name, inBody)
	}
	if plain, ok := wire.DecodeHeader(name); !ok || plain != inBody {
		return mismatch(wire.HeaderName, name, inBody)
	}
	return nil
}

// single returns the only value of a header. Of two, intermediaries and servers
// may read different ones, so two are refused.
func single(h http.Header, name string) (string, *wire.Error) {
	v := h[name]
	switch len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	}
	return "", &wire.Error{Code: wire.CodeHeaderMismatch, Message: fmt.Sprintf("the %s header is there %d times", name, len(v))}
}

func mismatch(name, header, body string) *wire.Error {
	if header == "" {
		return &wire.Error{Code: wire.CodeHeaderMismatch, Message: fmt.Sprintf("the %s header is missing; the body says %q", name, body)}
	}
	return &wire.Error{Code: wire.CodeHeaderMismatch, Message: fmt.Sprintf("the %s header says %q, the body %q", name, header, body)}
}

// endToEnd returns the headers that belong to the message and not to this hop;
// nil where there are none.
func endToEnd(h http.Header) http.Header {
	var out http.Header
	for k, v := range h {
		if k == wire.HeaderName || k == wire.HeaderMethod || strings.HasPrefix(k, wire.HeaderParam) {
			if out == nil {
				out = make(http.Header, 4)
			}
			out[k] = v
		}
	}
	return out
}
