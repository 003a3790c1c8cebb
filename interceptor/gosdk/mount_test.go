package gosdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/test/fixtures"
)

// embed returns a foldgate that is closed at the end of the test.
func embed(t testing.TB, p plan, change func(*Options)) *Foldgate {
	t.Helper()
	if p.State == "" {
		p.State = filepath.Join(t.TempDir(), "state")
	}
	o := p.options(t.Output())
	if change != nil {
		change(&o)
	}
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

// inMemory returns a client of a server in this process.
func inMemory(t testing.TB, s *mcp.Server) *rig {
	t.Helper()
	r := &rig{t: t, wire: &buffer{}, log: &buffer{}}
	here, there := mcp.NewInMemoryTransports()
	ss, err := s.Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.c = r.connect(&mcp.LoggingTransport{Transport: here, Writer: r.wire})
	r.close = func() {
		_ = r.c.Close()
		_ = ss.Wait()
	}
	t.Cleanup(r.close)
	return r
}

// A mount that would let something past foldgate is refused, and the error says what to add.
func TestIncompleteMountsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		features Features
		mount    func(s *mcp.Server, fg *Foldgate)
		want     string // "" if it works
	}{
		"all": {0, func(s *mcp.Server, fg *Foldgate) { mount(s, fg) }, ""},
		"all, tools first": {0, func(s *mcp.Server, fg *Foldgate) {
			fg.AddTools(s)
			s.AddSendingMiddleware(fg.Sending())
			s.AddReceivingMiddleware(fg.Receiving())
		}, ""},
		"twice":           {0, func(s *mcp.Server, fg *Foldgate) { mount(mount(s, fg), fg) }, ""},
		"receiving twice": {0, func(s *mcp.Server, fg *Foldgate) { mount(s, fg).AddReceivingMiddleware(fg.Receiving()) }, ""},
		"no sending": {0, func(s *mcp.Server, fg *Foldgate) {
			mount(plan{}.server(), fg) // another server does not count
			s.AddReceivingMiddleware(fg.Receiving())
			fg.AddTools(s)
		}, "AddSendingMiddleware(fg.Sending())"},
		"no tools": {0, func(s *mcp.Server, fg *Foldgate) {
			mount(plan{}.server(), fg)
			s.AddReceivingMiddleware(fg.Receiving())
			s.AddSendingMiddleware(fg.Sending())
		}, "fg.AddTools(server)"},
		"only tools":   {0, func(s *mcp.Server, fg *Foldgate) { fg.AddTools(s) }, "AddReceivingMiddleware(fg.Receiving())"},
		"no receiving": {0, func(s *mcp.Server, fg *Foldgate) { fg.AddTools(s); s.AddSendingMiddleware(fg.Sending()) }, "AddReceivingMiddleware(fg.Receiving())"},
		"fold, no sending": {Fold, func(s *mcp.Server, fg *Foldgate) {
			s.AddReceivingMiddleware(fg.Receiving())
			fg.AddTools(s)
		}, ""},
		"scrub, no tools": {Scrub, func(s *mcp.Server, fg *Foldgate) {
			s.AddReceivingMiddleware(fg.Receiving())
			s.AddSendingMiddleware(fg.Sending())
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fg := embed(t, plan{}, func(o *Options) { o.Features = tc.features })
			s := plan{}.server()
			tc.mount(s, fg)
			here, there := mcp.NewInMemoryTransports()
			if _, err := s.Connect(t.Context(), there, nil); err != nil {
				t.Fatal(err)
			}
			wire := &buffer{}
			c, err := mcp.NewClient(&mcp.Implementation{Name: "host"}, nil).Connect(t.Context(), &mcp.LoggingTransport{Transport: here, Writer: wire}, nil)
			if came := strings.Join(wire.read("read:"), ""); strings.Contains(came, "notifications/progress") {
				t.Errorf("the look for foldgate reached the client: %s", came)
			}
			if err == nil {
				defer c.Close()
				tool := "fill"
				if fg.has(Meter) {
					tool = "branch_status"
				}
				_, err = c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"bytes": 10}})
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A call is charged once, also if foldgate was mounted twice. Two foldgates are refused.
func TestMountedTwice(t *testing.T) {
	fg := embed(t, plan{}, nil)
	r := inMemory(t, mount(mount(plan{}.server(), fg), fg))
	b := own[branch](r, "branch_create", `{"description":"work"}`).BranchID
	r.call("fill", `{"bytes":500,"branch_id":"`+b+`"}`)
	want := tokens(t, "work") + tokens(t, `{"bytes":500}`) + tokens(t, strings.Repeat("some words ", 46)[:500])
	if s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`); s.BudgetUsed != want {
		t.Errorf("%d tokens were charged, want %d", s.BudgetUsed, want)
	}
	s := mount(mount(plan{}.server(), fg), embed(t, plan{}, nil))
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := mcp.NewClient(&mcp.Implementation{Name: "host"}, nil).Connect(t.Context(), here, nil); err == nil || !strings.Contains(err.Error(), "two foldgates") {
		t.Errorf("connect to a server with two foldgates: %v", err)
	}
}

// Middleware that is added before foldgate sees results as the tools return them; what is added later
// sees them folded and without secrets.
func TestOtherMiddleware(t *testing.T) {
	secret := fixtures.Secret()
	var seen []string
	watch := func(name string) mcp.Middleware {
		return func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				res, err := next(ctx, method, req)
				if res, ok := res.(*mcp.CallToolResult); ok && err == nil {
					seen = append(seen, name+": "+text(res))
				}
				return res, err
			}
		}
	}
	s := plan{Secret: secret}.server()
	s.AddReceivingMiddleware(watch("inside"))
	mount(s, embed(t, plan{}, nil))
	s.AddReceivingMiddleware(watch("outside"))
	inMemory(t, s).call("leak", `{"how":"text"}`)
	want := []string{"inside: api token " + secret, "outside: api token [REDACTED:github-pat]"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("what other middleware sees (-want +got):\n%s", diff)
	}
}

// Each feature works without the others.
func TestFeaturesAlone(t *testing.T) {
	secret := fixtures.Secret()
	start := func(t *testing.T, features Features) (*rig, string, func()) {
		p := plan{Secret: secret, State: filepath.Join(t.TempDir(), "state"), Folded: 500}
		fg := embed(t, p, func(o *Options) { o.Features = features })
		r := inMemory(t, mount(p.server(), fg))
		return r, p.State, func() { r.close(); _ = fg.Close() }
	}
	names := func(r *rig) (all []string) {
		list, err := r.c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			if strings.HasPrefix(tool.Name, "branch_") {
				all = append(all, tool.Name)
			} else if schema, _ := json.Marshal(tool.InputSchema); strings.Contains(string(schema), "branch_id") {
				all = append(all, "branch_id")
			}
		}
		return slices.Compact(all)
	}
	t.Run("scrub", func(t *testing.T) {
		r, state, _ := start(t, Scrub)
		if got := text(r.call("leak", `{"how":"text"}`)); strings.Contains(got, secret) {
			t.Errorf("the secret came: %s", got)
		}
		if got := text(r.call("fill", `{"bytes":50000}`)); len(got) != 50000 {
			t.Errorf("the large result has %d bytes", len(got))
		}
		if got := names(r); got != nil {
			t.Errorf("tools %v, want none", got)
		}
		if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the state directory: %v, want none", err)
		}
	})
	t.Run("trace", func(t *testing.T) {
		r, state, end := start(t, Trace)
		if got := text(r.call("leak", `{"how":"text"}`)); !strings.Contains(got, secret) {
			t.Errorf("scrubbed: %s", got)
		}
		if got := names(r); got != nil {
			t.Errorf("tools %v, want none", got)
		}
		r.call("leak", `{"how":"text","note":"`+secret+`"}`)
		end()
		kinds := records(t, state)
		if n := kinds[trace.KindResponse+"tools/call"]; n != 2 {
			t.Errorf("%d responses are recorded, want 2: %v", n, kinds)
		}
		for rec := range scan(t, state, query.Filter{Kinds: []string{trace.KindResponse + "tools/call"}}) {
			if line := fmt.Sprintf("%+v", rec.Audit.Scrub); len(rec.Audit.Scrub) == 0 || strings.Contains(line, trace.Blocked) {
				t.Errorf("the tool got all, and the record says %s", line)
			}
		}
	})
	t.Run("meter", func(t *testing.T) {
		r, state, end := start(t, Meter)
		if diff := cmp.Diff([]string{"branch_create", "branch_return", "branch_status", "branch_id"}, names(r)); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
		b := own[branch](r, "branch_create", `{"description":"work"}`).BranchID
		if got := text(r.call("fill", `{"bytes":9000,"branch_id":"`+b+`"}`)); len(got) != 9000 {
			t.Errorf("the large result has %d bytes", len(got))
		}
		if s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`); s.BudgetUsed < 1500 {
			t.Errorf("charged %d tokens", s.BudgetUsed)
		}
		end()
		if kinds := records(t, state); kinds[trace.KindResponse+"tools/call"] != 0 || kinds[trace.KindPush] != 1 {
			t.Errorf("records %v, want the branch's alone", kinds)
		}
	})
	t.Run("fold", func(t *testing.T) {
		r, _, _ := start(t, Fold)
		if diff := cmp.Diff([]string{"branch_read"}, names(r)); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
		got := text(r.call("fill", `{"bytes":9000}`))
		_, rest, _ := strings.Cut(got, "res_")
		if len(got) > 3000 || rest == "" {
			t.Fatalf("not folded: %s", got)
		}
		handle := "res_" + strings.FieldsFunc(rest, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz", r) })[0]
		if page := text(r.call("branch_read", `{"handle":"`+handle+`","lines":"1-"}`)); len(page) < 2000 {
			t.Errorf("branch_read: %s", page)
		}
	})
}

