//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// signalsConfig puts the signals server behind a workflow. more are further
// keys of the workflow, tools further keys of the configuration.
func signalsConfig(file, more string) string {
	return fmt.Sprintf(`upstreams:
  signals: {command: [%q, -record, %q], timeout_seconds: 2}
results: {tools: {"signals__*": {fold: off}}}
workflows:
  - name: signals
    open:
      - tool: signals.get_signals
        capture: {signal_ids: "$.structuredContent.signals[*].signals_agent_segment_id"}
      - tool: signals.get_signals_text
        capture: {signal_ids: "$.structuredContent.signals[*].signals_agent_segment_id"}
      - tool: signals.get_signals_native
      - tool: signals.get_signals_union
      - tool: signals.get_signals_list
        capture: {signal_ids: "$.structuredContent[*]"}
    link:
      - tool: signals.activate_signal
        step: activation
        join: {signal_ids: "$.arguments.signals_agent_segment_id"}
        step_key: ["$.arguments.signals_agent_segment_id", "$.arguments.platform", "$.arguments.account"]
    status:
      - tool: signals.check_signal_status
        join: {signal_ids: "$.arguments.signals_agent_segment_id"}
    close:
      - tool: signals.end_campaign
%s`, signalsBin, file, more)
}

var contextID = regexp.MustCompile(`^ctx_\d{10}_[a-z0-9]{26}$`)

// flowResult is a result as a host of workflows reads it.
type flowResult struct {
	toolResult
	Meta map[string]json.RawMessage `json:"_meta"`
}

// handle returns the handle in _meta, and checks that it is new or known.
func (r flowResult) handle() string {
	var id string
	_ = json.Unmarshal(r.Meta["io.github.foldgate/context_id"], &id)
	return id
}

// inText returns the handle that the last block of text tells.
func (r flowResult) inText() string {
	if len(r.Content) == 0 {
		return ""
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(r.Content[len(r.Content)-1].Text, "context_id="), " ")
	return id
}

func (r flowResult) inStructured() string {
	var s struct {
		ContextID string `json:"context_id"`
	}
	_ = json.Unmarshal(r.StructuredContent, &s)
	return s.ContextID
}

func flow(t *testing.T, c *mcpclient.Client, ctx context.Context, name string, args map[string]string) flowResult {
	t.Helper()
	m := tool(t, c, ctx, "signals__"+name, jsonText(t, args))
	var r flowResult
	if err := json.Unmarshal(m.Result, &r); err != nil {
		t.Fatalf("%s: %v", m.Result, err)
	}
	return r
}

// opened is flow for a call that must come back with a handle.
func opened(t *testing.T, c *mcpclient.Client, ctx context.Context, name string, args map[string]string) string {
	t.Helper()
	r := flow(t, c, ctx, name, args)
	if !contextID.MatchString(r.handle()) {
		t.Fatalf("%s %v: handle %q in %+v", name, args, r.handle(), r)
	}
	return r.handle()
}

// flowRecord is what the tests read of a trace record's workflow.
type flowRecord struct {
	record
	Audit struct {
		Tool     string
		Decision *struct{ Result, Reason string }
		Workflow struct {
			Name, Path, Role, Step, Status, Evidence string
			ContextID                                string `json:"context_id"`
			Attempt                                  int
			Ambiguous                                bool
			A2A                                      struct{ ContextID, TaskID string }
		}
	}
}

func (g *gateway) flows(filters ...string) []flowRecord {
	g.t.Helper()
	g.output("trace", "verify")
	var out []flowRecord
	for line := range strings.Lines(g.output(append([]string{"trace", "--format", "jsonl"}, filters...)...)) {
		var r flowRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			g.t.Fatalf("trace line %q: %v", line, err)
		}
		out = append(out, r)
	}
	return out
}

// responses returns the responses to calls among records, oldest first.
func responses(records []flowRecord) []flowRecord {
	return slices.DeleteFunc(slices.Clone(records), func(r flowRecord) bool { return r.Kind != "mcp/response:tools/call" })
}

