// Package conn declares the connection to an MCP server as the gateway sees it. Remote servers and
// the built-in file server are each a [Conn]. The package is a leaf, so that the packages that make
// connections and the packages that use them do not import each other.
package conn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Errors of a connection. They arrive wrapped with the particulars, so match them with errors.Is.
var (
	// ErrClosed means that the connection is closed or lost. No call on it can succeed.
	ErrClosed = errors.New("upstream connection is closed")
	// ErrSessionGone means that the server forgot the session and did nothing. A new connection may
	// succeed. It wraps ErrClosed.
	ErrSessionGone = fmt.Errorf("%w: session is unknown to the upstream", ErrClosed)
)

// Conn is one open, initialized connection to a server. All methods are safe for concurrent use.
type Conn interface {
	// Info returns the server's description of itself from the handshake.
	Info() Info
	// Call sends a request and waits for the response, which has Result or Error set: a JSON-RPC
	// error of the server is not a Go error. If ctx ends first, the server is told to cancel and
	// Call returns the cause of ctx. On a closed connection Call returns ErrClosed, wrapped.
	Call(ctx context.Context, r *Request) (wire.Message, error)
	// Send sends a notification (the Method, Params and Extra of m), or the answer to a request of
	// the server (the ID, the Result or Error, and Extra).
	Send(ctx context.Context, m wire.Message) error
	// Done is closed when the connection is closed or lost.
	Done() <-chan struct{}
	// Err returns why the connection was lost. It is nil while the connection is open, and after
	// Close.
	Err() error
	// Close ends the connection and waits for its goroutines.
	Close() error
}

// Request is one request to a server.
type Request struct {
	// Method is the request's method.
	Method string
	// Params are the params to send.
	Params json.RawMessage
	// Extra holds members beside params, in the form of wire.Message.Extra.
	Extra []byte
	// Header holds MCP headers for a server on HTTP (Mcp-Param-*). Other transports ignore it.
	Header http.Header
	// Receiver takes messages that the server sends while it handles the request. If it is nil,
	// they go to the connection's Handler.
	Receiver Receiver
	// Call is the request in the chain. It is nil for foldgate's own requests; one with a Call has a
	// Receiver, too.
	Call *interceptor.Call
}

// Ask sends a request of foldgate's own and returns its result. An error of the server is a [*wire.AnswerError].
func Ask(ctx context.Context, c Conn, method string, params json.RawMessage) (json.RawMessage, error) {
	m, err := c.Call(ctx, &Request{Method: method, Params: params})
	if err == nil && m.Error != nil {
		err = &wire.AnswerError{Raw: m.Error}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return m.Result, nil
}

// Receiver takes messages that a server sends while it handles a request. The connection calls it
// from its reader, in order, so its methods must not wait for a host or for a server: other responses
// wait with them. They may wait for the trace, and for the store of the limits, which bounds a wait and
// is not waited for again while it fails.
type Receiver interface {
	// Message takes a notification or a request of the server, before Conn.Call returns. Only a
	// notification that names no request, on a shared connection, may come a moment later.
	Message(wire.Message)
	// ResponseArrived is called with the response before Conn.Call returns it: after the messages before it
	// and before the messages after it.
	ResponseArrived(wire.Message)
}

// Handler takes messages of a server that belong to no request. The connection calls it from its
// reader, in order, so what [Receiver] must not do it must not do either.
type Handler interface {
	Unsolicited(wire.Message)
	// Undelivered is told of a message that goes to no host, for the trace.
	Undelivered(Undelivered)
}

// Undelivered is a request or notification of a server that goes to no host.
type Undelivered struct {
	// Message has at least its method.
	Message wire.Message
	// Call is what the message belongs to; nil if that is not known.
	Call *interceptor.Call
	// Rule is the rule that decided, Text why, also for the server.
	Rule, Text string
}

// The rules of an [Undelivered]. docs/trace.md explains them.
const (
	RuleShare      = "share"
	RuleNoCall     = "no_call"
	RuleCapability = "capability"
	RuleSuspended  = "suspended"
	RuleEra        = "era"
	RuleUnreadable = "unreadable"
	RuleTooMany    = "too_many_waiting"
)

// Host describes the hosts that use a connection.
type Host struct {
	// Shared means that several hosts use the connection, so progress tokens are made unique. Requests on
	// it are of the modern era: a legacy host has a View.
	Shared bool
	// Everyone means that hosts of several principals may share it.
	Everyone bool
	// View means that the connection is what one legacy host sees of a shared one.
	View bool
	// Initialize holds the params of the host's initialize. It is nil on a shared connection.
	Initialize json.RawMessage
}

// Info is a server's description of itself.
type Info struct {
	// Version is the protocol revision in force.
	Version string
	// Result is the raw result of initialize or server/discover.
	Result json.RawMessage
}

// Capability returns the capability object called name, nil if the server lacks it.
func (i Info) Capability(name string) []byte {
	v, ok := rawjson.Get(i.Result, "capabilities", name)
	if !ok || rawjson.KindOf(v) == rawjson.Null {
		return nil
	}
	return v
}

// Modern reports whether the server speaks revision 2026-07-28 or later.
func (i Info) Modern() bool { return i.Version >= wire.VersionModern }
