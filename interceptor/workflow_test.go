package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const flowID = "ctx_1735650000_a1b2c3d4"

// flowOf is a call's part in a workflow as a role, at a step called flowID.
func flowOf(role workflow.Role, e Output) *WorkflowStep {
	return &WorkflowStep{Rule: &workflow.Rule{ToolSpec: workflow.ToolSpec{Role: role}}, Output: e, step: &workflow.Step{ID: flowID, Root: flowID}, begun: true}
}

func TestEcho(t *testing.T) {
	const meta = `"_meta":{"io.github.foldgate/context_id":"` + flowID + `"}`
	const block = `{"type":"text","text":"context_id=` + flowID + ` — handle for this workflow. Tools that declare an optional context_id parameter accept this value.",` + meta + `}`
	all := Output{Argument: "context_id", Key: "context_id", Content: true, Meta: true}
	for name, tc := range map[string]struct {
		role     workflow.Role
		echo     Output
		in, want string
	}{
		"everywhere": {workflow.RoleOpen, all, `{"content":[],"structuredContent":{"a":1.0}}`,
			`{"content":[` + block + `],"structuredContent":{"a":1.0,"context_id":"` + flowID + `"},` + meta + `}`},
		"after the server's text": {workflow.RoleLink, Output{Argument: "context_id", Content: true}, `{"content":[{"type":"text","text":"x"}]}`,
			`{"content":[{"type":"text","text":"x"},` + block + `]}`},
		"no content": {workflow.RoleOpen, Output{Argument: "context_id", Content: true}, `{"isError":false}`, `{"isError":false,"content":[` + block + `]}`},
		"a status has no text": {workflow.RoleStatus, all, `{"content":[],"structuredContent":{}}`,
			`{"content":[],"structuredContent":{"context_id":"` + flowID + `"},` + meta + `}`},
		"but a failed one": {workflow.RoleStatus, Output{Argument: "context_id", Content: true}, `{"content":[],"isError":true}`,
			`{"content":[` + block + `],"isError":true}`},
		"beside the server's own": {workflow.RoleStatus, Output{Argument: "context_id", Key: "_context"}, `{"structuredContent":{"context_id":"theirs"}}`,
			`{"structuredContent":{"context_id":"theirs","_context":{"context_id":"` + flowID + `"}}}`},
		"never over the server's": {workflow.RoleStatus, Output{Argument: "context_id", Key: "context_id"}, `{"structuredContent":{"context_id":"theirs"}}`,
			`{"structuredContent":{"context_id":"theirs"}}`},
		"not into an array": {workflow.RoleStatus, Output{Argument: "context_id", Key: "context_id"}, `{"structuredContent":[1]}`, `{"structuredContent":[1]}`},
		"not into a question": {workflow.RoleOpen, all, `{"resultType":"input_required","inputRequests":{}}`,
			`{"resultType":"input_required","inputRequests":{},` + meta + `}`},
		"nowhere":       {workflow.RoleOpen, Output{Argument: "context_id"}, `{"content":[]}`, `{"content":[]}`},
		"no object":     {workflow.RoleOpen, all, `null`, `null`},
		"other content": {workflow.RoleOpen, Output{Argument: "context_id", Content: true}, `{"content":"text"}`, `{"content":"text"}`},
		"keeps _meta": {workflow.RoleStatus, Output{Argument: "context_id", Meta: true}, `{"_meta":{"x":1}}`,
			`{"_meta":{"x":1,"io.github.foldgate/context_id":"` + flowID + `"}}`},
	} {
		res, err := flowOf(tc.role, tc.echo).addHandle(&Result{Body: json.RawMessage(tc.in)}, nil)
		if err != nil || string(res.Body) != tc.want {
			t.Errorf("%s: %s, %v\nwant %s", name, res.Body, err, tc.want)
		}
	}
}

func TestEchoErrors(t *testing.T) {
	f := flowOf(workflow.RoleOpen, Output{Argument: "context_id", Content: true, Meta: true})
	refusal := &Refusal{Code: "upstream_timeout"}
	var got *Refusal
	if _, err := f.addHandle(nil, refusal); !errors.As(err, &got) || got.ContextID != flowID || refusal.ContextID != "" {
		t.Errorf("refusal = %+v, want a copy with the handle", got)
	}
	withheld := &scrubbedError{text: "withheld", err: refusal}
	if _, err := f.addHandle(nil, withheld); err != error(withheld) {
		t.Errorf("a withheld error became %v", err)
	}
	object := &Result{Error: json.RawMessage(`{"code":1}`)}
	if res, err := f.addHandle(object, nil); res != object || err != nil {
		t.Errorf("an error object became %s, %v", res.Error, err)
	}
	f.step = &workflow.Step{}
	if res, _ := f.addHandle(&Result{Body: json.RawMessage(`{}`)}, nil); string(res.Body) != `{}` {
		t.Errorf("a call of no workflow got %s", res.Body)
	}
}

