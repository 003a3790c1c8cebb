//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pkoukk/tiktoken-go"
	tiktoken_loader "github.com/pkoukk/tiktoken-go-loader"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/mcpclient"
)

var encoding = sync.OnceValues(func() (*tiktoken.Tiktoken, error) {
	tiktoken.SetBpeLoader(tiktoken_loader.NewOfflineLoader())
	return tiktoken.GetEncoding("o200k_base")
})

// tokens counts with tiktoken itself, not with the product's counter.
func tokens(t *testing.T, text string) int {
	t.Helper()
	enc, err := encoding()
	if err != nil {
		t.Fatal(err)
	}
	return len(enc.EncodeOrdinary(text))
}

// resultTokens counts a result as a host may show it: the text blocks, or the
// structured content where that is larger.
func resultTokens(t *testing.T, m mcpclient.Message) int {
	t.Helper()
	r := parseResult(t, m)
	n := 0
	for _, c := range r.Content {
		n += tokens(t, c.Text)
	}
	if r.StructuredContent != nil {
		n = max(n, tokens(t, compact(t, r.StructuredContent)))
	}
	return n
}

// compact takes white space out from between tokens and changes none.
func compact[T ~[]byte | ~string](t *testing.T, raw T) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(raw)); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return b.String()
}

// jsonText encodes v as a model does, without escapes that JSON does not need.
func jsonText(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // of maps and strings
	}
	return strings.TrimSpace(b.String())
}

// own calls one of the branch tools. Its result must be one compact JSON, the
// same as text and as structured content, because hosts show one of the two.
func own[T any](t *testing.T, m mcpclient.Message) T {
	t.Helper()
	r := parseResult(t, m)
	var v T
	if r.IsError || len(r.Content) != 1 {
		t.Fatalf("result = %s", m.Result)
	}
	if r.StructuredContent != nil && r.Content[0].Text != compact(t, r.StructuredContent) {
		t.Errorf("text %s and structured content %s differ", r.Content[0].Text, r.StructuredContent)
	}
	if err := json.Unmarshal([]byte(r.Content[0].Text), &v); err != nil {
		t.Fatalf("result %s: %v", m.Result, err)
	}
	return v
}

type created struct {
	BranchID        string `json:"branch_id"`
	SessionID       string `json:"session_id"`
	BudgetAllocated int    `json:"budget_allocated"`
	Depth           int    `json:"depth"`
	Context         string `json:"context"` // left out where it is the branch id itself
}

// path is the branch's context path.
func (c created) path() string {
	if c.Context == "" {
		return c.BranchID
	}
	return c.Context
}

type returned struct {
	Success    bool   `json:"success"`
	TokensUsed int    `json:"tokens_used"`
	Message    string `json:"message"`
	Late       bool   `json:"late"`
	Status     string `json:"status"`
}

type status struct {
	BranchID    *string `json:"branch_id"`
	SessionID   string  `json:"session_id"`
	Status      string  `json:"status"`
	Reason      string  `json:"reason"`
	BudgetUsed  int     `json:"budget_used"`
	BudgetTotal int     `json:"budget_total"`
	Folded      string  `json:"folded"`
	Digest      string  `json:"digest"`
}

// record holds the members of a trace record that the tests read.
type record struct {
	ID            string
	Kind          string
	From          string
	To            []string
	CorrelationID []string `json:"correlationId"`
	Context       string
	Payload       json.RawMessage
	Seq           int
	Audit         struct {
		Session, Principal, Tool string
		Decision                 struct{ Result, Reason string }
		Tokens                   struct {
			Used   int `json:"branch_used"`
			Budget int `json:"branch_budget"`
		}
		Injection struct{ Action string }
		IsError   bool `json:"is_error"`
		Rung      string
		Thread    string
		Late      bool
		Lost      bool
	}
}

// trace queries the trace with the command line, and checks its chain.
func (g *gateway) trace(filters ...string) []record {
	g.t.Helper()
	return traceAs[record](g, filters...)
}

