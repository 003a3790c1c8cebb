//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// If foldgate is killed during the call of a step, the step is not "working" for ever. The next
// process records it as interrupted, and the retry continues the same workflow. Failed starts in
// between change nothing.
func TestWorkflowKilled(t *testing.T) {
	t.Parallel()
	for _, unusable := range []string{"", "foldgate.db", "workflows.db"} {
		t.Run(unusable, func(t *testing.T) { workflowKilled(t, unusable) })
	}
}

func workflowKilled(t *testing.T, unusable string) {
	ctx, file := testContext(t), recordFile(t)
	g := newGateway(t, strings.Replace(signalsConfig(file, ""), "timeout_seconds: 2", "timeout_seconds: 600", 1))
	cmd := g.command("run")
	c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
	if err == nil {
		_, err = c.Start(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	create(t, c, ctx, map[string]any{})
	a := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "luxury"})
	if _, _, err := c.Send(ctx, "tools/call", fmt.Sprintf(`{"name":"signals__get_signals","arguments":{"signal_spec":"hang","context_id":%q}}`, a)); err != nil {
		t.Fatal(err)
	}
	until(t, "the server has the call", func() bool { return len(calls(t, file, "get_signals")) == 2 })
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // it was killed: the error is the point
	if unusable != "" {
		g.startFails(filepath.Join(g.dir, "state", unusable))
	}

	c = g.connect(ctx, "stdio", mcpclient.Legacy)
	lost := responses(g.flows("--workflow", a, "--tree"))
	if n := len(lost); n != 2 {
		t.Fatalf("%d responses in the workflow, want the first and that of the lost call", n)
	}
	if w := lost[1].Audit.Workflow; w.Status != "interrupted" || w.ContextID != a || w.Attempt != 2 {
		t.Errorf("the lost call = %+v, want attempt 2 of %s, interrupted", w, a)
	}
	if out := g.output("trace", "--workflow", a, "--tree", "--format", "a2a"); !regexp.MustCompile(`"state": "TASK_STATE_UNSPECIFIED"`).MatchString(out) {
		t.Errorf("as A2A: %s", out)
	}
	// A status call shows the stored state of the step.
	flow(t, c, ctx, "check_signal_status", map[string]string{"context_id": a})
	if w := responses(g.flows("--workflow", a, "--tool", "check_signal_status"))[0].Audit.Workflow; w.Status != "interrupted" {
		t.Errorf("the step after the restart = %+v, want it interrupted", w)
	}
	if again := opened(t, c, ctx, "get_signals", map[string]string{"signal_spec": "fine", "context_id": a}); again != a {
		t.Errorf("the retry = %s, want %s", again, a)
	}
	all := responses(g.flows("--workflow", a, "--tree"))
	if w := all[len(all)-1].Audit.Workflow; w.Status != "completed" || w.Attempt != 3 {
		t.Errorf("the retry = %+v, want attempt 3, completed", w)
	}
	if out := g.output("trace", "verify"); !strings.Contains(out, ": ok") {
		t.Errorf("trace verify: %s", out)
	}
}

// startFails starts the binary while something else is in a file's place.
func (g *gateway) startFails(file string) {
	g.t.Helper()
	if err := errors.Join(os.Rename(file, file+".away"), os.Mkdir(file, 0o700)); err != nil {
		g.t.Fatal(err)
	}
	if err := g.command("run").Run(); err == nil {
		g.t.Errorf("foldgate started without %s", file)
	}
	if err := errors.Join(os.Remove(file), os.Rename(file+".away", file)); err != nil {
		g.t.Fatal(err)
	}
}

// If a branch's budget cuts a result, the handle remains.
func TestWorkflowCutResult(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, signalsConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"small","budget":400}`))
	r := flow(t, c, ctx, "get_signals", map[string]string{"signal_spec": strings.Repeat("word ", 120), "branch_id": b.BranchID})
	if len(r.Content) != 2 || !strings.Contains(r.Content[0].Text, "cut by foldgate") || !contextID.MatchString(r.handle()) || r.inText() != r.handle() {
		t.Fatalf("cut result = %+v, want the rest of the text and the handle", r)
	}
	if s := statusOf(t, c, ctx, b.BranchID); s.BudgetUsed > 400 {
		t.Errorf("the branch used %d of 400 tokens", s.BudgetUsed)
	}
	if step := opened(t, c, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_word", "context_id": r.handle()}); step == r.handle() {
		t.Errorf("activation = %s, want a step of its own", step)
	}
}