func TestStatusOf(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for want, tc := range map[string]struct {
		ctx  context.Context
		body string
		err  error
	}{
		"completed":      {t.Context(), `{"content":[]}`, nil},
		"failed":         {t.Context(), `{"isError":true}`, nil},
		"input_required": {t.Context(), `{"resultType":"input_required"}`, nil},
		"rejected":       {t.Context(), "", &Refusal{Reason: "unsafe"}},
		"canceled":       {gone, "", context.Canceled},
	} {
		var res *Result
		if tc.err == nil {
			res = &Result{Body: json.RawMessage(tc.body)}
		}
		if got := statusOf(tc.ctx, res, tc.err); got != want {
			t.Errorf("%s, %v = %s, want %s", tc.body, tc.err, got, want)
		}
	}
	if got := statusOf(t.Context(), &Result{Error: json.RawMessage(`{}`)}, nil); got != "failed" {
		t.Errorf("an error object = %s", got)
	}
	if got := statusOf(t.Context(), nil, &folding.EndedError{}); got != "canceled" {
		t.Errorf("the end of the branch = %s", got)
	}
	if got := statusOf(t.Context(), nil, &Refusal{Reason: "timeout"}); got != "failed" {
		t.Errorf("a timeout = %s", got)
	}
}

// A call that is over before its step could be kept is refused for that, and not
// as if the store had a fault.
func TestStepOfACallThatIsOver(t *testing.T) {
	engine, err := workflow.Open(filepath.Join(t.TempDir(), "workflows.db"), time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	rules, faults := workflow.Compile([]workflow.Spec{{Name: "w", TTL: time.Hour, Evidence: []workflow.Evidence{workflow.Explicit},
		Tools: []workflow.ToolSpec{{Role: workflow.RoleOpen, Server: "s", Tool: "open"}}}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var log strings.Builder
	w := &Workflows{Engine: engine, Log: slog.New(slog.NewTextHandler(&log, nil))}
	ended := &folding.EndedError{BranchID: "br_x"}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	c := &Call{Origin: Origin{Identity: Identity{Principal: "ada"}}, Target: Target{Workflow: &WorkflowStep{Rule: rules.Find("s", "open")}}}
	w.Locate(ctx, c)
	res, err := w.Layer()(func(context.Context, *Call) (*Result, error) {
		t.Error("the call was made")
		return nil, nil
	})(ctx, c)
	if res != nil || err != error(ended) || c.Outcome.Decision != "" || log.Len() > 0 {
		t.Errorf("the call = %v, %v (%s), log %s; want %v", res, err, c.Outcome.Decision, &log, ended)
	}
}

// The record of an expired workflow has its host and its A2A ids, also after a restart.
func TestExpiredAfterARestart(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	open := func() *workflow.Engine {
		engine, err := workflow.Open(filepath.Join(dir, "workflows.db"), func() time.Time { return now }, nil)
		if err != nil {
			t.Fatal(err)
		}
		return engine
	}
	journal, err := trace.Open(filepath.Join(dir, "trace"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rules, faults := workflow.Compile([]workflow.Spec{{Name: "w", TTL: time.Hour, Preserve: true, Evidence: []workflow.Evidence{workflow.Explicit},
		Tools: []workflow.ToolSpec{{Role: workflow.RoleOpen, Server: "s", Tool: "open"}}}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	scrubber, err := scrub.New(scrub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	boundary := &Boundary{Scrubber: scrubber, Policy: testPolicy{}.of}
	w := &Workflows{Engine: open(), Recorder: &Recorder{Journal: journal, Boundary: boundary, Payload: true}}
	origin := Origin{From: "host:agent#ses_1", Session: "ses_1", Identity: Identity{Principal: "ada"}}
	for _, id := range []string{"", "agent:job-7.1"} {
		c := &Call{Origin: origin, Target: Target{Method: "tools/call", Workflow: &WorkflowStep{Rule: rules.Find("s", "open"), Handle: id}}}
		w.Locate(t.Context(), c)
		if _, err := w.Layer()(func(context.Context, *Call) (*Result, error) { return &Result{Body: []byte(`{}`)}, nil })(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Engine.Close(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour)
	w.Engine = open()
	defer w.Engine.Close()
	w.Sweep(t.Context())
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "agent:job-7.1"} {
		n := 0
		f := query.Filter{Kinds: []string{trace.KindFlowComplete}, Workflow: id, A2AContext: id}
		for r, err := range query.Scan(t.Context(), filepath.Join(dir, "trace"), f) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			flow := r.Audit.Workflow
			root, _ := rawjson.GetString(flow, "context_id")
			context, _ := rawjson.GetString(flow, "a2a", "contextId")
			task, _ := rawjson.GetString(flow, "a2a", "taskId")
			if !slices.Equal(r.To, []string{"host:agent#ses_1"}) || task != root || root == "" || context != root && context != "agent:job-7.1" {
				t.Errorf("to %v, workflow %s", r.To, flow)
			}
		}
		if want := map[string]int{"": 2, "agent:job-7.1": 1}[id]; n != want {
			t.Errorf("%d records of the end of %q, want %d", n, id, want)
		}
	}
}

// A block that carries a handle outlives folding; what only looks like one does
// not keep its text from being folded.
func TestHandleBlock(t *testing.T) {
	body := appendHandle(json.RawMessage(`{"content":[{"type":"text","text":"long"}]}`), "context_id", flowID)
	p := split(&Result{Body: body}, false)
	if p.text != "long" || len(p.kept) != 1 || !strings.Contains(string(p.kept[0]), flowID) {
		t.Errorf("text %q, kept %s; want the handle kept", p.text, p.kept)
	}
	if marked([]byte(`{"type":"text","text":"`+strings.Repeat("x", maxMarked)+`","_meta":{"`+MetaContextID+`":"x"}}`), MetaContextID) {
		t.Error("a long text passes as a handle")
	}
}

// Handles are not taken for secrets, wherever a result repeats them.
func TestHandlesAreNotSecrets(t *testing.T) {
	s, err := scrub.New(scrub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		id := workflow.NewID(time.Now())
		for _, text := range []string{handleText("context_id", id), `{"context_id":"` + id + `"}`, "workflow " + id + "/" + id} {
			if _, found, err := s.Text(t.Context(), text); err != nil || len(found) > 0 {
				t.Fatalf("%s: %v, %v", text, found, err)
			}
		}
	}
}

// A result that is cut at a budget keeps the handle, which the retry needs, and
// costs no more than the budget.
func TestCutKeepsHandle(t *testing.T) {
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	g := TokenMeter{Counter: counter}
	body := appendHandle(json.RawMessage(`{"content":[{"type":"text","text":"`+strings.Repeat("many words ", 500)+`"}],"structuredContent":{"context_id":"`+flowID+`"},"resultType":"complete"}`), "context_id", flowID)
	res := &Result{Body: rawjson.Set(body, rawjson.Quote(flowID), "_meta", MetaContextID)}
	const notice = "\n[cut by foldgate: branch budget of 1000 tokens exhausted]"
	both := counter.Count(notice) + counter.Count(handleText("context_id", flowID))
	for limit := range 200 {
		cut, kept := cutResult(g, res, limit, notice)
		if cut == nil {
			if limit > 20 {
				t.Errorf("limit %d: nothing fits", limit)
			}
			continue
		}
		if n := g.Result(cut); n != kept || n > limit || !rawjson.Valid(cut.Body, 64) {
			t.Errorf("limit %d: costs %d, said to be %d: %s", limit, n, kept, cut.Body)
		}
		if id, _ := rawjson.GetString(cut.Body, "_meta", MetaContextID); id != flowID || !strings.Contains(string(cut.Body), "cut by foldgate") {
			t.Errorf("limit %d: %s", limit, cut.Body)
		}
		if split(cut, true).kept == nil == (limit > both) {
			t.Errorf("limit %d: the handle is in %s, or should be", limit, cut.Body)
		}
	}
}

// The trace has a list of its own of what evidence can be asked for.
func TestEvidenceCanBeAskedFor(t *testing.T) {
	for _, e := range []workflow.Evidence{workflow.Explicit, workflow.Native, workflow.Join, workflow.Session, workflow.None} {
		if err := (query.Filter{Evidence: []string{string(e)}}).Validate(); err != nil {
			t.Error(err)
		}
	}
	if err := (query.Filter{Evidence: []string{"implicit"}}).Validate(); err == nil {
		t.Error("evidence that there is not: no error")
	}
}
