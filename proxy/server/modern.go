package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

var errNoStream = errors.New("a modern host hears of this only on subscriptions/listen")

// postModern serves one message of the era without sessions. The request is its own session. It
// is cancelled if its connection ends.
func (x *exchange) postModern(req *Request) {
	m := req.Msg
	if m.IsResponse() {
		x.refuse(http.StatusBadRequest, nil, invalid(wire.CodeInvalidRequest, "this protocol version has no requests to answer"))
		return
	}
	if fault := x.srv.checkModern(x.r.Header, req); fault != nil {
		status := statusOf(fault.Code)
		if status == http.StatusOK {
			status = http.StatusBadRequest
		}
		x.refuse(status, m.ID, fault)
		return
	}
	if !x.enter(m.ID, len(m.Raw)) {
		return
	}
	defer x.counted.leave()
	x.srv.localTaskID(req)
	peer := Peer{Identity: x.caller.Identity, Capabilities: wire.ReadCapabilities(req.Meta.ClientCapabilities), Transport: "http", Era: wire.Modern, SingleRequest: true, Push: func([]byte) error { return errNoStream }}
	if m.IsNotification() {
		s := x.srv.router.Open(peer)
		accept(s, m, x.srv.log)
		closeSession(s, "notification taken", x.srv.log)
		x.accepted()
		return
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	defer context.AfterFunc(x.srv.lifetime, func() { cancel(errShutdown) })()
	p := newResponse(x, req, 0, 1, false)
	p.cancel = cancel
	emit := x.srv.emitGlobalTaskIDs(p.stream.emit)
	wait := sseAfter
	if m.Method == wire.MethodListen {
		peer.Push, p.stop, p.tokenValid, wait = emit, x.srv.drain, x.tokenCheck(), 0
	}
	s := x.srv.router.Open(peer)
	p.serve(wait, func() {
		defer x.counted.leave()
		req.Emit = emit
		reply := begin(m.ID, x.srv.log, func() Pending { return s.Begin(ctx, req) }).Serve()
		if reply.Error != nil {
			p.status = statusOf(wire.ErrorCode(reply.Error))
		}
		closeSession(s, "request answered", x.srv.log)
		reply.Result = x.srv.globalTaskIDs(req, reply.Result)
		p.stream.finish(reply)
	})
}

// statusOf returns the HTTP status of a modern reply with an error of this code.
func statusOf(code int) int {
	switch code {
	case wire.CodeMethodNotFound:
		return http.StatusNotFound
	case wire.CodeParse, wire.CodeInvalidRequest, wire.CodeInvalidParams,
		wire.CodeHeaderMismatch, wire.CodeMissingCapability, wire.CodeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// checkModern applies the rules for headers and _meta. A missing member is reported first, then a
// difference between header and body, then an unsupported value.
func (srv *HTTP) checkModern(h http.Header, req *Request) *wire.Error {
	m := req.Msg
	version, fault := single(h, wire.HeaderVersion)
	if fault != nil {
		return fault
	}
	inMeta := req.Meta.ProtocolVersion
	if rawjson.KindOf(inMeta) != rawjson.String && (m.IsRequest() || modern(req.Meta)) {
		return badMeta(wire.MetaProtocolVersion, "a string")
	}
	if inBody := rawjson.Unquote(inMeta); modern(req.Meta) && version != inBody {
		return mismatch(wire.HeaderVersion, version, inBody)
	}
	if m.IsRequest() {
		if fault := checkMeta(req.Meta); fault != nil {
			return fault
		}
	} else if version != wire.VersionModern { // a notification may leave _meta out
		return wire.UnsupportedVersion(version)
	}
	if fault := checkStandardHeaders(h, m); fault != nil {
		return fault
	}
	return srv.router.CheckHeaders(req, h)
}

// checkStandardHeaders compares Mcp-Method and Mcp-Name with the body. They let intermediaries
// route without reading it, so a difference is an attack or a bug.
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
	plain, decoded := wire.DecodeHeader(name)
	if ok != (name != "") || ok && (!decoded || plain != inBody) {
		return mismatch(wire.HeaderName, name, inBody)
	}
	return nil
}

// single returns the only value of a header. Intermediaries and servers may read different ones
// of two, so two are refused.
func single(h http.Header, name string) (string, *wire.Error) {
	v := h[name]
	switch len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	}
	return "", invalid(wire.CodeHeaderMismatch, fmt.Sprintf("the %s header is there %d times", name, len(v)))
}

func mismatch(name, header, body string) *wire.Error {
	if header == "" {
		return invalid(wire.CodeHeaderMismatch, fmt.Sprintf("the %s header is missing; the body says %q", name, wire.Clip(body)))
	}
	return invalid(wire.CodeHeaderMismatch, fmt.Sprintf("the %s header says %q, the body %q", name, wire.Clip(header), wire.Clip(body)))
}
