package proxy

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// flowConfig is a workflow over the tools up.find and up.use.
func flowConfig(change func(*config.Workflow)) config.Config {
	c := config.Default()
	c.Upstreams = map[string]*config.Upstream{"up": {URL: "http://127.0.0.1:1/mcp"}, "up.down": {URL: "http://127.0.0.1:1/mcp"}}
	w := config.Workflow{Name: "w", Open: []config.WorkflowTool{{Tool: "up.find"}}, Link: []config.WorkflowTool{{Tool: "up.use"}}}
	if change != nil {
		change(&w)
	}
	c.Workflows = []config.Workflow{w}
	return c
}

// What a tool shows of the handle depends on its schemas, and on nothing else.
func TestInjectFlow(t *testing.T) {
	c := flowConfig(nil)
	f := newFlows(c)
	u := &upstream.Server{Key: "up", Prefix: "up"}
	g := &Gateway{cfg: c, flows: f, byKey: map[string]*upstream.Server{"up": u}}
	const in = `"context_id":{"type":"string","description":"Handle returned by up__find; pass the same value here to continue that workflow. Handles expire after 7 days without use."}`
	const out = `"context_id":{"type":"string","description":"Handle of this workflow"}`
	for name, tc := range map[string]struct {
		tool, want string
		owner      ownership
		key        string
	}{
		"plain": {`{"inputSchema":{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false}}`,
			`{"inputSchema":{"type":"object","properties":{"a":{},` + in + `},"required":["a"],"additionalProperties":false}}`, foldgates, ""},
		"no properties": {`{"inputSchema":{"type":"object"}}`, `{"inputSchema":{"type":"object","properties":{` + in + `}}}`, foldgates, ""},
		"own":           {`{"inputSchema":{"type":"object","properties":{"context_id":{}}},"outputSchema":{"type":"object"}}`, "same", upstreams, ""},
		"choice":        {`{"inputSchema":{"type":"object","anyOf":[{}]}}`, "same", unknowns, ""},
		"broken":        {`{"inputSchema":{"type":"object","properties":[]}}`, "same", unknowns, ""},
		"missing":       {`{}`, "same", unknowns, ""},
		"output": {`{"inputSchema":true,"outputSchema":{"type":"object","properties":{},"additionalProperties":false}}`,
			`{"inputSchema":true,"outputSchema":{"type":"object","properties":{` + out + `},"additionalProperties":false}}`, unknowns, "context_id"},
		"output's own": {`{"inputSchema":true,"outputSchema":{"type":"object","properties":{"context_id":{}}}}`,
			`{"inputSchema":true,"outputSchema":{"type":"object","properties":{"context_id":{},"_context":{"type":"object","properties":{` + out + `}}}}}`, unknowns, "_context"},
		"output's both":  {`{"inputSchema":true,"outputSchema":{"type":"object","properties":{"context_id":{},"_context":{}}}}`, "same", unknowns, ""},
		"output's array": {`{"inputSchema":true,"outputSchema":{"type":"array"}}`, "same", unknowns, ""},
		"output's ref":   {`{"inputSchema":true,"outputSchema":{"type":"object","$ref":"#/x"}}`, "same", unknowns, ""},
	} {
		if tc.want == "same" {
			tc.want = tc.tool
		}
		got, e := g.injectFlow([]byte(tc.tool), u, "find")
		if string(got) != tc.want || e.owner != tc.owner || e.Output.Key != tc.key {
			t.Errorf("%s: %s, owner %d, key %q\nwant %s, %d, %q", name, got, e.owner, e.Output.Key, tc.want, tc.owner, tc.key)
		}
	}
	if got, e := g.injectFlow([]byte(`{"inputSchema":{"type":"object"}}`), u, "other"); e != nil || strings.Contains(string(got), "context_id") {
		t.Errorf("a tool without a rule became %s", got)
	}
}

// The handle is taken out only where foldgate added it.
func TestEnterFlow(t *testing.T) {
	for name, tc := range map[string]struct {
		owner                   ownership
		arguments               string
		handle, native, forward string
	}{
		"ours":              {foldgates, `{"a":1,"context_id":"x"}`, "x", "", `{"a":1}`},
		"ours, none":        {foldgates, `{"a":1}`, "meta", "", `{"a":1}`},
		"ours, null":        {foldgates, `{"a":1,"context_id":null}`, "meta", "", `{"a":1}`},
		"ours, empty":       {foldgates, `{"a":1,"context_id":""}`, "meta", "", `{"a":1}`},
		"ours, no string":   {foldgates, `{"context_id":{"x":1}}`, `{"x":1}`, "", `{}`},
		"theirs":            {upstreams, `{"context_id":"x"}`, "meta", "x", `{"context_id":"x"}`},
		"nobody's":          {unknowns, `{"context_id":"x"}`, "x", "", `{"context_id":"x"}`},
		"nobody's and none": {unknowns, `{}`, "meta", "", `{}`},
	} {
		params := json.RawMessage(`{"arguments":` + tc.arguments + `,"_meta":{"io.github.foldgate/context_id":"meta"}}`)
		c := &interceptor.Call{Target: interceptor.Target{Params: params, Forward: json.RawMessage(`{"arguments":` + tc.arguments + `}`), Arguments: json.RawMessage(tc.arguments)}}
		e := &flowEntry{owner: tc.owner}
		e.Output.Argument = "context_id"
		e.enter(c)
		if c.Target.Workflow.Handle != tc.handle || c.Target.Workflow.Native != tc.native || string(c.Target.Forward) != `{"arguments":`+tc.forward+`}` || string(c.Target.Arguments) != tc.forward {
			t.Errorf("%s: handle %q, native %q, forward %s", name, c.Target.Workflow.Handle, c.Target.Workflow.Native, c.Target.Forward)
		}
		if e.WorkflowStep.Handle != "" {
			t.Errorf("%s: the call's handle stuck to the tool", name)
		}
	}
}

func TestDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{"7 days": 168 * time.Hour, "1 day": 24 * time.Hour, "36 hours": 36 * time.Hour, "90 minutes": 90 * time.Minute, "1m30s": 90 * time.Second} {
		if got := duration(d); got != want {
			t.Errorf("duration(%s) = %s, want %s", d, got, want)
		}
	}
}

// Without workflows there is no layer, no store, and nothing in the tools.
func TestNoWorkflowsNoCost(t *testing.T) {
	g := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}).g
	if g.flows != nil || g.flows.middle().Middleware() != nil {
		t.Error("a gateway without workflows has the layer")
	}
	c := &interceptor.Call{}
	if n := testing.AllocsPerRun(100, func() { g.flows.middle().Locate(t.Context(), c) }); n != 0 {
		t.Errorf("a call without workflows allocates %v times", n)
	}
}
