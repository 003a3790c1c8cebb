package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// open opens a journal that is closed at the end of the test.
func open(t *testing.T, dir string, o trace.Options) *trace.Journal {
	t.Helper()
	j, err := trace.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil && !errors.Is(err, trace.ErrClosed) {
			t.Error(err)
		}
	})
	return j
}

func add(t *testing.T, j *trace.Journal, rs ...*trace.Record) {
	t.Helper()
	for _, r := range rs {
		if err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
}

// call adds a request and its response.
func call(t *testing.T, j *trace.Journal, context string) *trace.Record {
	t.Helper()
	req := &trace.Record{From: "host:h#s", To: []string{"upstream:files"}, Kind: "mcp/request:tools/call", Context: context}
	add(t, j, req)
	add(t, j, &trace.Record{From: "upstream:files", To: []string{"host:h#s"}, Kind: "mcp/response:tools/call", Context: context, CorrelationID: trace.IDs{req.ID}})
	return req
}

func query(t *testing.T, dir string, f Filter) []*trace.Record {
	t.Helper()
	rs := []*trace.Record{}
	for r, err := range Select(t.Context(), dir, f) {
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	return rs
}

func first(records iter.Seq2[*trace.Record, error]) (*trace.Record, error) {
	for r, err := range records {
		return r, err
	}
	return nil, nil
}

func ids(rs []*trace.Record) []string {
	out := []string{}
	for _, r := range rs {
		out = append(out, r.ID)
	}
	return out
}

func verify(t *testing.T, dir string) trace.Report {
	t.Helper()
	r, err := Verify(t.Context(), dir, trace.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type vectors struct {
	ADR struct {
		Messages []struct {
			ID, Kind, Context string
			CorrelationID     trace.IDs
		}
		Tree, Children []struct {
			Context string
			Want    []string
		}
		Main, Roots []string
	}
}

func loadVectors(t *testing.T) (v vectors) {
	t.Helper()
	data, err := os.ReadFile("../../../folding/contextpath/testdata/envelope.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.ADR.Messages) == 0 {
		t.Fatal("vectors are empty")
	}
	return v
}

// TestVectorsQuery asks the questions of the path ADR of its own messages.
func TestVectorsQuery(t *testing.T) {
	v := loadVectors(t)
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	for _, m := range v.ADR.Messages {
		add(t, j, &trace.Record{ID: m.ID, Kind: trace.CanonicalKind(m.Kind), Context: m.Context, CorrelationID: m.CorrelationID})
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
	j := open(t, dir, trace.Options{})
	var deprecated []string
	correlation := func(envelope string) trace.IDs {
		camel, _ := rawjson.Get([]byte(envelope), "correlationId")
		snake, _ := rawjson.Get([]byte(envelope), "correlation_id")
		got, dep, err := trace.DecodeCorrelation(camel, snake, false)
		if err != nil {
			t.Fatal(err)
		}
		deprecated = append(deprecated, dep...)
		return got
	}
	add(t, j,
		// 1: push and pop came with a string for a correlation: it is read, counted, and written as a list.
		&trace.Record{ID: "create", Kind: "mcp/request:tools/call"},
		&trace.Record{ID: "push1", Kind: trace.KindPush, Context: "br_1", CorrelationID: correlation(`{"correlation_id":"create"}`)},
		// 2: inside a context the correlation stays the request's; the context is another field.
		&trace.Record{ID: "req", Kind: "mcp/request:tools/call", Context: "br_1"},
		&trace.Record{ID: "resp", Kind: "mcp/response:tools/call", Context: "br_1", CorrelationID: trace.IDs{"req"}},
		// 7: a second conversation of the same participant has its own branch.
		&trace.Record{ID: "push2", Kind: trace.KindPush, Context: "br_2"},
		&trace.Record{ID: "push3", Kind: trace.KindPush, Context: "br_1/br_3"},
		// 3: a pop closes the branch it names, not the one opened last.
		&trace.Record{ID: "pop3", Kind: trace.KindPop, Context: "br_1/br_3", CorrelationID: trace.IDs{"push3"}},
		&trace.Record{ID: "pop1", Kind: trace.KindPop, Context: "br_1", CorrelationID: trace.IDs{"push1", "ret"}, Payload: []byte(`{"reason":"returned"}`)})
	// 4: messages in a context open nothing.
	for range 100 {
		add(t, j, &trace.Record{Kind: trace.KindReflection, Context: "reason-1"})
	}
	if d := cmp.Diff([]string{"correlation_snake_case", "correlation_string"}, deprecated); d != "" {
		t.Error(d)
	}
	if got := query(t, dir, Filter{Correlates: "create"}); len(got) != 1 || got[0].ID != "push1" {
		t.Errorf("correlates to create: %v, want push1", ids(got))
	}
	if d := cmp.Diff([]string{"push1", "req", "resp", "push3", "pop3", "pop1"}, ids(query(t, dir, Filter{Context: "br_1", Tree: true}))); d != "" {
		t.Errorf("the response is in the tree of its request: %s", d)
	}
	nodes, err := Contexts(Select(t.Context(), dir, Filter{}))
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
	add(t, j, &trace.Record{Kind: trace.KindPop, Context: "br_9"})
	closeJournal(t, j)
	r := verify(t, dir)
	if r.Total != 1 || r.Faults[0].Code != trace.FaultPopUnopened {
		t.Errorf("faults = %v, want the pop of br_9", r.Faults)
	}
	if len(r.Notes) != 1 || r.Notes[0].Code != trace.NoteOpen || !strings.Contains(r.Notes[0].Text, "br_2") {
		t.Errorf("notes = %v, want br_2 open", r.Notes)
	}
}

// TestReasoningScenario is the reasoning scenario of the earlier protocol: the
// responses are in the tree of the calls, the start is in main.
func TestReasoningScenario(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	add(t, j, &trace.Record{ID: "chat", Kind: "chat"}, &trace.Record{ID: "start", Kind: "reasoning/start", CorrelationID: trace.IDs{"chat"}})
	inside := []string{}
	for i := range 3 {
		q, p, th := fmt.Sprintf("req%d", i), fmt.Sprintf("resp%d", i), fmt.Sprintf("thought%d", i)
		add(t, j, &trace.Record{ID: th, Kind: trace.KindReflection, Context: "start"},
			&trace.Record{ID: q, Kind: "mcp/request", Context: "start"},
			&trace.Record{ID: p, Kind: "mcp/response", Context: "start", CorrelationID: trace.IDs{q}})
		inside = append(inside, th, q, p)
	}
	add(t, j, &trace.Record{ID: "end", Kind: trace.KindConclusion, Context: "start"},
		&trace.Record{ID: "answer", Kind: "chat", CorrelationID: trace.IDs{"chat"}})
	for name, c := range map[string]struct {
		f    Filter
		want []string
	}{
		"tree":        {Filter{Context: "start", Tree: true}, append(inside, "end")},
		"main":        {Filter{Main: true}, []string{"chat", "start", "answer"}},
		"chain":       {Filter{Chain: "answer"}, []string{"chat", "start", "answer"}},
		"conclusions": {Filter{Conclusions: true}, []string{"end"}},
		"thoughts":    {Filter{Kinds: []string{"reasoning.thought"}}, []string{"thought0", "thought1", "thought2"}},
	} {
		if d := cmp.Diff(c.want, ids(query(t, dir, c.f))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestProposalChain(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	add(t, j, &trace.Record{ID: "prop", Kind: "mcp/proposal"}, &trace.Record{ID: "req", Kind: "mcp/request:tools/call", CorrelationID: trace.IDs{"prop"}},
		&trace.Record{ID: "other", Kind: "chat"},
		&trace.Record{ID: "hop", Kind: "mcp/request:tools/list", CorrelationID: trace.IDs{"req"}},
		&trace.Record{ID: "resp", Kind: "mcp/response:tools/call", CorrelationID: trace.IDs{"req", "hop"}},
		&trace.Record{ID: "loop", Kind: "chat", CorrelationID: trace.IDs{"loop", "resp"}},
		&trace.Record{ID: "orphan", Kind: "chat", CorrelationID: trace.IDs{"nothing"}})
	for _, from := range []string{"prop", "req", "hop", "resp", "loop"} {
		if d := cmp.Diff([]string{"prop", "req", "hop", "resp", "loop"}, ids(query(t, dir, Filter{Chain: from}))); d != "" {
			t.Errorf("chain of %s: %s", from, d)
		}
	}
	if d := cmp.Diff([]string{"orphan"}, ids(query(t, dir, Filter{Orphans: true}))); d != "" {
		t.Error(d)
	}
	s := indexes(t, dir)
	show := func(id string) (*Graph, error) {
		at, err := s.Locate(t.Context(), id)
		if err != nil {
			return nil, err
		}
		return s.Show(t.Context(), at)
	}
	g, err := show("req")
	if err != nil {
		t.Fatal(err)
	}
	if g.Record.ID != "req" || cmp.Diff([]string{"prop"}, ids(g.Causes)) != "" || cmp.Diff([]string{"hop", "resp"}, ids(g.Effects)) != "" || len(g.Chain) != 5 {
		t.Errorf("Show = causes %v, effects %v, chain %v", ids(g.Causes), ids(g.Effects), ids(g.Chain))
	}
	if _, err := show("nothing"); !errors.Is(err, ErrNotFound) {
		t.Error("Show(nothing) = nil")
	}
	if g, err := show("orphan"); err != nil || cmp.Diff([]string{"nothing"}, g.Missing) != "" {
		t.Errorf("Show(orphan) = %+v, %v", g, err)
	}
}

func TestValidate(t *testing.T) {
	now := time.Now()
	for _, f := range []Filter{
		{Context: "../x"}, {Context: "1/2/3/4/5/6/7/8/9/10/11"}, {Workflow: "a b"}, {Tree: true}, {Context: "a", Tree: true, Children: true},
		{Main: true, Roots: true}, {Main: true, Context: "a"}, {Roots: true, Context: "a"}, {Depth: -1}, {Depth: 11},
		{Since: now, Until: now}, {Limit: -1}, {Reason: "bogus"}, {Evidence: []string{"bogus"}},
	} {
		if _, ok := f.Validate().(*UsageError); !ok {
			t.Errorf("Validate(%+v) = %v, want a UsageError", f, f.Validate())
		}
	}
	for _, f := range []Filter{{}, {Context: "a", Tree: true}, {Workflow: "ctx_1/ctx_2", Children: true}, {Workflow: "ctx_1", Roots: true}, {Workflow: "agent:job-7.1", Tree: true}} {
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
	for _, in := range []string{"yesterday", "-3h", "3", "d", "110000d", "200000d", "9999999999d", "2600000h", "0001-01-01"} {
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
	_, err := first(Select(t.Context(), filepath.Join(t.TempDir(), "none"), Filter{}))
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
	if _, err := first(Select(t.Context(), dir, Filter{})); err == nil || !strings.Contains(err.Error(), "may not be read") {
		t.Errorf("Query = %v, want one that says who may read", err)
	}
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 2000})
	add(t, j, &trace.Record{ID: "r0", Kind: "k", Context: "a"}, &trace.Record{ID: "other", Kind: "k"})
	var got []string
	done := make(chan error, 1)
	seen := make(chan string, 100)
	go func() {
		for r, err := range Follow(t.Context(), []string{dir}, Filter{Context: "a", Limit: 20}) {
			if err != nil {
				done <- err
				return
			}
			seen <- r.ID
		}
		done <- nil
	}()
	got = append(got, <-seen)
	for i := 1; i < 20; i++ { // rotates on the way
		add(t, j, &trace.Record{Kind: "k"}, &trace.Record{ID: fmt.Sprintf("r%d", i), Kind: "k", Context: "a"})
		got = append(got, <-seen)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(got)) != 20 || got[19] != "r19" {
		t.Errorf("followed %v", got)
	}
	index, _ := filepath.Glob(filepath.Join(dir, indexName+"*"))
	for _, file := range index {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for r, err := range Follow(t.Context(), []string{dir}, Filter{Context: "a", NoIndex: true, Limit: 21}) {
		if err != nil || r.ID != fmt.Sprintf("r%d", n) {
			t.Fatalf("without the index: %v, record %v, want r%d", err, r, n)
		}
		if n++; n == 20 {
			add(t, j, &trace.Record{ID: "r20", Kind: "k", Context: "a"})
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, indexName+"*")); n != 21 || len(index) == 0 || len(files) > 0 {
		t.Errorf("without the index: %d records, and %q", n, files)
	}
	_, err := first(Follow(t.Context(), []string{dir}, Filter{Orphans: true}))
	if _, ok := err.(*UsageError); !ok {
		t.Error("following orphans is a usage error")
	}
}

// Several journals are followed as one: what is there by time, then what comes, wherever it comes.
func TestFollowSeveral(t *testing.T) {
	var dirs []string
	var journals []*trace.Journal
	for range 3 {
		dir := t.TempDir()
		dirs, journals = append(dirs, dir), append(journals, open(t, dir, trace.Options{RotateBytes: 3000}))
	}
	n := 0
	write := func() {
		ts := time.Date(2026, 11, 20, 0, 0, n, 0, time.UTC).Format(trace.TimeFormat)
		add(t, journals[n%7%3], &trace.Record{ID: fmt.Sprint(n), Kind: "k", TS: ts})
		n++
	}
	for range 40 {
		write()
	}
	got := 0
	for r, err := range Follow(t.Context(), dirs, Filter{Limit: 60}) {
		if err != nil || r.ID != fmt.Sprint(got) {
			t.Fatalf("%v, record %v, want %d", err, r, got)
		}
		if got++; got == n && n < 60 {
			write()
		}
	}
	if got != 60 {
		t.Errorf("%d records, want 60", got)
	}
}

// Verifying and indexing tell how much of the journal they have read.
func TestProgress(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{Sync: trace.SyncNever, RotateBytes: 2 << 20})
	for range 25_000 {
		if err := j.Append(&trace.Record{Kind: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	closeJournal(t, j)
	var shares []float64
	ctx := trace.WithProgress(t.Context(), func(done, all int64) { shares = append(shares, float64(done)/float64(all)) })
	check := func(work string, least int) {
		t.Helper()
		if len(shares) < least || !slices.IsSorted(shares) || shares[0] <= 0 || shares[len(shares)-1] > 1 || shares[len(shares)-1] < 0.7 {
			t.Errorf("%s reports %v", work, shares)
		}
		shares = nil
	}
	x, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.refresh(ctx, false); err != nil {
		t.Fatal(err)
	}
	check("indexing", 1)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(ctx, dir, trace.VerifyOptions{}); err != nil {
		t.Fatal(err)
	}
	check("verifying", 4)
}

// TestOrphansOfAChain: both conditions must hold.
func TestOrphansOfAChain(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	req := call(t, j, "a")
	orphan := &trace.Record{Kind: "k", CorrelationID: trace.IDs{req.ID, "env_nowhere"}}
	other := &trace.Record{Kind: "k", CorrelationID: trace.IDs{"env_elsewhere"}}
	add(t, j, orphan, other)
	if got := ids(query(t, dir, Filter{Chain: req.ID, Orphans: true})); len(got) != 1 || got[0] != orphan.ID {
		t.Errorf("orphans of the chain = %v, want %s alone", got, orphan.ID)
	}
	s := indexes(t, dir)
	p, err := s.Page(t.Context(), PageQuery{Filter: Filter{Chain: req.ID, Orphans: true}, Size: 9, Wait: time.Minute})
	if got := ids(p.Records); err != nil || len(got) != 1 || got[0] != orphan.ID {
		t.Errorf("a page of orphans of the chain = %v, %v, want %s alone", got, err, orphan.ID)
	}
}

// Orphans are found also when their cause is removed by retention or comes after them, and verify
// finds an index that hides one.
func TestOrphansOfRetention(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 5000, RetainFiles: 3})
	rng := rand.New(rand.NewPCG(1, 2))
	most := 0
	for i := range 400 {
		r := &trace.Record{ID: fmt.Sprint("r", i), Kind: "k"}
		if n := rng.IntN(3); n > 0 { // up to 40 before it and 2 after it
			r.CorrelationID = trace.IDs{fmt.Sprint("r", max(i+2-rng.IntN(43), 0)), fmt.Sprint("r", i-1)}[:n]
		}
		add(t, j, r)
		if i%7 != 0 {
			continue
		}
		all := query(t, dir, Filter{NoIndex: true})
		want := []string{}
		for _, r := range all {
			if slices.ContainsFunc(r.CorrelationID, func(id string) bool { return !slices.Contains(ids(all), id) }) {
				want = append(want, r.ID)
			}
		}
		most = max(most, len(want))
		if d := cmp.Diff(want, ids(query(t, dir, Filter{Orphans: true}))); d != "" {
			t.Fatalf("after %d records: %s", i+1, d)
		}
	}
	if most < 3 {
		t.Errorf("at most %d orphans", most)
	}
	if r := verify(t, dir); !r.OK() {
		t.Errorf("verify says %v", r.Faults)
	}
	db, err := sqlitedb.Open(t.Context(), filepath.Join(dir, indexName), options)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("DELETE FROM loose"); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir); r.OK() || r.Faults[0].Code != trace.FaultIndex {
		t.Errorf("an index that hides orphans: verify says %v", r.Faults)
	}
}

// TestSinceWithoutIndex: Recent passes over files that are too old, and no others.
// Where the clock was set back, --no-index still gives what the index gives.
func TestSinceWithoutIndex(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 2000})
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 40 {
		add(t, j, &trace.Record{Kind: "a", TS: start.Add(time.Duration(i) * time.Second).Format(trace.TimeFormat)})
	}
	if names, err := trace.Segments(dir); err != nil || len(names) < 4 {
		t.Fatalf("%d files, %v: want several", len(names), err)
	}
	for i := range 41 {
		n := 0
		var err error
		for r, e := range Recent(t.Context(), dir, Filter{Since: start.Add(time.Duration(i) * time.Second), Kinds: []string{"a"}}) {
			if err = e; r != nil {
				n++
			}
		}
		if err != nil || n != 40-i {
			t.Errorf("since %d s: %d records, %v, want %d", i, n, err, 40-i)
		}
	}
	for i := range 40 { // an hour back
		add(t, j, &trace.Record{Kind: "a", TS: start.Add(time.Duration(i)*time.Second - time.Hour).Format(trace.TimeFormat)})
	}
	for i := range 41 {
		f := Filter{Since: start.Add(time.Duration(i) * time.Second), Kinds: []string{"a"}}
		with := len(query(t, dir, f))
		f.NoIndex = true
		if without := len(query(t, dir, f)); with != 40-i || without != with {
			t.Errorf("since %d s: %d records with the index, %d without, want %d", i, with, without, 40-i)
		}
	}
}

// TestReadersBesideTheWriter: while a journal is written, rotated and cut by
// retention, verify finds nothing wrong and queries do not fail.
func TestReadersBesideTheWriter(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 8000, RetainFiles: 4, Interval: 1})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			req := &trace.Record{Kind: "mcp/request:tools/call", Context: fmt.Sprintf("c%d", i%5)}
			if err := j.Append(req); err != nil {
				t.Error(err)
				return
			}
			if err := j.Append(&trace.Record{Kind: "mcp/response:tools/call", Context: req.Context, CorrelationID: trace.IDs{req.ID}}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 40 {
		if r := verify(t, dir); !r.OK() {
			t.Errorf("round %d: %v", i, r.Faults)
			break
		}
		query(t, dir, Filter{Context: "c1"})
	}
	close(stop)
	wg.Wait()
}

func TestA2AFilters(t *testing.T) {
	r := &trace.Record{Kind: "mcp/request:tools/call", Audit: &trace.Audit{Workflow: []byte(`{"path":"root/t1","a2a":{"contextId":"c","taskId":"t1"}}`)}}
	for _, tc := range []struct {
		f    Filter
		want bool
	}{
		{Filter{A2AContext: "c"}, true}, {Filter{A2AContext: "d"}, false}, {Filter{A2ATask: "t1"}, true}, {Filter{A2ATask: "c"}, false},
		{Filter{A2AContext: "c", A2ATask: "t2"}, false}, {Filter{A2AContext: "c", Workflow: "root/t1"}, true},
		{Filter{Workflow: "t1"}, true}, {Filter{Workflow: "t1", Tree: true}, true}, {Filter{Workflow: "t1", Children: true}, false}, {Filter{Workflow: "t2", Tree: true}, false},
		{Filter{Workflow: "c"}, false}, {Filter{Workflow: "c", Tree: true}, true}, {Filter{Workflow: "c", Children: true}, true}, {Filter{Workflow: "c", Roots: true}, false},
		{Filter{Workflow: "root"}, false}, {Filter{Workflow: "root", Tree: true}, true}, {Filter{Workflow: "root", Children: true}, true},
	} {
		if got := tc.f.Match(r); got != tc.want {
			t.Errorf("%+v selects %t, want %t", tc.f, got, tc.want)
		}
	}
	if f := (Filter{A2AContext: "c"}); f.Match(&trace.Record{Kind: "reflection", Audit: &trace.Audit{}}) {
		t.Error("a record of no workflow was selected")
	}
}

func TestNames(t *testing.T) {
	for _, tt := range [][2][]string{
		{{"/backup/gate-0/state/trace", "/backup/gate-1/state/trace"}, {"gate-0", "gate-1"}},
		{{"/s/trace", "/s/instance-2/trace"}, {"s", "instance-2"}},
		{{"/a", "/b"}, {"a", "b"}},
		{{"/x/s/trace", "/y/s/trace", "/x/s/instance-2/trace"}, {"/x/s/trace", "/y/s/trace", "/x/s/instance-2/trace"}},
		{{"/a/trace", "/a/trace"}, {"/a/trace", "/a/trace"}},
	} {
		if got := Names(tt[0]); !slices.Equal(got, tt[1]) {
			t.Errorf("Names(%q) = %q, want %q", tt[0], got, tt[1])
		}
	}
}

// closeJournal closes a journal without a fault.
func closeJournal(t testing.TB, j *trace.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}
