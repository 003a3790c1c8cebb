//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
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
%s`, demoserverBin, file, more)
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
	m := tool(t, c, ctx, "signals__"+name, jsonText(args))
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

// flowRecord holds the members of a trace record's workflow that the tests read.
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
	return traceAs[flowRecord](g, filters...)
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
		unmarshal(t, []byte(line), &c)
		if c.Name == name {
			out = append(out, string(c.Arguments))
		}
	}
	return out
}

// Discovery, activation, status: one thread over a server that keeps none, and
// across a restart of the gateway (vectors W1, W2, W3, W9, W10, W16).
func TestWorkflow(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// An id that is not a handle of the caller is refused before the server, for any reason, and no
// new one is made (W5, W15).
func TestWorkflowUnknownHandle(t *testing.T) {
	t.Parallel()
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
			m := tool(t, c, ctx, "signals__"+name, jsonText(args))
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
