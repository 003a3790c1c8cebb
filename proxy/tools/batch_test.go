package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/wire"
)

// noTools is what a Requester that only makes calls needs beside CallTool.
type noTools struct{}

func (noTools) FindTools(context.Context, string, string, int) ([]json.RawMessage, string, error) {
	return nil, "", nil
}

func (noTools) Callable(context.Context) []json.RawMessage { return nil }

func (noTools) Notify(wire.Message) {}

func (noTools) Lifetime() context.Context { return context.Background() }

// held is a Requester that answers no call until its channel is closed.
type held struct {
	noTools
	open chan struct{}
}

func hold() held { return held{open: make(chan struct{})} }

func (h held) CallTool(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	c.Target.Server, c.Target.Name = "up", "read"
	select {
	case <-h.open:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return &interceptor.Result{Body: json.RawMessage(`{"content":[{"type":"text","text":"what alice read"}]}`)}, nil
}

// answers is a Requester that answers each call with the text.
type answers struct {
	noTools
	text string
}

func (a answers) CallTool(_ context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	c.Target.Server, c.Target.Name = "up", "read"
	return &interceptor.Result{Body: json.RawMessage(`{"content":[{"type":"text","text":` + string(rawjson.Quote(a.text)) + `}]}`)}, nil
}

// fails is a Requester that answers the calls with these errors, one after the other.
type fails struct {
	noTools
	texts []string
	next  atomic.Int64
}

func (f *fails) CallTool(_ context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	c.Target.Server, c.Target.Name = "up", "read"
	text := f.texts[int(f.next.Add(1)-1)%len(f.texts)]
	return &interceptor.Result{Body: json.RawMessage(`{"isError":true,"content":[{"type":"text","text":` + string(rawjson.Quote(text)) + `}]}`)}, nil
}

// A failed call costs its caller at most 50 tokens, however its error looks: these have the words that
// say what failed, and the handle of the rest if there is more.
func TestFailedCallIsCheap(t *testing.T) {
	frames := func(n int, line string) string { return strings.Repeat(line+"\n", n) }
	path := "/home/ada/" + strings.Repeat("a-directory/of_some/", 8) + "pay.go"
	errs := []struct{ text, says string }{
		{"gone", "gone"},
		{"ENOENT: no such file or directory, open '" + path + "'", "pay.go'"},
		{"Traceback (most recent call last):\n" + frames(20, `  File "/srv/app/orders.py", line 12, in load`) + "ValueError: no order 17", "ValueError: no order 17"},
		{"Checking...\n" + frames(30, "checked a package") + "error TS2304: Cannot find name 'pay'.\n" + frames(30, "skipped a package"), "TS2304"},
		{"TypeError: x is not a function\n" + frames(40, "    at Object.<anonymous> (/srv/node_modules/lib/index.js:10:15)"), "x is not a function"},
		{strings.Repeat("very ", 900) + "long", "very long"},
		{strings.Repeat("試験に失敗しました。", 100), "試験"},
		{strings.Repeat("x", 5000), "xxx"},
		{frames(200, "line"), "line"},
		{"  \n ", "no text"},
	}
	router := &fails{}
	tools := newTools(t, router, func(c *config.Config) { c.Folding.MaxBranchesPerMinute = 1000 })
	host := tools.host("local", "ses_test")
	for i, e := range errs {
		for calls := 1; calls <= 4; calls++ {
			// The calls fail alike, then each in another way.
			for other := range 2 {
				texts := []string{e.text}
				for j := 1; j < calls && other == 1; j++ {
					texts = append(texts, errs[(i+j)%len(errs)].text)
				}
				router.texts = texts
				router.next.Store(0)
				got := host("branch_run", `{"tool":"up__read","parallel":1,"each":[{}`+strings.Repeat(",{}", calls-1)+`]}`)
				answer, _ := (&interceptor.Result{Body: json.RawMessage(got)}).Text()
				if n := counter(t).Count(answer); n > faultTokens*len(texts) || !strings.Contains(answer, e.says) {
					t.Errorf("%d calls that fail with %.40q answer with %d tokens: %s", calls, e.text, n, answer)
				}
				handle := regexp.MustCompile(`branch_read (res_[0-9a-z]+)`).FindStringSubmatch(answer)
				if handle == nil {
					if clean := strings.Join(strings.Fields(e.text), " "); !strings.Contains(answer, clean) {
						t.Errorf("the answer leaves out a part of %.40q, and names no rest: %s", e.text, answer)
					}
					continue
				}
				rest := host("branch_read", `{"handle":"`+handle[1]+`","lines":"1-","max_tokens":8000}`)
				if whole := strings.Trim(string(rawjson.Quote(strings.TrimSpace(e.text))), `"`); !strings.Contains(rest, whole) {
					t.Errorf("the rest of %.40q is %.300s", e.text, rest)
				}
			}
		}
	}
}

// refuses refuses every call.
type refuses struct {
	noTools
	with interceptor.Refusal
}

func (r refuses) CallTool(context.Context, *interceptor.Call) (*interceptor.Result, error) {
	return nil, &r.with
}

// A refusal that is too long says what matters: by a limit, until when it holds; of an unknown tool, which one is meant.
func TestRefusedCallSaysWhatMatters(t *testing.T) {
	for says, refusal := range map[string]interceptor.Refusal{
		"limit day of data-engineering has 0 of 2000 calls left until 2026-11-30T00:00:00Z": {Reason: "resource_limit", Code: "limit_exceeded", Status: 429,
			Message: "limit day of data-engineering has 0 of 2000 calls left until 2026-11-30T00:00:00Z: the call was not made; go on with what you have, or try again after that time"},
		"files__search_files? find_tools finds tools": {Reason: "invalid_request", Code: "unknown_tool", Status: 404,
			Message: "Unknown tool: files__nope (call tools/list for the tools there are; did you mean files__grep or files__read_file or files__search_files? find_tools finds tools by what they do)"},
	} {
		host := newTools(t, refuses{with: refusal}, nil).host("local", "ses_test")
		got := host("branch_run", `{"tool":"up__read","each":[{},{}]}`)
		answer, _ := (&interceptor.Result{Body: json.RawMessage(got)}).Text()
		if n := counter(t).Count(answer); n > 2*faultTokens || !strings.Contains(answer, says) {
			t.Errorf("%d tokens: %s", n, answer)
		}
	}
}

// running waits for the one batch and returns it.
func (t *Tools) running() *batch {
	for {
		t.mu.Lock()
		for _, b := range t.batches {
			t.mu.Unlock()
			return b
		}
		t.mu.Unlock()
		runtime.Gosched()
	}
}

// batchOf returns a batch of a principal, as start makes it.
func (t *Tools) batchOf(principal, session string) *batch {
	return &batch{
		t: t, handle: (&results.Store{}).NewHandle(), rest: (&results.Store{}).NewHandle(), done: make(chan struct{}),
		parent: &Request{Call: &interceptor.Call{Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: principal}, Session: session}}},
	}
}

