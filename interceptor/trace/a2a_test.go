package trace

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// flowRecord is a record of a call that is the step at path.
func flowRecord(id, kind, task, status, payload string, correlates ...string) *Record {
	return &Record{
		ID: id, TS: "2026-08-22T10:11:12.000000Z", Kind: kind, CorrelationID: correlates, Payload: json.RawMessage(payload),
		Audit: &Audit{Tool: "use", IsError: status == "failed", Workflow: json.RawMessage(
			`{"name":"w","path":"root/` + task + `","step":"s","status":"` + status + `","a2a":{"contextId":"c","taskId":"` + task + `"}}`)},
	}
}

func TestA2A(t *testing.T) {
	records := []*Record{
		{ID: "other", Kind: "mcp/request:tools/call", Audit: &Audit{}},
		flowRecord("q1", "mcp/request:tools/call", "t1", "working", `{"params":{"arguments":{"a":1}}}`),
		flowRecord("s1", "workflow/start", "t1", "working", `{}`, "q1"),
		flowRecord("r1", "mcp/response:tools/call", "t1", "completed", `{"result":{"structuredContent":{"b":2}}}`, "q1"),
		flowRecord("q2", "mcp/request:tools/call", "t2", "working", `{"params":{"arguments":{}}}`, "q1", "s1", "elsewhere"),
		flowRecord("r2", "mcp/response:tools/call", "t2", "failed", `{"result":{"content":[{"type":"text","text":"no"}],"isError":true}}`, "q2"),
		flowRecord("q3", "mcp/request:tools/call", "t2", "working", ``, "q2"),
	}
	var b bytes.Buffer
	if err := Write(&b, FormatA2A, slices.Values(records)); err != nil {
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
	if err := Write(&b, FormatA2A, slices.Values(records[:6])); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if s := got.Tasks[1].Status; s.State != "TASK_STATE_FAILED" || s.Message == nil || s.Message.Role != "ROLE_AGENT" || s.Message.Parts[0].Text != "no" {
		t.Errorf("status of a failed task = %+v", s)
	}
	b.Reset()
	if err := Write(&b, FormatA2A, slices.Values(records[:1])); err != nil || !bytes.Contains(b.Bytes(), []byte(`"tasks": []`)) {
		t.Errorf("no steps: %v, %s", err, b.Bytes())
	}
}

func TestStepText(t *testing.T) {
	for in, want := range map[string]string{
		`{"step":"activation","attempt":2,"evidence":"join"}`:     "activation#2:join",
		`{"step":"activation","attempt":1,"evidence":"explicit"}`: "activation#1",
		`{"step":"find","attempt":1,"evidence":"none"}`:           "find#1",
		`{"name":"w","role":"link"}`:                              "no-workflow",
		"{\"step\":\"a\\u001b[2J\"}":                              "a?[2J",
	} {
		if got := flagText(&Record{Audit: &Audit{Workflow: json.RawMessage(in)}}); got != want {
			t.Errorf("%s = %q, want %q", in, got, want)
		}
	}
}

func TestA2AFilters(t *testing.T) {
	r := flowRecord("q1", "mcp/request:tools/call", "t1", "working", `{}`)
	for _, tc := range []struct {
		f    Filter
		want bool
	}{
		{Filter{A2AContext: "c"}, true}, {Filter{A2AContext: "d"}, false}, {Filter{A2ATask: "t1"}, true}, {Filter{A2ATask: "c"}, false},
		{Filter{A2AContext: "c", A2ATask: "t2"}, false}, {Filter{A2AContext: "c", Workflow: "root/t1"}, true},
	} {
		if got := tc.f.matchRecord(r); got != tc.want {
			t.Errorf("%+v selects %t, want %t", tc.f, got, tc.want)
		}
	}
	if f := (Filter{A2AContext: "c"}); f.matchRecord(&Record{Kind: "reflection", Audit: &Audit{}}) {
		t.Error("a record of no workflow was selected")
	}
}
