package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// costConn is a connection to an upstream that costs nothing: every call has the same result.
type costConn struct {
	version string
	tools   int
	result  json.RawMessage
	gone    chan struct{}
	once    sync.Once
}

func (l *costConn) Info() conn.Info {
	return conn.Info{Version: l.version, Result: json.RawMessage(`{"capabilities":{"tools":{}}}`)}
}

func (l *costConn) Call(_ context.Context, c *conn.Request) (wire.Message, error) {
	if c.Method == "tools/list" {
		out := []byte(`{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"message":{"type":"string"}}}}`)
		for i := 1; i < l.tools; i++ {
			out = fmt.Appendf(out, `,{"name":"more_%d","description":"%s","inputSchema":{"type":"object","properties":{"path":{"type":"string","description":"The file to read, relative to the project."},"limit":{"type":"integer","description":"The largest number of lines."}},"required":["path"]}}`, i, costDescription)
		}
		return wire.Message{Result: append(out, `]}`...)}, nil
	}
	return wire.Message{Result: l.result}, nil
}

// costDescription is about as long as those of servers.
const costDescription = "Reads a file of the project and returns its lines with their numbers. Use it before an edit, and after one to see what it did. A file that is too long is cut: ask for the rest with another call. Directories are refused."

func (l *costConn) Send(context.Context, wire.Message) error { return nil }
func (l *costConn) Done() <-chan struct{}                    { return l.gone }
func (l *costConn) Err() error                               { return nil }
func (l *costConn) Close() error                             { l.once.Do(func() { close(l.gone) }); return nil }

// costText is ordinary output, full of the words that secrets stand next to.
func costText(n int) string {
	const line = "if token == nil { return errors.New(no secret for 4711) } // api_key, see the password file of user 93\n"
	return strings.Repeat(line, n/len(line)+1)[:n]
}

// costBudget is the largest budget that a branch can have.
const costBudget = 1 << 30

// costGateway is a whole gateway, from the HTTP endpoint to a connection that costs
// nothing, and a func that serves one call of it.
func costGateway(tb testing.TB, modern, branch bool, size, upstreams, tools int, all ...limits.Limit) func() {
	h := newCostHost(tb, modern, size, upstreams, tools, all...)
	args := `{"message":"hello"}`
	if branch {
		res := h.once("tools/call", `"name":"branch_create","arguments":{"description":"cost"}`).Body.Bytes()
		id, ok := rawjson.GetString(res, "result", "structuredContent", "branch_id")
		if !ok {
			tb.Fatalf("branch_create: %s", res)
		}
		args = `{"message":"hello","branch_id":"` + id + `"}`
	}
	return h.caller("tools/call", `"name":"up0__echo","arguments":`+args, size)
}

// newCostHost is a host of such a gateway.
func newCostHost(tb testing.TB, modern bool, size, upstreams, tools int, all ...limits.Limit) *costHost {
	cfg := config.Default()
	cfg.Budgets.Limits = all
	cfg.StateDir, cfg.Dir = tb.TempDir(), tb.TempDir()
	cfg.Results.Tools = map[string]config.FoldRule{"**": {Fold: "off"}}
	cfg.Folding.DefaultBudget, cfg.Folding.MaxBudget = costBudget, costBudget
	cfg.Upstreams = map[string]*config.Upstream{}
	for i := range upstreams {
		cfg.Upstreams[fmt.Sprintf("up%d", i)] = &config.Upstream{Command: []string{"none"}}
	}
	g, err := New(cfg, warnings(tb))
	if err != nil {
		tb.Fatal(err)
	}
	version := wire.VersionLegacy
	if modern {
		version = wire.VersionModern
	}
	result := json.RawMessage(`{"content":[{"type":"text","text":` + string(rawjson.Quote(costText(size))) + `}]}`)
	g.servers.Dial = func(context.Context, upstream.Config) (conn.Conn, error) {
		return &costConn{version: version, tools: tools, gone: make(chan struct{}), result: result}, nil
	}
	e := server.NewHTTP(g.router, server.HTTPOptions{Log: g.Log})
	tb.Cleanup(func() {
		_ = e.Shutdown(context.Background())
		_ = g.Close(context.Background())
	})
	h := &costHost{tb: tb, e: e, modern: modern}
	h.connect()
	h.once("tools/list", `"x":0`) // as hosts do before they call
	return h
}

