package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// This file holds what the two edges share: the rules of the modern era's
// _meta, the framing of a message as one line, and a guard against panics.
// ServeStdio (stdio.go) and HTTP (http.go) are the edges.

const (
	// versionPriming is the first revision whose hosts understand an SSE event
	// with an id and no data.
	versionPriming = "2025-11-25"
	// versionBatch is the only revision in which a body may be a batch.
	versionBatch = "2025-03-26"
)

// requestMeta holds the members of _meta that decide the era of a request; the
// slices are nil where a member is absent.
type requestMeta struct {
	version, capabilities, clientInfo json.RawMessage
}

// readMeta finds the reserved members of params._meta.
func readMeta(params json.RawMessage) requestMeta {
	var m requestMeta
	meta, ok := rawjson.Get(params, "_meta")
	if !ok {
		return m
	}
	rawjson.Members(meta, func(f rawjson.Member) bool {
		switch {
		case f.Is(wire.MetaProtocolVersion):
			m.version = f.Value
		case f.Is(wire.MetaClientCapabilities):
			m.capabilities = f.Value
		case f.Is(wire.MetaClientInfo):
			m.clientInfo = f.Value
		}
		return true
	})
	return m
}

// modern reports whether a request with this _meta belongs to the era without
// sessions, whatever version it names.
func (m requestMeta) modern() bool { return m.version != nil }

// check applies the rules for the reserved members of a modern request.
func (m requestMeta) check() *wire.Error {
	if rawjson.KindOf(m.version) != rawjson.String {
		return badMeta(wire.MetaProtocolVersion, "a string")
	}
	if v := rawjson.Unquote(m.version); v != wire.VersionModern {
		return wire.UnsupportedVersion(v)
	}
	if rawjson.KindOf(m.capabilities) != rawjson.Object {
		return badMeta(wire.MetaClientCapabilities, "an object")
	}
	if m.clientInfo != nil && rawjson.KindOf(m.clientInfo) != rawjson.Object {
		return badMeta(wire.MetaClientInfo, "an object")
	}
	return nil
}

func badMeta(key, want string) *wire.Error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("params._meta[%q] must be %s", key, want)}
}

// singleLine returns msg without line breaks, as both framings need it. In valid
// JSON a raw line break stands between tokens only, so a space says the same.
func singleLine(msg []byte) []byte {
	if bytes.IndexByte(msg, '\n') < 0 && bytes.IndexByte(msg, '\r') < 0 {
		return msg
	}
	msg = bytes.Clone(msg)
	for i, c := range msg {
		if c == '\n' || c == '\r' {
			msg[i] = ' '
		}
	}
	return msg
}

// parseFault says what the sender of an unreadable message is told.
func parseFault(err error) *wire.Error {
	if isNotJSON(err) {
		return &wire.Error{Code: wire.CodeParse, Message: err.Error()}
	}
	return &wire.Error{Code: wire.CodeInvalidRequest, Message: err.Error()}
}

// serveGuarded serves one request. A panic becomes an internal error, so that one
// broken call never takes the other sessions down.
func serveGuarded(ctx context.Context, s Session, ex *Request, log *slog.Logger) Reply {
	return beginGuarded(ctx, s, ex, log).Serve()
}

// beginGuarded registers a request. Registering and serving it are guarded
// against panics.
func beginGuarded(ctx context.Context, s Session, ex *Request, log *slog.Logger) (p Pending) {
	var broken Reply
	defer func() {
		if p == nil {
			p = failed(broken)
		}
	}()
	defer contain(ex, log, &broken)
	return guarded{s.Begin(ctx, ex), ex, log}
}

// guarded is a pending request that answers a panic.
type guarded struct {
	Pending
	ex  *Request
	log *slog.Logger
}

func (g guarded) Serve() (r Reply) {
	defer contain(g.ex, g.log, &r)
	return g.Pending.Serve()
}

// failed is a request that could not be registered.
type failed Reply

func (f failed) Serve() Reply { return Reply(f) }
func (failed) Sent()          {}

// contain is deferred where r is made: a panic there becomes an internal error.
func contain(ex *Request, log *slog.Logger, r *Reply) {
	if p := recover(); p != nil {
		log.Error("panic while serving a request", "method", ex.Msg.Method, "panic", p, "stack", string(debug.Stack()))
		*r = Reply{Error: (&wire.Error{Code: wire.CodeInternal, Message: "internal error"}).JSON()}
	}
}

// guard runs f and logs a panic of it under what.
func guard(log *slog.Logger, what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic", "in", what, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}

// silent reports whether the host must not get an answer.
func (r Reply) silent() bool { return r.Result == nil && r.Error == nil }

// encode renders r as the response to the request with the given id. Who has
// the only hold of it may give it to recycle.
func (r Reply) encode(id json.RawMessage) []byte {
	m := wire.Message{ID: id, Result: r.Result, Extra: r.Extra}
	if r.Error != nil {
		m.Result, m.Error = nil, r.Error
	}
	var buf []byte
	if b, ok := replyBuffers.Get().(*[]byte); ok {
		buf = (*b)[:0]
	}
	return singleLine(m.Append(buf))
}

// replyBuffers are those of replies that were sent, as *[]byte.
var replyBuffers sync.Pool

// maxReplyKept is the size up to which the buffer of a reply is used again.
const maxReplyKept = 2 << 20

func recycle(msg []byte) {
	if cap(msg) <= maxReplyKept {
		replyBuffers.Put(&msg)
	}
}

// fit returns an encoded reply that is to be kept in memory of about its size:
// bounds count lengths, and its buffer may have been a much larger reply's.
func fit(msg []byte) []byte {
	if cap(msg) <= 2*len(msg) {
		return msg
	}
	own := bytes.Clone(msg)
	recycle(msg)
	return own
}