// records counts the records of a state directory by kind.
func records(t *testing.T, state string) map[string]int {
	t.Helper()
	kinds := map[string]int{}
	for rec := range scan(t, state, query.Filter{}) {
		kinds[rec.Kind]++
	}
	return kinds
}

// The server's own definitions stay as they are, whatever a list shows.
func TestListsAreCloned(t *testing.T) {
	output := json.RawMessage(`{"type":"object"}`)
	own := func(name string) *mcp.Tool {
		return &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), OutputSchema: output}
	}
	folded, whole, long := own("folded"), own("whole"), own(strings.Repeat("long", 20))
	s := mcp.NewServer(&mcp.Implementation{Name: "tester"}, nil)
	for _, tool := range []*mcp.Tool{folded, whole, long} {
		s.AddTool(tool, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return said("x"), nil })
	}
	fg := embed(t, plan{}, func(o *Options) { o.Config.Results.Tools = map[string]config.FoldRule{"whole": {Fold: "off"}} })
	r := inMemory(t, mount(s, fg))
	for range 2 {
		list, err := r.c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, tool := range list.Tools {
			if strings.HasPrefix(tool.Name, "branch_") {
				continue
			}
			seen[tool.Name] = true
			schema, _ := json.Marshal(tool.InputSchema)
			if !strings.Contains(string(schema), "branch_id") || (tool.OutputSchema != nil) != (tool.Name == "whole") {
				t.Errorf("%s is listed with %s and the output schema %v", tool.Name, schema, tool.OutputSchema)
			}
		}
		if !seen[folded.Name] || !seen[whole.Name] || !seen[long.Name] {
			t.Errorf("listed are %v", seen)
		}
	}
	for _, tool := range []*mcp.Tool{folded, whole, long} {
		if diff := cmp.Diff(own(tool.Name), tool); diff != "" {
			t.Errorf("the server's own tool changed (-want +got):\n%s", diff)
		}
	}
	r.call(long.Name, `{}`)
}

