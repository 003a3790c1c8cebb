package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bench is an engine with a clock that the test moves.
type bench struct {
	t     *testing.T
	e     *Engine
	rules *Rules
	path  string // of the database
	now   time.Time
	n     int // of the trace records
}

var all = []Evidence{Explicit, Native, Join, Session}

func spec(change func(*Spec)) Spec {
	s := Spec{
		Name: "signals", TTL: time.Hour, Evidence: all,
		Tools: []ToolSpec{
			{Role: RoleOpen, Server: "up", Tool: "find", Capture: map[string]string{"ids": "$.structuredContent.ids[*]"}},
			{Role: RoleLink, Server: "up", Tool: "use", Step: "activation", Join: map[string]string{"ids": "$.arguments.id"},
				StepKey: []string{"$.arguments.id", "$.arguments.platform"}},
			{Role: RoleLink, Server: "up", Tool: "report", StepKey: []string{"$.arguments.id"}},
			{Role: RoleStatus, Server: "up", Tool: "ask", Join: map[string]string{"ids": "$.arguments.id"}},
			{Role: RoleClose, Server: "up", Tool: "end"},
		},
	}
	if change != nil {
		change(&s)
	}
	return s
}

func newBench(t *testing.T, change func(*Spec), more ...Spec) *bench {
	t.Helper()
	rules, faults := Compile(append([]Spec{spec(change)}, more...))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	b := &bench{t: t, rules: rules, now: time.Unix(1_800_000_000, 0), path: filepath.Join(t.TempDir(), "workflows.db")}
	e, err := Open(b.path, func() time.Time { return b.now }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	b.e = e
	return b
}

// try makes a call from its plan to its end. result "" means that it failed.
func (b *bench) try(r Request, tool, arguments, result string) (*Step, error) {
	ctx := context.Background()
	if r.Rule == nil {
		r.Rule = b.rules.Find("up", tool)
	}
	if r.Principal == "" {
		r.Principal, r.Session = "local", "s1"
	}
	r.Arguments = json.RawMessage(arguments)
	s, err := b.e.Plan(ctx, r)
	if err != nil {
		return nil, err
	}
	b.n++
	if err := b.e.Begin(ctx, s, fmt.Sprintf("req%d", b.n), fmt.Sprintf("rec%d", b.n)); err != nil {
		return nil, err
	}
	o := Outcome{Status: Failed}
	if result != "" {
		o = Outcome{Status: Completed, Result: json.RawMessage(result)}
	}
	return s, b.e.End(ctx, s, o)
}

func (b *bench) call(r Request, tool, arguments, result string) *Step {
	b.t.Helper()
	s, err := b.try(r, tool, arguments, result)
	if err != nil {
		b.t.Fatalf("%s %s: %v", tool, arguments, err)
	}
	b.now = b.now.Add(time.Second)
	return s
}

// open starts a workflow whose result held ids.
func (b *bench) open(ids string) *Step {
	b.t.Helper()
	return b.call(Request{}, "find", `{}`, `{"structuredContent":{"ids":`+ids+`}}`)
}

// view returns the parts of a step that tests compare.
func view(s *Step) string {
	return fmt.Sprintf("%s %s %d %s %s %t", s.Path, s.Name, s.Attempt, s.Status, s.Evidence, s.Ambiguous)
}

func TestSteps(t *testing.T) {
	b := newBench(t, nil)
	a := b.open(`["x","y"]`)
	if want := a.ID + " find 1 completed none false"; view(a) != want || !ValidID(a.ID) {
		t.Fatalf("open = %s, want %s", view(a), want)
	}
	x := b.call(Request{ID: a.ID}, "use", `{"id":"x","platform":"p"}`, `{}`)
	y := b.call(Request{ID: a.ID}, "use", `{"id":"y","platform":"p"}`, "")
	for _, tc := range []struct{ name, handle, tool, args, want string }{
		{"the same key again", a.ID, "use", `{"platform":"p","id":"x"}`, x.Path + " activation 2 completed explicit false"},
		{"by its own handle", x.ID, "use", `{"platform":"p","id":"x"}`, x.Path + " activation 3 completed explicit false"},
		{"by a sibling's handle", y.ID, "use", `{"platform":"p","id":"x"}`, x.Path + " activation 4 completed explicit false"},
		{"by nothing but a value", "", "use", `{"platform":"p","id":"x"}`, x.Path + " activation 5 completed join false"},
		{"after a failure", a.ID, "use", `{"platform":"p","id":"y"}`, y.Path + " activation 2 completed explicit false"},
		{"status of a step", x.ID, "ask", `{}`, x.Path + " activation 5 completed explicit false"},
		{"status by the root and a value", a.ID, "ask", `{"id":"y"}`, y.Path + " activation 2 completed explicit false"},
		{"status of the whole", a.ID, "ask", `{}`, a.Path + " find 1 completed explicit false"},
		{"status by a value", "", "ask", `{"id":"y"}`, y.Path + " activation 2 completed join false"},
		{"opened again by a step", x.ID, "find", `{}`, a.Path + " find 2 completed explicit false"},
		{"in the session", "", "ask", `{"id":"z"}`, a.Path + " find 2 completed session false"},
	} {
		if got := view(b.call(Request{ID: tc.handle}, tc.tool, tc.args, `{}`)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	below := b.call(Request{ID: x.ID}, "report", `{"id":1}`, `{}`)
	beside := b.call(Request{ID: below.ID}, "use", `{"id":"w"}`, `{}`)
	if below.Path != x.Path+"/"+below.ID || beside.Path != a.Path+"/"+beside.ID {
		t.Errorf("another step = %s, the first kind again = %s; want one below %s and one below %s", below.Path, beside.Path, x.Path, a.Path)
	}
	if a.Opened != "" || below.Opened != "req1" || below.Started != "rec1" {
		t.Errorf("records of the start = %q, %q, want req1 and rec1", below.Opened, below.Started)
	}
}

// An id that can't be used gets the same error for every reason, and stores
// nothing.
func TestUnknownHandles(t *testing.T) {
	other := Spec{Name: "other", TTL: time.Hour, Evidence: all, Tools: []ToolSpec{
		{Role: RoleOpen, Server: "other", Tool: "find"}, {Role: RoleLink, Server: "other", Tool: "use"}}}
	b := newBench(t, nil, other)
	a := b.open(`["x"]`)
	closed := b.open(`["y"]`)
	b.call(Request{ID: closed.ID}, "end", `{}`, `{}`)
	expired := b.open(`["z"]`)
	b.now = b.now.Add(40 * time.Minute)
	b.call(Request{ID: a.ID}, "ask", `{}`, `{}`) // postpones the expiry
	b.now = b.now.Add(40 * time.Minute)
	before := b.count()
	for name, r := range map[string]Request{
		"never minted":        {ID: "ctx_1735650000_a1b2c3d4"},
		"no handle":           {ID: "conv-1"},
		"closed":              {ID: closed.ID},
		"expired":             {ID: expired.ID},
		"another principal's": {ID: a.ID, Principal: "mallory", Session: "s1"},
		"another workflow's":  {ID: a.ID, Rule: b.rules.Find("other", "use")},
	} {
		for _, tool := range []string{"find", "use", "ask", "end"} {
			if s, err := b.try(r, tool, `{"id":"x"}`, `{}`); !errors.Is(err, ErrUnknown) {
				t.Errorf("%s with a handle that is %s = %v, %v, want ErrUnknown", tool, name, s, err)
			}
		}
	}
	if s := b.call(Request{Principal: "mallory", Session: "s1"}, "use", `{"id":"x"}`, `{}`); s.ID != "" {
		t.Errorf("another principal joined %s", s.Path)
	}
	if s := b.call(Request{Principal: "local", Session: "s2"}, "use", `{"id":"z"}`, `{}`); s.ID != "" {
		t.Errorf("a value led to the expired workflow: %s", s.Path)
	}
	if after := b.count(); after != before {
		t.Errorf("%d nodes, before the refused calls %d", after, before)
	}
	if got := view(b.call(Request{ID: a.ID}, "use", `{"id":"x"}`, `{}`)); !strings.HasPrefix(got, a.ID+"/") {
		t.Errorf("a used workflow after twice its ttl = %s", got)
	}
}

func (b *bench) count() (n int) {
	b.t.Helper()
	if err := b.e.db.QueryRow("SELECT count(*) FROM nodes").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestPolicies(t *testing.T) {
	b := newBench(t, func(s *Spec) { s.Remint, s.Require, s.Evidence = true, true, []Evidence{Explicit, Native} })
	first := b.call(Request{ID: "conv-1"}, "find", `{}`, `{}`)
	if first.Evidence != None || !first.New {
		t.Errorf("remint = %s, want a new workflow", view(first))
	}
	if _, err := b.try(Request{ID: "conv-1"}, "use", `{}`, `{}`); !errors.Is(err, ErrRequired) {
		t.Errorf("link that belongs nowhere = %v, want ErrRequired", err)
	}
	native := b.call(Request{NativeID: "native-01"}, "find", `{}`, `{}`)
	again := b.call(Request{NativeID: "native-01"}, "find", `{}`, `{}`)
	linked := b.call(Request{ID: "native-01"}, "use", `{}`, `{}`)
	if again.ID != native.ID || again.Evidence != Native || linked.Root != native.ID || linked.Evidence != Explicit {
		t.Errorf("native id = %s, again %s, linked %s", view(native), view(again), view(linked))
	}
}

// A host's own id is kept unchanged, and never given to another workflow.
func TestForeignIDs(t *testing.T) {
	const id = "7b0e7e3c-0c1f-4f3e-9f2a-5b8f6c1d2e3f"
	b := newBench(t, func(s *Spec) { s.Preserve = true })
	leaks := Request{ID: id, Secret: func(string) bool { return true }}
	if _, err := b.try(leaks, "find", `{}`, `{}`); !errors.Is(err, ErrUnknown) {
		t.Errorf("an id that looks like a secret = %v, want ErrUnknown", err)
	}
	a := b.call(Request{ID: id}, "find", `{}`, `{}`)
	if a.HostID() != id || a.Evidence != Explicit || !ValidID(a.ID) {
		t.Errorf("foreign id = %s %s, want %s answered back", view(a), a.HostID(), id)
	}
	use := b.call(Request{ID: id}, "use", `{"id":"x"}`, `{}`)
	if use.Root != a.ID || use.HostID() != use.ID || use.Foreign != id {
		t.Errorf("link by foreign id = %s, foreign %s", view(use), use.Foreign)
	}
	b.now = b.now.Add(2 * time.Hour)
	for _, tool := range []string{"find", "use"} {
		if s, err := b.try(Request{ID: id}, tool, `{}`, `{}`); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s by the id of an expired workflow = %v, %v, want ErrUnknown", tool, s, err)
		}
	}
	if _, err := b.try(Request{ID: "ctx_1735650000_a1b2c3d4"}, "find", `{}`, `{}`); !errors.Is(err, ErrUnknown) {
		t.Errorf("a handle of foldgate's own form was taken for a foreign id: %v", err)
	}
}

// Calls that were planned at the same time become one step with an attempt for each, in one process
// or in two processes on one file.
func TestOneStepForManyCalls(t *testing.T) {
	b := newBench(t, nil)
	a := b.open(`["x"]`)
	second, err := Open(b.path, b.e.now, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	engines := []*Engine{b.e, second}
	const n = 20
	var wg sync.WaitGroup
	ids, attempts := make([]string, n), make([]int, n)
	for i := range n {
		wg.Go(func() {
			e := engines[i%2]
			r := Request{Rule: b.rules.Find("up", "use"), Principal: "local", Session: "s1", ID: a.ID, Arguments: json.RawMessage(`{"id":"x"}`)}
			s, err := e.Plan(t.Context(), r)
			if err == nil {
				if err = e.Begin(t.Context(), s, "req", "rec"); err == nil {
					err = e.End(t.Context(), s, Outcome{Status: Completed})
				}
			}
			if err != nil {
				t.Error(err)
				return
			}
			ids[i], attempts[i] = s.ID, s.Attempt
		})
	}
	wg.Wait()
	slices.Sort(attempts)
	for i, id := range ids {
		if id != ids[0] || attempts[i] != i+1 {
			t.Fatalf("steps %v, attempts %v; want one step, and each attempt once", ids, attempts)
		}
	}
	if s := b.call(Request{ID: a.ID}, "use", `{"id":"x"}`, `{}`); s.Attempt != n+1 {
		t.Errorf("attempt %d after %d calls", s.Attempt, n)
	}
}

// Another session joins on a value that a result held, not on one that a call only named. Within the
// workflow that a call names, a named value still finds the step.
func TestJoinNeedsAResult(t *testing.T) {
	b := newBench(t, func(s *Spec) { s.Evidence = []Evidence{Explicit, Join} })
	a := b.open(`["held"]`)
	for _, id := range []string{"held", "invented"} {
		b.call(Request{ID: a.ID}, "use", `{"id":"`+id+`"}`, `{}`)
	}
	other := Request{Principal: "local", Session: "s2"}
	for _, tool := range []string{"use", "ask"} {
		for id, want := range map[string]Evidence{"held": Join, "invented": None, "unknown": None} {
			if s := b.call(other, tool, `{"id":"`+id+`"}`, `{}`); s.Evidence != want || (s.Root == a.ID) != (want == Join) {
				t.Errorf("%s of a value that is %s: evidence %s, workflow %s, want %s", tool, id, s.Evidence, s.Root, want)
			}
		}
	}
	inside := other
	inside.ID = a.ID
	if s := b.call(inside, "ask", `{"id":"invented"}`, `{}`); s.Name != "activation" {
		t.Errorf("a question about a step of the workflow is about %q", s.Name)
	}
}

func TestExpire(t *testing.T) {
	b := newBench(t, nil)
	a := b.open(`["x"]`)
	b.call(Request{ID: a.ID}, "use", `{"id":"x"}`, `{}`)
	sweep := func() []Ended {
		t.Helper()
		ended, err := b.e.Expire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return ended
	}
	if ended := sweep(); len(ended) > 0 {
		t.Errorf("a live workflow was swept: %+v", ended)
	}
	b.now = b.now.Add(2 * time.Hour)
	want := []Ended{{Workflow: "signals", Principal: "local", Session: "s1", ID: a.ID, Records: []string{"rec1", "rec2"}, Steps: 1}}
	if diff := cmp.Diff(want, sweep()); diff != "" {
		t.Errorf("sweep (-want +got):\n%s", diff)
	}
	if ended := sweep(); len(ended) > 0 {
		t.Errorf("swept twice: %+v", ended)
	}
	b.now = b.now.Add(20 * time.Hour)
	b.open(`["y"]`)
	b.now = b.now.Add(6 * time.Hour)
	sweep()
	if n := b.count(); n != 1 {
		t.Errorf("%d nodes a day later, want the one just ended", n)
	}
}

// A closed workflow is deleted, too, also if none expires.
func TestExpireDeletesClosed(t *testing.T) {
	b := newBench(t, nil)
	a := b.open(`["x"]`)
	b.call(Request{ID: a.ID}, "end", `{}`, `{}`)
	for _, want := range []int{1, 0} {
		if ended, err := b.e.Expire(t.Context()); err != nil || ended != nil {
			t.Fatalf("Expire = %v, %v, want nothing to end", ended, err)
		}
		if n := b.count(); n != want {
			t.Errorf("%d nodes at %v, want %d", n, b.now, want)
		}
		b.now = b.now.Add(26 * time.Hour)
	}
}

func TestNoRules(t *testing.T) {
	var r *Rules
	if r.Find("up", "find") != nil {
		t.Error("no rules found one")
	}
	r.Each(func(int, *Rule) { t.Error("no rules have one") })
}
