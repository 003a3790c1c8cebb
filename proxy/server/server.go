package server

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/foldgate/foldgate/proxy/wire"
)

// LocalPrincipal is who everybody is where nobody has to say who they are: on
// stdio, and on HTTP without principals.
const LocalPrincipal = "local"

// Peer is what an edge knows about a host session when it opens one.
type Peer struct {
	// ID is the legacy Mcp-Session-Id, or an id made for a stdio connection.
	// "" for a modern request: that era has no sessions.
	ID string
	// Principal is who the host authenticated as; "local" without authentication.
	Principal string
	// Transport is "stdio" or "http".
	Transport string
	// Era is the era that the host speaks in this session. A stdio connection that
	// speaks both eras has two sessions of one ID.
	Era wire.Era
	// SingleRequest means that the session ends with its only request.
	SingleRequest bool
	// ImplicitBranch means that a call without a branch id may be attributed to
	// the active branch of the session.
	ImplicitBranch bool
	// Ordered means that all messages to the host share one stream, so that their
	// order must be kept.
	Ordered bool
	// Push delivers a message that belongs to no exchange: a list_changed, a
	// request of an upstream whose call is unknown. It must not block; it
	// returns an error where the host can't be reached.
	Push func(msg []byte) error
}

// Request is one request of a host, from its arrival to its reply.
type Request struct {
	// Msg is the request, with the host's id.
	Msg wire.Message
	// Header holds the end-to-end MCP headers of an HTTP request (Mcp-Param-*,
	// Mcp-Name, Mcp-Method); nil on stdio.
	Header http.Header
	// BranchID is the branch named by the URL /b/<branch_id>/mcp, or "".
	BranchID string
	// Emit puts a message on this exchange's own stream, ahead of its reply:
	// progress, logging, requests that the call caused. It must not block; an
	// error means that the stream is gone.
	Emit func(msg []byte) error
}

// Reply answers an exchange: a result, an error object, or neither where the
// host cancelled the request and must not get an answer.
type Reply struct {
	Result, Error json.RawMessage
	// Extra are unknown top-level members, as in Message.Extra.
	Extra []byte
}

// Router is what an edge needs of the gateway.
type Router interface {
	// Open starts a host session. An edge opens one per legacy connection (at
	// initialize on HTTP), one per modern HTTP request, and on stdio one for each
	// era, when it is first spoken.
	Open(p Peer) Session
}

// Pending is a registered request. Serve must be called once.
type Pending interface {
	// Serve returns the reply. It returns early if the context given to Begin
	// ends, which an edge does when a modern host closes its stream, and when a
	// stdio host goes away.
	Serve() Reply
	// Sent must be called once the reply is on its way, or nothing is sent: what
	// must not overtake the reply waits for it.
	Sent()
}

// Session is one session of a host, as an edge sees it.
type Session interface {
	// Begin registers one request. It does not block: on a stream of messages it
	// is called from the reader, so that a cancellation which arrives next finds
	// the request.
	Begin(ctx context.Context, ex *Request) Pending
	// Notify takes a notification. Order matters: call it from the reader, not
	// from a goroutine of its own. It does not block.
	Notify(m wire.Message)
	// Answer takes the host's response to a request that the core sent with
	// Emit or Push. It does not block.
	Answer(m wire.Message)
	// Close ends the session with everything that hangs on it; reason is for
	// the log and the trace.
	Close(reason string)
}
