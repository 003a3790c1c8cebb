// Package server is the MCP server that hosts see: on standard input and output ([ServeStdio])
// and over streamable HTTP ([HTTP]). Each serves both eras: the revisions with sessions, and the
// one in which each request stands alone.
//
// A server reads messages, finds the [Session] of each, hands it the requests and writes the
// replies. It does not know what a request means: that is up to the [Router], which opens the
// sessions.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Peer describes a host to the [Router] when a session opens.
type Peer struct {
	// ID is the legacy Mcp-Session-Id, or an id made for a stdio connection. It is "" for a
	// modern HTTP request.
	ID string
	// Identity is the authenticated user of the host, as of the request that opened the session.
	interceptor.Identity
	// Capabilities are the host's. In the modern era each set has a session of its own.
	Capabilities wire.Capabilities
	// Transport is "stdio" or "http".
	Transport string
	// Era is the era of the session. The sessions of a stdio connection have one ID.
	Era wire.Era
	// SingleRequest means that the session ends with its only request. In other sessions a call
	// without a branch id may be attributed to the active branch.
	SingleRequest bool
	// Push delivers a message that belongs to no request of the host: a list_changed, or a
	// request of an upstream without a known call. It must not block. It returns an error if the
	// host can't be reached. It keeps msg, and replaces line ends in it.
	Push func(msg []byte) error
}

// Ordered reports whether all messages to the host share one stream, so that their order must be
// kept.
func (p Peer) Ordered() bool { return p.Transport == "stdio" }

// Request is one request of a host.
type Request struct {
	// Msg is the request, with the host's id.
	Msg wire.Message
	// Meta is params._meta of the request.
	Meta wire.Meta
	// Identity is who sent an HTTP request, by its own token.
	Identity interceptor.Identity
	// Header holds the headers of an HTTP request that travel on to the server (Mcp-Param-*); nil
	// if there are none.
	Header http.Header
	// BranchID is the branch in the URL /b/<branch_id>/mcp, or "".
	BranchID string
	// Emit sends a message on the request's own stream, ahead of its reply: progress, logging,
	// requests that the call caused. It must not block. It returns an error if the stream is
	// gone. It keeps msg, as Push does.
	Emit func(msg []byte) error
}

// Reply is the reply to a [Request].
type Reply struct {
	wire.Message
	// MissingScopes are the scopes that the caller's token lacks, as the policy says, separated by spaces;
	// "" if no scopes would help.
	MissingScopes string
}

// NewRequest returns a request whose _meta is read.
func NewRequest(m wire.Message) *Request {
	return &Request{Msg: m, Meta: wire.ReadMeta(m.Params)}
}

// Router opens the sessions of hosts.
type Router interface {
	// Open starts a session. A server opens one for each legacy HTTP session (at initialize), for
	// each modern HTTP request, and on stdio for each era and set of capabilities, when it is first used.
	Open(p Peer) Session
	// CheckHeaders refuses a modern request whose Mcp-Param-* headers do not repeat its arguments, as
	// its sender sees the tool.
	CheckHeaders(r *Request, h http.Header) *wire.Error
	// Rejected is told of a message that the server rejected before it reached a session.
	Rejected(r Rejection)
}

// Rejection is a message that a server answered with an error of its own.
type Rejection struct {
	From      string      // "stdio", or "http:" and the address of the client
	Principal string      // of the host; "" without a valid token
	Status    int         // as of HTTP
	Rule      string      // of a failed login: the check that failed; see [auth.Failure]
	Fault     *wire.Error // the answer
}

// Session is one session of a host.
type Session interface {
	// Begin registers one request. It does not block: the reader of a stdio connection calls it,
	// so that a cancellation which arrives next finds the request.
	Begin(ctx context.Context, req *Request) Pending
	// Notify takes a notification. It does not block. The reader calls it, so that the order is
	// kept.
	Notify(m wire.Message)
	// HandleResponse takes the host's response to a request that was sent with Emit or Push. It does not
	// block.
	HandleResponse(m wire.Message)
	// Revision returns the protocol revision that initialize negotiated, "" before it.
	Revision() string
	// Close ends the session and everything that belongs to it. reason is for the log and the
	// trace.
	Close(reason string)
}

