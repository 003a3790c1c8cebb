package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestVectorsQuery asks the questions of the path ADR of its own messages.
func TestVectorsQuery(t *testing.T) {
	v := loadVectors(t)
	dir := t.TempDir()
	j := open(t, dir, Options{})
	for _, m := range v.ADR.Messages {
		add(t, j, &Record{ID: m.ID, Kind: m.Kind, Context: m.Context, CorrelationID: m.CorrelationID})
	}
	want := func(name string, f Filter, ids_ []string) {
		t.Helper()
		for _, f.NoIndex = range []bool{false, true} {
			if d := cmp.Diff(ids_, ids(query(t, dir, f))); d != "" {
				t.Errorf("%s, no index %v: %s", name, f.NoIndex, d)
			}
		}
	}
	for _, c := range v.ADR.Tree {
		want("tree of "+c.Context, Filter{Context: c.Context, Tree: true}, c.Want)
	}
	for _, c := range v.ADR.Children {
		want("children of "+c.Context, Filter{Context: c.Context, Children: true}, c.Want)
	}
	want("main", Filter{Main: true}, v.ADR.Main)
	want("roots", Filter{Roots: true}, v.ADR.Roots)
	want("exact", Filter{Context: "reason-789"}, []string{"m02", "m06"})
	want("ancestors", Filter{Context: "reason-789/security/permissions", Ancestors: true}, []string{"m02", "m03", "m04", "m06"})
	want("depth 3", Filter{Depth: 3}, []string{"m05", "m10"})
	want("type", Filter{Type: "ctx"}, []string{"m14", "m15"})
	want("conclusions", Filter{Conclusions: true}, []string{"m06"})
	want("kind", Filter{Kinds: []string{"mcp/request"}}, []string{"m03", "m08", "m09", "m14", "m15", "m16", "m18"})
	want("dotted kind", Filter{Kinds: []string{"mcp.response"}}, []string{"m04"})
	want("kind of the later names", Filter{Kinds: []string{"reasoning/conclusion"}}, []string{"m06"})
	want("kind in dotted journal form", Filter{Kinds: []string{"workflow/*"}}, []string{"m07", "m11"})
	want("correlates to a message", Filter{Correlates: "m03"}, []string{"m04", "m19"})
	want("correlates to a context", Filter{Correlates: "reason-789"}, []string{"m19"})
	want("fan-in", Filter{Correlates: "m09"}, []string{"m11"})
	want("chain", Filter{Chain: "m08"}, []string{"m08", "m09", "m10", "m11"})
	want("chain from its end", Filter{Chain: "m04"}, []string{"m03", "m04", "m19"})
	want("orphans", Filter{Orphans: true}, []string{})
	want("id", Filter{ID: "m13"}, []string{"m13"})
	want("unknown", Filter{Context: "no/such"}, []string{})
	want("limit", Filter{Limit: 2}, []string{"m01", "m02"})
}

// TestStackBugs replays what the deleted stack of an earlier gateway
// did wrong, as far as a store can show it.
func TestStackBugs(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	var deprecated []string
	correlation := func(envelope string) IDs {
		got, dep, err := DecodeCorrelation([]byte(envelope), Transition)
		if err != nil {
			t.Fatal(err)
		}
		deprecated = append(deprecated, dep...)
		return got
	}
	add(t, j,
		// 1: push and pop came with a string for a correlation: it is read, counted, and written as a list.
		&Record{ID: "create", Kind: "mcp/request:tools/call"},
		&Record{ID: "push1", Kind: KindPush, Context: "br_1", CorrelationID: correlation(`{"correlation_id":"create"}`)},
		// 2: inside a context the correlation stays the request's; the context is another field.
		&Record{ID: "req", Kind: "mcp/request:tools/call", Context: "br_1"},
		&Record{ID: "resp", Kind: "mcp/response:tools/call", Context: "br_1", CorrelationID: IDs{"req"}},
		// 7: a second conversation of the same participant has its own branch.
		&Record{ID: "push2", Kind: KindPush, Context: "br_2"},
		&Record{ID: "push3", Kind: KindPush, Context: "br_1/br_3"},
		// 3: a pop closes the branch it names, not the one opened last.
		&Record{ID: "pop3", Kind: KindPop, Context: "br_1/br_3", CorrelationID: IDs{"push3"}},
		&Record{ID: "pop1", Kind: KindPop, Context: "br_1", CorrelationID: IDs{"push1", "ret"}, Payload: []byte(`{"reason":"returned"}`)})
	// 4: messages in a context open nothing.
	for range 100 {
		add(t, j, &Record{Kind: KindReflection, Context: "reason-1"})
	}
	if d := cmp.Diff([]string{DeprecatedSnakeCase, DeprecatedString}, deprecated); d != "" {
		t.Error(d)
	}
	if got := query(t, dir, Filter{Correlates: "create"}); len(got) != 1 || got[0].ID != "push1" {
		t.Errorf("correlates to create: %v, want push1", ids(got))
	}
	if d := cmp.Diff([]string{"push1", "req", "resp", "push3", "pop3", "pop1"}, ids(query(t, dir, Filter{Context: "br_1", Tree: true}))); d != "" {
		t.Errorf("the response is in the tree of its request: %s", d)
	}
	nodes, err := Contexts(dir, Filter{})
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]string{}
	for _, n := range nodes {
		state[string(n.Path)] = n.State + " " + n.Reason
	}
	want := map[string]string{"": "main ", "br_1": "closed returned", "br_1/br_3": "closed ", "br_2": "open ", "reason-1": "free "}
	if d := cmp.Diff(want, state); d != "" {
		t.Error(d)
	}
	// 5: a pop of what was never opened, 6: a branch left open: neither is silent.
	add(t, j, &Record{Kind: KindPop, Context: "br_9"})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	r := verify(t, dir)
	if r.Total != 1 || r.Faults[0].Code != FaultPopUnopened {
		t.Errorf("faults = %v, want the pop of br_9", r.Faults)
	}
	if len(r.Notes) != 1 || r.Notes[0].Code != NoteOpen || !strings.Contains(r.Notes[0].Text, "br_2") {
		t.Errorf("notes = %v, want br_2 open", r.Notes)
	}
}