// A small structured result arrives byte by byte as from the bare server; a large one is a preview,
// and its structured content is gone.
func TestStructuredResults(t *testing.T) {
	results := func(r *rig) (lines []string) {
		r.call("lines", `{"bytes":100}`)
		for _, line := range r.wire.read("read:") {
			if _, result, ok := strings.Cut(line, `"content":`); ok {
				lines = append(lines, result)
			}
		}
		return lines
	}
	r := inMemory(t, mount(plan{}.server(), embed(t, plan{Folded: 500}, nil)))
	if diff := cmp.Diff(results(inMemory(t, plan{}.server())), results(r)); diff != "" {
		t.Errorf("a small result differs from the bare server's (-bare +foldgate):\n%s", diff)
	}
	res := r.call("lines", `{"bytes":9000}`)
	if res.StructuredContent != nil || !strings.Contains(text(res), "branch_read") || len(text(res)) > 3000 {
		t.Errorf("a large result has the structured content %.100v and the text %.600s", res.StructuredContent, text(res))
	}
}

// Sessions without an id are told apart. The branches of one end with it.
func TestSessionsWithoutAnID(t *testing.T) {
	fg := embed(t, plan{}, nil)
	s := mount(plan{Era: legacy}.server(), fg)
	one, two := inMemory(t, s), inMemory(t, s)
	b := own[branch](one, "branch_create", `{"description":"work"}`)
	used := func() int { return own[branch](two, "branch_status", `{"branch_id":"`+b.BranchID+`"}`).BudgetUsed }
	before := used()
	two.call("fill", `{"bytes":100}`)
	if n := used(); n != before {
		t.Errorf("a call of another session was charged: %d tokens, then %d", before, n)
	}
	one.call("fill", `{"bytes":100}`)
	if n := used(); n <= before {
		t.Errorf("a call of the session was not charged: %d tokens", n)
	}
	one.close()
	for own[branch](two, "branch_status", `{"branch_id":"`+b.BranchID+`"}`).Status == "active" {
		time.Sleep(5 * time.Millisecond) // until the end of the session is known
	}
	fg.mu.Lock()
	defer fg.mu.Unlock()
	if len(fg.sessions) != 1 {
		t.Errorf("%d sessions are kept, want the one that is open", len(fg.sessions))
	}
}

