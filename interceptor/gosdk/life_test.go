package gosdk

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
)

// rough returns a server with tools that panic, and that wait until they are let go.
func rough(p plan, started chan<- string, release <-chan struct{}) *mcp.Server {
	s := p.server()
	mcp.AddTool(s, &mcp.Tool{Name: "panic"}, func(context.Context, *mcp.CallToolRequest, howArgs) (*mcp.CallToolResult, any, error) {
		panic("api token " + p.Secret)
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, in howArgs) (*mcp.CallToolResult, any, error) {
		started <- in.How
		select {
		case <-ctx.Done():
			started <- context.Cause(ctx).Error()
			return nil, nil, ctx.Err()
		case <-release:
		}
		return said("let go"), nil, nil
	})
	return s
}

// outcomes returns how the calls of a tool ended, by the trace.
func outcomes(t *testing.T, state, tool string) (ends []string) {
	t.Helper()
	for rec := range scan(t, state, query.Filter{Kinds: []string{trace.KindResponse + "tools/call"}, Tools: []string{tool}}) {
		end := "result"
		if rec.AuditOrEmpty().IsError {
			end = "error"
		}
		ends = append(ends, end)
	}
	return ends
}

// A handler that panics ends its call with an error, and nothing else: the server serves on, the branch
// has its tokens, the trace has the end, and nobody reads the panic's secret.
func TestPanicOfAHandler(t *testing.T) {
	p := plan{State: filepath.Join(t.TempDir(), "state"), Secret: "ghp_x7Kd9QmZ2bx7Kd9QmZ2bx7Kd9QmZ2bx7Kd9Q"}
	fg := embed(t, p, nil)
	r := inMemory(t, mount(rough(p, nil, nil), fg))
	r.plan = p
	b := own[branch](r, "branch_create", `{"description":"work","budget":1000}`).BranchID
	for range 3 {
		if res, err := r.c.CallTool(t.Context(), &mcp.CallToolParams{Name: "panic", Arguments: json.RawMessage(`{"how":"x","branch_id":"` + b + `"}`)}); err == nil && !res.IsError {
			t.Errorf("a panic: %s", text(res))
		}
	}
	if s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`); s.Status != "active" || s.BudgetUsed > 200 {
		t.Errorf("after panics: %+v", s)
	}
	r.close()
	_ = fg.Close()
	if diff := cmp.Diff([]string{"error", "error", "error"}, outcomes(t, p.State, "panic")); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	r.keepsSecret(p.Secret)
}

// A client that cancels a call, and a branch that ends during one, end the handler's context.
func TestCallsThatEndEarly(t *testing.T) {
	everyMount(t, func(t *testing.T, connect func(p plan, s *mcp.Server) *rig) {
		p := plan{State: filepath.Join(t.TempDir(), "state")}
		started := make(chan string)
		r := connect(p, rough(p, started, nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := r.c.CallTool(ctx, &mcp.CallToolParams{Name: "wait", Arguments: json.RawMessage(`{"how":"a"}`)})
			done <- err
		}()
		<-started
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled call: %v", err)
		}
		<-started // the handler's context has ended
		b := own[branch](r, "branch_create", `{"description":"work"}`).BranchID
		answer := make(chan string, 1)
		go func() {
			answer <- text(r.call("wait", `{"how":"b","branch_id":"`+b+`"}`))
		}()
		<-started
		r.call("branch_return", `{"branch_id":"`+b+`","message":"enough"}`)
		<-started
		if got := <-answer; !strings.Contains(got, "branch_not_active") {
			t.Errorf("the call of the branch that ended: %s", got)
		}
	})
}

// everyMount runs a test on a server in memory and over HTTP.
func everyMount(t *testing.T, test func(t *testing.T, connect func(plan, *mcp.Server) *rig)) {
	t.Run("memory", func(t *testing.T) {
		test(t, func(p plan, s *mcp.Server) *rig { return inMemory(t, mount(s, embed(t, p, nil))) })
	})
	t.Run("http", func(t *testing.T) {
		test(t, func(p plan, s *mcp.Server) *rig {
			p.Era = legacy
			return client(t, p, overHTTP(t, p, mount(s, embed(t, p, nil))))
		})
	})
}

// Close while calls run ends: the calls get an answer, later ones are refused, the trace is whole, and
// the state opens again.
func TestCloseWhileCallsRun(t *testing.T) {
	p := plan{State: filepath.Join(t.TempDir(), "state")}
	fg, err := New(p.options(t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	started, release := make(chan string, 40), make(chan struct{})
	r := inMemory(t, mount(rough(p, started, release), fg))
	b := own[branch](r, "branch_create", `{"description":"work"}`).BranchID
	var wg sync.WaitGroup
	for i := range 20 {
		args := `{"how":"a"}`
		if i%2 == 0 {
			args = `{"how":"a","branch_id":"` + b + `"}`
		}
		wg.Go(func() {
			_, _ = r.c.CallTool(t.Context(), &mcp.CallToolParams{Name: "wait", Arguments: json.RawMessage(args)}) // an answer of any kind
		})
	}
	for range 20 {
		<-started
	}
	if err := fg.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	close(release)
	wg.Wait()
	if res, err := r.c.CallTool(t.Context(), &mcp.CallToolParams{Name: "fill", Arguments: json.RawMessage(`{"bytes":10}`)}); err == nil && !res.IsError {
		t.Errorf("a call after Close: %s", text(res))
	}
	again := embed(t, p, nil)
	if again.engine.Dir != p.State {
		t.Errorf("the state is in %s, want %s", again.engine.Dir, p.State)
	}
	if _, err := query.Verify(t.Context(), filepath.Join(p.State, "trace"), trace.VerifyOptions{}); err != nil {
		t.Errorf("the trace: %v", err)
	}
}

// Two foldgates with one state directory do not share it: the second has one below the first. They
// share what their limits count.
func TestTwoOnOneStateDirectory(t *testing.T) {
	p := plan{State: filepath.Join(t.TempDir(), "state")}
	p.change = func(c *config.Config) { c.Budgets.Limits = limitOf(t, limits.Limit{Tokens: 2000}) }
	one, two := embed(t, p, nil), embed(t, p, nil)
	if one.engine.Dir != p.State || filepath.Dir(filepath.Dir(two.engine.Dir)) != p.State && filepath.Dir(two.engine.Dir) != p.State {
		t.Errorf("the directories are %s and %s", one.engine.Dir, two.engine.Dir)
	}
	a, b := inMemory(t, mount(p.server(), one)), inMemory(t, mount(p.server(), two))
	if res := a.call("fill", `{"bytes":3000}`); res.IsError {
		t.Fatalf("the first call: %s", text(res))
	}
	deadline := time.Now().Add(time.Minute)
	for refused := false; !refused; {
		if time.Now().After(deadline) {
			t.Fatal("the limit of both was not reached")
		}
		refused = strings.Contains(text(b.call("fill", `{"bytes":1000}`)), "limit_exceeded")
	}
}

// Each way to serve HTTP works: with and without session ids, in both eras, with one server for all
// sessions or one for each.
func TestServersOfHTTP(t *testing.T) {
	for _, era := range []string{legacy, modern} {
		for _, stateless := range []bool{false, true} {
			if era == modern && !stateless {
				continue // the go-sdk does not serve it with session ids
			}
			for _, each := range []bool{false, true} {
				p := plan{Era: era, State: filepath.Join(t.TempDir(), "state")}
				fg := embed(t, p, nil)
				one := mount(p.server(), fg)
				h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server {
					if each {
						return mount(p.server(), fg)
					}
					return one
				}, &mcp.StreamableHTTPOptions{Stateless: stateless}))
				t.Cleanup(h.Close)
				r := client(t, p, h.URL)
				b := own[branch](r, "branch_create", `{"description":"work"}`).BranchID
				before := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`).BudgetUsed
				if got := text(r.call("fill", `{"bytes":500,"branch_id":"`+b+`"}`)); len(got) != 500 {
					t.Errorf("%s, stateless %v, each %v: %s", era, stateless, each, got)
				}
				if s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`); s.Status != "active" || s.BudgetUsed <= before {
					t.Errorf("%s, stateless %v, each %v: the branch is %+v", era, stateless, each, s)
				}
			}
		}
	}
}

// A server's own tool with the name of one of foldgate's is replaced, or refused if it is added later.
func TestToolWithANameOfFoldgate(t *testing.T) {
	for _, first := range []bool{true, false} {
		s := mcp.NewServer(&mcp.Implementation{Name: "tester"}, nil)
		add := func() {
			mcp.AddTool(s, &mcp.Tool{Name: "branch_read", Description: "Reads a branch of a tree."}, func(context.Context, *mcp.CallToolRequest, howArgs) (*mcp.CallToolResult, any, error) {
				return said("a branch"), nil, nil
			})
		}
		fg := embed(t, plan{}, nil)
		if first {
			add()
			mount(s, fg)
		} else {
			mount(s, fg)
			add()
		}
		here, there := mcp.NewInMemoryTransports()
		if _, err := s.Connect(t.Context(), there, nil); err != nil {
			t.Fatal(err)
		}
		c, err := mcp.NewClient(&mcp.Implementation{Name: "host"}, nil).Connect(t.Context(), here, nil)
		if err == nil {
			_, err = c.ListTools(t.Context(), nil)
			_ = c.Close()
		}
		if first == (err != nil) || !first && (err == nil || !strings.Contains(err.Error(), "branch_read")) {
			t.Errorf("added first: %v: %v, want foldgate's tool, or an error that names it", first, err)
		}
	}
}

// After a crash, the first start ends what was unfinished. Later ones do not look for it again.
func TestStartsAfterACrash(t *testing.T) {
	p := plan{State: filepath.Join(t.TempDir(), "state")}
	embed(t, p, nil)
	image := filepath.Join(t.TempDir(), "image")
	if err := os.CopyFS(image, os.DirFS(p.State)); err != nil {
		t.Fatal(err)
	}
	fg := embed(t, plan{State: image}, nil)
	if err := fg.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err := os.ReadFile(filepath.Join(image, "trace", "lock")); err != nil || len(lock) > 0 {
		t.Errorf("the lock has %q, %v, as of a process that was killed", lock, err)
	}
}
