package upstream

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/foldgate/foldgate/proxy/conn"
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
	// Handler takes messages of the upstream that belong to no request. If it
	// is nil, they are dropped.
	Handler conn.Handler
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
