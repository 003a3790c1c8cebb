package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/workflow"
)

// Workflow ties tools that know nothing of one another to one thread:
// one opens a workflow, the others go on with its handle; see docs/workflows.md.
type Workflow struct {
	Name string `yaml:"name"`
	// TTL is how long a workflow lives without use; 0 means a week.
	TTL    time.Duration  `yaml:"ttl"`
	Inject WorkflowInject `yaml:"inject"`
	// Open, Link, Status and Close list the tools by their role.
	Open   []WorkflowTool `yaml:"open"`
	Link   []WorkflowTool `yaml:"link"`
	Status []WorkflowTool `yaml:"status"`
	Close  []WorkflowTool `yaml:"close"`
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

// WorkflowInject says how the handle travels.
type WorkflowInject struct {
	// Argument is the parameter that the tools get; "" means context_id.
	Argument string `yaml:"argument"`
	// Result lists where results carry the handle: structuredContent, content,
	// _meta. Absent means all three.
	Result []string `yaml:"result"`
}

// WorkflowTool is one tool's rule. Paths are JSONPaths.
type WorkflowTool struct {
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

// branchArgument is the parameter that foldgate adds to every tool: a workflow can't
// use its name.
const branchArgument = "branch_id"

var (
	flowChannels = []string{"structuredContent", "content", "_meta"}
	flowEvidence = []string{"explicit", "native", "join", "session"}
)

// WorkflowRules compiles the configured workflows.
func (c Config) WorkflowRules() (*workflow.Rules, []Fault) {
	var faults []Fault
	specs := make([]workflow.Spec, len(c.Workflows))
	for i, w := range c.Workflows {
		spec, bad := c.flowSpec(w, fmt.Sprintf("workflows[%d]", i))
		specs[i] = spec
		faults = append(faults, bad...)
	}
	rules, more := workflow.Compile(specs)
	for _, m := range more {
		faults = append(faults, Fault{Key: fmt.Sprintf("workflows[%d].%s", m.Spec, m.At), Msg: m.Msg})
	}
	return rules, faults
}

// Handle returns how the workflow's handle travels, with the defaults filled in.
func (w Workflow) Handle() WorkflowInject {
	inject := w.Inject
	if inject.Argument == "" {
		inject.Argument = defaultFlowArgument
	}
	if inject.Result == nil {
		inject.Result = flowChannels
	}
	return inject
}

// flowSpec checks one workflow as far as the engine does not, and gives it its
// defaults.
func (c Config) flowSpec(w Workflow, at string) (spec workflow.Spec, faults []Fault) {
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
		tools []WorkflowTool
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