// calls returns the arguments of the calls of a tool that reached the server.
func calls(t *testing.T, file, name string) []string {
	t.Helper()
	var out []string
	for _, line := range recorded(t, file) {
		var c struct {
			Name      string
			Arguments json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		if c.Name == name {
			out = append(out, string(c.Arguments))
		}
	}
	return out
}

// Discovery, activation, status: one thread over a server that keeps none, and
// across a restart of the gateway (vectors W1, W2, W3, W9, W10, W16).
func TestWorkflow(t *testing.T) {
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx, file := testContext(t), recordFile(t)
		g := newGateway(t, signalsConfig(file, ""))
		c := g.connect(ctx, transport, era)
		tools := string(call(t, c, ctx, "tools/list", `{}`).Result)
		for _, declared := range []string{
			`"context_id":{"type":"string","description":"Handle returned by signals__get_signals or `,
			`"context_id":{"type":"string","description":"Handle of this workflow"}`,
		} {
			if !strings.Contains(tools, declared) {
				t.Errorf("tools/list does not declare %s", declared)
			}
		}
		first := flow(t, c, ctx, "get_signals", map[string]string{"signal_spec": "luxury sports"})
		a := first.handle()
		if !contextID.MatchString(a) || first.inText() != a || first.inStructured() != a {
			t.Fatalf("discovery = %+v, want one new handle in text, structured content and _meta", first)
		}
		g.stop()
		c = g.connect(ctx, transport, era)
		activate := map[string]string{"signals_agent_segment_id": "sig_luxury", "platform": "dsp", "context_id": a}
		b := opened(t, c, ctx, "activate_signal", activate)
		again := opened(t, c, ctx, "activate_signal", activate)
		activate["context_id"] = b
		if third := opened(t, c, ctx, "activate_signal", activate); b != again || b != third || a == b {
			t.Errorf("activations = %s, %s, %s in workflow %s, want one step of its own", b, again, third, a)
		}
		status := flow(t, c, ctx, "check_signal_status", map[string]string{"signals_agent_segment_id": "sig_luxury", "context_id": a})
		if status.handle() != b || status.inStructured() != b || len(status.Content) != 1 {
			t.Errorf("status = %+v, want the handle of the step and no text beside the server's", status)
		}
		if got := calls(t, file, "activate_signal"); len(got) != 3 || strings.Contains(strings.Join(got, ""), "context_id") {
			t.Errorf("the server received %v, want three calls without context_id", got)
		}
		g.stop()
		tree := g.flows("--workflow", a, "--tree")
		open := tree[0]
		attempts := []int{}
		for _, r := range responses(tree)[1:] {
			w := r.Audit.Workflow
			if w.Path != a+"/"+b || w.Evidence != "explicit" || w.A2A.ContextID != a || w.A2A.TaskID != b || w.Status != "completed" {
				t.Errorf("step = %+v, want %s/%s by explicit evidence, completed", w, a, b)
			}
			attempts = append(attempts, w.Attempt)
		}
		if !slices.Equal(attempts, []int{1, 2, 3, 3}) {
			t.Errorf("attempts = %v, want 1, 2, 3 and 3 for the status", attempts)
		}
		for _, r := range tree {
			if r.Kind == "mcp/request:tools/call" && r.ID != open.ID && !slices.Contains(r.CorrelationID, open.ID) {
				t.Errorf("request %s of %s correlates to %v, want the opening request %s too", r.ID, r.Audit.Tool, r.CorrelationID, open.ID)
			}
		}
		if n := len(g.flows("--workflow", a, "--children")); n == 0 || n >= len(tree) {
			t.Errorf("--children selects %d of %d records", n, len(tree))
		}
	})
}

// A handle keeps follow-ups in their workflow, and a call without one starts
// another (W4, W13).
func TestWorkflowPerDiscovery(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	a := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "one"})
	for range 3 {
		if again := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "one more", "context_id": a}); again != a {
			t.Errorf("follow-up = %s, want %s", again, a)
		}
	}
	if other := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "one"}); other == a {
		t.Errorf("a call without the handle came into workflow %s", a)
	}
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			m, err := c.Call(ctx, "tools/call", `{"name":"signals__get_signals","arguments":{"signal_spec":"at once"}}`)
			var r flowResult
			if err == nil && json.Unmarshal(m.Result, &r) == nil {
				ids[i] = r.handle()
			}
		})
	}
	wg.Wait()
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 8 || ids[0] == "" {
		t.Errorf("8 discoveries at once = %v, want 8 workflows", ids)
	}
}

