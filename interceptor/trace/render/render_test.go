package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// exploration is one folded exploration: a branch with two calls, a child
// branch that was ended for its budget, and the return.
func exploration(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	now := time.Date(2026, 8, 22, 10, 11, 12, 0, time.UTC)
	j, err := trace.Open(dir, trace.Options{Now: func() time.Time { now = now.Add(time.Millisecond); return now }, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	const a, b = "br_aaaaaaaaaaaaaaaaaaaa", "br_aaaaaaaaaaaaaaaaaaaa/br_b"
	au := func(tool string, t *trace.Tokens) *trace.Audit {
		if t != nil {
			t.Counter = "o200k_base"
		}
		return &trace.Audit{Session: "s1", Principal: "local", Server: "files", Tool: tool, Tokens: t}
	}
	bad := au("\x1b[31mevil\n", &trace.Tokens{In: 5, Out: 900, Delivered: 100})
	bad.IsError, bad.MS, bad.Scrub, bad.Fold = true, 12.34, []trace.Finding{{Rule: "r", Count: 2}}, &trace.Fold{Handle: "h", Saved: 800}
	blocked := au("read_file", nil)
	blocked.Decision = &trace.Decision{Result: trace.Blocked, Reason: "resource_limit"}
	for _, r := range []*trace.Record{
		{ID: "create", Kind: "mcp/request:tools/call", Audit: &trace.Audit{Session: "s1", Server: "foldgate", Tool: "branch_create", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		{ID: "push", Kind: trace.KindPush, Context: a, CorrelationID: trace.IDs{"create"}},
		{ID: "think", Kind: trace.KindReflection, Context: a, CorrelationID: trace.IDs{"push"}},
		{ID: "created", Kind: "mcp/response:tools/call", CorrelationID: trace.IDs{"create"}},
		{ID: "q1", Kind: "mcp/request:tools/call", Context: a, Audit: au("read_file", &trace.Tokens{In: 7})},
		{ID: "r1", Kind: "mcp/response:tools/call", Context: a, CorrelationID: trace.IDs{"q1"}, Audit: bad},
		{ID: "pushb", Kind: trace.KindPush, Context: b},
		{ID: "q2", Kind: "mcp/request:tools/call", Context: b, Audit: au("read_file", nil)},
		{ID: "rej", Kind: "mcp/reject:tools/call", Context: b, CorrelationID: trace.IDs{"q2"}, Audit: blocked},
		{ID: "r2", Kind: "mcp/response:tools/call", Context: b, CorrelationID: trace.IDs{"q2", "rej"}},
		{ID: "popb", Kind: trace.KindPop, Context: b, Payload: []byte(`{"reason":"resource_limit"}`)},
		{ID: "done", Kind: trace.KindConclusion, Context: a, CorrelationID: trace.IDs{"push", "popb"}},
		{ID: "pop", Kind: trace.KindPop, Context: a, CorrelationID: trace.IDs{"push"}, Payload: []byte(`{"reason":"returned"}`), Audit: au("", &trace.Tokens{Used: 5000, Budget: 8192, Freed: 4900})},
		{ID: "x", Kind: trace.KindReflection, Context: "only/child"},
	} {
		if err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := trace.Verify(t.Context(), dir, trace.VerifyOptions{}); err != nil || !r.OK() {
		t.Fatal(r.Faults, err)
	}
	return dir
}

func render(t *testing.T, dir string, f query.Filter, format string) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, format, query.Select(t.Context(), dir, f)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// each yields records without errors.
func each(records iter.Seq[*trace.Record]) iter.Seq2[*trace.Record, error] {
	return func(yield func(*trace.Record, error) bool) {
		records(func(r *trace.Record) bool { return yield(r, nil) })
	}
}

func TestJSONLIsTheJournal(t *testing.T) {
	dir := exploration(t)
	want, err := os.ReadFile(filepath.Join(dir, trace.SegmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	if got := render(t, dir, query.Filter{Journal: true}, JSONL); got != string(want) {
		t.Errorf("jsonl differs from the journal:\n%s", cmp.Diff(string(want), got))
	}
}

// TestJSONLShowsTheClaimedHash: a changed line must not come out with a right hash.
func TestJSONLShowsTheClaimedHash(t *testing.T) {
	dir := exploration(t)
	file := filepath.Join(dir, trace.SegmentName(1))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(data, []byte(`"id":"q1"`), []byte(`"id":"Q1"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSuffix(render(t, dir, query.Filter{ID: "Q1"}, JSONL), "\n")
	if _, intact, err := trace.ParseLine([]byte(line)); err != nil || intact {
		t.Errorf("line %s has a right hash", line)
	}
}

func TestTable(t *testing.T) {
	got := render(t, exploration(t), query.Filter{Context: "br_aaaaaaaaaaaaaaaaaaaa", Tree: true}, Table)
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 12 || !strings.HasPrefix(lines[0], "SEQ") {
		t.Fatalf("%d lines, want a header and 11 records:\n%s", len(lines), got)
	}
	for _, want := range []string{"2026-08-22 10:11:12.", "br_aaaaaaaa~/br_b", "5>100/900", "12.3", "error,folded,scrubbed", "blocked,over-budget,resource_limit", "=5000/8192", `files \u001b[31mevil\u000a`} {
		if !strings.Contains(strings.ReplaceAll(got, "T10:", " 10:"), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.ContainsAny(got, "\x1b") {
		t.Error("control characters reach the terminal")
	}
}

func TestTree(t *testing.T) {
	got := render(t, exploration(t), query.Filter{}, Tree)
	got = regexp.MustCompile(`2026-08-22T10:11:12\.\d+ `).ReplaceAllString(got, "")
	want := `main
  #2 mcp/request:tools/call foldgate branch_create
  #5 mcp/response:tools/call <- #2
br_aaaaaaaaaaaaaaaaaaaa
  #3 context/push <- #2
  #4 reflection <- #3
  #6 mcp/request:tools/call files read_file 7 tokens in by local
  #7 mcp/response:tools/call files \u001b[31mevil\u000a 5 tokens in, 100 of 900 tokens delivered 12.3 ms by local error,folded,scrubbed <- #6
  #13 conclusion <- #3 #12
  #14 context/pop files 5000 of 8192 tokens used by local returned <- #3
  br_aaaaaaaaaaaaaaaaaaaa/br_b
    #8 context/push
    #9 mcp/request:tools/call files read_file by local
    #10 mcp/reject:tools/call files read_file by local blocked,over-budget,resource_limit <- #9
    #11 mcp/response:tools/call <- #9 #10
    #12 context/pop resource_limit
only
  only/child
    #15 reflection
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestMEW(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(render(t, exploration(t), query.Filter{Context: "br_aaaaaaaaaaaaaaaaaaaa"}, MEW)), "\n")
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
	if err := json.Unmarshal([]byte(render(t, exploration(t), query.Filter{}, OTLP)), &export); err != nil {
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
	hash := "sha256:" + strings.Repeat("0", 64)
	for _, format := range []string{Table, JSONL, MEW} {
		var b bytes.Buffer
		err := Write(&b, format, func(yield func(*trace.Record, error) bool) {
			for i := range 3 {
				yield(&trace.Record{ID: "an-id", TS: "2026", Kind: "k", Hash: hash, Prev: hash}, nil)
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
	var u *query.UsageError
	if err := Write(&bytes.Buffer{}, "xml", query.Select(t.Context(), t.TempDir(), query.Filter{})); !errors.As(err, &u) || u.Field != "format" {
		t.Errorf("Write = %v, want a UsageError", err)
	}
	var b bytes.Buffer
	if err := Write(&b, Table, query.Select(t.Context(), t.TempDir(), query.Filter{Tree: true})); !errors.As(err, &u) || b.Len() > 0 {
		t.Errorf("Write = %v after %q, want a UsageError before any output", err, b.String())
	}
}

func TestShowText(t *testing.T) {
	s, err := query.OpenCurrent(t.Context(), []string{exploration(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at, err := s.Locate(t.Context(), "q2")
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Show(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WriteGraph(&b, g); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#9 ", "led to", "mcp/reject:tools/call"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// flowRecord is a record of a call that is the step at path.
func flowRecord(id, kind, task, status, payload string, correlates ...string) *trace.Record {
	return &trace.Record{
		ID: id, TS: "2026-08-22T10:11:12.000000Z", Kind: kind, CorrelationID: correlates, Payload: json.RawMessage(payload),
		Audit: &trace.Audit{Tool: "use", IsError: status == "failed", Workflow: json.RawMessage(
			`{"name":"w","path":"root/` + task + `","step":"s","status":"` + status + `","a2a":{"contextId":"c","taskId":"` + task + `"}}`)},
	}
}

func TestA2A(t *testing.T) {
	records := []*trace.Record{
		{ID: "other", Kind: "mcp/request:tools/call", Audit: &trace.Audit{}},
		flowRecord("q1", "mcp/request:tools/call", "t1", "working", `{"params":{"arguments":{"a":1}}}`),
		flowRecord("s1", "workflow/start", "t1", "working", `{}`, "q1"),
		flowRecord("r1", "mcp/response:tools/call", "t1", "completed", `{"result":{"structuredContent":{"b":2}}}`, "q1"),
		flowRecord("q2", "mcp/request:tools/call", "t2", "working", `{"params":{"arguments":{}}}`, "q1", "s1", "elsewhere"),
		flowRecord("r2", "mcp/response:tools/call", "t2", "failed", `{"result":{"content":[{"type":"text","text":"no"}],"isError":true}}`, "q2"),
		flowRecord("q3", "mcp/request:tools/call", "t2", "working", ``, "q2"),
	}
	var b bytes.Buffer
	if err := Write(&b, A2A, each(slices.Values(records))); err != nil {
		t.Fatal(err)
	}
	var got a2aTasks
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	meta := func(task string) map[string]string {
		return map[string]string{"io.github.foldgate/name": "w", "io.github.foldgate/path": "root/" + task, "io.github.foldgate/step": "s"}
	}
	message := func(id, task, data string, refs ...string) a2aMessage {
		return a2aMessage{MessageID: id, ContextID: "c", TaskID: task, Role: "ROLE_USER", Parts: []a2aPart{{Data: json.RawMessage(data)}}, ReferenceTaskIDs: refs}
	}
	want := a2aTasks{PageSize: 2, TotalSize: 2, Tasks: []*a2aTask{
		{
			ID: "t1", ContextID: "c", Status: a2aStatus{State: "TASK_STATE_COMPLETED", Timestamp: "2026-08-22T10:11:12.000000Z"}, Metadata: meta("t1"),
			Artifacts: []a2aArtifact{{ArtifactID: "r1", Name: "use", Parts: []a2aPart{{Data: json.RawMessage(`{"b":2}`)}}}},
			History:   []a2aMessage{message("q1", "t1", `{"tool":"use","arguments":{"a":1}}`)},
		},
		{
			ID: "t2", ContextID: "c", Status: a2aStatus{State: "TASK_STATE_WORKING", Timestamp: "2026-08-22T10:11:12.000000Z"}, Metadata: meta("t2"),
			History: []a2aMessage{message("q2", "t2", `{"tool":"use","arguments":{}}`, "t1"), message("q3", "t2", `{"tool":"use"}`)},
		},
	}}
	same := cmp.Comparer(func(a, b json.RawMessage) bool {
		var x, y bytes.Buffer
		return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && x.String() == y.String() || len(a)+len(b) == 0
	})
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Errorf("tasks (-want +got):\n%s", diff)
	}
	b.Reset()
	if err := Write(&b, A2A, each(slices.Values(records[:6]))); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if s := got.Tasks[1].Status; s.State != "TASK_STATE_FAILED" || s.Message == nil || s.Message.Role != "ROLE_AGENT" || s.Message.Parts[0].Text != "no" {
		t.Errorf("status of a failed task = %+v", s)
	}
	b.Reset()
	if err := Write(&b, A2A, each(slices.Values(records[:1]))); err != nil || !bytes.Contains(b.Bytes(), []byte(`"tasks": []`)) {
		t.Errorf("no steps: %v, %s", err, b.Bytes())
	}
}

func TestStepText(t *testing.T) {
	for in, want := range map[string]string{
		`{"step":"activation","attempt":2,"evidence":"join"}`:     "activation#2:join",
		`{"step":"activation","attempt":1,"evidence":"explicit"}`: "activation#1",
		`{"step":"find","attempt":1,"evidence":"none"}`:           "find#1",
		`{"name":"w","role":"link"}`:                              "no-workflow",
		"{\"step\":\"a\\u001b[2J\"}":                              `a\u001b[2J`,
	} {
		if got := strings.Join(Flags(&trace.Record{Audit: &trace.Audit{Workflow: json.RawMessage(in)}}), ","); got != want {
			t.Errorf("%s = %q, want %q", in, got, want)
		}
	}
}

func TestContexts(t *testing.T) {
	nodes, err := query.Contexts(query.Select(t.Context(), exploration(t), query.Filter{}))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Path, State, Reason                      string
		Implicit                                 bool
		Records, Calls, Errors, Delivered, Depth int64
	}
	var got []row
	for _, n := range nodes {
		got = append(got, row{string(n.Path), n.State, n.Reason, n.Implicit, n.Records, n.Calls, n.Errors, n.Delivered, int64(n.Depth)})
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