// traceAs is trace for records that are read as an R.
func traceAs[R any](g *gateway, filters ...string) (records []R) {
	g.t.Helper()
	g.output("trace", "verify")
	for line := range strings.Lines(g.output(append([]string{"trace", "--format", "jsonl"}, filters...)...)) {
		var r R
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			g.t.Fatalf("trace line %q: %v", line, err)
		}
		records = append(records, r)
	}
	return records
}

// keepsSecret fails the test if a file of the state directory, the log or a received message
// contains the secret.
func (g *gateway) keepsSecret(secret string, received [][]byte) {
	g.t.Helper()
	for _, msg := range received {
		if bytes.Contains(msg, []byte(secret)) {
			g.t.Errorf("a result contains the secret: %.300s", msg)
		}
	}
	if strings.Contains(g.log.String(), secret) {
		g.t.Error("the log contains the secret")
	}
	files := 0
	err := filepath.WalkDir(filepath.Join(g.dir, "state"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(p)
		if err == nil && bytes.Contains(text, []byte(secret)) {
			g.t.Errorf("%s contains the secret", p)
		}
		return err
	})
	if err != nil || files == 0 {
		g.t.Errorf("state directory: %d files, %v", files, err)
	}
}

const (
	mainDescription = "find where orders are lost"
	mainPrompt      = "Read the ten files and say which one explains the rise of failed payments."
	mainSummary     = "Orders are not lost: they wait in the outbox (docs/runbook.md). The rise comes from stock reservations that expire before capture, see logs/service.jsonl."
)

// The main job: an agent opens a branch, reads ten files of over 40,000 tokens
// in it and brings back a summary of a few.
func TestMainJob(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		dir, secret := t.TempDir(), fixtures.Secret()
		if err := fixtures.Write(dir, secret); err != nil {
			t.Fatal(err)
		}
		g := newGateway(t, fmt.Sprintf("upstreams:\n  files: {builtin: files, roots: [%q]}\nfolding: {max_budget: 131072}\n", dir))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)

		m := tool(t, c, ctx, "branch_create", jsonText(map[string]any{"description": mainDescription, "prompt": mainPrompt, "budget": 100000}))
		parent := []mcpclient.Message{m}
		b := own[created](t, m)
		if !strings.HasPrefix(b.BranchID, "br_") || b.BudgetAllocated != 100000 || b.Depth != 1 {
			t.Errorf("branch_create = %+v", b)
		}
		used, crossed := tokens(t, mainDescription+"\n"+mainPrompt), 0
		for i, name := range fixtures.Names {
			m := tool(t, c, ctx, "files__read_file", jsonText(map[string]any{"path": name, "branch_id": b.BranchID}))
			disk := read(t, filepath.Join(dir, name))
			got := parseResult(t, m).Content[0].Text
			if want := string(disk); i != 6 && got != want {
				t.Errorf("%s arrived with %d bytes, has %d on disk; they differ", name, len(got), len(want))
			} else if i == 6 {
				before, after, _ := strings.Cut(want, secret)
				if !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) {
					t.Errorf("%s lost more than its secret", name)
				}
			}
			n := resultTokens(t, m)
			crossed += n
			used += n + tokens(t, jsonText(map[string]any{"path": name}))
		}
		s := own[status](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": b.BranchID})))
		if s.Status != "active" || s.BudgetUsed != used || s.BudgetTotal != 100000 {
			t.Errorf("branch_status = %+v, want active and %d of 100000 used", s, used)
		}
		m = tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": mainSummary}))
		parent = append(parent, m)
		r := own[returned](t, m)
		if !r.Success || r.Message != mainSummary || r.TokensUsed != used {
			t.Errorf("branch_return = %+v, want success, the summary and tokens_used %d", r, used)
		}
		if crossed < 40000 {
			t.Errorf("%d tokens of files crossed, want over 40000", crossed)
		}
		received := 0
		for _, m := range parent {
			p := parseResult(t, m)
			received += tokens(t, p.Content[0].Text)
			if p.StructuredContent != nil {
				received += tokens(t, compact(t, p.StructuredContent))
			}
		}
		if received >= 500 {
			t.Errorf("the parent received %d tokens in both forms, want under 500", received)
		}
		t.Logf("%d tokens of files, tokens_used %d; the parent received %d tokens (text and structured content together), %.2f %%",
			crossed, r.TokensUsed, received, 100*float64(received)/float64(crossed))
		all := c.Received()
		g.stop()
		g.keepsSecret(secret, all)
		g.eachOnce(b.path(), len(fixtures.Names))
	})
}

