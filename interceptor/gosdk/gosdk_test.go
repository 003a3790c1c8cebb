package gosdk

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/proxy/config"
)

const secret = "ghp_x7Kd9QmZ2bx7Kd9QmZ2bx7Kd9QmZ2bx7Kd9Q"

// testConfig is the default configuration with a state directory of the test's own.
func testConfig(t testing.TB) config.Config {
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	cfg.Trace.Sync = "never"
	return cfg
}

// newFoldgate returns a foldgate that is closed at the end of the test.
func newFoldgate(t testing.TB, o Options) *Foldgate {
	t.Helper()
	if o.Config == nil {
		cfg := testConfig(t)
		o.Config = &cfg
	}
	o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	fg, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fg.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return fg
}

type fileArgs struct {
	Path string `json:"path"`
}

type fileOut struct {
	Lines []string `json:"lines"`
}

// file is the text of a file of some 6,000 tokens.
func file(path string) string {
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, "%s:%d the quick brown fox jumps over the lazy dog\n", path, i)
	}
	return b.String()
}

// newServer returns a server with tools that read: a large text, a large structured result, a secret.
func newServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "reader", Version: "1"}, nil)
	read := &mcp.ToolAnnotations{ReadOnlyHint: true}
	mcp.AddTool(s, &mcp.Tool{Name: "read", Annotations: read}, func(_ context.Context, _ *mcp.CallToolRequest, in fileArgs) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: file(in.Path)}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "lines", Annotations: read}, func(_ context.Context, _ *mcp.CallToolRequest, in fileArgs) (*mcp.CallToolResult, fileOut, error) {
		return nil, fileOut{strings.Split(file(in.Path), "\n")}, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(ctx context.Context, req *mcp.CallToolRequest, in fileArgs) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "token: " + secret + " " + in.Path}}}, nil, nil
	})
	return s
}

// mount adds all of foldgate to a server.
func mount(s *mcp.Server, fg *Foldgate) *mcp.Server {
	s.AddReceivingMiddleware(fg.Receiving())
	s.AddSendingMiddleware(fg.Sending())
	fg.AddTools(s)
	return s
}

// connect connects a client to a server in memory.
func connect(t testing.TB, s *mcp.Server, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	return open(t, here, o)
}

func open(t testing.TB, transport mcp.Transport, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "host", Version: "1"}, o).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the server may have ended it
	return c
}

// call calls a tool with arguments as JSON.
func call(t testing.TB, c *mcp.ClientSession, name, args string) *mcp.CallToolResult {
	t.Helper()
	res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(args)})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return res
}

// text returns the text of a result.
func text(res *mcp.CallToolResult) string {
	var b strings.Builder
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			b.WriteString(c.Text)
		}
	}
	return b.String()
}

func TestSlice(t *testing.T) {
	cfg := testConfig(t)
	cfg.Results.MainThreshold = 1000
	c := connect(t, mount(newServer(), newFoldgate(t, Options{Config: &cfg})), nil)
	if got := text(call(t, c, "echo", `{"path":"x"}`)); strings.Contains(got, secret) || !strings.Contains(got, "[REDACTED:") {
		t.Errorf("the secret came back: %s", got)
	}
	preview := text(call(t, c, "read", `{"path":"a.txt"}`))
	if len(preview) > 4000 || !strings.Contains(preview, "branch_read") {
		t.Fatalf("not folded: %s", preview)
	}
	t.Log(preview)
}