// A batch that still runs is only its owner's: neither the handle of its answer
// nor what it has done shows to others, and asking for it changes nothing for its
// owner. With strict sessions that holds for the principal's other sessions, too.
func TestRunningBatchIsItsOwners(t *testing.T) {
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprint("strict ", strict), func(t *testing.T) {
			goOn := hold()
			tools := newTools(t, goOn, func(c *config.Config) {
				if strict {
					c.Folding.SessionValidation = folding.ValidationStrict
				}
			})
			alice, elsewhere, bob := tools.host("alice", "ses_a"), tools.host("alice", "ses_b"), tools.host("bob", "ses_c")
			answer := make(chan string, 1)
			go func() { answer <- alice("branch_run", `{"tool":"up__read","each":[{},{}]}`) }()
			b := tools.running()
			none := (&results.Store{}).NewHandle()
			others := map[string]func(string, string) string{"bob": bob}
			if strict {
				others["another session"] = elsewhere
			}
			unknown := func(when string) {
				t.Helper()
				for who, other := range others {
					theirs, nobodys := other("branch_read", `{"handle":"`+b.handle+`"}`), other("branch_read", `{"handle":"`+none+`"}`)
					if !strings.Contains(theirs, "result_not_found") || strings.ReplaceAll(theirs, b.handle, none) != nobodys {
						t.Errorf("%s, %s reads %s, of an unknown handle %s", when, who, theirs, nobodys)
					}
				}
			}
			unknown("while it runs")
			b.detached.Store(true) // as after the time that hosts wait
			close(goOn.open)
			<-b.done
			if got := <-answer; !strings.Contains(got, "what alice read") {
				t.Fatalf("alice reads %s", got)
			}
			unknown("when it is over")
			if got := alice("branch_read", `{"handle":"`+b.handle+`"}`); !strings.Contains(got, "what alice read") {
				t.Errorf("alice reads of the answer kept for her %s", got)
			}
		})
	}
}

