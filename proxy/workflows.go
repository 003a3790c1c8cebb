package proxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// WorkflowConfig ties tools that know nothing of one another to one thread:
// one opens a workflow, the others go on with its handle; see docs/workflows.md.
type WorkflowConfig struct {
	Name string `yaml:"name"`
	// TTL is how long a workflow lives without use; 0 means a week.
	TTL    time.Duration        `yaml:"ttl"`
	Inject WorkflowInjectConfig `yaml:"inject"`
	// Open, Link, Status and Close list the tools by their role.
	Open   []WorkflowToolConfig `yaml:"open"`
	Link   []WorkflowToolConfig `yaml:"link"`
	Status []WorkflowToolConfig `yaml:"status"`
	Close  []WorkflowToolConfig `yaml:"close"`
	// OnUnknown is reject, or remint: an unknown handle counts as none given.
	OnUnknown string `yaml:"on_unknown"`
	// ForeignIDs is reject, or preserve: an open tool takes an id that is not
	// foldgate's and answers it back.
	ForeignIDs string `yaml:"foreign_ids"`
	// Require refuses link, status and close calls that belong to no workflow.
	Require bool `yaml:"require"`
	// Fallback is the evidence that is looked at, in order: explicit, native,
	// join, session.
	Fallback []string `yaml:"fallback"`
	// SessionOpen is last, or none: no workflow is found by the session.
	SessionOpen string `yaml:"session_open"`
}

// WorkflowInjectConfig says how the handle travels.
type WorkflowInjectConfig struct {
	// Argument is the parameter that the tools get; "" means context_id.
	Argument string `yaml:"argument"`
	// Result lists where results carry the handle: structuredContent, content,
	// _meta. Absent means all three.
	Result []string `yaml:"result"`
}

// WorkflowToolConfig is one tool's rule. Paths are JSONPaths.
type WorkflowToolConfig struct {
	// Tool is the upstream's key, a dot, and the tool's own name.
	Tool    string            `yaml:"tool"`
	Step    string            `yaml:"step"`
	Capture map[string]string `yaml:"capture"`
	Join    map[string]string `yaml:"join"`
	StepKey []string          `yaml:"step_key"`
}

// Defaults of a workflow.
const (
	defaultFlowTTL      = 7 * 24 * time.Hour // activations of audiences take up to three days
	defaultFlowArgument = "context_id"
)

var (
	flowChannels = []string{"structuredContent", "content", "_meta"}
	flowEvidence = []string{"explicit", "native", "join", "session"}
)

// flows is the configured workflows, ready for use; nil where there are none.
type flows struct {
	rules  *workflow.Rules
	inject map[string]WorkflowInjectConfig // by workflow
	layer  *interceptor.Workflows
	store  *workflow.Store
}

// compileFlows turns the configuration into rules.
func (c Config) compileFlows() (*flows, []Fault) {
	f := &flows{inject: map[string]WorkflowInjectConfig{}}
	var faults []Fault
	specs := make([]workflow.Spec, len(c.Workflows))
	for i, w := range c.Workflows {
		at := fmt.Sprintf("workflows[%d]", i)
		spec, bad := c.flowSpec(w, at)
		specs[i] = spec
		faults = append(faults, bad...)
		inject := w.Inject
		if inject.Argument == "" {
			inject.Argument = defaultFlowArgument
		}
		if inject.Result == nil {
			inject.Result = flowChannels
		}
		f.inject[w.Name] = inject
	}
	rules, more := workflow.Compile(specs)
	for _, m := range more {
		faults = append(faults, Fault{Key: fmt.Sprintf("workflows[%d].%s", m.Spec, m.At), Msg: m.Msg})
	}
	f.rules = rules
	return f, faults
}

// flowSpec checks one workflow as far as the engine does not, and gives it its
// defaults.
func (c Config) flowSpec(w WorkflowConfig, at string) (spec workflow.Spec, faults []Fault) {
	bad := func(key, format string, args ...any) {
		faults = append(faults, Fault{Key: at + "." + key, Msg: fmt.Sprintf(format, args...)})
	}
	oneOf := func(key, value string, allowed ...string) {
		if value != "" && !slices.Contains(allowed, value) {
			bad(key, "%q is not one of %s", value, strings.Join(allowed, ", "))
		}
	}
	oneOf("on_unknown", w.OnUnknown, "reject", "remint")
	oneOf("foreign_ids", w.ForeignIDs, "reject", "preserve")
	oneOf("session_open", w.SessionOpen, "last", "none")
	for i, channel := range w.Inject.Result {
		oneOf(fmt.Sprintf("inject.result[%d]", i), channel, flowChannels...)
	}
	if a := w.Inject.Argument; a != "" && !upstreamKey.MatchString(a) || a == branchArgument {
		bad("inject.argument", "%q can't be the name of the parameter", a)
	}
	spec = workflow.Spec{Name: w.Name, TTL: w.TTL, Remint: w.OnUnknown == "remint", Preserve: w.ForeignIDs == "preserve", Require: w.Require}
	if spec.TTL == 0 {
		spec.TTL = defaultFlowTTL
	}
	fallback := w.Fallback
	if fallback == nil {
		fallback = flowEvidence
	}
	for _, e := range fallback {
		if e != string(workflow.Session) || w.SessionOpen != "none" {
			spec.Evidence = append(spec.Evidence, workflow.Evidence(e))
		}
	}
	for _, list := range []struct {
		role  workflow.Role
		tools []WorkflowToolConfig
	}{{workflow.RoleOpen, w.Open}, {workflow.RoleLink, w.Link}, {workflow.RoleStatus, w.Status}, {workflow.RoleClose, w.Close}} {
		for i, t := range list.tools {
			server, tool, ok := c.splitTool(t.Tool)
			if !ok {
				bad(fmt.Sprintf("%s[%d].tool", list.role, i), "%q names no upstream: write <upstream>.<tool>, the upstream's key under upstreams", t.Tool)
			}
			spec.Tools = append(spec.Tools, workflow.ToolSpec{
				Role: list.role, Server: server, Tool: tool, Step: t.Step, Capture: t.Capture, Join: t.Join, StepKey: t.StepKey,
			})
		}
	}
	return spec, faults
}

// splitTool splits <upstream>.<tool>. Both may hold dots: the longest key wins.
func (c Config) splitTool(name string) (server, tool string, ok bool) {
	for key := range c.Upstreams {
		if rest, is := strings.CutPrefix(name, key+"."); is && rest != "" && len(key) > len(server) {
			server, tool, ok = key, rest, true
		}
	}
	if !ok {
		return "", name, false
	}
	return server, tool, true
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
	raw, given := rawjson.Get(c.Target.Arguments, f.Echo.Argument)
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
		c.Target.Arguments = rawjson.Delete(c.Target.Arguments, f.Echo.Argument)
		c.Target.Forward = rawjson.Set(c.Target.Forward, c.Target.Arguments, "arguments")
	}
	if f.Handle == "" {
		f.Handle, _ = rawjson.GetString(c.Target.Params, "_meta", interceptor.MetaContextID)
	}
}
