//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sdkChildren are the modes of TestUpstreamChild in which the SDK serves.
var sdkChildren = map[string]func(){
	"lean": leanServer,
	"sdk": func() {
		if err := sdkServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	},
}

// sdkServer is a server of the SDK with tools that report progress, ask the
// host and wait to be cancelled.
func sdkServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	schema := json.RawMessage(`{"type":"object"}`)
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: schema}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return textResult(string(r.Params.Arguments)), nil
	})
	s.AddTool(&mcp.Tool{Name: "progress", InputSchema: schema}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for i := range 5 {
			r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1)})
		}
		return textResult("done"), nil
	})
	s.AddTool(&mcp.Tool{Name: "elicit", InputSchema: schema}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "name?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)})
		if err != nil {
			return nil, err
		}
		return textResult(res.Action), nil
	})
	s.AddTool(&mcp.Tool{Name: "wait", InputSchema: schema}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		<-ctx.Done()
		return nil, ctx.Err()
	})
	return s
}

func textResult(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// Every transport of the SDK's servers, in every era it has.
func TestSDKServers(t *testing.T) {
	host := json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"h","version":"1"}}`)
	get := func(*http.Request) *mcp.Server { return sdkServer() }
	for _, tt := range []struct {
		name       string
		handler    http.Handler // nil: stdio
		initialize json.RawMessage
		want       string
	}{
		{"stdio legacy", nil, host, "2025-11-25"},
		{"stdio modern", nil, nil, wire.VersionModern},
		{"http legacy", mcp.NewStreamableHTTPHandler(get, nil), host, "2025-11-25"},
		{"http legacy, resumable", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}), host, "2025-11-25"},
		{"http legacy, probed", mcp.NewStreamableHTTPHandler(get, nil), nil, wire.VersionLegacy},
		{"http modern", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}), nil, wire.VersionModern},
		{"sse", mcp.NewSSEHandler(get, nil), host, "2025-11-25"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := childConfig(t, "sdk")
			if tt.handler != nil {
				srv := httptest.NewServer(tt.handler)
				t.Cleanup(srv.Close)
				cfg.Command, cfg.URL = nil, srv.URL
			}
			cfg.Host.Initialize = tt.initialize
			asked := make(chan wire.Message, 64)
			cfg.Handler = handles(func(m wire.Message) {
				if m.IsRequest() {
					asked <- m
				}
			})
			l := open(t, cfg)
			if l.Info().Version != tt.want {
				t.Fatalf("info().Version = %q, want %q", l.Info().Version, tt.want)
			}
			testSDKCalls(t, l)
			if !l.Info().Modern() && tt.initialize != nil {
				testSDKElicit(t, l, asked)
			}
			testSDKCancel(t, l)
		})
	}
}

// sdkCall calls a tool and returns the text of its result.
func sdkCall(t *testing.T, l conn.Conn, name, args string, event func(wire.Message)) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, err := l.Call(ctx, &conn.Request{Method: "tools/call", Receiver: takes(event),
		Params: json.RawMessage(fmt.Sprintf(`{"name":%q,"arguments":%s,"_meta":{"progressToken":%q}}`, name, args, name+args))})
	if err != nil || m.Result == nil {
		t.Errorf("%s: %s, %v", name, m.Error, err)
		return ""
	}
	text := ""
	content, _ := rawjson.Get(m.Result, "content")
	for v := range rawjson.Elements(content) {
		text, _ = rawjson.GetString(v, "text")
	}
	return text
}

func testSDKCalls(t *testing.T, l conn.Conn) {
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			args := fmt.Sprintf(`{"n":%d,"big":9007199254740993}`, i)
			if got := sdkCall(t, l, "echo", args, nil); got != args {
				t.Errorf("echo(%s) = %s", args, got)
			}
			n := 0
			got := sdkCall(t, l, "progress", args, func(m wire.Message) {
				if m.Method == wire.MethodProgress {
					n++
				}
			})
			if got != "done" || n != 5 {
				t.Errorf("progress = %q with %d events, want 5", got, n)
			}
		})
	}
	wg.Wait()
	m, err := l.Call(t.Context(), &conn.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"nope"}`)})
	if err != nil || m.Error == nil {
		t.Errorf("unknown tool: %s, %v; want an error of the upstream", m.Result, err)
	}
}

func testSDKElicit(t *testing.T, l conn.Conn, asked chan wire.Message) {
	h, ok := l.(*httpConn)
	exact := ok && h.endpoint == "" // streamable HTTP ties requests of the server to calls
	reply := func(m wire.Message) {
		go l.Send(t.Context(), wire.Message{ID: m.ID, Result: json.RawMessage(`{"action":"decline"}`)})
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			var event func(wire.Message)
			if exact {
				event = func(m wire.Message) {
					if m.IsRequest() {
						reply(m)
					}
				}
			}
			if got := sdkCall(t, l, "elicit", fmt.Sprint(`{"n":`, i, `}`), event); got != "decline" {
				t.Errorf("elicit = %q", got)
			}
		})
	}
	for range 16 {
		if !exact {
			reply(<-asked)
		}
	}
	wg.Wait()
}

func testSDKCancel(t *testing.T, l conn.Conn) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := fmt.Errorf("stop")
	_, err := l.Call(ctx, &conn.Request{Method: "tools/call", Receiver: takes(func(wire.Message) { cancel(stop) }),
		Params: json.RawMessage(`{"name":"wait","arguments":{},"_meta":{"progressToken":"w"}}`)})
	if err != stop {
		t.Errorf("cancelled call = %v, want %v", err, stop)
	}
	if got := sdkCall(t, l, "echo", `{}`, nil); !strings.Contains(got, "{}") {
		t.Errorf("call after a cancelled one = %q", got)
	}
}

func BenchmarkStdioCall(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			cfg := childConfig(b, "lean")
			cfg.Log = quiet
			l := open(b, cfg)
			params := json.RawMessage(`{"name":"echo","arguments":{"text":"` + strings.Repeat("x", size) + `"}}`)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Call(b.Context(), &conn.Request{Method: "tools/call", Params: params}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("100B-parallel", func(b *testing.B) {
		cfg := childConfig(b, "lean")
		cfg.Log = quiet
		l := open(b, cfg)
		params := json.RawMessage(`{"name":"echo","arguments":{"text":"` + strings.Repeat("x", 100) + `"}}`)
		b.ReportAllocs()
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := l.Call(b.Context(), &conn.Request{Method: "tools/call", Params: params}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
