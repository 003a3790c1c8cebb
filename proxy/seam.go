package proxy

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
)

// This file is the seam between the wire and the core: what an edge (the host
// side) may ask of the gateway, and what the gateway may ask of a link (the
// upstream side). Both sides speak [Message]; neither knows the other.

// Protocol revisions. Revisions are dates, so they compare as strings.
const (
	// versionModern is the first revision without sessions: every request
	// carries its version and capabilities in _meta.
	versionModern = "2026-07-28"
	// versionLegacy is the newest revision that starts with initialize.
	versionLegacy = "2025-11-25"
)

// Keys of _meta that the protocol reserves. They are owned per hop.
const (
	metaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	metaClientInfo         = "io.modelcontextprotocol/clientInfo"
	metaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel           = "io.modelcontextprotocol/logLevel"
	metaServerInfo         = "io.modelcontextprotocol/serverInfo"
	metaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
)

// JSON-RPC and MCP error codes that foldgate itself answers with.
const (
	codeParse              = -32700
	codeInvalidRequest     = -32600
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeInternal           = -32603
	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022
)

// ---- host side ----------------------------------------------------------

// peer is what an edge knows about a host session when it opens one.
type peer struct {
	// ID is the legacy Mcp-Session-Id, or an id made for a stdio connection.
	// "" for a modern request: that era has no sessions.
	ID string
	// Principal is who the host authenticated as; "local" without authentication.
	Principal string
	// Transport is "stdio" or "http".
	Transport string
	// Modern says that this is the ephemeral session of one modern request on
	// HTTP, or a stdio connection that spoke the modern era.
	Modern bool
	// Push delivers a message that belongs to no exchange: a list_changed, a
	// request of an upstream whose call is unknown. It must not block; it
	// returns an error where the host can't be reached.
	Push func(msg []byte) error
}

// exchange is one request of a host, from its arrival to its reply.
type exchange struct {
	Msg Message
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

// reply answers an exchange: a result, an error object, or neither where the
// host cancelled the request and must not get an answer.
type reply struct {
	Result, Error json.RawMessage
	// Extra are unknown top-level members, as in Message.Extra.
	Extra []byte
}

// core is what an edge needs of the gateway.
type core interface {
	// open starts a host session. An edge opens one per legacy connection (at
	// initialize on HTTP, at start on stdio) and one per modern HTTP request.
	open(p peer) hostSession
}

// hostSession is one session of a host, as an edge sees it.
type hostSession interface {
	// serve answers one request. It returns when the reply is there or ctx is
	// done: an edge cancels ctx when a modern host closes the stream, and when
	// a stdio host goes away. notifications/cancelled is the core's business.
	serve(ctx context.Context, ex *exchange) reply
	// notify takes a notification. Order matters: call it from the reader, not
	// from a goroutine of its own. It does not block.
	notify(m Message)
	// answer takes the host's response to a request that the core sent with
	// Emit or Push. It does not block.
	answer(m Message)
	// close ends the session with everything that hangs on it; reason is for
	// the log and the trace.
	close(reason string)
}

// ---- upstream side ------------------------------------------------------

// linkConfig says how to reach one upstream and on whose behalf.
type linkConfig struct {
	// Name is the upstream's key in the configuration.
	Name string
	// Command starts a child process that speaks MCP on stdio; Env is its whole
	// environment (KEY=value), for foldgate's own may hold secrets of others;
	// Dir is its working directory.
	Command []string
	Env     []string
	Dir     string
	// URL is a streamable HTTP endpoint, with Headers added to every request.
	URL     string
	Headers http.Header
	// Initialize holds the host's own initialize params, replayed word for
	// word to a legacy upstream. nil means that foldgate speaks for itself: the
	// modern era if the upstream has it, else initialize with own params.
	Initialize json.RawMessage
	// Shared says that several host sessions use the link, so that progress
	// tokens must be made unique on the way out and restored on the way back.
	Shared bool
	// Handle takes what the upstream sends outside any known call. It is
	// called from the reader, in order, and must not block.
	Handle func(Message)
	// MaxMessage is the largest message read, in bytes. A larger one fails the
	// call it belongs to, not the link.
	MaxMessage int
	Log        *slog.Logger
}

// linkCall is one request on its way to an upstream.
type linkCall struct {
	Method string
	Params json.RawMessage
	// Extra are unknown top-level members, as in Message.Extra.
	Extra []byte
	// Header holds end-to-end MCP headers for an HTTP upstream (Mcp-Param-*,
	// Mcp-Name); ignored on stdio.
	Header http.Header
	// HostID is the id under which the host knows this request; it replaces
	// the subscriptionId in notifications of a subscriptions/listen.
	HostID json.RawMessage
	// Event takes what the upstream sends on behalf of this call, requests
	// included, in order and before call returns. It must not block. nil: such
	// messages go to linkConfig.Handle.
	Event func(Message)
}

// linkInfo is what an upstream said of itself.
type linkInfo struct {
	// Version is the revision in force on the link.
	Version string
	// Result is the raw result of initialize or server/discover.
	Result json.RawMessage
}

// Modern reports whether the link speaks 2026-07-28 or later.
func (i linkInfo) Modern() bool { return i.Version >= versionModern }

// link is one open, initialized connection to an upstream. All methods are
// safe for concurrent use.
type link interface {
	// info returns what was negotiated when the link was opened.
	info() linkInfo
	// call sends a request and waits for its response, which it returns with
	// Result or Error set (an upstream's error is not a Go error). When ctx
	// ends first the upstream is told (notifications/cancelled with the cause
	// of ctx as its reason, or a closed stream in the modern era on HTTP) and
	// the cause is returned. A dead link returns errLinkClosed, wrapped.
	call(ctx context.Context, c *linkCall) (Message, error)
	// notify sends a notification: the Method, Params and Extra of m.
	notify(ctx context.Context, m Message) error
	// reply answers a request of the upstream; m has ID, Result or Error, and
	// perhaps Extra.
	reply(ctx context.Context, m Message) error
	// done is closed when the link is dead, for whatever reason.
	done() <-chan struct{}
	// err says why the link is dead; nil before and after a plain close.
	err() error
	// close ends the link (and its process group) and waits for its goroutines.
	close() error
}
