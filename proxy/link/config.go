package link

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/foldgate/foldgate/proxy/wire"
)

// Config says how to reach one upstream and on whose behalf.
type Config struct {
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
	Handle func(wire.Message)
	// MaxMessage is the largest message read, in bytes. A larger one fails the
	// call it belongs to, not the link.
	MaxMessage int
	Log        *slog.Logger
	// Clean takes the secrets out of a text of the upstream before it is cut for
	// the log or an error: half a secret is no longer recognised. nil: as it is.
	Clean func(string) string
}

// maxClean is how much of a text is cleaned of which less will be shown.
const maxClean = 16 << 10

// clip shortens foreign bytes for the log or an error.
func (c *Config) clip(b []byte) string {
	const most = 200
	text := c.clean(b)
	if len(text) > most || len(b) > maxClean {
		return fmt.Sprintf("%q… (%d bytes)", text[:min(len(text), most)], len(b))
	}
	return fmt.Sprintf("%q", text)
}

// clean returns the beginning of b without secrets.
func (c *Config) clean(b []byte) string {
	text := string(b[:min(len(b), maxClean)])
	if c.Clean == nil {
		return text
	}
	return c.Clean(text)
}

// Call is one request on its way to an upstream.
type Call struct {
	// Method and Params are the request's, Params as they go out.
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
	// included, in order and before Call returns. It must not block. nil: such
	// messages go to Config.Handle.
	Event func(wire.Message)
	// Answered, if there is one, is called from the reader when the answer is
	// there: after the messages before it, and before those that follow. It must
	// not block.
	Answered func()
}

// Info is what an upstream said of itself.
type Info struct {
	// Version is the revision in force on the link.
	Version string
	// Result is the raw result of initialize or server/discover.
	Result json.RawMessage
}

// Modern reports whether the link speaks 2026-07-28 or later.
func (i Info) Modern() bool { return i.Version >= wire.VersionModern }

// Link is one open, initialized connection to an upstream. All methods are
// safe for concurrent use.
type Link interface {
	// Info returns what was negotiated when the link was opened.
	Info() Info
	// Call sends a request and waits for its response, which it returns with
	// Result or Error set (an upstream's error is not a Go error). When ctx
	// ends first the upstream is told (notifications/cancelled with the cause
	// of ctx as its reason, or a closed stream in the modern era on HTTP) and
	// the cause is returned. A dead link returns ErrClosed, wrapped.
	Call(ctx context.Context, c *Call) (wire.Message, error)
	// Notify sends a notification: the Method, Params and Extra of m.
	Notify(ctx context.Context, m wire.Message) error
	// Reply answers a request of the upstream; m has ID, Result or Error, and
	// perhaps Extra.
	Reply(ctx context.Context, m wire.Message) error
	// Done is closed when the link is dead, for whatever reason.
	Done() <-chan struct{}
	// Err says why the link is dead; nil before and after a plain close.
	Err() error
	// Close ends the link (and its process group) and waits for its goroutines.
	Close() error
}
