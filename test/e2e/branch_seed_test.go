//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// The user scenarios of branches, each played by a parent agent and by subagents with their own
// connections, with the default limits. The tokens that the parent received are counted on its
// connection: with both forms of each result, and compared with the same calls made inline.

// agents connects n agents to one gateway over HTTP.
func agents(t *testing.T, ctx context.Context, g *gateway, n int) []*mcpclient.Client {
	t.Helper()
	url := g.http()
	var all []*mcpclient.Client
	for range n {
		c := g.dial(ctx, url, mcpclient.Legacy)
		call(t, c, ctx, "tools/list", `{}`)
		all = append(all, c)
	}
	return all
}

// receivedTokens counts the tokens of the tool results that an agent received: the text that a
// host shows, and text and structured content together.
func receivedTokens(t *testing.T, c *mcpclient.Client) (shown, both int) {
	t.Helper()
	for _, raw := range c.Received() {
		m, err := mcpclient.Parse(raw)
		if err != nil || m.Result == nil || !strings.Contains(string(m.Result), `"content":[`) {
			continue
		}
		r := parseResult(t, m)
		n := 0
		for _, block := range r.Content {
			n += tokens(t, block.Text)
		}
		shown += n
		if r.StructuredContent != nil {
			n += tokens(t, compact(t, r.StructuredContent))
		}
		both += n
	}
	return shown, both
}

func logFigures(t *testing.T, story string, inline int, parent *mcpclient.Client) (both int) {
	t.Helper()
	shown, both := receivedTokens(t, parent)
	t.Logf("%s: inline %d tokens; the parent received %d (%d with both forms of each result): %.1f %% less",
		story, inline, shown, both, 100-100*float64(shown)/float64(inline))
	return both
}

// P1: ten files are searched in a branch; the parent gets under 500 tokens and
// none of the files.
func TestP1FileExploration(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir, secret := t.TempDir(), fixtures.Secret()
	if err := fixtures.Write(dir, secret); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, fmt.Sprintf("upstreams:\n  files: {builtin: files, roots: [%q]}\n", dir))
	a := agents(t, ctx, g, 3)
	parent, sub, inline := a[0], a[1], a[2]
	for _, name := range fixtures.Names {
		tool(t, inline, ctx, "files__read_file", jsonText(map[string]any{"path": name}))
	}
	whole, _ := receivedTokens(t, inline)

	b := create(t, parent, ctx, map[string]any{"description": "find where func ScanWords is defined", "prompt": "Look at the ten files; answer with file and line."}).BranchID
	for _, name := range fixtures.Names {
		if m := tool(t, sub, ctx, "files__read_file", jsonText(map[string]any{"path": name, "branch_id": b})); parseResult(t, m).IsError {
			t.Fatalf("%s in the branch: %s", name, m.Result)
		}
	}
	found := text(t, sub, ctx, "files__grep", jsonText(map[string]any{"pattern": "^func ScanWords", "branch_id": b}))
	if !strings.Contains(found, "src/scan.go") {
		t.Errorf("grep found %s", found)
	}
	s := statusOf(t, sub, ctx, b)
	r := own[returned](t, tool(t, parent, ctx, "branch_return", jsonText(map[string]any{"branch_id": b, "message": "ScanWords is defined in src/scan.go; it splits at white space."})))
	if !r.Success || s.Status != "active" || s.BudgetTotal != 8192 {
		t.Errorf("the branch was %+v and returned %+v", s, r)
	}
	both := logFigures(t, fmt.Sprintf("P1, ten files and a search in a branch (%d of %d tokens used)", r.TokensUsed, s.BudgetTotal), whole, parent)
	if both >= 500 || whole < 40_000 {
		t.Errorf("the parent received %d tokens, want under 500; inline %d, want over 40000", both, whole)
	}
	for _, raw := range parent.Received() {
		for _, line := range []string{"func ScanWords", "order_id,placed_at", "Runbook: order pipeline", secret} {
			if strings.Contains(string(raw), line) {
				t.Errorf("the parent received a file's %q", line)
			}
		}
	}
}