// TestReasoningScenario is the reasoning scenario of the earlier protocol: the
// responses are in the tree of the calls, the start is in main.
func TestReasoningScenario(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	add(t, j, &Record{ID: "chat", Kind: "chat"}, &Record{ID: "start", Kind: "reasoning/start", CorrelationID: IDs{"chat"}})
	inside := []string{}
	for i := range 3 {
		q, p, th := fmt.Sprintf("req%d", i), fmt.Sprintf("resp%d", i), fmt.Sprintf("thought%d", i)
		add(t, j, &Record{ID: th, Kind: "reasoning/thought", Context: "start"},
			&Record{ID: q, Kind: "mcp/request", Context: "start"},
			&Record{ID: p, Kind: "mcp/response", Context: "start", CorrelationID: IDs{q}})
		inside = append(inside, th, q, p)
	}
	add(t, j, &Record{ID: "end", Kind: "reasoning/conclusion", Context: "start"},
		&Record{ID: "answer", Kind: "chat", CorrelationID: IDs{"chat"}})
	for name, c := range map[string]struct {
		f    Filter
		want []string
	}{
		"tree":        {Filter{Context: "start", Tree: true}, append(inside, "end")},
		"main":        {Filter{Main: true}, []string{"chat", "start", "answer"}},
		"chain":       {Filter{Chain: "answer"}, []string{"chat", "start", "answer"}},
		"conclusions": {Filter{Conclusions: true}, []string{"end"}},
		"thoughts":    {Filter{Kinds: []string{"reflection"}}, []string{"thought0", "thought1", "thought2"}},
	} {
		if d := cmp.Diff(c.want, ids(query(t, dir, c.f))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestProposalChain(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	add(t, j, &Record{ID: "prop", Kind: "mcp/proposal"}, &Record{ID: "req", Kind: "mcp/request:tools/call", CorrelationID: IDs{"prop"}},
		&Record{ID: "other", Kind: "chat"},
		&Record{ID: "hop", Kind: "mcp/request:tools/list", CorrelationID: IDs{"req"}},
		&Record{ID: "resp", Kind: "mcp/response:tools/call", CorrelationID: IDs{"req", "hop"}},
		&Record{ID: "loop", Kind: "chat", CorrelationID: IDs{"loop", "resp"}},
		&Record{ID: "orphan", Kind: "chat", CorrelationID: IDs{"nothing"}})
	for _, from := range []string{"prop", "req", "hop", "resp", "loop"} {
		if d := cmp.Diff([]string{"prop", "req", "hop", "resp", "loop"}, ids(query(t, dir, Filter{Chain: from}))); d != "" {
			t.Errorf("chain of %s: %s", from, d)
		}
	}
	if d := cmp.Diff([]string{"orphan"}, ids(query(t, dir, Filter{Orphans: true}))); d != "" {
		t.Error(d)
	}
	g, err := Show(dir, "req")
	if err != nil {
		t.Fatal(err)
	}
	if g.Record.ID != "req" || cmp.Diff([]string{"prop"}, ids(g.Causes)) != "" || cmp.Diff([]string{"hop", "resp"}, ids(g.Effects)) != "" || len(g.Chain) != 5 {
		t.Errorf("Show = causes %v, effects %v, chain %v", ids(g.Causes), ids(g.Effects), ids(g.Chain))
	}
	if _, err := Show(dir, "nothing"); err == nil {
		t.Error("Show(nothing) = nil")
	}
	if g, err := Show(dir, "orphan"); err != nil || cmp.Diff([]string{"nothing"}, g.Missing) != "" {
		t.Errorf("Show(orphan) = %+v, %v", g, err)
	}
}

func TestValidate(t *testing.T) {
	now := time.Now()
	for _, f := range []Filter{
		{Context: "../x"}, {Context: "a/b/c/d/e/f"}, {Workflow: "a b"}, {Tree: true}, {Context: "a", Tree: true, Children: true},
		{Main: true, Roots: true}, {Main: true, Context: "a"}, {Roots: true, Context: "a"}, {Depth: -1}, {Depth: 6},
		{Since: now, Until: now}, {Limit: -1},
	} {
		if _, ok := f.Validate().(*UsageError); !ok {
			t.Errorf("Validate(%+v) = %v, want a UsageError", f, f.Validate())
		}
	}
	for _, f := range []Filter{{}, {Context: "a", Tree: true}, {Workflow: "ctx_1/ctx_2", Children: true}, {Workflow: "ctx_1", Roots: true}} {
		if err := f.Validate(); err != nil {
			t.Errorf("Validate(%+v) = %v", f, err)
		}
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 8, 22, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Time{
		"": {}, "90m": now.Add(-90 * time.Minute), "3d": now.Add(-72 * time.Hour), "2026-08-01": time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC),
		"2026-08-22T10:11:12Z": time.Date(2026, 8, 22, 10, 11, 12, 0, time.UTC), "2026-08-22 10:11": time.Date(2026, 8, 22, 10, 11, 0, 0, time.UTC),
	} {
		if got, err := ParseTime(in, now); err != nil || !got.Equal(want) {
			t.Errorf("ParseTime(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"yesterday", "-3h", "3", "d"} {
		if got, err := ParseTime(in, now); err == nil {
			t.Errorf("ParseTime(%q) = %v, want an error", in, got)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"a*c", "abbc", true}, {"a*c", "abbd", false}, {"?", "a", true}, {"?", "", false},
		{"*a*b", "xaxbxb", true}, {"read_*", "read_file", true}, {"[a]", "a", false}, {"**", "x", true},
	} {
		if got := glob(c.pattern, c.s); got != c.want {
			t.Errorf("glob(%q, %q) = %v, want %v", c.pattern, c.s, got, c.want)
		}
	}
}

func TestQueryOfNoDirectory(t *testing.T) {
	err := Query(filepath.Join(t.TempDir(), "none"), Filter{}, func(*Record) bool { return true })
	if !errors.Is(err, fs.ErrNotExist) && (err == nil || !strings.Contains(err.Error(), "no such file")) {
		t.Errorf("Query = %v, want a clear error", err)
	}
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	if err := Query(dir, Filter{}, func(*Record) bool { return true }); err == nil || !strings.Contains(err.Error(), "may not be read") {
		t.Errorf("Query = %v, want one that says who may read", err)
	}
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 2000})
	add(t, j, &Record{ID: "r0", Kind: "k", Context: "a"}, &Record{ID: "other", Kind: "k"})
	var got []string
	done := make(chan error, 1)
	seen := make(chan string, 100)
	go func() {
		done <- Follow(t.Context(), dir, Filter{Context: "a", Limit: 20}, func(r *Record) bool {
			seen <- r.ID
			return true
		})
	}()
	got = append(got, <-seen)
	for i := 1; i < 20; i++ { // rotates on the way
		add(t, j, &Record{Kind: "k"}, &Record{ID: fmt.Sprintf("r%d", i), Kind: "k", Context: "a"})
		got = append(got, <-seen)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(got)) != 20 || got[19] != "r19" {
		t.Errorf("followed %v", got)
	}
	if _, ok := Follow(t.Context(), dir, Filter{Orphans: true}, nil).(*UsageError); !ok {
		t.Error("following orphans is a usage error")
	}
}

// TestOrphansOfAChain: both conditions must hold.
func TestOrphansOfAChain(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	req := call(t, j, "a")
	orphan := &Record{Kind: "k", CorrelationID: IDs{req.ID, "env_nowhere"}}
	other := &Record{Kind: "k", CorrelationID: IDs{"env_elsewhere"}}
	add(t, j, orphan, other)
	if got := ids(query(t, dir, Filter{Chain: req.ID, Orphans: true})); len(got) != 1 || got[0] != orphan.ID {
		t.Errorf("orphans of the chain = %v, want %s alone", got, orphan.ID)
	}
}
