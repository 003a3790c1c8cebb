package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/upstream"
)

func counter(t *testing.T) *budget.Counter {
	t.Helper()
	c, err := budget.NewCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every session pays for the own tools and the instructions.
func TestOwnToolsAreSmall(t *testing.T) {
	c, all := counter(t), [][]byte{}
	for _, tool := range ownTools {
		if !json.Valid(tool.definition) {
			t.Errorf("the definition of %s is not JSON: %s", tool.name, tool.definition)
		}
		var d struct {
			Name        string
			InputSchema struct{ Type string }
			Meta        map[string]any `json:"_meta"`
		}
		if err := json.Unmarshal(tool.definition, &d); err != nil || d.Name != tool.name || d.InputSchema.Type != "object" || d.Meta["anthropic/alwaysLoad"] != true {
			t.Errorf("the definition of %s: %v, %+v", tool.name, err, d)
		}
		n := c.CountBytes(tool.definition)
		t.Logf("%s: %d tokens", tool.name, n)
		all = append(all, tool.definition)
	}
	together := c.CountBytes(bytes.Join(all, []byte(",")))
	t.Logf("together: %d tokens, instructions %d", together, c.Count(ownInstructions))
	if together >= 700 {
		t.Errorf("the definitions have %d tokens, want under 700", together)
	}
	if n := c.Count(ownInstructions); n > 120 {
		t.Errorf("the instructions have %d tokens, want 120 at most", n)
	}
}

// A host that gives a call up after a minute is told in time that the batch
// goes on, and how to wait.
func TestBatchThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gateway{counter: counter(t), cfg: config.Default()}
		b := &batch{g: g, handle: "res_x", done: make(chan struct{}), in: runQuestion{Steps: make([]runStep, 3)}, finished: 2}
		fl := &inbound{ex: &edge.Exchange{}, s: &session{gw: g}}
		start := time.Now()
		res, err := b.await(t.Context(), fl, &interceptor.Call{}, 1000)
		if err != nil || time.Since(start) != answerWithin {
			t.Fatalf("await = %v after %v, want an answer after %v", err, time.Since(start), answerWithin)
		}
		for _, want := range []string{"batch running", "2 of 3", "branch_read", "res_x"} {
			if !strings.Contains(string(res.Body), want) {
				t.Errorf("the answer lacks %q: %s", want, res.Body)
			}
		}
		if !b.detached {
			t.Error("the batch does not know that its host waits no longer")
		}
		time.AfterFunc(10*time.Second, func() {
			b.answer = "the answer"
			close(b.done)
		})
		res, err = b.await(t.Context(), fl, &interceptor.Call{}, 1000)
		if err != nil || !strings.Contains(string(res.Body), "the answer") || time.Since(start) != answerWithin+10*time.Second {
			t.Errorf("await = %v, %v, want the answer as soon as it is there", res, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errCancelledByHost)
		b.done = make(chan struct{})
		if _, err := b.await(ctx, fl, &interceptor.Call{}, 1000); err != errCancelledByHost {
			t.Errorf("await of a host that cancels = %v", err)
		}
	})
}

// Near the end of a branch a read that fits is delivered, and one that does not
// is told what would: the branch has more left than a read may take.
func TestReadNearTheEndOfABranch(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	text := strings.Repeat("a line of words\n", 40)
	if _, err := r.g.page(&inbound{}, text, "res_x", 1, 55); err == nil || !strings.Contains(err.Error(), "a read may take 55 tokens") || !strings.Contains(err.Error(), "lines or grep") {
		t.Errorf("page of 55 tokens: %v", err)
	}
	if res, err := r.g.page(&inbound{}, text[:64], "res_x", 1, 55); err != nil || !strings.Contains(string(res.Body), "a line of words") {
		t.Errorf("what fits 55 tokens: %v", err)
	}
}