// branch_run calls the server's tools that read, and no others.
func TestBatch(t *testing.T) {
	dir := t.TempDir()
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(strings.Repeat(fmt.Sprintf("line\nfound %d here\n", i), 200)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	everyTransport(t, plan{Dir: dir}, func(t *testing.T, r *rig) {
		got := text(r.call("branch_run", `{"tool":"read","each":[{"path":"0"},{"path":"1"},{"path":"2"},{"path":"3"},{"path":"4"},{"path":"none"}],"grep":"found [34]","max_tokens":300}`))
		for _, want := range []string{"6 calls, 1 failed", "found 3 here"} {
			if !strings.Contains(got, want) {
				t.Errorf("the answer lacks %q: %s", want, got)
			}
		}
		got = text(r.call("branch_run", `{"steps":[{"tool":"write","arguments":{"how":"x"}},{"tool":"branch_status"},{"tool":"nothing"}],"jq":"."}`))
		for _, want := range []string{"run.allow does not name it", "branch_status can't be part of a batch", "Unknown tool: nothing"} {
			if !strings.Contains(got, want) {
				t.Errorf("the answer lacks %q: %s", want, got)
			}
		}
	})
}

// A notification is charged to the branch of the call that caused it, and recorded in it. One that the
// branch can't pay is not sent.
func TestNotificationsArePaid(t *testing.T) {
	p := plan{State: filepath.Join(t.TempDir(), "state")}
	fg := embed(t, p, nil)
	s := p.server()
	mcp.AddTool(s, &mcp.Tool{Name: "report"}, func(ctx context.Context, req *mcp.CallToolRequest, in sizeArgs) (*mcp.CallToolResult, any, error) {
		return said("done"), nil, req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: req.Params.GetProgressToken(), Progress: 1, Message: strings.Repeat("some words ", in.Bytes/11),
		})
	})
	r := inMemory(t, mount(s, fg))
	b := own[branch](r, "branch_create", `{"description":"work","budget":1000}`)
	report := func(size int) *mcp.CallToolResult {
		p := &mcp.CallToolParams{Name: "report", Arguments: map[string]any{"bytes": size, "branch_id": b.BranchID}, Meta: mcp.Meta{}}
		p.SetProgressToken(7)
		res, err := r.c.CallTool(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	report(220)
	want := tokens(t, "work") + tokens(t, `{"bytes":220}`) + tokens(t, "done") + tokens(t, "message") + tokens(t, strings.Repeat("some words ", 20))
	if s := own[branch](r, "branch_status", `{"branch_id":"`+b.BranchID+`"}`); s.BudgetUsed != want {
		t.Errorf("%d tokens were charged, want %d", s.BudgetUsed, want)
	}
	if res := report(22000); !res.IsError {
		t.Errorf("a notification of 4000 tokens in a branch of 1000: %s", text(res))
	}
	if n := len(r.wire.read("read: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"")); n != 1 {
		t.Errorf("the client received %d notifications, want 1", n)
	}
	r.close()
	_ = fg.Close()
	found := 0
	for rec := range scan(t, p.State, query.Filter{Kinds: []string{trace.KindNotification + "notifications/progress"}}) {
		if strings.Contains(rec.Context, b.BranchID) && len(rec.CorrelationID) == 1 {
			found++
		}
	}
	if found != 2 {
		t.Errorf("%d notifications are recorded in the branch, want 2", found)
	}
}

// What the configuration asks for and this middleware can't do is refused.
func TestOptionsThatAreRefused(t *testing.T) {
	for want, change := range map[string]func(*config.Config){
		"workflows":       func(c *config.Config) { c.Workflows = []config.Workflow{{Name: "x"}} },
		"policy.default":  func(c *config.Config) { c.Policy.Default = "deny" },
		"main_threshold":  func(c *config.Config) { c.Results.MainThreshold = -1 },
		"budget.encoding": func(c *config.Config) { c.Budget.Encoding = "none" },
	} {
		cfg := config.Default()
		cfg.StateDir = t.TempDir()
		change(&cfg)
		fg, err := New(Options{Config: &cfg})
		if err == nil {
			_ = fg.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want a fault of %s", err, want)
		}
	}
}

// Arguments are counted as the client wrote them.
func TestArgumentsAreCountedAsWritten(t *testing.T) {
	fg := embed(t, plan{}, nil)
	s := mount(plan{}.server(), fg)
	r := inMemory(t, s)
	b := own[branch](r, "branch_create", `{"description":"work"}`).BranchID
	ss := slices.Collect(s.Sessions())[0]
	handle := fg.receive(func(_ context.Context, method string, _ mcp.Request) (mcp.Result, error) {
		if method == "tools/list" {
			all := []*mcp.Tool{{Name: "read", InputSchema: json.RawMessage(`{"type":"object"}`)}}
			for _, own := range fg.tools {
				all = append(all, &own)
			}
			return &mcp.ListToolsResult{Tools: all}, nil
		}
		return said(""), nil
	})
	const args = `{"path":"<a> & <b> & <c>"`
	_, err := handle(t.Context(), "tools/call", &mcp.CallToolRequest{Session: ss, Params: &mcp.CallToolParamsRaw{Name: "read", Arguments: json.RawMessage(args + `,"branch_id":"` + b + `"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	want := tokens(t, "work") + tokens(t, args+"}")
	if s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`); s.BudgetUsed != want {
		t.Errorf("%d tokens were charged, want %d", s.BudgetUsed, want)
	}
}

// A tool that needs input gets it, in both eras, also in a branch.
func TestToolThatAsksForInput(t *testing.T) {
	for _, era := range []string{legacy, modern} {
		s := plan{Era: era}.server()
		mcp.AddTool(s, &mcp.Tool{Name: "confirm"}, func(_ context.Context, req *mcp.CallToolRequest, _ howArgs) (*mcp.CallToolResult, any, error) {
			if len(req.Params.InputResponses) == 0 {
				return &mcp.CallToolResult{RequestState: "state", InputRequests: mcp.InputRequestMap{
					"sure": &mcp.ElicitParams{Message: "sure?", RequestedSchema: &jsonschema.Schema{Type: "object"}},
				}}, nil, nil
			}
			return said("answered with " + req.Params.RequestState), nil, nil
		})
		r := inMemory(t, mount(s, embed(t, plan{}, nil)))
		b := own[branch](r, "branch_create", `{"description":"work"}`).BranchID
		if got := text(r.call("confirm", `{"how":"x","branch_id":"`+b+`"}`)); got != "answered with state" {
			t.Errorf("%s: %s", era, got)
		}
	}
}