// eachOnce checks the trace of a main job: every tools/call has one request
// and one response, which names it and is in the same context.
func (g *gateway) eachOnce(context string, reads int) {
	g.t.Helper()
	records := g.trace()
	requests := map[string]record{}
	ids := map[string]bool{}
	inBranch, answered := 0, map[string]int{}
	for i, r := range records {
		if ids[r.ID] || r.ID == "" {
			g.t.Errorf("record %d has id %q, which is not unique", i, r.ID)
		}
		ids[r.ID] = true
		switch r.Kind {
		case "mcp/request:tools/call":
			requests[r.ID] = r
			if r.Context == context {
				inBranch++
			}
		case "mcp/response:tools/call":
			if len(r.CorrelationID) == 0 || requests[r.CorrelationID[0]].ID == "" {
				g.t.Errorf("response %s answers %v, which is no request before it", r.ID, r.CorrelationID)
				continue
			}
			answered[r.CorrelationID[0]]++
			if want := requests[r.CorrelationID[0]].Context; r.Context != want {
				g.t.Errorf("response %s is in context %q, its request in %q", r.ID, r.Context, want)
			}
		}
	}
	if want := reads + 3; len(requests) != want || len(answered) != want {
		g.t.Errorf("the trace has %d requests and %d answered ones, want %d of both", len(requests), len(answered), want)
	}
	for id, n := range answered {
		if n != 1 {
			g.t.Errorf("request %s has %d responses", id, n)
		}
	}
	if inBranch < reads {
		g.t.Errorf("%d requests are in context %q, want the %d reads at least", inBranch, context, reads)
	}
	tree := g.trace("--context", context, "--tree")
	if !slices.ContainsFunc(tree, func(r record) bool { return r.Kind == "mcp/request:tools/call" }) {
		g.t.Errorf("trace --context %s --tree has no call", context)
	}
	g.t.Logf("the trace holds %d records, %d of them in the branch", len(records), len(tree))
}

// branch_id is foldgate's own argument: the upstream gets the rest, byte for byte.
func TestBranchIDStaysHere(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, both, -record, %q]}\n", fakeserverBin, file))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"d"}`))
		args := []string{
			`{"z":9007199254740993,"branch_id":"ID","a":1.0}`, `{"branch_id":"ID"}`,
			`{"branch_id":"ID","text":"\ud83d <b>&","n":-0.0}`, `{"deep":{"branch_id":"stays"},"branch_id":"ID"}`,
		}
		want := []string{`{"z":9007199254740993,"a":1.0}`, `{}`, `{"text":"\ud83d <b>&","n":-0.0}`, `{"deep":{"branch_id":"stays"}}`}
		for _, a := range args {
			tool(t, c, ctx, "fake__echo", strings.ReplaceAll(a, "ID", b.BranchID))
		}
		var got []string
		for _, line := range recordedMethod(t, file, "tools/call") {
			var m struct {
				Params struct{ Arguments json.RawMessage }
			}
			unmarshal(t, []byte(line), &m)
			got = append(got, string(m.Params.Arguments))
			if strings.Contains(line, b.BranchID) {
				t.Errorf("the upstream got the branch id: %s", line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("the upstream got the arguments\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		s := own[status](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": b.BranchID})))
		if s.BudgetUsed == 0 {
			t.Errorf("branch_status = %+v, want the calls charged", s)
		}
	})
}
