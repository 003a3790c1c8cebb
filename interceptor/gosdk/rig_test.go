package gosdk

//lint:file-ignore SA1019 what the protocol deprecates still has to be scrubbed and charged

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
)

// plan is a server with foldgate in it, also for another process.
type plan struct {
	State  string // the state directory
	Dir    string // of the files that the tool read reads
	Secret string // in what the tool leak returns
	Era    string // the only protocol revision, "" for all
	Folded int    // results.main_threshold, 0 for the default

	change func(*config.Config) // more of it; nil for nothing
}

// childPlan is the variable of the environment that makes the test binary a server on stdio.
const childPlan = "FOLDGATE_TEST_PLAN"

func TestMain(m *testing.M) {
	if line := os.Getenv(childPlan); line != "" {
		if err := serveStdio(line); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func serveStdio(line string) error {
	var p plan
	if err := json.Unmarshal([]byte(line), &p); err != nil {
		return err
	}
	fg, err := New(p.options(os.Stderr))
	if err != nil {
		return err
	}
	err = mount(p.server(), fg).Run(context.Background(), &mcp.StdioTransport{})
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, fg.Close())
}

func (p plan) options(log io.Writer) Options {
	cfg := config.Default()
	cfg.StateDir, cfg.Trace.Sync, cfg.Folding.MaxBudget = p.State, "never", 131072
	if p.Folded > 0 {
		cfg.Results.MainThreshold = p.Folded
	}
	if p.change != nil {
		p.change(&cfg)
	}
	return Options{Config: &cfg, Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
}

type pathArgs struct {
	Path string `json:"path"`
}

type sizeArgs struct {
	Bytes int `json:"bytes"`
}

type howArgs struct {
	How string `json:"how"`
}

type linesOut struct {
	Lines []string `json:"lines"`
}

// server returns a server with tools that read, and one for each way to the client that a secret can
// take.
func (p plan) server() *mcp.Server {
	o := &mcp.ServerOptions{Instructions: "Use the tools. " + p.Secret}
	if p.Era != "" {
		o.SupportedProtocolVersions = []string{p.Era}
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "tester", Version: "1"}, o)
	readOnly := &mcp.ToolAnnotations{ReadOnlyHint: true}
	mcp.AddTool(s, &mcp.Tool{Name: "read", Annotations: readOnly}, func(_ context.Context, _ *mcp.CallToolRequest, in pathArgs) (*mcp.CallToolResult, any, error) {
		data, err := os.ReadFile(filepath.Join(p.Dir, in.Path))
		return said(string(data)), nil, err
	})
	mcp.AddTool(s, &mcp.Tool{Name: "fill", Annotations: readOnly}, func(_ context.Context, _ *mcp.CallToolRequest, in sizeArgs) (*mcp.CallToolResult, any, error) {
		return said(strings.Repeat("some words ", in.Bytes/11+1)[:in.Bytes]), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "lines", Annotations: readOnly}, func(_ context.Context, _ *mcp.CallToolRequest, in sizeArgs) (*mcp.CallToolResult, linesOut, error) {
		return nil, linesOut{strings.Split(strings.Repeat("some <words> & 12345678901234567890\n", in.Bytes/37+1), "\n")}, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "write"}, func(_ context.Context, _ *mcp.CallToolRequest, in howArgs) (*mcp.CallToolResult, any, error) {
		return said("written: " + in.How), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "leak", Description: "leaks " + p.Secret}, p.leak)
	s.AddPrompt(&mcp.Prompt{Name: "ask", Description: p.Secret}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Description: p.Secret, Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: p.Secret}}}}, nil
	})
	s.AddResource(&mcp.Resource{URI: "leak://a", Name: "a " + p.Secret}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "leak://a", Text: "the token " + p.Secret}}}, nil
	})
	return s
}

// ways are the ways of the tool leak. Those after legacyWays only exist in the legacy era.
var (
	ways       = []string{"text", "structured", "meta", "tool error", "error", "error data", "link", "embedded", "progress", "log"}
	legacyWays = []string{"sampling", "elicitation"}
)

