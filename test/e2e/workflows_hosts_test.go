//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// A host's own contextId is kept as it is, and finds the workflow's tasks in
// the form of the A2A protocol.
func TestWorkflowA2A(t *testing.T) {
	t.Parallel()
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
	unmarshal(t, []byte(g.output("trace", "--a2a-context", id, "--format", "a2a")), &list)
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
	t.Parallel()
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
	t.Parallel()
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, %s]}\nworkflows:\n  - {name: asks, open: [{tool: fake.elicit}]}\n", fakeserverBin, era))
			c := g.unstarted("http", mcpclient.Modern)
			c.Capabilities = `{"elicitation":{"form":{}}}`
			startHost(t, ctx, c)
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
			second := call(t, c, ctx, "tools/call", fmt.Sprintf(`%s,"requestState":%q,"inputResponses":%s}`, params, r.RequestState, jsonText(answers)))
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
	t.Parallel()
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
