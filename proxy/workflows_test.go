package proxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/proxy/config"
)

// openWorkflows opens n workflows as calls of up.find do.
func openWorkflows(t *testing.T, g *Gateway, n int) {
	t.Helper()
	rules, _ := g.Start.WorkflowRules()
	for range n {
		e := g.Workflows.Engine
		s, err := e.Plan(t.Context(), workflow.Request{Rule: rules.Find("up", "find"), Principal: interceptor.LocalPrincipal, Session: "s"})
		if err == nil {
			err = e.Begin(t.Context(), s, "env_request", "env_start")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// completions returns the reasons of the ends of workflows in the trace.
func completions(t *testing.T, g *Gateway) (reasons []string) {
	t.Helper()
	for r := range scan(t, g.Start.StateDir, query.Filter{Kinds: []string{trace.KindFlowComplete}}) {
		reasons = append(reasons, fmt.Sprint(string(r.Payload)))
	}
	return reasons
}

// A workflow that nobody uses ends when its time is over, without a call that
// would notice, and at the start of a process that finds it expired.
func TestWorkflowsExpireByThemselves(t *testing.T) {
	cfg := flowConfig(func(w *config.Workflow) { w.TTL = time.Hour })
	cfg.StateDir = t.TempDir()
	const many = 70 // more than one sweep takes
	start := func(t *testing.T) *Gateway {
		g, err := New(cfg, warnings(t))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	stop := func(t *testing.T, g *Gateway) {
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		openWorkflows(t, g, many)
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if n := len(completions(t, g)); n > 0 {
			t.Errorf("%d workflows ended before their time", n)
		}
		time.Sleep(2*sweepEvery + time.Second)
		synctest.Wait()
		ended := completions(t, g)
		if len(ended) != many || !strings.Contains(ended[0], `"reason":"expired"`) {
			t.Errorf("%d workflows ended, want %d expired: %.200v", len(ended), many, ended)
		}
		openWorkflows(t, g, 1)
		stop(t, g)
		time.Sleep(2 * time.Hour) // nobody is there

		g = start(t)
		synctest.Wait()
		if n := len(completions(t, g)); n != many+1 {
			t.Errorf("%d workflows ended after the start, want %d", n, many+1)
		}
		stop(t, g)
	})
}

// flowConfig is a workflow over the tools up.find and up.use.
func flowConfig(change func(*config.Workflow)) config.Config {
	c := config.Default()
	c.Upstreams = map[string]*config.Upstream{"up": {URL: "http://127.0.0.1:1/mcp"}, "up.down": {URL: "http://127.0.0.1:1/mcp"}}
	w := config.Workflow{Name: "w", Open: []workflow.ToolSpec{{Tool: "up.find"}}, Link: []workflow.ToolSpec{{Tool: "up.use"}}}
	if change != nil {
		change(&w)
	}
	c.Workflows = []config.Workflow{w}
	return c
}

// Without workflows there is no layer, no store, and nothing in the tools.
func TestNoWorkflowsNoCost(t *testing.T) {
	g := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}).g
	if g.Workflows != nil || g.Workflows.Layer() != nil {
		t.Error("a gateway without workflows has the layer")
	}
	c := &interceptor.Call{}
	if n := testing.AllocsPerRun(100, func() { g.Workflows.Locate(t.Context(), c) }); n != 0 {
		t.Errorf("a call without workflows allocates %v times", n)
	}
}
