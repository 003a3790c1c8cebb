package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// exploration is one folded exploration: a branch with two calls, a child
// branch that was ended for its budget, and the return.
func exploration(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	now := time.Date(2026, 8, 22, 10, 11, 12, 0, time.UTC)
	j := open(t, dir, Options{Now: func() time.Time { now = now.Add(time.Millisecond); return now }, Interval: time.Hour})
	const a, b = "br_aaaaaaaaaaaaaaaaaaaa", "br_aaaaaaaaaaaaaaaaaaaa/br_b"
	au := func(tool string, t *Tokens) *Audit {
		if t != nil {
			t.Counter = "o200k_base"
		}
		return &Audit{Session: "s1", Principal: "local", Server: "files", Tool: tool, Tokens: t}
	}
	bad := au("\x1b[31mevil\n", &Tokens{In: 5, Out: 900, Delivered: 100})
	bad.IsError, bad.MS, bad.Scrub, bad.Fold = true, 12.34, []Finding{{Rule: "r", Count: 2}}, &Fold{Handle: "h", Saved: 800}
	blocked := au("read_file", nil)
	blocked.Decision = &Decision{Result: Blocked, Reason: "resource_limit"}
	add(t, j,
		&Record{ID: "create", Kind: "mcp/request:tools/call", Audit: &Audit{Session: "s1", Server: "foldgate", Tool: "branch_create", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		&Record{ID: "push", Kind: KindPush, Context: a, CorrelationID: IDs{"create"}},
		&Record{ID: "think", Kind: KindReflection, Context: a, CorrelationID: IDs{"push"}},
		&Record{ID: "created", Kind: "mcp/response:tools/call", CorrelationID: IDs{"create"}},
		&Record{ID: "q1", Kind: "mcp/request:tools/call", Context: a, Audit: au("read_file", &Tokens{In: 7})},
		&Record{ID: "r1", Kind: "mcp/response:tools/call", Context: a, CorrelationID: IDs{"q1"}, Audit: bad},
		&Record{ID: "pushb", Kind: KindPush, Context: b},
		&Record{ID: "q2", Kind: "mcp/request:tools/call", Context: b, Audit: au("read_file", nil)},
		&Record{ID: "rej", Kind: "mcp/reject:tools/call", Context: b, CorrelationID: IDs{"q2"}, Audit: blocked},
		&Record{ID: "r2", Kind: "mcp/response:tools/call", Context: b, CorrelationID: IDs{"q2", "rej"}},
		&Record{ID: "popb", Kind: KindPop, Context: b, Payload: []byte(`{"reason":"resource_limit"}`)},
		&Record{ID: "done", Kind: KindConclusion, Context: a, CorrelationID: IDs{"push", "popb"}},
		&Record{ID: "pop", Kind: KindPop, Context: a, CorrelationID: IDs{"push"}, Payload: []byte(`{"reason":"returned"}`), Audit: au("", &Tokens{Used: 5000, Budget: 8192, Freed: 4900})},
		&Record{ID: "x", Kind: KindReflection, Context: "only/child"})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir); !r.OK() {
		t.Fatal(r.Faults)
	}
	return dir
}

func render(t *testing.T, dir string, f Filter, format string) string {
	t.Helper()
	var b bytes.Buffer
	if err := Print(&b, dir, f, format); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestJSONLIsTheJournal(t *testing.T) {
	dir := exploration(t)
	want, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	if got := render(t, dir, Filter{Journal: true}, FormatJSONL); got != string(want) {
		t.Errorf("jsonl differs from the journal:\n%s", cmp.Diff(string(want), got))
	}
}

// TestJSONLShowsTheClaimedHash: a changed line must not come out with a right hash.
func TestJSONLShowsTheClaimedHash(t *testing.T) {
	dir := exploration(t)
	edit(t, filepath.Join(dir, segmentName(1)), func(l [][]byte) [][]byte {
		l[5] = bytes.Replace(l[5], []byte(`"q1"`), []byte(`"Q1"`), 1)
		return l
	})
	line := strings.TrimSuffix(render(t, dir, Filter{ID: "Q1"}, FormatJSONL), "\n")
	if claimed, actual, ok := lineHash([]byte(line)); !ok || claimed == actual {
		t.Errorf("line %s has a right hash", line)
	}
}

func TestTable(t *testing.T) {
	got := render(t, exploration(t), Filter{Context: "br_aaaaaaaaaaaaaaaaaaaa", Tree: true}, FormatTable)
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 12 || !strings.HasPrefix(lines[0], "SEQ") {
		t.Fatalf("%d lines, want a header and 11 records:\n%s", len(lines), got)
	}
	for _, want := range []string{"2026-08-22 10:11:12.", "br_aaaaaaaa~/br_b", "5>100/900", "12.3", "error,folded,scrubbed", "blocked,over-budget,resource_limit", "=5000/8192", "files ?[31mevil?"} {
		if !strings.Contains(strings.ReplaceAll(got, "T10:", " 10:"), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.ContainsAny(got, "\x1b") {
		t.Error("control characters reach the terminal")
	}
}

func TestTree(t *testing.T) {
	got := render(t, exploration(t), Filter{}, FormatTree)
	got = regexp.MustCompile(`2026-08-22T10:11:12\.\d+ `).ReplaceAllString(got, "")
	want := `main
  #2 mcp/request:tools/call foldgate branch_create
  #5 mcp/response:tools/call <- #2
br_aaaaaaaaaaaaaaaaaaaa
  #3 context/push <- #2
  #4 reflection <- #3
  #6 mcp/request:tools/call files read_file 7 tokens in
  #7 mcp/response:tools/call files ?[31mevil? 5 tokens in, 100 of 900 tokens delivered 12.3 ms error,folded,scrubbed <- #6
  #13 conclusion <- #3 #12
  #14 context/pop files 5000 of 8192 tokens used <- #3
  br_aaaaaaaaaaaaaaaaaaaa/br_b
    #8 context/push
    #9 mcp/request:tools/call files read_file
    #10 mcp/reject:tools/call files read_file blocked,over-budget,resource_limit <- #9
    #11 mcp/response:tools/call <- #9 #10
    #12 context/pop
only
  only/child
    #15 reflection
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestMEW(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(render(t, exploration(t), Filter{Context: "br_aaaaaaaaaaaaaaaaaaaa"}, FormatMEW)), "\n")
	var kinds []string
	for _, line := range lines {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, m["kind"].(string))
		for k := range m {
			if !slices.Contains([]string{"protocol", "id", "ts", "from", "to", "kind", "correlation_id", "context", "payload"}, k) {
				t.Errorf("field %s is not of mew/v0.4", k)
			}
		}
		if m["protocol"] != "mew/v0.4" || m["payload"] == nil {
			t.Errorf("envelope %s", line)
		}
	}
	if d := cmp.Diff([]string{"context/push", "reasoning/thought", "mcp/request", "mcp/response", "reasoning/conclusion", "context/pop"}, kinds); d != "" {
		t.Error(d)
	}
	if !strings.Contains(lines[2], `"payload":{"method":"tools/call"}`) {
		t.Errorf("request %s lacks its method", lines[2])
	}
}

// TestOTLP: the spans of an exploration are one tree below the host's span
// where it sent one, and below the branch elsewhere.
func TestOTLP(t *testing.T) {
	var export struct {
		ResourceSpans []struct {
			ScopeSpans []struct{ Spans []otlpSpan }
		}
	}
	if err := json.Unmarshal([]byte(render(t, exploration(t), Filter{}, FormatOTLP)), &export); err != nil {
		t.Fatal(err)
	}
	spans := map[string]otlpSpan{}
	for _, s := range export.ResourceSpans[0].ScopeSpans[0].Spans {
		if len(s.TraceID) != 32 || len(s.SpanID) != 16 || s.Start > s.End {
			t.Errorf("span %+v", s)
		}
		spans[s.SpanID] = s
	}
	if len(spans) != 5 {
		t.Fatalf("%d spans, want 3 calls and 2 branches", len(spans))
	}
	a, b := spanID("branch:br_aaaaaaaaaaaaaaaaaaaa"), spanID("branch:br_aaaaaaaaaaaaaaaaaaaa/br_b")
	for id, parent := range map[string]string{
		spanID("create"): "b7ad6b7169203331", spanID("q1"): a, spanID("q2"): b, b: a, a: "",
	} {
		if s, ok := spans[id]; !ok || s.ParentID != parent {
			t.Errorf("span %q has parent %q, want %q", s.Name, s.ParentID, parent)
		}
	}
	if spans[a].TraceID != spans[b].TraceID || spans[a].TraceID != spans[spanID("q2")].TraceID {
		t.Error("a branch's spans are in several traces")
	}
	if s := spans[spanID("q1")]; s.Status.Code != 2 || s.Start >= s.End {
		t.Errorf("span of the failed call = %+v", spans[spanID("q1")])
	}
	if d := cmp.Diff([]otlpLink{{spans[a].TraceID, spanID("create")}}, spans[a].Links); d != "" {
		t.Error(d)
	}
}

// TestWriteDoesNotHoldBack: who follows sees each record when it comes.
func TestWriteDoesNotHoldBack(t *testing.T) {
	for _, format := range []string{FormatTable, FormatJSONL, FormatMEW} {
		var b bytes.Buffer
		err := Write(&b, format, func(yield func(*Record) bool) {
			for i := range 3 {
				yield(&Record{ID: "an-id", TS: "2026", Kind: "k", Hash: genesis, Prev: genesis})
				if n := strings.Count(b.String(), "an-id"); n != i+1 {
					t.Errorf("%s: %d records written after %d", format, n, i+1)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnknownFormat(t *testing.T) {
	var u *UsageError
	if err := Print(&bytes.Buffer{}, t.TempDir(), Filter{}, "xml"); !errors.As(err, &u) || u.Field != "format" {
		t.Errorf("Print = %v, want a UsageError", err)
	}
	var b bytes.Buffer
	if err := Print(&b, t.TempDir(), Filter{Tree: true}, FormatTable); !errors.As(err, &u) || b.Len() > 0 {
		t.Errorf("Print = %v after %q, want a UsageError before any output", err, b.String())
	}
}

func TestContexts(t *testing.T) {
	nodes, err := Contexts(exploration(t), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Path, State, Reason                      string
		Implicit                                 bool
		Records, Calls, Errors, Delivered, Depth int
	}
	var got []row
	for _, n := range nodes {
		got = append(got, row{string(n.Path), n.State, n.Reason, n.Implicit, n.Records, n.Calls, n.Errors, n.Delivered, n.Depth})
	}
	want := []row{
		{Path: "", State: "main", Records: 2, Calls: 1},
		{Path: "br_aaaaaaaaaaaaaaaaaaaa", State: "closed", Reason: "returned", Records: 6, Calls: 1, Errors: 1, Delivered: 100, Depth: 1},
		{Path: "br_aaaaaaaaaaaaaaaaaaaa/br_b", State: "closed", Reason: "resource_limit", Records: 5, Calls: 1, Depth: 2},
		{Path: "only", State: "free", Implicit: true, Depth: 1},
		{Path: "only/child", State: "free", Records: 1, Depth: 2},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	var b bytes.Buffer
	if err := WriteContexts(&b, nodes); err != nil || !strings.Contains(b.String(), "closed (returned)") || !strings.Contains(b.String(), "implied") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestSummarize(t *testing.T) {
	s, err := Summarize(exploration(t), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Total.Records != 14 || s.Total.Calls != 3 || s.Total.Errors != 1 || s.Total.Blocked != 1 {
		t.Errorf("total = %+v", s.Total)
	}
	if s.SavedMeasured != 800 || s.SavedComputed != 4900 {
		t.Errorf("saved %d measured, %d computed, want 800 and 4900", s.SavedMeasured, s.SavedComputed)
	}
	if c := s.Contexts["br_aaaaaaaaaaaaaaaaaaaa"]; c.Calls != 1 || c.In != 12 || c.Out != 900 || c.Delivered != 100 {
		t.Errorf("branch = %+v", c)
	}
	if c := s.Tools["files read_file"]; c.Calls != 2 || s.Servers["files"].Records != 5 || s.Principals["local"].Records != 5 {
		t.Errorf("tool = %+v, servers %+v, principals %+v", c, s.Servers, s.Principals)
	}
	var b bytes.Buffer
	if err := s.Write(&b); err != nil || !strings.Contains(b.String(), "saved, measured") || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestShowText(t *testing.T) {
	g, err := Show(exploration(t), "q2")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := g.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#9 ", "led to", "mcp/reject:tools/call"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
