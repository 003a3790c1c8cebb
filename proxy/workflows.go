package proxy

import (
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
)

// flows is the configured workflows, ready for use; nil where there are none.
type flows struct {
	rules  *workflow.Rules
	inject map[string]config.WorkflowInject // by workflow
	layer  *interceptor.Workflows
	engine *workflow.Engine
}

// newFlows compiles the workflows of a valid configuration.
func newFlows(c config.Config) *flows {
	rules, _ := c.WorkflowRules() // the configuration was validated
	f := &flows{rules: rules, inject: map[string]config.WorkflowInject{}}
	for _, w := range c.Workflows {
		f.inject[w.Name] = w.Handle()
	}
	return f
}

// ownership says whose the parameter for the handle is.
type ownership int

const (
	foldgates ownership = iota // added by foldgate: read, and taken out before the call goes on
	upstreams                  // the server's own: passed on, and remembered
	unknowns                   // in no schema: read, and passed on
)

// flowEntry is a listed tool's part in a workflow.
type flowEntry struct {
	interceptor.WorkflowStep
	owner ownership
}

// enter gives the call its part in a workflow, and takes the handle out of the
// arguments where it is foldgate's.
func (e *flowEntry) enter(c *interceptor.Call) {
	f := e.WorkflowStep
	c.Target.Workflow = &f
	raw, given := rawjson.Get(c.Target.Arguments, f.Output.Argument)
	given = given && rawjson.KindOf(raw) != rawjson.Null
	handle := rawjson.Unquote(raw)
	if given && rawjson.KindOf(raw) != rawjson.String {
		handle = string(raw) // no handle at all, and refused as such
	}
	if e.owner == upstreams {
		f.Native = handle
	} else {
		f.Handle = handle
	}
	if e.owner == foldgates && raw != nil {
		c.Target.Arguments = rawjson.Delete(c.Target.Arguments, f.Output.Argument)
		c.Target.Forward = rawjson.Set(c.Target.Forward, c.Target.Arguments, "arguments")
	}
	if f.Handle == "" {
		f.Handle, _ = rawjson.GetString(c.Target.Params, "_meta", interceptor.MetaContextID)
	}
}
