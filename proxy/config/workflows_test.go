package config

import (
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/workflow"
)

// flowConfig is a workflow over the tools up.find and up.use.
func flowConfig(change func(*Workflow)) Config {
	c := Default()
	c.Upstreams = map[string]*Upstream{"up": {URL: "http://127.0.0.1:1/mcp"}, "up.down": {URL: "http://127.0.0.1:1/mcp"}}
	w := Workflow{Name: "w", Open: []workflow.ToolSpec{{Tool: "up.find"}}, Link: []workflow.ToolSpec{{Tool: "up.use"}}}
	if change != nil {
		change(&w)
	}
	c.Workflows = []Workflow{w}
	return c
}

func TestWorkflowConfigFaults(t *testing.T) {
	for want, change := range map[string]func(*Workflow){
		"":                               func(*Workflow) {},
		"workflows[0].name":              func(w *Workflow) { w.Name = "" },
		"workflows[0].ttl":               func(w *Workflow) { w.TTL = time.Second },
		"workflows[0].on_unknown":        func(w *Workflow) { w.OnUnknown = "mint" },
		"workflows[0].foreign_ids":       func(w *Workflow) { w.ForeignIDs = "yes" },
		"workflows[0].session_open":      func(w *Workflow) { w.SessionOpen = "first" },
		"workflows[0].inject.argument":   func(w *Workflow) { w.Inject.Argument = "branch_id" },
		"workflows[0].inject.result[0]":  func(w *Workflow) { w.Inject.Result = []string{"everywhere"} },
		"workflows[0].fallback":          func(w *Workflow) { w.Fallback = []string{"luck"} },
		"workflows[0].link[0].tool":      func(w *Workflow) { w.Link[0].Tool = "down.use" },
		"workflows[0].link[0].join.ids":  func(w *Workflow) { w.Link[0].Join = map[string]string{"ids": "$.arguments.id"} },
		"workflows[0].open[0].capture.x": func(w *Workflow) { w.Open[0].Capture = map[string]string{"x": "x"} },
	} {
		faults := flowConfig(change).Validate()
		if want == "" && len(faults) > 0 || want != "" && (len(faults) != 1 || faults[0].Key != want) {
			t.Errorf("faults = %v, want one at %q", faults, want)
		}
	}
}

func TestSplitTool(t *testing.T) {
	c := flowConfig(nil)
	for in, want := range map[string]string{"up.find": "up find", "up.down.find": "up.down find", "up.a.b": "up a.b", "find": " find", "up.": " up.", "": " "} {
		if server, tool, ok := c.splitTool(in); server+" "+tool != want || ok != (server != "") {
			t.Errorf("splitTool(%q) = %q, %q, %t, want %s", in, server, tool, ok, want)
		}
	}
}
