package catalog

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/proxy/config"
)

// What a tool shows of the handle depends on its schemas, and on nothing else.
func TestAddWorkflow(t *testing.T) {
	c := config.Default()
	c.Upstreams = map[string]*config.Upstream{"up": {}}
	c.Workflows = []config.Workflow{{Name: "w", Open: []workflow.ToolSpec{{Tool: "up.find"}}}}
	r := NewRules(c, nil)
	const in = `"context_id":{"type":"string","description":"Handle returned by up__find; pass the same value here to continue that workflow. Handles expire after 7 days without use."}`
	const out = `"context_id":{"type":"string","description":"Handle of this workflow"}`
	for name, tc := range map[string]struct {
		tool, want string
		owner      argumentOwner
		key        string
	}{
		"plain": {`{"inputSchema":{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false}}`,
			`{"inputSchema":{"type":"object","properties":{"a":{},` + in + `},"required":["a"],"additionalProperties":false}}`, ownedByFoldgate, ""},
		"no properties": {`{"inputSchema":{"type":"object"}}`, `{"inputSchema":{"type":"object","properties":{` + in + `}}}`, ownedByFoldgate, ""},
		"own":           {`{"inputSchema":{"type":"object","properties":{"context_id":{}}},"outputSchema":{"type":"object"}}`, "same", ownedByServer, ""},
		"choice":        {`{"inputSchema":{"type":"object","anyOf":[{}]}}`, "same", undeclared, ""},
		"broken":        {`{"inputSchema":{"type":"object","properties":[]}}`, "same", undeclared, ""},
		"missing":       {`{}`, "same", undeclared, ""},
		"output": {`{"inputSchema":true,"outputSchema":{"type":"object","properties":{},"additionalProperties":false}}`,
			`{"inputSchema":true,"outputSchema":{"type":"object","properties":{` + out + `},"additionalProperties":false}}`, undeclared, "context_id"},
		"output's own": {`{"inputSchema":true,"outputSchema":{"type":"object","properties":{"context_id":{}}}}`,
			`{"inputSchema":true,"outputSchema":{"type":"object","properties":{"context_id":{},"_context":{"type":"object","properties":{` + out + `}}}}}`, undeclared, "_context"},
		"output's both":  {`{"inputSchema":true,"outputSchema":{"type":"object","properties":{"context_id":{},"_context":{}}}}`, "same", undeclared, ""},
		"output's array": {`{"inputSchema":true,"outputSchema":{"type":"array"}}`, "same", undeclared, ""},
		"output's ref":   {`{"inputSchema":true,"outputSchema":{"type":"object","$ref":"#/x"}}`, "same", undeclared, ""},
	} {
		if tc.want == "same" {
			tc.want = tc.tool
		}
		got, w := r.addWorkflow([]byte(tc.tool), "up", "find")
		if string(got) != tc.want || w.owner != tc.owner || w.part.Output.Key != tc.key {
			t.Errorf("%s: %s, owner %d, key %q\nwant %s, %d, %q", name, got, w.owner, w.part.Output.Key, tc.want, tc.owner, tc.key)
		}
	}
	if got, w := r.addWorkflow([]byte(`{"inputSchema":{"type":"object"}}`), "up", "other"); w != nil || strings.Contains(string(got), "context_id") {
		t.Errorf("a tool without a rule became %s", got)
	}
}

// The handle is taken out only where foldgate added it.
func TestTakeHandle(t *testing.T) {
	for name, tc := range map[string]struct {
		owner                   argumentOwner
		arguments               string
		handle, native, forward string
	}{
		"ours":             {ownedByFoldgate, `{"a":1,"context_id":"x"}`, "x", "", `{"a":1}`},
		"ours, none":       {ownedByFoldgate, `{"a":1}`, "meta", "", `{"a":1}`},
		"ours, null":       {ownedByFoldgate, `{"a":1,"context_id":null}`, "meta", "", `{"a":1}`},
		"ours, empty":      {ownedByFoldgate, `{"a":1,"context_id":""}`, "meta", "", `{"a":1}`},
		"ours, no string":  {ownedByFoldgate, `{"context_id":{"x":1}}`, `{"x":1}`, "", `{}`},
		"theirs":           {ownedByServer, `{"context_id":"x"}`, "meta", "x", `{"context_id":"x"}`},
		"undeclared":       {undeclared, `{"context_id":"x"}`, "x", "", `{"context_id":"x"}`},
		"undeclared, none": {undeclared, `{}`, "meta", "", `{}`},
	} {
		w := &Workflow{owner: tc.owner}
		w.part.Output.Argument = "context_id"
		part, rest := w.Take(json.RawMessage(tc.arguments), []byte(`{"io.github.foldgate/context_id":"meta"}`))
		if part.Handle != tc.handle || part.Native != tc.native || string(rest) != tc.forward {
			t.Errorf("%s: handle %q, native %q, forward %s", name, part.Handle, part.Native, rest)
		}
		if w.part.Handle != "" {
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