// What is no handle of the caller's is refused before the server, whatever the
// reason, and nothing is minted (W5, W15).
func TestWorkflowUnknownHandle(t *testing.T) {
	ctx, file := testContext(t), recordFile(t)
	secret := "ghp_" + strings.Repeat("a1B2c3D4e5F6", 3)
	g := newGateway(t, signalsConfig(file, ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, id := range []string{"ctx_1735650000_a1b2c3d4", "conv-1", "ctx_1735650000_", "../../etc", strings.Repeat("x", 5000), secret} {
		for _, name := range []string{"get_signals", "activate_signal", "check_signal_status"} {
			args := map[string]string{"context_id": id}
			if name == "get_signals" {
				args["signal_spec"] = "any"
			}
			m := tool(t, c, ctx, "signals__"+name, jsonText(t, args))
			if f := refused(t, m); f.Error.Code != "context_not_found" || f.Error.Status != 404 || strings.Contains(string(m.Result), "ctx_17952") {
				t.Errorf("%s with %.40q = %s", name, id, m.Result)
			}
		}
	}
	m := call(t, c, ctx, "tools/call", `{"name":"signals__activate_signal","arguments":{"platform":"dsp"},"_meta":{"io.github.foldgate/context_id":"conv-1"}}`)
	if f := refused(t, m); f.Error.Code != "context_not_found" {
		t.Errorf("unknown handle in _meta = %s", m.Result)
	}
	if sent := recorded(t, file); len(sent) > 0 && sent[0] != "" {
		t.Errorf("the server received %v", sent)
	}
	g.stop()
	if n := len(g.flows("--kind", "workflow/*")); n != 0 {
		t.Errorf("%d workflow records, want none", n)
	}
	if n := len(responses(g.flows("--blocked", "--reason", "invalid"))); n != 19 {
		t.Errorf("%d refusals in the trace, want 19", n)
	}
	g.keepsSecret(secret, nil)
}

// Without a handle, a value of an earlier result leads to the workflow, and the
// trace says that it was inferred (W7). A server that answers with text only,
// or an array, is no different.
func TestWorkflowJoin(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), "    session_open: none\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	a := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "alpha"})
	text := opened(t, c, ctx, "get_signals_text", map[string]string{"signal_spec": "beta"})
	list := opened(t, c, ctx, "get_signals_list", map[string]string{"signal_spec": "any"})
	twice := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "gamma alpha"})
	for _, tc := range []struct{ signal, root, ambiguous string }{
		{"sig_beta", text, "false"}, {"sig_2", list, "false"}, {"sig_alpha", twice, "true"}, {"sig_gamma", twice, "false"}, {"sig_none", "", "false"},
	} {
		r := flow(t, c, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": tc.signal, "platform": "dsp"})
		if (r.handle() == "") != (tc.root == "") {
			t.Errorf("activation of %s: handle %q", tc.signal, r.handle())
		}
	}
	g.stop()
	links := responses(g.flows("--tool", "activate_signal"))
	got := []string{}
	for _, l := range links {
		w := l.Audit.Workflow
		root, _, _ := strings.Cut(w.Path, "/")
		got = append(got, fmt.Sprint(root, " ", w.Evidence, " ", w.Ambiguous))
	}
	want := []string{text + " join false", list + " join false", twice + " join true", twice + " join false", " none false"}
	if !slices.Equal(got, want) {
		t.Errorf("links =\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := len(g.flows("--workflow", a, "--tree", "--evidence", "join")); n != 0 {
		t.Errorf("%d inferred records in %s, want none", n, a)
	}
}

// The last workflow of a session is the last resort, and can be switched off.
func TestWorkflowSession(t *testing.T) {
	for _, mode := range []string{"last", "none"} {
		ctx := testContext(t)
		g := newGateway(t, signalsConfig(recordFile(t), "    session_open: "+mode+"\n"))
		c := g.connect(ctx, "stdio", mcpclient.Legacy)
		a := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "alpha"})
		r := flow(t, c, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_other"})
		g.stop()
		w := responses(g.flows("--tool", "activate_signal"))[0].Audit.Workflow
		if got, want := w.Path+" "+w.Evidence, map[string]string{"last": a + "/" + r.handle() + " session", "none": " none"}[mode]; got != want {
			t.Errorf("session_open %s: %s, want %s", mode, got, want)
		}
	}
}

