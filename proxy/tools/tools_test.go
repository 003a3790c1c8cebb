package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/wire"
)

// fixed is a configuration that is not reloaded.
func fixed(c config.Config) func() *config.Config { return func() *config.Config { return &c } }

// rules are loaded once for all tests.
var rules = sync.OnceValues(func() (*scrub.Scrubber, error) { return scrub.New(scrub.Options{}) })

// toolsFor are tools, and who calls them.
type toolsFor struct {
	*Tools
	from Requester
}

// newTools returns tools on a state directory of their own, which from calls.
// The configuration has one server, up.
func newTools(t *testing.T, from Requester, change func(*config.Config)) toolsFor {
	t.Helper()
	cfg := config.Default()
	cfg.Upstreams = map[string]*config.Upstream{"up": {Command: []string{"fake"}}}
	if change != nil {
		change(&cfg)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	c := counter(t)
	scrubber, err := rules()
	if err != nil {
		t.Fatal(err)
	}
	repo, err := folding.OpenSQLite(filepath.Join(t.TempDir(), "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	branches, err := folding.Open(t.Context(), cfg.Folding, folding.Options{Repository: repo, Count: c.Count, Log: log, Scrub: func(ctx context.Context, text string) (string, error) {
		clean, _, err := scrubber.Text(ctx, text)
		return clean, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	lifetime, end := context.WithCancel(context.Background())
	tools := New(lifetime, Options{
		Config: fixed(cfg), Branches: branches, Results: newStore(t, cfg.Folding.SessionValidation == folding.ValidationStrict), Counter: c,
		Programs: extract.NewPrograms(len(cfg.Principals)), Boundary: &interceptor.Boundary{Scrubber: scrubber, Policy: cfg.ScrubPolicy},
		Records: &interceptor.BranchRecords{}, Log: log,
	})
	t.Cleanup(func() {
		end()
		tools.Close()
		if err := errors.Join(branches.Close(context.Background()), tools.Results.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return toolsFor{tools, from}
}

// newStore opens an empty store of results.
func newStore(t *testing.T, strict bool) *results.Store {
	t.Helper()
	s, err := results.Open(filepath.Join(t.TempDir(), "results.db"), results.Config{Quota: 1 << 20, TTL: time.Hour, Strict: strict})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// host returns how a session of a principal calls own tools. Like the chain, it
// finds the branch of a call, and turns an error into a result.
func (t toolsFor) host(principal, session string) func(name, args string) string {
	return func(name, args string) string {
		c := &interceptor.Call{
			Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: principal}, Session: session},
			Target: interceptor.Target{Method: "tools/call", Name: name, Arguments: json.RawMessage(args), Params: json.RawMessage(`{"name":"` + name + `","arguments":` + args + `}`)},
		}
		t.Attribute(context.Background(), c)
		if id := c.Attribution.BranchID; id != "" && !c.Target.Control {
			b, err := t.Branches.Resolve(c.Caller(), id)
			if err != nil {
				return string(interceptor.FoldingRefusal(err).ToolResult(false))
			}
			c.Attribution.Branch, c.Attribution.Context = &b, b.Context
		}
		body, err := t.Call(context.Background(), &Request{c, t.from})
		var r *interceptor.Refusal
		if errors.As(err, &r) {
			return string(r.ToolResult(false))
		}
		return string(body)
	}
}

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
	names := []string{"branch_create", "branch_return", "branch_status", "branch_read", "branch_run"}
	if len(Definitions(folding.Config{}, false)) != len(names) {
		t.Fatalf("there are %d definitions, want %d", len(Definitions(folding.Config{}, false)), len(names))
	}
	for i, definition := range Definitions(folding.Config{}, false) {
		name := names[i]
		if !json.Valid(definition) {
			t.Errorf("the definition of %s is not JSON: %s", name, definition)
		}
		var d struct {
			Name        string
			InputSchema struct{ Type string }
			Meta        map[string]any `json:"_meta"`
		}
		if err := json.Unmarshal(definition, &d); err != nil || d.Name != name || d.InputSchema.Type != "object" || d.Meta["anthropic/alwaysLoad"] != true {
			t.Errorf("the definition of %s: %v, %+v", name, err, d)
		}
		if !Has(name) {
			t.Errorf("Has(%s) = false", name)
		}
		n := c.CountBytes(definition)
		t.Logf("%s: %d tokens", name, n)
		all = append(all, definition)
	}
	together := c.CountBytes(bytes.Join(all, []byte(",")))
	t.Logf("together: %d tokens, instructions %d", together, c.Count(Instructions))
	if together >= 700 {
		t.Errorf("the definitions have %d tokens, want under 700", together)
	}
	if n := c.Count(Instructions); n > 120 {
		t.Errorf("the instructions have %d tokens, want 120 at most", n)
	}
}

// A host that gives a call up after a minute is told in time that the batch
// goes on, and how to wait.
func TestBatchThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tools := New(t.Context(), Options{Counter: counter(t), Config: fixed(config.Default())})
		b := &batch{t: tools, handle: "res_x", done: make(chan struct{}), in: batchArguments{Steps: make([]step, 3)}}
		b.finished.Store(2)
		r := &Request{Call: &interceptor.Call{}}
		b.parent = r
		// await waits as branch_run does.
		await := func(ctx context.Context) ([]byte, error) {
			if running, err := b.wait(ctx, r); running != nil || err != nil {
				return running, err
			}
			return b.reply(ctx, r, 1000)
		}
		start := time.Now()
		res, err := await(t.Context())
		if err != nil || time.Since(start) != answerWithin {
			t.Fatalf("await = %v after %v, want an answer after %v", err, time.Since(start), answerWithin)
		}
		for _, want := range []string{"batch running", "2 of 3", "branch_read", "res_x"} {
			if !strings.Contains(string(res), want) {
				t.Errorf("the answer lacks %q: %s", want, res)
			}
		}
		if !b.detached.Load() {
			t.Error("the batch does not know that its host waits no longer")
		}
		time.AfterFunc(10*time.Second, func() {
			b.answer = "the answer"
			close(b.done)
		})
		res, err = await(t.Context())
		if err != nil || !strings.Contains(string(res), "the answer") || time.Since(start) != answerWithin+10*time.Second {
			t.Errorf("await = %s, %v, want the answer as soon as it is there", res, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancelled := errors.New("cancelled by the host")
		cancel(cancelled)
		b.done = make(chan struct{})
		if _, err := await(ctx); err != cancelled {
			t.Errorf("await of a host that cancels = %v", err)
		}
	})
}

// Near the end of a branch a read that fits is delivered. One that does not fit
// is told what would: the branch has more left than a read may take.
func TestReadNearTheEndOfABranch(t *testing.T) {
	tools := &Tools{Options: Options{Counter: counter(t), Config: fixed(config.Default())}, lifetime: t.Context()}
	text := strings.Repeat("a line of words\n", 40)
	read := func(text string) ([]byte, error) {
		p := &page{t: tools, c: &interceptor.Call{}, text: text, number: 1, of: &batch{handle: "res_x", kept: true}}
		return p.body(t.Context(), 55)
	}
	if _, err := read(text); err == nil || !strings.Contains(err.Error(), "a read may take 55 tokens") || !strings.Contains(err.Error(), "lines or grep") {
		t.Errorf("page of 55 tokens: %v", err)
	}
	if body, err := read(text[:64]); err != nil || !strings.Contains(string(body), "a line of words") {
		t.Errorf("what fits 55 tokens: %s, %v", body, err)
	}
}

func TestRunArguments(t *testing.T) {
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
		var in batchArguments
		if err := json.Unmarshal([]byte(tc.args), &in); err != nil {
			t.Fatal(err)
		}
		if err := in.check(2); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("check(%s) = %v, want %q", tc.args, err, tc.want)
		}
	}
	in := batchArguments{Tool: "a", Each: []json.RawMessage{[]byte(`{"x":1}`), nil}, Parallel: 99}
	if err := in.check(2); err != nil || len(in.Steps) != 2 || string(in.Steps[1].Arguments) != "{}" || in.Parallel != maxParallel || in.MaxTokens != answerTokens {
		t.Errorf("check filled in %+v, %v", in, err)
	}
}

// A page has at most the tokens asked for, its last line included, however tokens
// are scaled.
func TestPagesKeepTheirSize(t *testing.T) {
	text := strings.Repeat("a line of some words\n", 50_000)
	next := regexp.MustCompile(`max_tokens\D*(\d+)`) // the line about the next page says the size of this one
	for _, scale := range []float64{0.5, 1, 1.37, 3, 10} {
		c, err := counter(t).WithScale(scale)
		if err != nil {
			t.Fatal(err)
		}
		cfg := config.Default()
		cfg.Budget.Scale = scale
		tools := &Tools{Options: Options{Counter: c, Config: fixed(cfg)}, lifetime: t.Context()}
		for _, asked := range []int{1, 100, 350, 1000, 7000} {
			for _, of := range []*batch{nil, {handle: (&results.Store{}).NewHandle(), kept: true}} {
				for _, n := range []int{1, 2, 15} {
					call := &interceptor.Call{}
					body, err := tools.deliver(t.Context(), &page{t: tools, c: call, text: text, number: n, of: of}, asked)
					if err != nil {
						t.Fatalf("scale %v, page %d of %d tokens: %v", scale, n, asked, err)
					}
					m := next.FindSubmatch(body)
					if m == nil {
						t.Fatalf("scale %v, page %d of %d tokens names no next page", scale, n, asked)
					}
					size, err := strconv.Atoi(string(m[1]))
					if err != nil {
						t.Fatal(err)
					}
					if got := (interceptor.TokenMeter{Counter: c}).Result(&interceptor.Result{Body: body}); got > size || size < asked {
						t.Errorf("scale %v: page %d has %d tokens, asked for %d, want at most %d", scale, n, got, asked, size)
					}
					if most := max(asked, tools.scaled(leastTokens)); size > most {
						t.Errorf("scale %v: the size of a page is %d tokens, asked for %d, want at most %d", scale, size, asked, most)
					}
				}
			}
		}
	}
}

// A result whose tool the configuration no longer shows can't be read; of a
// batch every tool must be shown.
func TestMayRead(t *testing.T) {
	c := config.Default()
	c.Upstreams["files"].Tools.Deny = []string{"grep"}
	tools := &Tools{Options: Options{Config: fixed(c)}}
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
		if err := tools.mayRead(results.Result{Server: tc.server, Tool: tc.tool}); (err == nil) != tc.ok {
			t.Errorf("mayRead(%s, %s) = %v, want ok %v", tc.server, tc.tool, err, tc.ok)
		}
	}
}

