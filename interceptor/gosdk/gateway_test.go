package gosdk

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/test/fixtures"
)

// overHTTP serves a server over HTTP in the era of the plan and returns its address.
func overHTTP(t testing.TB, p plan, s *mcp.Server) string {
	t.Helper()
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: p.Era == modern}))
	t.Cleanup(h.Close)
	return h.URL
}

// behindGateway returns the address of a gateway in front of the server of a plan without foldgate.
func behindGateway(t testing.TB, p plan) string { return gatewayBefore(t, p, p.server()) }

// gatewayBefore returns the address of a gateway in front of a server.
func gatewayBefore(t testing.TB, p plan, s *mcp.Server) string {
	t.Helper()
	cfg := *p.options(t.Output()).Config
	none := ""
	cfg.Listen = "127.0.0.1:0"
	cfg.Upstreams = map[string]*config.Upstream{"server": {URL: overHTTP(t, p, s), Prefix: &none}}
	g, err := proxy.New(cfg, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- g.RunHTTP(ctx, func(a net.Addr) { ready <- "http://" + a.String() + "/mcp" }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the gateway: %v", err)
		}
		if err := g.Close(context.Background()); err != nil {
			t.Errorf("Close of the gateway: %v", err)
		}
	})
	select {
	case url := <-ready:
		return url
	case err := <-done:
		t.Fatalf("the gateway: %v", err)
	}
	return ""
}

// client returns a client of an address, of the era of the plan.
func client(t testing.TB, p plan, url string) *rig {
	t.Helper()
	r := &rig{t: t, plan: p, wire: &buffer{}, log: &buffer{}}
	r.c = r.connect(&mcp.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true})
	t.Cleanup(func() { _ = r.c.Close() })
	return r
}

// What differs from run to run: ids and times, and what the gateway says of itself.
var differs = []*regexp.Regexp{
	regexp.MustCompile(`\b(br_|res_|ses_|run_)[0-9A-Za-z_-]+`), regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`),
	regexp.MustCompile(`,?"io.modelcontextprotocol/serverInfo":\{[^}]*\}`), regexp.MustCompile(`"_meta":\{\},?`),
	regexp.MustCompile(`,\\*"session_id\\*":\\*"[^"]*"`), regexp.MustCompile(`"cacheScope":"[a-z]+",?`), regexp.MustCompile(`"?retry_after_seconds\\*":\d+`),
	regexp.MustCompile(`sending "tools/call": |: rejected by transport: Bad Request`), // the gateway's status of a refused request
}

// used is what a branch was charged. It counts ids, which have different numbers of tokens.
var used = regexp.MustCompile(`((budget|tokens)_used\\*":|folded, )\d+`)

// A client sees the same through the middleware as through a gateway in front of the same server:
// lists, previews, budgets, refusals, errors and batches.
func TestSameAsTheGateway(t *testing.T) {
	dir, secret := t.TempDir(), fixtures.Secret()
	if err := fixtures.Write(dir, secret); err != nil {
		t.Fatal(err)
	}
	for _, era := range []string{legacy, modern} {
		t.Run(era, func(t *testing.T) {
			p := plan{Dir: dir, Secret: secret, Era: era, Folded: 1000}
			p.State = filepath.Join(t.TempDir(), "gateway")
			gateway := conversation(client(t, p, behindGateway(t, p)))
			p.State = filepath.Join(t.TempDir(), "embedded")
			embedded := conversation(client(t, p, overHTTP(t, p, mount(p.server(), embed(t, p, nil)))))
			if diff := cmp.Diff(gateway, embedded); diff != "" {
				t.Errorf("what a client sees (-gateway +middleware):\n%s", diff)
			}
		})
	}
}