// A server that has contexts of its own keeps them, both ways, and its ids lead
// to the workflow (W8).
func TestWorkflowNative(t *testing.T) {
	ctx, file := testContext(t), recordFile(t)
	g := newGateway(t, signalsConfig(file, ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	first := flow(t, c, ctx, "get_signals_native", map[string]string{"signal_spec": "any"})
	second := flow(t, c, ctx, "get_signals_native", map[string]string{"signal_spec": "more", "context_id": "native-0001"})
	for _, r := range []flowResult{first, second} {
		if len(r.Content) != 1 || len(r.Meta) != 0 || string(r.StructuredContent) != `{"context_id":"native-0001","message":"found"}` {
			t.Errorf("result = %+v, want the server's own, untouched", r)
		}
	}
	if got := calls(t, file, "get_signals_native"); len(got) != 2 || got[1] != `{"context_id":"native-0001","signal_spec":"more"}` {
		t.Errorf("the server received %v", got)
	}
	linked := opened(t, c, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_1", "context_id": "native-0001"})
	g.stop()
	all := responses(g.flows("--server", "signals"))
	one, two, three := all[0].Audit.Workflow, all[1].Audit.Workflow, all[2].Audit.Workflow
	if two.Path != one.Path || two.Evidence != "native" || two.Attempt != 2 || three.Path != one.Path+"/"+linked {
		t.Errorf("workflows = %+v, %+v, %+v, want one", one, two, three)
	}
}

// Nothing is added where it could break a client: schemas that are a choice,
// structured content that is no object (W11).
func TestWorkflowLeavesAlone(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	var list struct {
		Tools []struct {
			Name         string
			OutputSchema json.RawMessage
		}
	}
	if err := json.Unmarshal(call(t, c, ctx, "tools/list", `{}`).Result, &list); err != nil {
		t.Fatal(err)
	}
	for _, tl := range list.Tools {
		leave := tl.Name == "signals__get_signals_union" || tl.Name == "signals__get_signals_list" || tl.Name == "signals__get_signals_native"
		if leave && strings.Contains(string(tl.OutputSchema), "Handle of") {
			t.Errorf("output schema of %s = %s, want it untouched", tl.Name, tl.OutputSchema)
		}
	}
	for _, name := range []string{"get_signals_union", "get_signals_list"} {
		r := flow(t, c, ctx, name, map[string]string{"signal_spec": "any"})
		if !contextID.MatchString(r.handle()) || r.inText() != r.handle() || strings.Contains(string(r.StructuredContent), "ctx_") {
			t.Errorf("%s = %+v, want the handle in text and _meta only", name, r)
		}
	}
}

// A call that fails still says which workflow to try again in (W12).
func TestWorkflowFailure(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, spec := range []string{"fail", "hang"} {
		r := flow(t, c, ctx, "get_signals", map[string]string{"signal_spec": spec})
		if !r.IsError || !contextID.MatchString(r.handle()) || !strings.Contains(r.Content[len(r.Content)-1].Text, r.handle()) {
			t.Errorf("%s = %+v, want an error with a handle in text and _meta", spec, r)
		}
		retry := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "fine", "context_id": r.handle()})
		if retry != r.handle() {
			t.Errorf("retry after %s = %s, want %s", spec, retry, r.handle())
		}
	}
	g.stop()
	var got []string
	for _, r := range responses(g.flows("--tool", "get_signals")) {
		got = append(got, fmt.Sprint(r.Audit.Workflow.Status, " ", r.Audit.Workflow.Attempt))
	}
	if want := []string{"failed 1", "completed 2", "failed 1", "completed 2"}; !slices.Equal(got, want) {
		t.Errorf("attempts = %v, want %v", got, want)
	}
}

// A close tool ends the workflow: its record gathers every step, and the handle
// is unknown from then on.
func TestWorkflowClose(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	a := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "alpha"})
	for _, platform := range []string{"dsp", "ssp"} {
		opened(t, c, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_alpha", "platform": platform, "context_id": a})
	}
	flow(t, c, ctx, "end_campaign", map[string]string{"context_id": a})
	refused(t, tool(t, c, ctx, "signals__activate_signal", fmt.Sprintf(`{"context_id":%q}`, a)))
	g.stop()
	done := g.flows("--kind", "workflow/complete")
	steps := g.flows("--kind", "workflow/start,workflow/proceed")
	if len(done) != 1 || len(steps) != 3 {
		t.Fatalf("%d ends and %d steps recorded, want 1 and 3", len(done), len(steps))
	}
	for _, s := range steps {
		if !slices.Contains(done[0].CorrelationID, s.ID) {
			t.Errorf("the end correlates to %v, want %s %s in it", done[0].CorrelationID, s.Kind, s.ID)
		}
	}
}