// A stored result is booked to the tool that made it, even if the tool has an odd
// name. A batch of several tools is booked to branch_run.
func TestReadOfNamesTheSource(t *testing.T) {
	for made, want := range map[string]trace.Read{
		source("up", "two words/100%"): {Server: "up", Tool: "two words/100%"}, source("up", "read_file"): {Server: "up", Tool: "read_file"},
		source("up", "a b") + " " + source("up", "c"): {Tool: "branch_run"}, "": {Tool: "branch_run"},
	} {
		if got := readOf(results.Result{Tool: made}); got.Server != want.Server || got.Tool != want.Tool {
			t.Errorf("what %q made is booked to %q of %q, want %q of %q", made, got.Tool, got.Server, want.Tool, want.Server)
		}
	}
}

// A page far behind the end of a long text is not looked for once the call is cancelled.
func TestPageOfACancelledCall(t *testing.T) {
	tools := newTools(t, nil, nil)
	r := results.Result{Handle: tools.Results.NewHandle(), Principal: "local", Server: "up", Tool: "read", Text: strings.Repeat("a line\n", 100_000)}
	if err := tools.Results.Put(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &interceptor.Call{
		Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: "local"}},
		Target: interceptor.Target{Method: "tools/call", Name: "branch_read", Arguments: json.RawMessage(`{"handle":"` + r.Handle + `","page":1000000}`)},
	}
	if _, err := tools.Call(ctx, &Request{Call: c}); err == nil || !strings.Contains(err.Error(), "page: took too long: 0 pages") {
		t.Errorf("the call ends with %v", err)
	}
}

// What a message cost the limits can be given back.
func TestPayGivesBack(t *testing.T) {
	one := limits.Limit{Name: "l", Per: limits.PerAll, Tokens: 100}
	if err := one.Window.UnmarshalText([]byte("1d")); err != nil {
		t.Fatal(err)
	}
	store, err := limits.OpenSQLite(filepath.Join(t.TempDir(), "budgets.db"), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	all, err := limits.New([]limits.Limit{one}, store, limits.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close(t.Context())
	l := &interceptor.Limits{Limits: all, Stateless: wire.VersionModern}
	tools := New(t.Context(), Options{Config: fixed(config.Default()), Limits: func() *interceptor.Limits { return l }})
	for range 3 { // two would be too many
		c := &interceptor.Call{}
		unpaid, giveBack := tools.pay(t.Context(), c, false, 60)
		if unpaid != "" || c.Outcome.Paid != 60 {
			t.Fatalf("%q, paid %d", unpaid, c.Outcome.Paid)
		}
		if giveBack(); c.Outcome.Paid != 0 {
			t.Errorf("paid %d, want none", c.Outcome.Paid)
		}
	}
}
