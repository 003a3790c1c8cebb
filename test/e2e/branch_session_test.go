//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// ends returns the contexts of the pops in a trace in their order, and their
// reasons.
func ends(records []record) (contexts []string, reasons map[string]string) {
	reasons = map[string]string{}
	for _, r := range records {
		if r.Kind == "context/pop" {
			contexts = append(contexts, r.Context)
			reasons[r.Context] = r.Audit.Decision.Reason
		}
	}
	return contexts, reasons
}

// responseTo returns the response record of the one call of a tool in a context.
func responseTo(t *testing.T, records []record, context, tool string) record {
	t.Helper()
	var request, response record
	for _, r := range records {
		switch {
		case r.Kind == "mcp/request:tools/call" && r.Context == context && r.Audit.Tool == tool:
			request = r
		case r.Kind == "mcp/response:tools/call" && request.ID != "" && slices.Contains(r.CorrelationID, request.ID):
			response = r
		}
	}
	if response.ID == "" {
		t.Fatalf("the trace has no response of %s in %s", tool, context)
	}
	return response
}

// However a session ends, its branches end with it, deepest first; their calls
// are cancelled upstream; and the trace says so.
func TestSessionEnds(t *testing.T) {
	for _, tt := range []struct {
		name, transport string
		era             mcpclient.Era
		inFlight        bool
		reasons         []string
		end             func(g *gateway, c *mcpclient.Client, p *os.Process)
	}{
		{"end of standard input", "stdio", mcpclient.Legacy, true, []string{"session_ended"},
			func(g *gateway, c *mcpclient.Client, p *os.Process) { _ = c.Close() }},
		{"DELETE", "http", mcpclient.Legacy, true, []string{"session_ended"},
			func(g *gateway, c *mcpclient.Client, p *os.Process) { _ = c.Close() }},
		{"SIGTERM on stdio", "stdio", mcpclient.Legacy, true, []string{"shutdown"},
			func(g *gateway, c *mcpclient.Client, p *os.Process) { _ = p.Signal(syscall.SIGTERM) }},
		{"SIGTERM on stdio, modern", "stdio", mcpclient.Modern, true, []string{"shutdown"},
			func(g *gateway, c *mcpclient.Client, p *os.Process) { _ = p.Signal(syscall.SIGTERM) }},
		// Calls in flight over HTTP are given time to finish.
		{"SIGTERM on HTTP", "http", mcpclient.Legacy, false, []string{"shutdown"},
			func(g *gateway, c *mcpclient.Client, p *os.Process) { g.stop() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			file := recordFile(t)
			g := newGateway(t, fakeConfig(file, ""))
			var c *mcpclient.Client
			var process *os.Process
			if tt.transport == "stdio" {
				cmd := g.command("run")
				var err error
				if c, err = mcpclient.Stdio(cmd, tt.era); err != nil {
					t.Fatal(err)
				}
				process = cmd.Process
			} else {
				c = mcpclient.HTTP(g.http(), tt.era)
			}
			startHost(t, ctx, c)
			call(t, c, ctx, "tools/list", `{}`)
			var path []string
			for i := range 3 {
				args := map[string]any{"description": fmt.Sprint("level ", i+1), "session_id": "label"}
				if i > 0 {
					args["parent_branch_id"] = path[i-1]
				}
				path = append(path, create(t, c, ctx, args).BranchID)
			}
			wait := func() (mcpclient.Message, error) { return mcpclient.Message{}, errors.New("nothing in flight") }
			if tt.inFlight {
				var err error
				_, wait, err = c.Send(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__slow","arguments":{"ms":50000,"branch_id":%q}}`, path[2]))
				if err != nil {
					t.Fatal(err)
				}
				until(t, "the upstream has the call", func() bool { return len(recordedMethod(t, file, "tools/call")) == 1 })
			}
			start := time.Now()
			tt.end(g, c, process)
			if m, err := wait(); err == nil && m.Result != nil && !parseResult(t, m).IsError {
				t.Errorf("the call in flight was answered: %s", m.Result)
			}
			if tt.inFlight {
				until(t, "the upstream learns that its call is cancelled", func() bool {
					return strings.Contains(strings.Join(recorded(t, file), "\n"), "slow ended")
				})
			}
			g.stop()
			_ = c.Close() // of a process that has ended, perhaps
			took := time.Since(start)
			records := g.trace()
			contexts, reasons := ends(records)
			want := []string{strings.Join(path, "/"), strings.Join(path[:2], "/"), path[0]}
			if !slices.Equal(contexts, want) {
				t.Errorf("branches ended in the order %v, want %v", contexts, want)
			}
			for _, p := range want {
				if r := reasons[p]; r != "parent_ended" && !slices.Contains(tt.reasons, r) {
					t.Errorf("branch %s ended with reason %q, want one of %v", p, r, tt.reasons)
				}
			}
			if tt.inFlight {
				if r := responseTo(t, records, want[0], "slow"); !r.Audit.IsError {
					t.Errorf("the record of the cancelled call is no error: %+v", r.Audit)
				}
			}
			if out := g.output("trace", "verify"); strings.Contains(out, "is not closed") || took > 30*time.Second {
				t.Errorf("after %v: %s", took, out)
			}
			t.Logf("ended in %v; reasons %v", took.Round(time.Millisecond), reasons)
		})
	}
}

// Whoever is not on a branch's session may use it by its id, as a subagent
// does, unless sessions are kept apart: then it does not exist for others.
func TestOtherSessions(t *testing.T) {
	t.Parallel()
	for _, validation := range []string{"permissive", "strict"} {
		t.Run(validation, func(t *testing.T) {
			ctx := testContext(t)
			file := recordFile(t)
			g := newGateway(t, fakeConfig(file, "folding: {session_validation: "+validation+"}\n"))
			url := g.http()
			var conns []*mcpclient.Client
			for range 2 {
				c := g.dial(ctx, url, mcpclient.Legacy)
				call(t, c, ctx, "tools/list", `{}`)
				conns = append(conns, c)
			}
			mine, other := conns[0], conns[1]
			b := create(t, mine, ctx, map[string]any{}).BranchID
			before := statusOf(t, mine, ctx, b)
			attempts := []struct{ tool, args string }{
				{"fake__echo", fmt.Sprintf(`{"branch_id":%q}`, b)},
				{"branch_create", fmt.Sprintf(`{"description":"below","parent_branch_id":%q}`, b)},
				{"branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"stolen"}`, b)},
			}
			if validation == "permissive" {
				if s := statusOf(t, other, ctx, b); s.Status != "active" {
					t.Errorf("branch_status from another connection = %+v", s)
				}
				for _, a := range attempts {
					if m := tool(t, other, ctx, a.tool, a.args); parseResult(t, m).IsError {
						t.Errorf("%s from another connection of the principal: %s", a.tool, m.Result)
					}
				}
				return
			}
			for _, a := range attempts {
				if f := refused(t, tool(t, other, ctx, a.tool, a.args)); f.Error.Code != "branch_not_found" || f.Error.Status != 404 {
					t.Errorf("%s from another session = %+v, want branch_not_found", a.tool, f.Error)
				}
			}
			if s := statusOf(t, other, ctx, b); s.BranchID != nil {
				t.Errorf("branch_status from another session = %+v, want nothing", s)
			}
			f := refused(t, tool(t, other, ctx, "branch_create", fmt.Sprintf(`{"description":"d","session_id":%q}`, mine.Session())))
			if f.Error.Code != "forbidden" || f.Error.Status != 403 {
				t.Errorf("branch_create in another session = %+v, want forbidden", f.Error)
			}
			if s := statusOf(t, mine, ctx, b); s != before && (s.Status != "active" || s.BudgetUsed != before.BudgetUsed) {
				t.Errorf("the branch is %+v after the attempts, was %+v", s, before)
			}
			if calls := recordedMethod(t, file, "tools/call"); len(calls) > 0 {
				t.Errorf("the upstream got %d calls", len(calls))
			}
			g.stop()
			g.trace()
		})
	}
}

// A call in flight in a branch that is returned is cancelled at the upstream. Its result is late:
// it is neither delivered nor charged. Children end before their parents.
func TestReturnWithCallsInFlight(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	file := recordFile(t)
	g := newGateway(t, fakeConfig(file, ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	var ids []string
	for i := range 3 {
		args := map[string]any{"description": fmt.Sprint("level ", i+1)}
		if i > 0 {
			args["parent_branch_id"] = ids[i-1]
		}
		ids = append(ids, create(t, c, ctx, args).BranchID)
	}
	_, wait, err := c.Send(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__slow","arguments":{"ms":50000,"branch_id":%q}}`, ids[2]))
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream has the call", func() bool { return len(recordedMethod(t, file, "tools/call")) == 1 })
	live := statusOf(t, c, ctx, ids[2])
	if want := tokens(t, "level 3") + tokens(t, `{"ms":50000}`); live.BudgetUsed != want {
		t.Errorf("while the call is in flight %d tokens are used, want %d: description and arguments", live.BudgetUsed, want)
	}
	r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": ids[0], "message": "done"})))
	if !r.Success {
		t.Errorf("branch_return = %+v", r)
	}
	m, err := wait()
	if err != nil {
		t.Fatal(err)
	}
	if f := refused(t, m); f.Error.Code != "branch_not_active" || f.Error.Status != 409 {
		t.Errorf("the call in flight got %+v", f.Error)
	}
	until(t, "the upstream learns that its call is cancelled", func() bool {
		return strings.Contains(strings.Join(recorded(t, file), "\n"), "slow ended")
	})
	for i, id := range ids[1:] {
		s := own[struct{ Status, Reason, Error, Digest string }](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": id})))
		if s.Status != "failed" || s.Reason != "parent_returning" || s.Error != "parent returning" || s.Digest == "" {
			t.Errorf("child at level %d = %+v", i+2, s)
		}
	}
	if s := statusOf(t, c, ctx, ids[2]); s.BudgetUsed != live.BudgetUsed {
		t.Errorf("%d tokens used after the end, %d before", s.BudgetUsed, live.BudgetUsed)
	}
	g.stop()
	records := g.trace()
	contexts, reasons := ends(records)
	want := []string{strings.Join(ids, "/"), strings.Join(ids[:2], "/"), ids[0]}
	if !slices.Equal(contexts, want) || reasons[ids[0]] != "returned" {
		t.Errorf("branches ended in the order %v with reasons %v, want %v", contexts, reasons, want)
	}
	if r := responseTo(t, records, want[0], "slow"); !r.Audit.Late || !r.Audit.IsError {
		t.Errorf("the record of the late result = %+v, want late and an error", r.Audit)
	}
}

// A forced end leaves a digest with the last error. A late return keeps its message, once.
func TestLateReturn(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	b := create(t, c, ctx, map[string]any{"timeout_seconds": 1}).BranchID
	tool(t, c, ctx, "fake__raw", jsonText(map[string]any{"branch_id": b, "result": map[string]any{
		"isError": true, "content": []any{map[string]any{"type": "text", "text": "parser.go: no such file " + strings.Repeat("x ", 300)}}}}))
	until(t, "the branch times out", func() bool { return statusOf(t, c, ctx, b).Status == "timeout" })
	type full struct{ Status, Reason, Error, Digest, Message string }
	s := own[full](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": b})))
	if !strings.Contains(s.Digest, "1 call (raw 1), 1 failed; last error: parser.go: no such file x x") || len([]rune(s.Digest)) > 350 || s.Message != "" {
		t.Errorf("branch_status = %+v", s)
	}
	f := refused(t, tool(t, c, ctx, "fake__echo", jsonText(map[string]any{"branch_id": b})))
	if f.Error.Status != 409 || !strings.Contains(f.Error.Message, "parser.go: no such file") {
		t.Errorf("a call in the ended branch = %+v, want its digest", f.Error)
	}
	args := jsonText(map[string]any{"branch_id": b, "message": "it is in lexer.go"})
	r := own[returned](t, tool(t, c, ctx, "branch_return", args))
	if r.Success || !r.Late || r.Status != "timeout" || r.Message != "it is in lexer.go" {
		t.Errorf("late branch_return = %+v", r)
	}
	if f := refused(t, tool(t, c, ctx, "branch_return", args)); f.Error.Code != "branch_not_active" || f.Error.Status != 409 {
		t.Errorf("second late branch_return = %+v", f.Error)
	}
	if s := own[full](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": b}))); s.Status != "timeout" || s.Message != "it is in lexer.go" {
		t.Errorf("branch_status after the late return = %+v", s)
	}
	if s := own[full](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": b}))); s.Message != "" {
		t.Errorf("a second branch_status has the late message again: %+v", s)
	}
	g.stop()
	late := 0
	for _, r := range g.trace() {
		if r.Kind == "conclusion" && r.Audit.Late && r.Context == b {
			late++
		}
	}
	if late != 1 {
		t.Errorf("the trace has %d late conclusions, want 1", late)
	}
}

// A call that is cut off by the end of its session says so, and blames no server.
func TestDeletedSessionSaysSo(t *testing.T) {
	t.Parallel()
	ctx, file := testContext(t), recordFile(t)
	g := newGateway(t, fakeConfig(file, ""))
	url := g.http()
	c := mcpclient.HTTP(url, mcpclient.Legacy)
	defer func() { _ = c.Close() }() // the session is gone
	startHost(t, ctx, c)
	_, wait, err := c.Send(ctx, "tools/call", `{"name":"fake__slow","arguments":{"ms":50000}}`)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream has the call", func() bool { return len(recordedMethod(t, file, "tools/call")) == 1 })
	if status, _, text := answered(t, http.DefaultClient, "DELETE", url, "", http.Header{"Mcp-Session-Id": {c.Session()}}); status != http.StatusNoContent {
		t.Fatalf("DELETE = %d %s", status, text)
	}
	m, err := wait()
	if err != nil {
		t.Fatal(err)
	}
	if f := refused(t, m); f.Error.Code != "session_ended" || !strings.Contains(f.Error.Message, "ended by the host") {
		t.Errorf("the call that was cut off = %s", m.Result)
	}
}