// conversation returns what a client sees of a server.
func conversation(r *rig) (seen []string) {
	r.t.Helper()
	exact := true // until a preview was charged
	note := func(what string, v any, err error) {
		line, _ := json.Marshal(v)
		said := plainly(fmt.Sprintf("%s: %s %v", what, line, err))
		if !exact {
			said = used.ReplaceAllString(said, "$1")
		}
		seen = append(seen, said)
	}
	list, err := r.c.ListTools(r.t.Context(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	slices.SortFunc(list.Tools, func(a, b *mcp.Tool) int { return strings.Compare(a.Name, b.Name) })
	note("tools/list", list.Tools, nil)
	call := func(name, args string) string {
		res, err := r.c.CallTool(r.t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(args)})
		note(name+" "+args, res, err)
		if res == nil {
			return ""
		}
		return text(res)
	}
	call("fill", `{"bytes":100}`)
	call("lines", `{"bytes":100}`)
	call("lines", `{"bytes":20000}`)
	preview := call("read", `{"path":"`+fixtures.Names[0]+`"}`)
	handle := regexp.MustCompile(`res_[0-9a-z]+`).FindString(preview)
	call("branch_read", `{"handle":"`+handle+`","grep":" 500 ","max_tokens":200}`)
	call("branch_read", `{"handle":"`+handle+`","lines":"3-5"}`)
	for _, how := range []string{"text", "structured", "meta", "tool error", "error", "error data", "link", "embedded"} {
		call("leak", `{"how":"`+how+`"}`)
	}
	var b branch
	_ = json.Unmarshal([]byte(call("branch_create", `{"description":"work","budget":3000}`)), &b)
	in := `,"branch_id":"` + b.BranchID + `"}`
	call("fill", `{"bytes":2000`+in)
	call("branch_status", `{"branch_id":"`+b.BranchID+`"}`)
	exact = false
	call("lines", `{"bytes":9000`+in)
	call("fill", `{"bytes":"wrong"`+in)
	call("fill", `{"bytes":20,"branch_id":7}`)
	call("fill", `{"bytes":20,"branch_id":"br_unknown"}`)
	call("branch_status", `{"branch_id":"`+b.BranchID+`"}`)
	call("branch_run", `{"tool":"fill","each":[{"bytes":30},{"bytes":40}],"jq":"length"`+in)
	call("branch_run", `{"steps":[{"tool":"write","arguments":{"how":"x"}}]}`)
	call("branch_return", `{"branch_id":"`+b.BranchID+`","message":"done"}`)
	call("fill", `{"bytes":20`+in)
	call("branch_create", `{}`)
	prompt, err := r.c.GetPrompt(r.t.Context(), &mcp.GetPromptParams{Name: "ask"})
	note("prompt", prompt, err)
	resource, err := r.c.ReadResource(r.t.Context(), &mcp.ReadResourceParams{URI: "leak://a"})
	note("resource", resource, err)
	return seen
}

// BenchmarkCall is one call over HTTP: of the bare server, with foldgate in it, and through a gateway
// in front of it.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{100, 4000, 400000} {
		for _, kind := range []string{"bare", "embedded", "gateway"} {
			b.Run(fmt.Sprintf("%d/%s", size, kind), func(b *testing.B) {
				one := calls(b, kind, size)
				for b.Loop() {
					one()
				}
			})
		}
	}
}

// calls returns a call that reads size bytes, which are never folded.
func calls(t testing.TB, kind string, size int) func() {
	t.Helper()
	p := plan{Era: legacy, State: filepath.Join(t.TempDir(), "state"), Folded: 1_000_000}
	url := ""
	switch kind {
	case "bare":
		url = overHTTP(t, p, p.server())
	case "embedded":
		url = overHTTP(t, p, mount(p.server(), embed(t, p, nil)))
	default:
		url = behindGateway(t, p)
	}
	r, args := client(t, p, url), fmt.Sprintf(`{"bytes":%d}`, size)
	one := func() {
		if got := text(r.call("fill", args)); len(got) != size {
			t.Fatalf("%s: %d bytes, want %d: %.300s", kind, len(got), size, got)
		}
	}
	one() // connections are opened and caches filled
	return one
}
