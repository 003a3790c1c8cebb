package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// heldUpstream has a tool that answers no call before goOn is closed.
func heldUpstream(goOn <-chan struct{}) fakeUpstream {
	return fakeUpstream{version: "2025-11-25", caps: `{"tools":{}}`, serve: func(ctx context.Context, _ *fakeLink, c *conn.Request) (wire.Message, error) {
		if c.Method == "tools/list" {
			return result(`{"tools":[{"name":"read","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`)
		}
		select {
		case <-goOn:
		case <-ctx.Done():
			return wire.Message{}, context.Cause(ctx)
		}
		return result(`{"content":[{"type":"text","text":"what alice read"}]}`)
	}}
}

// hostOf opens a session of a principal; it returns how to call a tool in it.
func (r *rig) hostOf(principal, id string, modern bool) func(name, args string) string {
	s := r.g.newSession(edge.Peer{ID: id, Principal: principal, Transport: "http", Modern: modern})
	r.t.Cleanup(func() { s.Close("test over") })
	n := 0
	return func(name, args string) string {
		n++
		m := wire.Message{ID: json.RawMessage(fmt.Sprint(n)), Method: "tools/call", Params: json.RawMessage(`{"name":"` + name + `","arguments":` + args + `}`)}
		m.Raw = m.Encode()
		rep := s.Begin(context.Background(), &edge.Exchange{Msg: m})()
		return string(rep.Result) + string(rep.Error)
	}
}

// running waits for the one batch and returns it.
func (r *rig) running() *batch {
	for {
		r.g.batches.mu.Lock()
		for _, b := range r.g.batches.all {
			r.g.batches.mu.Unlock()
			return b
		}
		r.g.batches.mu.Unlock()
		runtime.Gosched()
	}
}

// A batch that still runs is nobody else's: neither the handle of its answer nor
// what it has done shows, and asking for it changes nothing for its owner. With
// strict sessions that holds for the principal's other sessions, too.
func TestRunningBatchIsItsOwners(t *testing.T) {
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprint("strict ", strict), func(t *testing.T) {
			goOn := make(chan struct{})
			r := newRig(t, false, map[string]fakeUpstream{"up": heldUpstream(goOn)})
			if strict {
				r.g.cfg.Folding.SessionValidation = folding.ValidationStrict
				r.g.results.Close()
				var err error
				if r.g.results, err = results.Open(filepath.Join(t.TempDir(), "results.db"), results.Config{Quota: 1 << 20, TTL: time.Hour, Strict: true}); err != nil {
					t.Fatal(err)
				}
			}
			alice, elsewhere, bob := r.hostOf("alice", "ses_a", false), r.hostOf("alice", "ses_b", false), r.hostOf("bob", "ses_c", false)
			answer := make(chan string, 1)
			go func() { answer <- alice("branch_run", `{"tool":"up__read","each":[{},{}]}`) }()
			b := r.running()
			none := results.NewHandle()
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
			b.mu.Lock()
			b.detached = true // as after the time that hosts wait
			b.mu.Unlock()
			close(goOn)
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
	r := newRig(t, false, nil)
	b := &batch{
		g: r.g, rest: results.NewHandle(), principal: "local", in: runQuestion{Grep: "read", Steps: []runStep{{Tool: "read", Arguments: json.RawMessage(`{}`)}}},
		results: []stepResult{{text: "what was read", tokens: 3}},
	}
	b.shown = b.in.Steps
	over, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := b.compose(over)
	if want := "[1 call, 3 tokens read; all of it: branch_read " + b.rest + "]\n[the filter failed, the calls were made: grep: took too long"; err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("the answer = %q, %v; want %q", got, err, want)
	}
	s, err := r.g.results.Get(t.Context(), folding.Caller{Principal: "local"}, "", b.rest)
	if err != nil || !strings.Contains(s.Text, "what was read") {
		t.Errorf("the results = %q, %v", s.Text, err)
	}
}

