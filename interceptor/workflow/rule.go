package workflow

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/faults"
	"github.com/foldgate/foldgate/internal/jsonpath"
)

// Role is the part of a tool in a workflow.
type Role string

// The roles of tools.
const (
	RoleOpen   Role = "open"   // starts a workflow
	RoleLink   Role = "link"   // adds a step to it
	RoleStatus Role = "status" // asks about a step
	RoleClose  Role = "close"  // ends the workflow
)

// acts reports whether a call of the role is an attempt at a step.
func (r Role) acts() bool { return r == RoleOpen || r == RoleLink }

// Evidence says why a call belongs to its workflow.
type Evidence string

// The kinds of evidence, strongest first.
const (
	Explicit Evidence = "explicit" // the call gives its id
	Native   Evidence = "native"   // the call gives an id of the server's own
	Join     Evidence = "join"     // the call gives a value that an earlier result held
	Session  Evidence = "session"  // the workflow is the last one of the session
	None     Evidence = "none"     // nothing leads to a workflow
)

// Spec is one workflow as it is configured.
type Spec struct {
	Name    string        // is unique
	TTL     time.Duration // the life of a workflow without use
	Tools   []ToolSpec    // the tools that take part
	Remint  bool          // an unknown id is ignored; otherwise the call is refused
	Require bool          // link, status and close calls without a workflow are refused
	// Preserve lets an open call give an id of the host's own, such as an A2A contextId. It
	// becomes an alias of the workflow, and results carry it.
	Preserve bool
	Evidence []Evidence // to look at, in this order
}

// ToolSpec is one tool of a workflow. Paths are JSONPaths.
type ToolSpec struct {
	Role   Role   `yaml:"-"` // the list of the configuration that it stands in
	Server string `yaml:"-"` // the tool's upstream in the configuration
	// Tool is the tool's name there. The configuration has the upstream, a dot, and this name.
	Tool string `yaml:"tool"`
	Step string `yaml:"step"` // the name of the steps that a link tool adds; "" means the tool's name
	// Capture are paths by the name of the join that uses their values. They look into the
	// result of an open tool, as {"arguments", "structuredContent", "content", "isError"}.
	Capture map[string]string `yaml:"capture"`
	Join    map[string]string `yaml:"join"` // paths into {"arguments"}
	// StepKey are paths into {"arguments"}. A call with the same values repeats the step.
	StepKey []string `yaml:"step_key"`
}

// Rules are compiled [Spec]s. They are immutable.
type Rules struct {
	workflows []*Workflow
	tools     map[[2]string]*Rule // by server and tool
}

// Workflow is a compiled [Spec].
type Workflow struct {
	Spec
	Openers []*Rule // the rules of the open tools
}

// Rule is one tool's compiled rule.
type Rule struct {
	ToolSpec
	Workflow      *Workflow
	At            string // the place in the configuration, such as "link[0]"
	capture, join map[string]jsonpath.Path
	key           []jsonpath.Path
}

// maxSteps is the number of differently named link steps that a workflow can have. Each may be
// one level deeper than the one before.
const maxSteps = contextpath.MaxDepth - 1

// Compile checks and compiles specs. It returns every fault, with a key such as "[0].link[0].join.ids", which
// begins with the index of the spec.
func Compile(specs []Spec) (*Rules, faults.List) {
	c := compiler{rules: &Rules{tools: map[[2]string]*Rule{}}}
	names := map[string]bool{}
	for i, s := range specs {
		c.spec = i
		if s.Name == "" || len(s.Name) > 64 || contextpath.Validate(s.Name) != nil || strings.Contains(s.Name, "/") {
			c.bad("name", "%q must be 1 to 64 letters, digits, '-' or '_'", s.Name)
		}
		if names[s.Name] {
			c.bad("name", "%q is the name of an earlier workflow too", s.Name)
		}
		names[s.Name] = true
		c.compile(s)
	}
	return c.rules, c.wrong
}

type compiler struct {
	rules *Rules
	wrong faults.List
	spec  int // the index of the one being compiled
}