// connect opens a session of the host.
func (h *costHost) connect() {
	if !h.modern {
		h.session = h.once("initialize", `"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"cost","version":"1"}`).Header().Get(wire.HeaderSession)
	}
}

const costMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// costHost is a host without a network.
type costHost struct {
	tb      testing.TB
	e       *server.HTTP
	modern  bool
	session string
}

func (h *costHost) message(method, params string) (body string, header []string) {
	if !h.modern {
		return `{"jsonrpc":"2.0","id":17,"method":"` + method + `","params":{` + params + `}}`, []string{wire.HeaderSession, h.session}
	}
	name, _ := rawjson.GetString([]byte("{"+params+"}"), "name")
	return `{"jsonrpc":"2.0","id":17,"method":"` + method + `","params":{` + params + `,` + costMeta + `}}`,
		[]string{wire.HeaderVersion, wire.VersionModern, wire.HeaderMethod, method, wire.HeaderName, name}
}

func (h *costHost) request(body string, header []string) *http.Request {
	r := httptest.NewRequestWithContext(h.tb.Context(), http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		if header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return r
}

// costWriter takes a reply and forgets it.
type costWriter struct {
	h      http.Header
	status int
	n      int
}

func (w *costWriter) Header() http.Header { return w.h }
func (w *costWriter) WriteHeader(s int)   { w.status = s }
func (w *costWriter) Flush()              {} // of an event stream, if a message comes before the reply

func (w *costWriter) Write(b []byte) (int, error) {
	w.n += len(b)
	return len(b), nil
}

func (h *costHost) once(method, params string) *httptest.ResponseRecorder {
	body, header := h.message(method, params)
	rec := httptest.NewRecorder()
	h.e.ServeHTTP(rec, h.request(body, header))
	return rec
}

// caller returns a func that sends the same request each time. The answer has at least size bytes.
func (h *costHost) caller(method, params string, size int) func() {
	text, header := h.message(method, params)
	r := h.request(text, header)
	body := strings.NewReader(text)
	r.Body, r.ContentLength = io.NopCloser(body), int64(len(text))
	w := &costWriter{h: http.Header{}}
	return func() {
		body.Reset(text)
		clear(w.h)
		w.n = 0
		if h.e.ServeHTTP(w, r); w.status != 200 || w.n < size {
			h.tb.Fatalf("status %d, %d bytes: %s", w.status, w.n, h.once(method, params).Body)
		}
	}
}

// BenchmarkGateway is one call through everything but the network and the
// upstream's own connection.
func BenchmarkGateway(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 64 << 10, 1 << 20} {
		for _, c := range []struct {
			name           string
			modern, branch bool
		}{{"legacy", false, false}, {"modern", true, false}, {"branch", false, true}} {
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				call := costGateway(b, c.modern, c.branch, size, 1, 1)
				call()
				b.ReportAllocs()
				b.SetBytes(int64(size))
				most := math.MaxInt // calls that a gateway's one branch can pay
				if c.branch {
					most = costBudget / (size + 64)
				}
				for n := 1; b.Loop(); n++ {
					if n == most {
						b.StopTimer()
						call, n = costGateway(b, c.modern, c.branch, size, 1, 1), 0
						b.StartTimer()
					}
					call()
				}
			})
		}
	}
}

// BenchmarkGatewayUpstreams shows that a call does not cost more with more
// upstreams behind the gateway, each with 50 tools.
func BenchmarkGatewayUpstreams(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			call := costGateway(b, false, false, 100, n, 50)
			call()
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
}

// BenchmarkGatewayToolsList is a list of tools that the gateway has: of 61 servers with 17 tools each.
func BenchmarkGatewayToolsList(b *testing.B) {
	for _, modern := range []bool{false, true} {
		b.Run(map[bool]string{false: "legacy", true: "modern"}[modern], func(b *testing.B) {
			h := newCostHost(b, modern, 0, 61, 17)
			size := h.once("tools/list", `"x":0`).Body.Len()
			call := h.caller("tools/list", `"x":0`, size-100)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				call()
			}
		})
	}
}

// BenchmarkJSONCopy decodes and encodes the results of BenchmarkGateway once
// with encoding/json: the yardstick for large ones.
func BenchmarkJSONCopy(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			raw := []byte(`{"content":[{"type":"text","text":` + string(rawjson.Quote(costText(size))) + `}]}`)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				var v any
				if err := json.Unmarshal(raw, &v); err != nil {
					b.Fatal(err)
				}
				if _, err := json.Marshal(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