func (p plan) leak(ctx context.Context, req *mcp.CallToolRequest, in howArgs) (*mcp.CallToolResult, any, error) {
	token := "api token " + p.Secret
	switch in.How {
	case "text":
		return said(token), nil, nil
	case "structured":
		return &mcp.CallToolResult{Content: []mcp.Content{}, StructuredContent: map[string]any{"token": p.Secret}}, nil, nil
	case "meta":
		return &mcp.CallToolResult{Meta: mcp.Meta{"x": p.Secret}, Content: []mcp.Content{}}, nil, nil
	case "tool error":
		return nil, nil, errors.New(token)
	case "error":
		return nil, nil, &jsonrpc.Error{Code: -32000, Message: token}
	case "error data":
		return nil, nil, &jsonrpc.Error{Code: -32000, Message: "failed", Data: json.RawMessage(`{"token":"` + p.Secret + `"}`)}
	case "link":
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ResourceLink{URI: "https://x/?token=" + p.Secret, Name: "x"}}}, nil, nil
	case "embedded":
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "x://y", Text: token}}}}, nil, nil
	case "progress":
		return said("done"), nil, req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1, Message: token})
	case "log":
		return said("done"), nil, req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "error", Logger: p.Secret, Data: map[string]any{"token": token}})
	case "sampling":
		_, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 10, SystemPrompt: token, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: token}}}})
		return said("asked"), nil, err
	case "elicitation":
		_, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: token, RequestedSchema: &jsonschema.Schema{Type: "object"}})
		return said("asked"), nil, err
	}
	return said("unknown way " + in.How), nil, nil
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// mount adds all of foldgate to a server.
func mount(s *mcp.Server, fg *Foldgate) *mcp.Server {
	s.AddReceivingMiddleware(fg.Receiving())
	s.AddSendingMiddleware(fg.Sending())
	fg.AddTools(s)
	return s
}

// rig is a client of a server with foldgate.
type rig struct {
	t     testing.TB
	c     *mcp.ClientSession
	plan  plan
	fg    *Foldgate // nil in another process
	wire  *buffer   // what the client read and wrote
	log   *buffer
	said  func(method string, params any) // is told what the server sends; nil for nobody
	close func()                          // ends the client, the server and foldgate
}

// buffer is a bytes.Buffer that several goroutines may use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// read returns the lines with a prefix.
func (b *buffer) read(prefix string) (lines []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.b.String()) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return lines
}

const legacy, modern = "2025-11-25", "2026-07-28"

// everyTransport runs a test on a server in memory, in another process and over HTTP, in both eras.
func everyTransport(t *testing.T, p plan, test func(t *testing.T, r *rig)) {
	for _, transport := range []string{"memory", "stdio", "http"} {
		for _, era := range []string{legacy, modern} {
			t.Run(transport+"/"+era, func(t *testing.T) {
				p := p
				p.Era, p.State = era, filepath.Join(t.TempDir(), "state")
				test(t, newRig(t, transport, p))
			})
		}
	}
}