// An answer that can't be stored, as on a full disk, can be fetched when there is
// room again; until then whoever asks is told what is wrong.
func TestAnswerThatCannotBeStored(t *testing.T) {
	r := newRig(t, false, nil)
	r.initialize()
	over := make(chan struct{})
	close(over)
	b := &batch{g: r.g, handle: results.NewHandle(), principal: r.s.Principal, session: r.s.ID, answer: "what was read", detached: true, done: over}
	if err := r.g.batches.add(b, false); err != nil {
		t.Fatal(err)
	}
	if err := r.g.results.Close(); err != nil {
		t.Fatal(err)
	}
	read := func() string { return r.tool("branch_read", `{"handle":"`+b.handle+`"}`) }
	if got := read(); !strings.Contains(got, "storage_failed") || !strings.Contains(got, "try again") {
		t.Errorf("without a store: %s", got)
	}
	var err error
	if r.g.results, err = results.Open(filepath.Join(t.TempDir(), "results.db"), results.Config{Quota: 1 << 20, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := read(); !strings.Contains(got, "what was read") {
			t.Errorf("with a store: %s", got)
		}
	}
}

// What a batch of tools with odd names brought can be read, and is booked to them.
func TestBatchOfToolsWithOddNames(t *testing.T) {
	const a, b = `two words/100%`, `tab\tand ü`
	r := newRig(t, false, map[string]fakeUpstream{"up": {version: "2025-11-25", caps: `{"tools":{}}`, serve: func(_ context.Context, _ *fakeLink, c *conn.Request) (wire.Message, error) {
		if c.Method == "tools/list" {
			return result(`{"tools":[{"name":"` + a + `","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"` + b + `","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`)
		}
		return result(`{"content":[{"type":"text","text":"what was read"}]}`)
	}}})
	r.initialize()
	r.ok("tools/list", `{}`)
	for _, steps := range []string{`{"tool":"up__` + a + `"}`, `{"tool":"up__` + a + `"},{"tool":"up__` + b + `"}`} {
		text := r.tool("branch_run", `{"steps":[`+steps+`]}`)
		handle := regexp.MustCompile("res_[0-9a-z]{26}").FindString(text)
		if got := r.tool("branch_read", `{"handle":"`+handle+`"}`); !strings.Contains(got, "what was read") {
			t.Errorf("a batch of %s: %s; read on: %s", steps, text, got)
		}
	}
	for made, want := range map[string]trace.Read{
		madeBy("up", "two words/100%"): {Server: "up", Tool: "two words/100%"}, madeBy("up", "read_file"): {Server: "up", Tool: "read_file"},
		madeBy("up", "a b") + " " + madeBy("up", "c"): {Tool: "branch_run"}, "": {Tool: "branch_run"},
	} {
		if got := readOf(results.Result{Tool: made}); got.Server != want.Server || got.Tool != want.Tool {
			t.Errorf("what %q made is booked to %q of %q, want %q of %q", made, got.Tool, got.Server, want.Tool, want.Server)
		}
	}
}

// A batch in a branch is paid by it, also where its answer is fetched later by
// somebody who does not say so.
func TestRunningBatchIsPaidByItsBranch(t *testing.T) {
	goOn := make(chan struct{})
	r := newRig(t, true, map[string]fakeUpstream{"up": heldUpstream(goOn)})
	host := r.hostOf("local", "", true)
	id, _ := rawjson.GetString([]byte(host("branch_create", `{"description":"d","session_id":"ses_x"}`)), "structuredContent", "branch_id")
	done := make(chan string, 1)
	go func() { done <- host("branch_run", `{"tool":"up__read","each":[{}],"branch_id":"`+id+`"}`) }()
	b := r.running()
	for b.place() == "" {
		runtime.Gosched()
	}
	c := &interceptor.Call{Origin: interceptor.Origin{Principal: "local"}, Target: interceptor.Target{Arguments: json.RawMessage(`{"handle":"` + b.handle + `"}`)}}
	placeRead(&inbound{s: r.s, ctx: t.Context(), ex: &edge.Exchange{}}, c)
	if c.Attribution.BranchID != id || c.Attribution.Source != interceptor.SourceResult {
		t.Errorf("the answer is paid by %q (%s), want the branch %s", c.Attribution.BranchID, c.Attribution.Source, id)
	}
	close(goOn)
	if got := <-done; !strings.Contains(got, "what alice read") {
		t.Errorf("the answer = %s", got)
	}
}

// Where there are several principals none has more than half of the batches.
func TestBatchPlacesAreShared(t *testing.T) {
	fill := func(bs *batches, principal string, shared bool) (n int) {
		for bs.add(&batch{handle: results.NewHandle(), principal: principal, done: make(chan struct{})}, shared) == nil {
			n++
		}
		return n
	}
	var alone, several batches
	if n := fill(&alone, "local", false); n != maxBatches {
		t.Errorf("one principal has %d batches, want %d", n, maxBatches)
	}
	if a, b := fill(&several, "alice", true), fill(&several, "bob", true); a != maxBatches/2 || b != maxBatches/2 {
		t.Errorf("two principals have %d and %d batches, want half each", a, b)
	}
	if n := fill(&several, "carol", true); n != 0 {
		t.Errorf("a third has %d more", n)
	}
}
