//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// Without a handle, a value of an earlier result leads to the workflow, and the
// trace says that it was inferred (W7). A server that answers with text only,
// or an array, is no different.
func TestWorkflowJoin(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	var list struct {
		Tools []struct {
			Name         string
			OutputSchema json.RawMessage
		}
	}
	unmarshal(t, call(t, c, ctx, "tools/list", `{}`).Result, &list)
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	g := newGateway(t, signalsConfig(recordFile(t), "      - tool: signals.nosuch\n"))
	out, err := g.command("check").Output()
	if err == nil || !strings.Contains(string(out), `workflows[0].close[1].tool: upstream signals shows no tool "nosuch"`) {
		t.Errorf("check = %v\n%s", err, out)
	}
	file := filepath.Join(g.dir, "bad.yaml")
	text := signalsConfig("x", "    on_unknown: maybe\n      ")
	text = strings.Replace(text, "$.arguments.platform", "platform", 1)
	write(t, file, strings.TrimRight(text, " "))
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