func newRig(t testing.TB, transport string, p plan) *rig {
	t.Helper()
	if p.State == "" {
		p.State = filepath.Join(t.TempDir(), "state")
	}
	r := &rig{t: t, plan: p, wire: &buffer{}, log: &buffer{}}
	var pipe mcp.Transport
	stopServer := func() {}
	if transport == "stdio" {
		line, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), childPlan+"="+string(line)), r.log
		pipe = &mcp.CommandTransport{Command: cmd}
	} else {
		var err error
		if r.fg, err = New(p.options(r.log)); err != nil {
			t.Fatal(err)
		}
		s := mount(p.server(), r.fg)
		if transport == "memory" {
			here, there := mcp.NewInMemoryTransports()
			ss, err := s.Connect(t.Context(), there, nil)
			if err != nil {
				t.Fatal(err)
			}
			pipe, stopServer = here, func() { _ = ss.Wait() }
		} else {
			h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: p.Era == modern}))
			pipe, stopServer = &mcp.StreamableClientTransport{Endpoint: h.URL}, h.Close
		}
	}
	r.c = r.connect(&mcp.LoggingTransport{Transport: pipe, Writer: r.wire})
	r.close = sync.OnceFunc(func() {
		_ = r.c.Close() // a child that ended says so
		stopServer()
		if r.fg != nil {
			if err := r.fg.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
	t.Cleanup(r.close)
	return r
}

// connect connects a client that answers every question.
func (r *rig) connect(transport mcp.Transport) *mcp.ClientSession {
	r.t.Helper()
	hear := func(method string, params any) {
		if r.said != nil {
			r.said(method, params)
		}
	}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "host", Version: "1"}, &mcp.ClientOptions{
		LoggingMessageHandler:       func(_ context.Context, req *mcp.LoggingMessageRequest) { hear("log", req.Params) },
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { hear("progress", req.Params) },
		CreateMessageHandler: func(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			hear("sampling", req.Params)
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "yes"}}, nil
		},
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			hear("elicitation", req.Params)
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
	}).Connect(r.t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: r.plan.Era})
	if err != nil {
		r.t.Fatalf("connect: %v; the log: %s", err, strings.Join(r.log.read(""), ""))
	}
	return c
}

// call calls a tool with arguments as JSON.
func (r *rig) call(name, args string) *mcp.CallToolResult {
	r.t.Helper()
	res, err := r.c.CallTool(r.t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(args)})
	if err != nil {
		r.t.Fatalf("%s %s: %v", name, args, err)
	}
	return res
}

// own calls one of foldgate's tools and decodes what it says.
func own[T any](r *rig, name, args string) (out T) {
	r.t.Helper()
	res := r.call(name, args)
	if err := json.Unmarshal([]byte(text(res)), &out); err != nil || res.IsError {
		r.t.Fatalf("%s %s: %v: %s", name, args, err, text(res))
	}
	return out
}

type branch struct {
	BranchID    string `json:"branch_id"`
	Context     string `json:"context"`
	Status      string `json:"status"`
	Reason      string `json:"reason"`
	BudgetUsed  int    `json:"budget_used"`
	BudgetTotal int    `json:"budget_total"`
	TokensUsed  int    `json:"tokens_used"`
	Message     string `json:"message"`
	Success     bool   `json:"success"`
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

var counter = sync.OnceValues(func() (*budget.Counter, error) { return budget.NewCounter("o200k_base") })

// tokens counts a text.
func tokens(t testing.TB, text string) int {
	t.Helper()
	c, err := counter()
	if err != nil {
		t.Fatal(err)
	}
	return c.Count(text)
}

// keepsSecret ends the rig and fails the test if the client, the log or a file of the state has the
// secret.
func (r *rig) keepsSecret(secret string) {
	r.t.Helper()
	r.close()
	for _, line := range r.wire.read("read:") {
		if strings.Contains(line, secret) {
			r.t.Errorf("the client received the secret: %.600s", line)
		}
	}
	if strings.Contains(strings.Join(r.log.read(""), ""), secret) {
		r.t.Error("the log has the secret")
	}
	files := 0
	err := filepath.WalkDir(r.plan.State, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			r.t.Errorf("%s has the secret", path)
		}
		return err
	})
	if err != nil || files < 3 {
		r.t.Errorf("the state has %d files, %v; want the journal, the databases and more", files, err)
	}
}

// scan yields the records below a state directory that a filter selects.
func scan(t testing.TB, state string, f query.Filter) iter.Seq[*trace.Record] {
	t.Helper()
	return func(yield func(*trace.Record) bool) {
		for r, err := range query.Scan(t.Context(), filepath.Join(state, "trace"), f) {
			if err != nil {
				t.Fatal(err)
			}
			if !yield(r) {
				return
			}
		}
	}
}