// Rules are held against the configuration and against the catalog.
func TestWorkflowCheck(t *testing.T) {
	g := newGateway(t, signalsConfig(recordFile(t), "      - tool: signals.nosuch\n"))
	out, err := g.command("check").Output()
	if err == nil || !strings.Contains(string(out), `workflows[0].close[1].tool: upstream signals shows no tool "nosuch"`) {
		t.Errorf("check = %v\n%s", err, out)
	}
	file := filepath.Join(g.dir, "bad.yaml")
	text := signalsConfig("x", "    on_unknown: maybe\n      ")
	text = strings.Replace(text, "$.arguments.platform", "platform", 1)
	if err := os.WriteFile(file, []byte(strings.TrimRight(text, " ")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := g.command("check")
	cmd.Args[len(cmd.Args)-1] = file
	cmd.Stderr = nil
	said, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		said = exit.Stderr
	}
	if msg := string(said); !strings.Contains(msg, "workflows[0].on_unknown") || !strings.Contains(msg, "step_key[1]") {
		t.Errorf("check of a bad file: %s", msg)
	}
}

// A host's own contextId is kept as it is, and finds the workflow's tasks in
// the form of the A2A protocol.
func TestWorkflowA2A(t *testing.T) {
	const id = "7b0e7e3c-0c1f-4f3e-9f2a-5b8f6c1d2e3f"
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), "    foreign_ids: preserve\n"))
	c := g.connect(ctx, "http", mcpclient.Modern)
	first := flow(t, c, ctx, "get_signals", map[string]string{"signal_spec": "alpha", "context_id": id})
	if first.handle() != id || first.inText() != id || first.inStructured() != id {
		t.Errorf("discovery = %+v, want the host's own id back", first)
	}
	step := opened(t, c, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_alpha", "context_id": id})
	failed := opened(t, c, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_broken", "context_id": id})
	g.stop()
	var list struct {
		Tasks []struct {
			ID, ContextID string
			Status        struct{ State string }
			History       []struct{ ReferenceTaskIDs []string }
		}
	}
	if err := json.Unmarshal([]byte(g.output("trace", "--a2a-context", id, "--format", "a2a")), &list); err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, task := range list.Tasks {
		got = append(got, task.ID+" "+task.ContextID+" "+task.Status.State)
	}
	root := list.Tasks[0].ID
	want := []string{root + " " + id + " TASK_STATE_COMPLETED", step + " " + id + " TASK_STATE_COMPLETED", failed + " " + id + " TASK_STATE_FAILED"}
	if !slices.Equal(got, want) || !contextID.MatchString(root) || !slices.Equal(list.Tasks[1].History[0].ReferenceTaskIDs, []string{root}) {
		t.Errorf("tasks = %v, want %v, the second referring to the first", got, want)
	}
	if n := len(g.flows("--a2a-task", step)); n != 3 {
		t.Errorf("%d records of the step, want request, proceed and response", n)
	}
}

// The same through a client that is not ours, in both eras, across restarts of
// the gateway: each call of the Inspector is a connection of its own.
func TestWorkflowInspector(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			file := recordFile(t)
			g := newGateway(t, signalsConfig(file, ""))
			call := func(name string, args ...string) flowResult {
				t.Helper()
				request := []string{"--method", "tools/call", "--tool-name", "signals__" + name}
				for _, a := range args {
					request = append(request, "--tool-arg", a)
				}
				var r struct{ Result flowResult }
				out := inspector(t, []string{g.http(), "--transport", "http", "--protocol-era", era}, request...)
				g.stop()
				if err := json.Unmarshal(out, &r); err != nil {
					t.Fatalf("%s: %v", out, err)
				}
				return r.Result
			}
			a := call("get_signals", "signal_spec=luxury").inStructured()
			b := call("activate_signal", "signals_agent_segment_id=sig_luxury", "platform=dsp", "context_id="+a).inStructured()
			s := call("check_signal_status", "signals_agent_segment_id=sig_luxury", "context_id="+a).inStructured()
			if !contextID.MatchString(a) || !contextID.MatchString(b) || a == b || s != b {
				t.Fatalf("handles = %q, %q, %q, want a workflow, a step and that step", a, b, s)
			}
			if n := len(responses(g.flows("--workflow", a+"/"+b, "--evidence", "explicit"))); n != 2 {
				t.Errorf("%d calls at the step, want 2", n)
			}
		})
	}
}