// A filter that takes too long takes nothing with it: the answer says so, and the
// results can be read.
func TestFilterThatTakesTooLong(t *testing.T) {
	tools := newTools(t, nil, nil)
	b := tools.batchOf("local", "")
	b.in = batchArguments{Grep: "read", Steps: []step{{Tool: "read", Arguments: json.RawMessage(`{}`)}}}
	b.shown = b.in.Steps
	b.results = []stepResult{{text: "what was read", tokens: 3}}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := b.compose(over)
	if want := "[1 call, 3 tokens read; all of it: branch_read " + b.rest + "]\n[the filter failed, the calls were made: grep: took too long"; err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("the answer = %q, %v; want %q", got, err, want)
	}
	s, err := tools.Results.Get(t.Context(), folding.Caller{Principal: "local"}, "", b.rest)
	if err != nil || !strings.Contains(s.Text, "what was read") {
		t.Errorf("the results = %q, %v", s.Text, err)
	}
}

// An answer that can't be stored, as on a full disk, can be fetched when there is
// room again. Until then a read of it says what is wrong.
func TestAnswerThatCannotBeStored(t *testing.T) {
	tools := newTools(t, nil, nil)
	b := tools.batchOf("local", "ses_test")
	b.answer = "what was read"
	b.detached.Store(true)
	close(b.done)
	if err := tools.add(b); err != nil {
		t.Fatal(err)
	}
	if err := tools.Results.Close(); err != nil {
		t.Fatal(err)
	}
	host := tools.host("local", "ses_test")
	read := func() string { return host("branch_read", `{"handle":"`+b.handle+`"}`) }
	if got := read(); !strings.Contains(got, "storage_failed") || !strings.Contains(got, "try again") {
		t.Errorf("without a store: %s", got)
	}
	tools.Results = newStore(t, false)
	for range 2 {
		if got := read(); !strings.Contains(got, "what was read") {
			t.Errorf("with a store: %s", got)
		}
	}
}

// A batch in a branch is paid by it, also if its answer is fetched later by a call
// that does not say so.
func TestRunningBatchIsPaidByItsBranch(t *testing.T) {
	goOn := hold()
	tools := newTools(t, goOn, nil)
	host := tools.host("local", "")
	id, _ := rawjson.GetString([]byte(host("branch_create", `{"description":"d","session_id":"ses_x"}`)), "structuredContent", "branch_id")
	done := make(chan string, 1)
	go func() { done <- host("branch_run", `{"tool":"up__read","each":[{}],"branch_id":"`+id+`"}`) }()
	b := tools.running()
	for b.context() == "" {
		runtime.Gosched()
	}
	c := &interceptor.Call{Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: "local"}}, Target: interceptor.Target{Name: "branch_read", Arguments: json.RawMessage(`{"handle":"` + b.handle + `"}`)}}
	tools.Attribute(t.Context(), c)
	if c.Attribution.BranchID != id || c.Attribution.Source != interceptor.SourceResult {
		t.Errorf("the answer is paid by %q (%s), want the branch %s", c.Attribution.BranchID, c.Attribution.Source, id)
	}
	close(goOn.open)
	if got := <-done; !strings.Contains(got, "what alice read") {
		t.Errorf("the answer = %s", got)
	}
}

// If there are several principals, none has more than half of the batches.
func TestBatchPlacesAreShared(t *testing.T) {
	with := func(principals ...string) *Tools {
		cfg := config.Default()
		cfg.Principals = map[string]*config.Principal{}
		for _, p := range principals {
			cfg.Principals[p] = &config.Principal{}
		}
		return New(t.Context(), Options{Config: fixed(cfg)})
	}
	fill := func(tools *Tools, principal string) (n int) {
		for tools.add(tools.batchOf(principal, "")) == nil {
			n++
		}
		return n
	}
	alone, several := with(), with("alice", "bob", "carol")
	if n := fill(alone, "local"); n != maxBatches {
		t.Errorf("one principal has %d batches, want %d", n, maxBatches)
	}
	if a, b := fill(several, "alice"), fill(several, "bob"); a != maxBatches/2 || b != maxBatches/2 {
		t.Errorf("two principals have %d and %d batches, want half each", a, b)
	}
	if n := fill(several, "carol"); n != 0 {
		t.Errorf("a third has %d more", n)
	}
}

