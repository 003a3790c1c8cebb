package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
)

// Workflow is a tool's part in a workflow: the rule that names it, and where its arguments carry
// the handle.
type Workflow struct {
	part  interceptor.WorkflowStep
	owner argumentOwner
}

// argumentOwner says who declared the argument that carries the handle.
type argumentOwner int

const (
	ownedByFoldgate argumentOwner = iota // added by foldgate: read and removed before the call goes on
	ownedByServer                        // declared by the server: passed on and remembered
	undeclared                           // in no schema: read and passed on
)

// Take returns the call's part in the workflow, and the arguments to send on. meta is params._meta,
// which may carry the handle instead of an argument.
func (w *Workflow) Take(arguments json.RawMessage, meta []byte) (part *interceptor.WorkflowStep, rest json.RawMessage) {
	p := w.part
	raw, given := rawjson.Get(arguments, p.Output.Argument)
	handle := ""
	if given && rawjson.KindOf(raw) == rawjson.String {
		handle = rawjson.Unquote(raw)
	} else if given && rawjson.KindOf(raw) != rawjson.Null {
		handle = string(raw) // not a handle, and refused as such
	}
	if w.owner == ownedByServer {
		p.Native = handle
	} else {
		p.Handle = handle
	}
	if w.owner == ownedByFoldgate && given {
		arguments = rawjson.Delete(arguments, p.Output.Argument)
	}
	if p.Handle == "" {
		p.Handle, _ = rawjson.GetString(meta, interceptor.MetaContextID)
	}
	return &p, arguments
}

// addWorkflow adds the handle's parameter to a tool that a rule names, and declares the handle in
// its output schema. It returns the tool as hosts see it, and nil if no rule names it.
func (r *Rules) addWorkflow(tool []byte, server, own string) ([]byte, *Workflow) {
	if r.workflows == nil {
		return tool, nil
	}
	rule := r.workflows.Find(server, own)
	if rule == nil {
		return tool, nil
	}
	i := slices.IndexFunc(r.cfg.Workflows, func(w config.Workflow) bool { return w.Name == rule.Workflow.Name })
	inject := r.cfg.Workflows[i].Handle()
	w := &Workflow{part: interceptor.WorkflowStep{Rule: rule, Opener: r.openers(rule), Output: interceptor.Output{Argument: inject.Argument}}}
	schema, _ := rawjson.Get(tool, "inputSchema")
	if _, has := rawjson.Get(schema, "properties", inject.Argument); has {
		w.owner = ownedByServer
		return tool, w
	}
	w.part.Output.Content = slices.Contains(inject.Result, "content")
	w.part.Output.Meta = slices.Contains(inject.Result, "_meta")
	w.owner = undeclared
	if extensibleObject(schema) {
		w.owner = ownedByFoldgate
		tool = rawjson.Set(tool, handleProperty(w.part.Opener, rule.Workflow.TTL), "inputSchema", "properties", inject.Argument)
	}
	output, _ := rawjson.Get(tool, "outputSchema")
	if !slices.Contains(inject.Result, "structuredContent") || !extensibleObject(output) {
		return tool, w
	}
	key, declared := inject.Argument, []byte(`{"type":"string","description":"Handle of this workflow"}`)
	if _, taken := rawjson.Get(output, "properties", key); taken {
		declared = rawjson.Set([]byte(`{"type":"object","properties":{}}`), declared, "properties", key)
		key = "_context"
	}
	if _, taken := rawjson.Get(output, "properties", key); !taken {
		w.part.Output.Key = key
		tool = rawjson.Set(tool, declared, "outputSchema", "properties", key)
	}
	return tool, w
}

// extensibleObject reports whether a schema is declared as an object and can be extended by a
// property.
func extensibleObject(schema []byte) bool {
	kind, _ := rawjson.GetString(schema, "type")
	return kind == "object" && extensible(schema)
}

// handleProperty returns the schema of the handle's parameter. It has the guidance, because results
// state facts only.
func handleProperty(opener string, ttl time.Duration) []byte {
	text := fmt.Sprintf("Handle returned by %s; pass the same value here to continue that workflow. Handles expire after %s without use.", opener, duration(ttl))
	return rawjson.Set([]byte(`{"type":"string"}`), rawjson.Quote(text), "description")
}

// duration writes a time to live in the largest unit that divides it.
func duration(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if n := d / unit.size; d%unit.size == 0 && n == 1 {
			return "1 " + unit.name
		} else if d%unit.size == 0 {
			return fmt.Sprintf("%d %ss", n, unit.name)
		}
	}
	return d.String()
}

// openers returns the shown names of the tools that start the rule's workflow.
func (r *Rules) openers(rule *workflow.Rule) string {
	var names []string
	for _, o := range rule.Workflow.Openers {
		names = append(names, r.cfg.ShownName(o.Server, o.Tool))
	}
	return strings.Join(names, " or ")
}