// A call that the server ends with a question, and that the host makes again
// with the answer, is one step (revision 2026-07-28), whether the server asks
// in that form or foldgate translates.
func TestWorkflowRounds(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, %s]}\nworkflows:\n  - {name: asks, open: [{tool: fake.elicit}]}\n", fakeupBin, era))
			c := mcpclient.HTTP(g.http(), mcpclient.Modern)
			g.closes(c)
			c.Capabilities = `{"elicitation":{"form":{}}}`
			if _, err := c.Start(ctx); err != nil {
				t.Fatal(err)
			}
			const params = `{"name":"fake__elicit","arguments":{"params":{"mode":"form","message":"sure?","requestedSchema":{"type":"object","properties":{}}}}`
			first := call(t, c, ctx, "tools/call", params+`}`)
			var r struct {
				ResultType, RequestState string
				InputRequests            map[string]json.RawMessage
			}
			if err := json.Unmarshal(first.Result, &r); err != nil || r.ResultType != "input_required" || r.RequestState == "" {
				t.Fatalf("first round = %s", first.Result)
			}
			answers := map[string]json.RawMessage{}
			for id := range r.InputRequests {
				answers[id] = json.RawMessage(`{"action":"accept","content":{}}`)
			}
			second := call(t, c, ctx, "tools/call", fmt.Sprintf(`%s,"requestState":%q,"inputResponses":%s}`, params, r.RequestState, jsonText(t, answers)))
			g.stop()
			rounds := responses(g.flows("--tool", "elicit"))
			if len(rounds) != 2 {
				t.Fatalf("%d responses, want 2; the second is %s", len(rounds), second.Result)
			}
			one, two := rounds[0].Audit.Workflow, rounds[1].Audit.Workflow
			if one.Status != "input_required" || two.Status != "completed" || one.Path != two.Path || one.Path == "" || two.Evidence != "native" {
				t.Errorf("rounds = %+v, %+v, want one step that needs input and then is completed", one, two)
			}
		})
	}
}

// The calls of a batch belong to workflows like any other.
func TestWorkflowBatch(t *testing.T) {
	ctx, file := testContext(t), recordFile(t)
	g := newGateway(t, "run: {allow: [\"signals__*\"]}\n"+signalsConfig(file, ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	a := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "alpha"})
	args := fmt.Sprintf(`{"tool":"signals__activate_signal","each":[{"signals_agent_segment_id":"sig_alpha","platform":"dsp","context_id":%q},{"signals_agent_segment_id":"sig_alpha","platform":"ssp","context_id":%q}]}`, a, a)
	if m := tool(t, c, ctx, "branch_run", args); parseResult(t, m).IsError {
		t.Errorf("branch_run = %s", m.Result)
	}
	if got := calls(t, file, "activate_signal"); len(got) != 2 || strings.Contains(strings.Join(got, ""), "context_id") {
		t.Errorf("the server received %v, want two calls without context_id", got)
	}
	g.stop()
	if n := len(responses(g.flows("--workflow", a, "--children", "--evidence", "explicit"))); n != 2 {
		t.Errorf("%d steps in the workflow, want 2", n)
	}
}