// An answer that does not fit is stored before its first page is delivered, so that the next pages
// can be read. If it can't be stored, the host is not sent to pages that there are not.
func TestLongAnswerCanBeReadOn(t *testing.T) {
	long := answers{text: strings.Repeat("a line of words\n", 400)}
	tools := newTools(t, long, nil)
	host := tools.host("local", "ses_test")
	const run = `{"tool":"up__read","each":[{}],"grep":"line","max_tokens":200}`
	first := host("branch_run", run)
	handle := regexp.MustCompile(`branch_read {\\"handle\\":\\"(res_[0-9a-z]+)`).FindStringSubmatch(first)
	if handle == nil {
		t.Fatalf("the first page names no other: %s", first)
	}
	if got := host("branch_read", `{"handle":"`+handle[1]+`","page":2,"max_tokens":200}`); !strings.Contains(got, "a line of words") {
		t.Errorf("the second page = %s", got)
	}
	if err := tools.Results.Close(); err != nil {
		t.Fatal(err)
	}
	if got := host("branch_run", run); !strings.Contains(got, "storage_failed") || !strings.Contains(got, "does not fit and could not be stored") {
		t.Errorf("without a store: %s", got)
	}
	tools.Results = newStore(t, false)
}

// A host that cancels a branch_run is no reason to call it refused. The batch returns its branch, and
// keeps and stores nothing: nobody has a handle.
func TestCancelledBatch(t *testing.T) {
	tools := newTools(t, hold(), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled := errors.New("cancelled by the host")
	var b *batch
	go func() {
		b = tools.running()
		for begun := false; !begun; runtime.Gosched() {
			b.mu.Lock()
			begun = b.branch.ID != ""
			b.mu.Unlock()
		}
		cancel(cancelled)
	}()
	c := &interceptor.Call{
		Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: "local"}},
		Target: interceptor.Target{Method: "tools/call", Name: "branch_run", Arguments: json.RawMessage(`{"tool":"up__read","each":[{}]}`)},
	}
	if _, err := tools.Call(ctx, &Request{c, tools.from}); err != cancelled || c.Outcome.Decision != "" {
		t.Errorf("the call ends with %v, decision %q; want %v alone", err, c.Outcome.Decision, cancelled)
	}
	<-b.done
	if tools.batch(c.Caller(), b.handle) != nil || b.answer != "" {
		t.Errorf("the batch is kept, with the answer %q", b.answer)
	}
	if path, err := tools.Results.Context(t.Context(), c.Caller(), b.rest); !errors.Is(err, results.ErrUnknown) {
		t.Errorf("its results are stored for %q, %v", path, err)
	}
	if _, err := tools.Branches.Resolve(b.caller(), b.branch.ID); !errors.Is(err, folding.ErrNotActive) {
		t.Errorf("its branch is open: %v", err)
	}
}

// A batch is forgotten if the host cancels it just after the last call.
func TestBatchCancelledAtItsEnd(t *testing.T) {
	tools := newTools(t, nil, nil)
	b := tools.batchOf("local", "")
	b.cancel = func(error) {}
	if err := tools.add(b); err != nil {
		t.Fatal(err)
	}
	b.end()
	b.abandon(context.Canceled)
	if tools.batch(folding.Caller{Principal: "local"}, b.handle) != nil {
		t.Error("the batch is kept")
	}
}

// An answer can be fetched for a while. Then it leaves the memory, also if no batch follows.
func TestAnswersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tools := New(t.Context(), Options{Config: fixed(config.Default())})
		b := tools.batchOf("local", "")
		if err := tools.add(b); err != nil {
			t.Fatal(err)
		}
		b.end()
		start, caller := time.Now(), folding.Caller{Principal: "local"}
		for _, tc := range []struct {
			age  time.Duration
			want *batch
		}{{answerKept - time.Minute, b}, {answerKept + time.Minute, nil}} {
			time.Sleep(time.Until(start.Add(tc.age)))
			synctest.Wait()
			if got := tools.batch(caller, b.handle); got != tc.want {
				t.Errorf("after %v the batch is %v, want %v", tc.age, got, tc.want)
			}
		}
		if len(tools.batches) != 0 {
			t.Errorf("%d batches are kept, want none", len(tools.batches))
		}
		if err := tools.add(tools.batchOf("local", "")); err != nil || len(tools.batches) != 1 {
			t.Errorf("there are %d batches, %v, want the new one", len(tools.batches), err)
		}
	})
}