func (c *compiler) bad(at, format string, args ...any) {
	c.wrong.Add(fmt.Sprintf("[%d].%s", c.spec, at), format, args...)
}

func (c *compiler) compile(s Spec) {
	w := &Workflow{Spec: s}
	c.rules.workflows = append(c.rules.workflows, w)
	if s.TTL < time.Minute {
		c.bad("ttl", "%s is less than a minute", s.TTL)
	}
	for i, e := range s.Evidence {
		if !slices.Contains([]Evidence{Explicit, Native, Join, Session}, e) {
			c.bad("fallback", "%q is not one of explicit, native, join, session", e)
		}
		if slices.Contains(s.Evidence[:i], e) {
			c.bad("fallback", "%q is listed twice", e)
		}
	}
	count := map[Role]int{}
	var steps []string
	for _, t := range s.Tools {
		r := c.rule(w, t, count[t.Role])
		count[t.Role]++
		switch {
		case t.Role == RoleOpen:
			w.Openers = append(w.Openers, r)
		case t.Role == RoleLink && !slices.Contains(steps, r.Step):
			steps = append(steps, r.Step)
		}
	}
	if len(w.Openers) == 0 {
		c.bad("open", "is empty: name the tool that starts the workflow")
	}
	if len(steps) > maxSteps {
		c.bad("link", "%d differently named steps; at most %d are possible, because a path has at most %d levels", len(steps), maxSteps, contextpath.MaxDepth)
	}
}

func (c *compiler) rule(w *Workflow, t ToolSpec, i int) *Rule {
	r := &Rule{ToolSpec: t, Workflow: w, At: fmt.Sprintf("%s[%d]", t.Role, i), join: map[string]jsonpath.Path{}, capture: map[string]jsonpath.Path{}}
	if r.Step == "" {
		r.Step = t.Tool
	}
	k := [2]string{t.Server, t.Tool}
	if other := c.rules.tools[k]; other != nil {
		c.bad(r.At+".tool", "%s.%s is also in %s of workflow %q: a tool has one rule", t.Server, t.Tool, other.At, other.Workflow.Name)
	}
	c.rules.tools[k] = r
	compile := func(at, expr string) (p jsonpath.Path) {
		p, err := jsonpath.Parse(expr)
		if err != nil {
			c.bad(r.At+"."+at, "%v", err)
		}
		return p
	}
	for name, expr := range t.Capture {
		r.capture[name] = compile("capture."+name, expr)
	}
	for name, expr := range t.Join {
		r.join[name] = compile("join."+name, expr)
		if !slices.ContainsFunc(w.Tools, func(o ToolSpec) bool { _, ok := o.Capture[name]; return ok }) {
			c.bad(r.At+".join."+name, "no open rule of the workflow captures %q", name)
		}
	}
	for i, expr := range t.StepKey {
		r.key = append(r.key, compile(fmt.Sprintf("step_key[%d]", i), expr))
	}
	if t.Role != RoleOpen && len(t.Capture) > 0 {
		c.bad(r.At+".capture", "belongs to open rules only")
	}
	if t.Role == RoleOpen && len(t.Join) > 0 {
		c.bad(r.At+".join", "does not belong to open rules: they start a workflow unless a handle is given")
	}
	if t.Role != RoleLink && len(t.StepKey) > 0 {
		c.bad(r.At+".step_key", "belongs to link rules only")
	}
	return r
}

// Find returns the rule of a server's tool, or nil. r may be nil.
func (r *Rules) Find(server, tool string) *Rule {
	if r == nil {
		return nil
	}
	return r.tools[[2]string{server, tool}]
}

// Each calls yield for every rule, in the order of the configuration, with the index of its spec.
func (r *Rules) Each(yield func(spec int, rule *Rule)) {
	if r == nil {
		return
	}
	for i, w := range r.workflows {
		for _, t := range w.Tools {
			yield(i, r.tools[[2]string{t.Server, t.Tool}])
		}
	}
}