// Pending is a registered request. Serve must be called once.
type Pending interface {
	// Serve returns the reply: a result, an error, or a message without an id if the host
	// cancelled the request and must not get an answer. It returns early if the context given to
	// Begin ends: when a modern host closes its stream, or a stdio host goes away.
	Serve() Reply
	// Sent must be called in an ordered session, once the reply is on its way or nothing is sent:
	// what must not overtake the reply waits for it.
	Sent()
}

// begin registers a request, with f. If f panics, the request is answered with an internal error.
func begin(id json.RawMessage, log *slog.Logger, f func() Pending) (p Pending) {
	guard(log, "the begin of a request", func() { p = f() })
	if p == nil {
		p = failed{id}
	}
	return p
}

// failed is a request that could not be registered.
type failed struct{ id json.RawMessage }

// Serve implements [Pending].
func (f failed) Serve() Reply {
	return Reply{Message: invalid(wire.CodeInternal, "internal error").Reply(f.id)}
}

// Sent implements [Pending].
func (failed) Sent() {}

func accept(s Session, m wire.Message, log *slog.Logger) {
	guard(log, "a message of the host", func() {
		if m.IsNotification() {
			s.Notify(m)
		} else {
			s.HandleResponse(m)
		}
	})
}

// Shutdown is the reason with which foldgate closes its sessions when it is stopped itself.
const Shutdown = "foldgate is shutting down"

func closeSession(s Session, reason string, log *slog.Logger) {
	guard(log, "closing a session", func() { s.Close(reason) })
}

// guard runs f. It logs a panic of f with the place.
func guard(log *slog.Logger, place string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic", "in", place, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}

// modern reports whether a message with this _meta belongs to the era without sessions, in any
// version.
func modern(meta wire.Meta) bool { return meta.ProtocolVersion != nil }

// declared returns the capabilities that a host declares with initialize.
func declared(initialize wire.Message) wire.Capabilities {
	c, _ := rawjson.Get(initialize.Params, "capabilities")
	return wire.ReadCapabilities(c)
}

// checkMeta applies the rules for the _meta of a modern request.
func checkMeta(meta wire.Meta) *wire.Error {
	if rawjson.KindOf(meta.ProtocolVersion) != rawjson.String {
		return badMeta(wire.MetaProtocolVersion, "a string")
	}
	if v := rawjson.Unquote(meta.ProtocolVersion); v != wire.VersionModern {
		return wire.UnsupportedVersion(v)
	}
	if rawjson.KindOf(meta.ClientCapabilities) != rawjson.Object {
		return badMeta(wire.MetaClientCapabilities, "an object")
	}
	if meta.ClientInfo != nil && rawjson.KindOf(meta.ClientInfo) != rawjson.Object {
		return badMeta(wire.MetaClientInfo, "an object")
	}
	return nil
}

func badMeta(key, want string) *wire.Error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("params._meta[%q] must be %s", key, want)}
}

func parseError(err error) *wire.Error {
	if errors.Is(err, wire.ErrNotJSON) {
		return invalid(wire.CodeParse, err.Error())
	}
	return invalid(wire.CodeInvalidRequest, err.Error())
}

func invalid(code int, text string) *wire.Error { return &wire.Error{Code: code, Message: text} }

// idOf returns the id of a message that wire.ParseMessage refuses, so that its sender can match the
// error. It is nil if there is no usable one, and for a response: its id is foldgate's.
func idOf(m wire.Message) json.RawMessage {
	if m.Method == "" && (m.Result != nil || m.Error != nil) {
		return nil
	}
	if k := rawjson.KindOf(m.ID); k == rawjson.String || k == rawjson.Number {
		return m.ID
	}
	return nil
}