// P2: five web fetches, each in a branch of its own; the parent gets under 200
// tokens for each.
func TestP2Research(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	a := agents(t, ctx, g, 3)
	parent, sub, inline := a[0], a[1], a[2]
	page := func(i int) string {
		var b strings.Builder
		fmt.Fprintf(&b, "<html><head><title>API %d</title></head><body>", i)
		for k := range 120 {
			fmt.Fprintf(&b, "<p>Endpoint /v%d/items/%d answers with status %d and a body of %d bytes.</p>\n", i, k, 200+k%5, 37*k)
		}
		return b.String() + "</body></html>"
	}
	const tasks = 5 // as many as a session may create in a minute
	for i := range tasks {
		tool(t, inline, ctx, "fake__text", jsonText(map[string]any{"text": page(i)}))
	}
	whole, _ := receivedTokens(t, inline)
	before := 0
	for i := range tasks {
		b := create(t, parent, ctx, map[string]any{"description": fmt.Sprintf("read the documentation of API %d", i)}).BranchID
		if m := tool(t, sub, ctx, "fake__text", jsonText(map[string]any{"text": page(i), "branch_id": b})); parseResult(t, m).IsError {
			t.Fatalf("fetch %d: %s", i, m.Result)
		}
		own[returned](t, tool(t, parent, ctx, "branch_return", jsonText(map[string]any{"branch_id": b, "message": fmt.Sprintf("API %d pages with ?after=; items are at /v%d/items/ID.", i, i)})))
		_, both := receivedTokens(t, parent)
		if both-before >= 200 {
			t.Errorf("task %d brought the parent %d tokens, want under 200", i, both-before)
		}
		before = both
	}
	both := logFigures(t, "P2, five fetches in five branches", whole, parent)
	t.Logf("P2: %d tokens for each task", both/tasks)
}

// P3: three attempts at a fix, each in a branch. Two fail, one by its budget and one by its time;
// only the third returns. The trace has the calls of the failed ones.
func TestP3TrialAndError(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	a := agents(t, ctx, g, 3)
	parent, sub, inline := a[0], a[1], a[2]
	output := func(i int) map[string]any {
		text := fmt.Sprintf("FAIL attempt %d\n", i)
		for k := range 60 {
			text += fmt.Sprintf("    parser_test.go:%d: case %d: got token %x, want %x\n", 100+k, k, 7919*k, 104729*k)
		}
		return map[string]any{"result": map[string]any{"isError": i < 3, "content": []any{map[string]any{"type": "text", "text": text}}}}
	}
	run := func(c *mcpclient.Client, i int, branch string) {
		args := output(i)
		if branch != "" {
			args["branch_id"] = branch
		}
		tool(t, c, ctx, "fake__raw", jsonText(args))
	}
	for i := 1; i <= 3; i++ {
		for range 3 {
			run(inline, i, "")
		}
	}
	whole, _ := receivedTokens(t, inline)

	var ids []string
	for i, limits := range []map[string]any{{"budget": 6000}, {"timeout_seconds": 1}, {"budget": 32768}} {
		limits["description"] = fmt.Sprintf("attempt %d", i+1)
		ids = append(ids, create(t, parent, ctx, limits).BranchID)
	}
	run(sub, 2, ids[1])
	for range 10 {
		run(sub, 1, ids[0])
	}
	for range 3 {
		run(sub, 3, ids[2])
	}
	until(t, "attempt 2 times out", func() bool { return statusOf(t, sub, ctx, ids[1]).Status == "timeout" })
	r := own[returned](t, tool(t, parent, ctx, "branch_return", jsonText(map[string]any{"branch_id": ids[2], "message": "Attempt 3 works: the lexer must not fold case. All tests pass."})))
	if !r.Success {
		t.Errorf("branch_return of attempt 3 = %+v", r)
	}
	both := logFigures(t, "P3, three attempts in three branches", whole, parent)
	if both > whole/5 {
		t.Errorf("the parent received %d tokens, inline it is %d: less than 80 %% saved", both, whole)
	}
	for _, raw := range parent.Received() {
		if strings.Contains(string(raw), "parser_test.go") {
			t.Errorf("the parent received the output of an attempt: %.200s", raw)
		}
	}
	g.stop()
	want := map[string]string{ids[0]: "budget_exhausted", ids[1]: "timeout", ids[2]: "returned"}
	for _, rec := range g.trace() {
		if rec.Kind != "context/pop" {
			continue
		}
		var p struct{ Reason, Digest string }
		if err := json.Unmarshal(rec.Payload, &p); err != nil || p.Reason != want[rec.Context] {
			t.Errorf("attempt %s ended with %+v, want %s", rec.Context, p, want[rec.Context])
		}
		if p.Reason != "returned" && !strings.Contains(p.Digest, "last error: FAIL attempt") {
			t.Errorf("a failed attempt is on record as %q, want its last error", p.Digest)
		}
		delete(want, rec.Context)
	}
	if len(want) > 0 {
		t.Errorf("no end of %v on record", want)
	}
}
