//go:build e2e

package e2e

import (
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/previewtest"
)

// One call reads ten files and returns the matching lines.
func TestBatch(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		dir := resultFiles(t)
		g := newGateway(t, filesConfig(dir, ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		var each []map[string]string
		raw := 0
		for _, f := range previewtest.Fixtures()[:10] {
			each = append(each, map[string]string{"path": f.Name})
			raw += tokens(t, f.Text)
		}
		each[9]["path"] = "absent"
		args := jsonText(map[string]any{"tool": "files__read_file", "each": each, "grep": "FATAL|Out of memory|checkout"})
		m := tool(t, c, ctx, "branch_run", args)
		text := said(t, m)
		for _, want := range []string{"10 calls, 1 failed", "#2 app.log", "501:", "#3 syslog", "223:", "#1 access.log", "434:", "[failed #10: "} {
			if !strings.Contains(text, want) {
				t.Errorf("the answer lacks %q:\n%s", want, text)
			}
		}
		n := resultTokens(t, m)
		t.Logf("%d tokens of files; the answer has %d, with the arguments %d", raw, n, n+tokens(t, args))
		if n+tokens(t, args) > 500 {
			t.Errorf("the batch cost its caller %d tokens, want under 500", n+tokens(t, args))
		}
		h := handleIn(t, text)
		if got := said(t, readPart(t, c, ctx, map[string]any{"handle": h, "jq": `[.[]|select(.error)|.step]`})); !strings.HasSuffix(got, "[10]") {
			t.Errorf("jq over all results = %q, want [10]", got)
		}
		if got := said(t, readPart(t, c, ctx, map[string]any{"handle": h, "grep": "card expired"})); !strings.Contains(got, "ord-7731") {
			t.Errorf("grep over all results = %q", got)
		}
		// In a branch of the caller's own it is charged to that.
		b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"batch"}`))
		in := jsonText(map[string]any{"tool": "files__read_file", "each": each[:3], "jq": "length", "branch_id": b.BranchID})
		if got := said(t, tool(t, c, ctx, "branch_run", in)); !strings.HasSuffix(got, "\n3") {
			t.Errorf("a batch in a branch = %q", got)
		}
		if s := statusOf(t, c, ctx, b.BranchID); s.Status != "active" || s.BudgetUsed < 50 || s.BudgetUsed > 400 {
			t.Errorf("after a batch the branch is %+v", s)
		}
		g.stop()
		g.batchIsTraced(10)
	})
}

// batchIsTraced checks that each call of a batch has its two records, in the
// batch's own context, and names the branch_run as its cause.
func (g *gateway) batchIsTraced(calls int) {
	g.t.Helper()
	var run string
	under := map[string]int{}
	for _, r := range g.trace("--kind", "mcp/request:tools/call") {
		var p struct{ Params struct{ Name string } }
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			g.t.Fatal(err)
		}
		if p.Params.Name == "branch_run" && run == "" {
			run = r.ID
		}
		for _, id := range r.CorrelationID {
			if id == run && p.Params.Name == "read_file" {
				under[r.Context]++
			}
		}
	}
	if len(under) != 1 {
		g.t.Fatalf("the batch's calls are in the contexts %v, want one", under)
	}
	for context, n := range under {
		if n != calls || !strings.HasPrefix(context, "br_") {
			g.t.Errorf("%d calls in %q correlate to the batch, want %d in its branch", n, context, calls)
		}
	}
}

// A batch calls no tool that may change something, unless it is configured.
func TestBatchOnlyReads(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	file := recordFile(t)
	for _, allowed := range []bool{false, true} {
		more := ""
		if allowed {
			more = "run: {allow: [\"fake__t*\"]}\n"
		}
		g := newGateway(t, fakeConfig(file, more))
		c := g.connect(ctx, "stdio", mcpclient.Legacy)
		before := len(recordedMethod(t, file, "tools/call"))
		text := said(t, tool(t, c, ctx, "branch_run", `{"tool":"fake__text","each":[{"text":"one"},{"text":"two"}]}`))
		made := len(recordedMethod(t, file, "tools/call")) - before
		if allowed != (made == 2) || allowed != strings.Contains(text, "two\n") && allowed != strings.HasSuffix(text, "two") {
			t.Errorf("allowed %v: %d calls were made: %s", allowed, made, text)
		}
		if !allowed && !strings.Contains(text, "run.allow") {
			t.Errorf("the refusal does not say what to do: %s", text)
		}
		g.stop()
	}
}

// A long batch sends progress every 5 s, each time more, and a host that cancels it cancels
// its calls.
func TestBatchProgressAndCancel(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	file := recordFile(t)
	g := newGateway(t, fakeConfig(file, "run: {allow: [\"**\"]}\n"))
	c := g.stdio(mcpclient.Legacy)
	var mu sync.Mutex
	var progress []float64
	c.Handle = func(m mcpclient.Message) (json.RawMessage, json.RawMessage) {
		var p struct {
			ProgressToken string
			Progress      float64
		}
		if m.Method == "notifications/progress" && json.Unmarshal(m.Params, &p) == nil && p.ProgressToken == "p1" {
			mu.Lock()
			defer mu.Unlock()
			progress = append(progress, p.Progress)
		}
		return nil, nil
	}
	startHost(t, ctx, c)
	m := call(t, c, ctx, "tools/call", `{"name":"branch_run","arguments":{"tool":"fake__slow","each":[{"ms":10},{"ms":10500}],"parallel":1},"_meta":{"progressToken":"p1"}}`)
	mu.Lock()
	if !strings.Contains(said(t, m), "[2 calls, ") || len(progress) != 2 || progress[0] != 1 || progress[1] <= 1 || progress[1] >= 2 {
		t.Errorf("progress %v, want 1 and a little more: %s", progress, m.Result)
	}
	mu.Unlock()
	id, _, err := c.Send(ctx, "tools/call", `{"name":"branch_run","arguments":{"tool":"fake__slow","each":[{"ms":50000},{"ms":50001}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the batch's calls are under way", func() bool { return len(recordedMethod(t, file, "tools/call")) == 4 })
	start := time.Now()
	if err := c.Cancel(ctx, id, "enough"); err != nil {
		t.Fatal(err)
	}
	until(t, "both calls are cancelled at the upstream", func() bool {
		return strings.Count(strings.Join(recorded(t, file), "\n"), "slow ended") == 2
	})
	t.Logf("the calls were cancelled within %v", time.Since(start))
}

// A batch without a successful call returns the reason only. An answer that is too long names the
// handle of the rest.
func TestBatchFails(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	long := strings.Repeat("very ", 60) + "long"
	g := newGateway(t, fakeConfig(recordFile(t), "run: {allow: [\"**\"]}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	failing := func(text string) string {
		return `{"result":{"content":[{"type":"text","text":` + jsonText(text) + `}],"isError":true}}`
	}
	for _, tt := range []struct{ more, each, want string }{
		{``, failing("gone"), "[failed: gone]"},
		{`,"grep":"x"`, failing("gone"), "[failed: gone]"},
		{`,"jq":".[0].result.content"`, failing("gone"), "[failed: gone]"},
		{``, failing("gone") + "," + failing("gone"), "[failed in all 2 calls: gone]"},
		{``, failing("gone") + "," + failing("lost"), "[failed #1: gone]\n[failed #2: lost]"},
		{`,"jq":"[.[]|select(.error)|.step]"`, failing("gone"), "[1 call, 1 failed, 1 tokens read; all of it: branch_read res_]\n[1]\n[failed: gone]"},
	} {
		got := said(t, tool(t, c, ctx, "branch_run", `{"tool":"fake__raw","each":[`+tt.each+`]`+tt.more+`}`))
		if handleForm.ReplaceAllString(got, "res_") != tt.want {
			t.Errorf("branch_run of %s%s = %q, want %q", tt.each, tt.more, got, tt.want)
		}
	}
	got := said(t, tool(t, c, ctx, "branch_run", `{"tool":"fake__raw","each":[`+failing(long)+`]}`))
	if !regexp.MustCompile(`^\[failed: very very .*….*very long\]\n\[rest: branch_read res_[0-9a-z]{26}\]$`).MatchString(got) || tokens(t, got) > 50 {
		t.Errorf("an error of 61 tokens costs %d: %s", tokens(t, got), got)
	}
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": handleIn(t, got)})); !strings.Contains(got, long) {
		t.Errorf("the rest of the error is %s", got)
	}
}

// jq over results reads what jq of branch_read reads: JSON among other text, YAML, XML and CSV.
func TestJQOverResults(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "run: {allow: [\"**\"]}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	var each []string
	for _, text := range []string{
		`{"a": [1, 2]}`, "npm warn x\n{\"a\": [1, 2]}\nexit status 1\n", "{\"a\":1}\n{\"a\":2}\n", "a:\n- 1\n- 2\n", "<a><b>1</b><b>2</b></a>", "a,b\n1,2\n", "2026-11-23 is prose",
	} {
		each = append(each, `{"result":{"content":[{"type":"text","text":`+jsonText(text)+`}]}}`)
	}
	const jq = `[.[]|[.result|if type=="object" then .a else . end|if type=="object" then .b else . end|length],.text[:1]]`
	const want = `[[2],null,[2],"n",[2],"{",[2],"a",[2],"<",[1],"a",[19],null]`
	got := said(t, tool(t, c, ctx, "branch_run", `{"tool":"fake__raw","each":[`+strings.Join(each, ",")+`],"jq":`+jsonText(jq)+`}`))
	for _, want := range []string{want, "[jq skipped what is not JSON: 2 lines] (1 of 7 results", "[jq read YAML as JSON] (1 of 7", "[jq read XML", "[jq read CSV"} {
		if !strings.Contains(got, want) {
			t.Errorf("branch_run with jq answers %s, want %s", got, want)
		}
	}
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": handleIn(t, got), "jq": jq})); !strings.HasSuffix(got, want) {
		t.Errorf("branch_read with jq answers %s, want %s", got, want)
	}
}

// The branch that a batch opens for itself counts among its session's.
func TestBatchesCount(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, filesConfig(resultFiles(t), "folding: {max_concurrent_per_session: 2, max_branches_per_minute: 2}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	const run = `{"tool":"files__read_file","each":[{"path":"app.log"}],"grep":"FATAL"`
	for range 4 { // not against the rate
		if m := tool(t, c, ctx, "branch_run", run+`}`); parseResult(t, m).IsError {
			t.Errorf("a batch alone: %s", said(t, m))
		}
	}
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"d"}`)).BranchID
	create(t, c, ctx, map[string]any{}) // two, so that the batch is in neither
	if f := refused(t, tool(t, c, ctx, "branch_run", run+`}`)); f.Error.Code != "too_many_branches" {
		t.Errorf("a batch beside two branches: %+v", f)
	}
	if m := tool(t, c, ctx, "branch_run", run+`,"branch_id":"`+b+`"}`); parseResult(t, m).IsError {
		t.Errorf("a batch in the branch: %s", said(t, m))
	}
}