func TestRunQuestions(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{`{}`, "steps: is missing"},
		{`{"tool":"a"}`, "each: "},
		{`{"each":[{}]}`, "each: "},
		{`{"tool":"a","each":[{}],"steps":[{"tool":"b"}]}`, "steps: give either"},
		{`{"tool":"a","each":[1]}`, "each: the arguments of call 1 are no object"},
		{`{"steps":[{"tool":"a"},{"tool":"a","arguments":[]}]}`, "steps: the arguments of call 2 are no object"},
		{`{"tool":"a","each":[{},{},{}]}`, "the limit is 2"},
		{`{"tool":"a","each":[{}],"grep":"("}`, "grep: "},
		{`{"tool":"a","each":[{}],"jq":".["}`, "jq: "},
		{`{"tool":"a","each":[{}],"jq":".","grep":"a"}`, "use one of them"},
		{`{"tool":"a","each":[{}],"parallel":-1}`, "negative"},
	} {
		var in runQuestion
		if err := json.Unmarshal([]byte(tc.args), &in); err != nil {
			t.Fatal(err)
		}
		if err := in.check(2); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("check(%s) = %v, want %q", tc.args, err, tc.want)
		}
	}
	in := runQuestion{Tool: "a", Each: []json.RawMessage{[]byte(`{"x":1}`), nil}, Parallel: 99}
	if err := in.check(2); err != nil || len(in.Steps) != 2 || string(in.Steps[1].Arguments) != "{}" || in.Parallel != maxAtOnce || in.MaxTokens != answerTokens {
		t.Errorf("check filled in %+v, %v", in, err)
	}
}

// A page has at most the tokens asked for, its last line included, whatever a
// token is taken for.
func TestPagesKeepTheirSize(t *testing.T) {
	text := strings.Repeat("a line of some words\n", 50_000)
	for _, scale := range []float64{0.5, 1, 1.37, 3, 10} {
		c, err := counter(t).WithScale(scale)
		if err != nil {
			t.Fatal(err)
		}
		cfg := config.Default()
		cfg.Budget.Scale = scale
		g := &Gateway{counter: c, cfg: cfg}
		for _, asked := range []int{1, 100, 350, 1000, 7000} {
			for _, handle := range []string{"", results.NewHandle()} {
				for _, n := range []int{1, 2, 15} {
					size := g.pageSize(&interceptor.Call{}, asked)
					res, err := g.page(&inbound{}, text, handle, n, size)
					if err != nil {
						t.Fatalf("scale %v, page %d of %d tokens: %v", scale, n, asked, err)
					}
					if got := (interceptor.TokenMeter{Counter: c}).Result(res); got > size || size < asked {
						t.Errorf("scale %v: page %d has %d tokens, asked for %d, want at most %d", scale, n, got, asked, size)
					}
				}
			}
		}
	}
}

// Who pays is found by the names of arguments, so that another spelling of one,
// which a decoder would take as well, is no way around a budget.
func TestArgumentsAsTheSchemaSpellsThem(t *testing.T) {
	r := newRig(t, false, nil)
	r.initialize()
	for _, tc := range []struct{ tool, args, want string }{
		{"branch_read", `{"Handle":"res_x"}`, `branch_read takes no "Handle"; its arguments are handle, lines`},
		{"branch_read", `{"handle":"res_x","BRANCH_ID":"br_x"}`, `branch_read takes no "BRANCH_ID"`},
		{"branch_run", `{"Branch_id":"br_x","tool":"a","each":[{"Tool":1}]}`, `branch_run takes no "Branch_id"`},
		{"branch_run", `{"steps":[{"Tool":"a"}]}`, `steps[0] takes no "Tool"`},
		{"branch_return", `{"Branch_ID":"br_x","message":"m"}`, `branch_return takes no "Branch_ID"`},
		{"branch_create", `{"description":"d","parent_Branch_id":"br_x"}`, `branch_create takes no "parent_Branch_id"`},
	} {
		got, _ := rawjson.GetString([]byte(r.tool(tc.tool, tc.args)), "structuredContent", "error", "message")
		if !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s %s = %q, want %q", tc.tool, tc.args, got, tc.want)
		}
	}
}

// A result whose tool the configuration no longer shows can't be read; of a
// batch every tool must be shown.
func TestMayRead(t *testing.T) {
	c := config.Default()
	c.Upstreams["files"].Tools.Deny = []string{"grep"}
	g := &Gateway{byKey: map[string]*upstream.Server{"files": {Key: "files", Config: c.Upstreams["files"]}}}
	for _, tc := range []struct {
		server, tool string
		ok           bool
	}{
		{"files", "read_file", true},
		{"files", "grep", false},
		{"gone", "read_file", false},
		{"", "files/read_file", true},
		{"", "files/read_file files/grep", false},
		{"", "", true}, // a batch of which no call was made
	} {
		if err := g.mayRead(results.Result{Server: tc.server, Tool: tc.tool}); (err == nil) != tc.ok {
			t.Errorf("mayRead(%s, %s) = %v, want ok %v", tc.server, tc.tool, err, tc.ok)
		}
	}
}
