// Package policy decides which principals may see and use which tools, prompts and resources. One
// function decides, [Policy.Decide], for lists as for calls. It knows no server and no session.
//
// Deny wins over allow. A rule that can't be evaluated denies. If no rule matches, the default of
// the configuration decides.
package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/faults"
	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Config is the configured policy. The zero value forbids nothing.
type Config struct {
	// Default decides if no rule matches: allow, also for "", or deny.
	Default string `yaml:"default"`
	// Unlisted is the answer to a call of something that the caller does not see in lists: forbidden,
	// also for "", names the rule; unknown says the same as if it did not exist.
	Unlisted string `yaml:"unlisted"`
	// Action is what happens to what the policy forbids: refuse, also for "", or warn, which only records it.
	Action string `yaml:"action"`
	Rules  []Rule `yaml:"rules"` // at most 1000
}

// Rule allows and forbids some things to some callers.
type Rule struct {
	Name string `yaml:"name"` // unique; in errors and in the trace
	Who  Who    `yaml:"who"`
	// Allow and Deny are globs on tools, by the names that hosts see.
	Allow     []string `yaml:"allow"`
	Deny      []string `yaml:"deny"`
	Prompts   Globs    `yaml:"prompts"`   // by the names that hosts see
	Resources Globs    `yaml:"resources"` // by URI
	// When is a condition in CEL; "" is true. The rule applies if it is true.
	When string `yaml:"when"`
	// Require is "branch" if the rule allows its things only in a branch, else "".
	Require string `yaml:"require"`
}

// Who selects callers. All fields that are not "" must match; they are globs.
type Who struct {
	Principal string `yaml:"principal"`
	Team      string `yaml:"team"`
	Role      string `yaml:"role"`  // one of the caller's
	Scope     string `yaml:"scope"` // one of the caller's
}

// Globs select names. Deny wins over Allow.
type Globs struct {
	Allow []string `yaml:"allow"`
	Deny  []string `yaml:"deny"`
}

// Selects reports whether the globs leave a name: none of Deny matches, and one of Allow does or
// there is none.
func (g Globs) Selects(name string) bool {
	return (len(g.Allow) == 0 || globs.Any(g.Allow, name)) && !globs.Any(g.Deny, name)
}

// Kind is what a request asks for.
type Kind int

// The kinds. Method is a method that foldgate does not know: only the default decides.
const (
	Tool Kind = iota
	Prompt
	Resource
	Method
)

// Request is a question to a policy.
type Request struct {
	interceptor.Identity
	Kind   Kind
	Server string // the upstream's key
	// Name is the name that hosts see, the URI of a resource, or a method. Full is the name before
	// it was shortened; "" if it was not.
	Name, Full string
	// Annotations are those of the tool, as JSON. Unlisted means that they are not known, because
	// the server's list was not read.
	Annotations []byte
	Unlisted    bool
	// Listing asks whether the caller may see it: whether some arguments could be allowed, in a
	// branch or outside. Branch and Arguments are not looked at.
	Listing   bool
	Branch    string // the id of the branch, "" for none
	Arguments []byte // as JSON, as they are sent; nil for none
}

// Decision is the answer of a policy. Rule is the name of the rule that decided, "default" if none
// matched. Of a refusal, Code is for programs, and Message says what happened and what to do next.
type Decision struct {
	Allowed       bool
	Warned        bool // it is allowed, and would be refused with the action refuse: the rest says why
	Rule          string
	Code, Message string
	// Scopes are those with which the caller's token would be allowed, separated by spaces. Decide does
	// not set them.
	Scopes string
}

// DefaultRule is the name of the decision if no rule matches.
const DefaultRule = "default"

// Policy is a compiled policy. A nil Policy allows everything. It never changes and is safe for
// concurrent use.
type Policy struct {
	rules         []rule
	allow         bool // by default
	hidesUnlisted bool
	warns         bool
}

type rule struct {
	Rule
	when *condition // nil for none
}

// Bounds of a policy.
const (
	maxRules = 1000
	maxGlobs = 1000 // in one rule
)

var ruleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Compile checks a policy and compiles its conditions. Without faults it returns the policy, nil if
// it forbids nothing.
func Compile(c Config) (*Policy, faults.List) {
	p := &Policy{allow: c.Default != "deny", hidesUnlisted: c.Unlisted == "unknown", warns: c.Action == "warn"}
	var wrong faults.List
	fault := wrong.If
	fault(!slices.Contains([]string{"", "allow", "deny"}, c.Default), "default", "%q is not one of allow, deny", c.Default)
	fault(!slices.Contains([]string{"", "forbidden", "unknown"}, c.Unlisted), "unlisted", "%q is not one of forbidden, unknown", c.Unlisted)
	fault(!slices.Contains([]string{"", "refuse", "warn"}, c.Action), "action", "%q is not one of refuse, warn", c.Action)
	fault(len(c.Rules) > maxRules, "rules", "has %d rules, more than %d", len(c.Rules), maxRules)
	for i, r := range c.Rules {
		at := fmt.Sprintf("rules[%d]", i)
		fault(!ruleName.MatchString(r.Name) || r.Name == DefaultRule, at+".name",
			"%q must be 1 to 64 letters, digits, '_', '-' or '.', and not %q: errors and the trace name the rule", r.Name, DefaultRule)
		first := slices.IndexFunc(c.Rules, func(o Rule) bool { return o.Name == r.Name })
		fault(first < i, at+".name", "%q is also the name of rules[%d]", r.Name, first)
		count := 0
		for _, l := range []struct {
			key   string
			globs []string
		}{
			{".allow", r.Allow}, {".deny", r.Deny}, {".prompts.allow", r.Prompts.Allow}, {".prompts.deny", r.Prompts.Deny},
			{".resources.allow", r.Resources.Allow}, {".resources.deny", r.Resources.Deny},
			{".who.principal", []string{r.Who.Principal}}, {".who.team", []string{r.Who.Team}}, {".who.role", []string{r.Who.Role}}, {".who.scope", []string{r.Who.Scope}},
		} {
			for _, glob := range l.globs {
				fault(!globs.Valid(glob), at+l.key, globs.Invalid, glob)
				fault(strings.HasPrefix(l.key, ".resources") && !comparesAll(glob), at+l.key,
					"%q would miss URIs: write it as scheme://host/path or file:///path, the scheme and host in lower case, without user, default port, dots, doubled slashes and escapes; * matches what is escaped, too", glob)
			}
			if !strings.HasPrefix(l.key, ".who") {
				count += len(l.globs)
			}
		}
		allows := len(r.Allow)+len(r.Prompts.Allow)+len(r.Resources.Allow) > 0
		fault(count == 0, at, "names nothing: give it allow or deny, or prompts or resources with allow or deny")
		fault(count > maxGlobs, at, "has %d globs, more than %d", count, maxGlobs)
		fault(!slices.Contains([]string{"", "branch"}, r.Require), at+".require", "%q is not branch", r.Require)
		fault(r.Require != "" && !allows, at+".require", "needs allow, with what is allowed only in a branch")
		fault(p.allow && allows && r.Require == "", at+".allow",
			"has no effect, because policy.default is allow: set default: deny, or forbid the opposite with deny")
		one := rule{Rule: r}
		if r.When != "" {
			var err error
			one.when, err = compile(r.When)
			fault(err != nil, at+".when", "%v", err)
		}
		p.rules = append(p.rules, one)
	}
	if len(wrong) > 0 || p.allow && len(p.rules) == 0 {
		return nil, wrong
	}
	return p, nil
}

// HidesUnlisted reports whether what a caller does not see is to be answered as if it did not exist.
func (p *Policy) HidesUnlisted() bool { return p != nil && p.hidesUnlisted }

// Decide answers a request. All rules that name it are evaluated, so their order does not matter. Of
// several that refuse, the first is named.
func (p *Policy) Decide(r Request) Decision {
	if p == nil {
		return Decision{Allowed: true, Rule: DefaultRule}
	}
	d := p.decide(&input{Request: &r})
	d.Warned = p.warns && !d.Allowed
	d.Allowed = d.Allowed || d.Warned
	return d
}

func (p *Policy) decide(in *input) Decision {
	r := in.Request
	var refused, failed, needy, allowed, unmet *rule // the first of each kind
	var fault error
	note := func(to **rule, r *rule) {
		if *to == nil {
			*to = r
		}
	}
	allowNames, denyNames, err := r.names()
	for i := range p.rules {
		one := &p.rules[i]
		g := one.globs(r.Kind)
		if len(g.Allow)+len(g.Deny) == 0 || !one.Who.Matches(r.Identity) {
			continue
		}
		allow, deny := g.decide(r.Kind, allowNames, denyNames)
		if !allow && !deny && err == nil {
			continue
		}
		applies, why := yes, err
		if why == nil && one.when != nil {
			applies, why = one.when.eval(in)
		}
		if applies == unknown && !r.Listing && why == nil {
			why = errNoList
		}
		switch {
		case why != nil:
			if failed == nil {
				failed, fault = one, why
			}
		case applies == no:
			if allow && !deny {
				note(&unmet, one)
			}
		case deny && applies == yes:
			note(&refused, one)
		case deny:
		case one.Require != "" && r.Branch == "" && !r.Listing:
			note(&needy, one)
		default:
			note(&allowed, one)
		}
	}
	what := r.what()
	refuse := func(by *rule, code, format string, args ...any) Decision {
		return Decision{Rule: by.Name, Code: code, Message: fmt.Sprintf("the policy's rule %q %s", by.Name, fmt.Sprintf(format, args...))}
	}
	switch {
	case refused != nil && refused.when != nil:
		return refuse(refused, "policy_denied", "forbids %s if %s: change the call so that this is not so, or go on without it", what, shorten(refused.When))
	case refused != nil:
		return refuse(refused, "policy_denied", "forbids %s to you: go on without it, or have the operator change the rule", what)
	case failed != nil:
		return refuse(failed, "policy_denied", "could not be evaluated for %s, so it is forbidden: %v", what, fault)
	case needy != nil:
		return refuse(needy, "branch_required", "allows %s only in a branch: call branch_create, and pass the branch_id that it returns with this call", what)
	case allowed != nil:
		return Decision{Allowed: true, Rule: allowed.Name}
	case p.allow:
		return Decision{Allowed: true, Rule: DefaultRule}
	case unmet != nil:
		return refuse(unmet, "policy_denied", "allows %s only if %s: change the call so that this holds, or go on without it", what, shorten(unmet.When))
	}
	return Decision{Rule: DefaultRule, Code: "policy_denied",
		Message: fmt.Sprintf("no rule of the policy allows you %s: go on without it, or have the operator add a rule", what)}
}

// maxMissing bounds the scopes that Missing tries.
const maxMissing = 64

// Missing returns a scope with which a request that is refused would be allowed, "" if none is enough.
func (p *Policy) Missing(r Request) string {
	var tried []string
	in, own := &input{Request: &r}, slices.Clip(r.Scopes)
	for i := range p.rules {
		scope := p.rules[i].Who.Scope
		if scope == "" || strings.ContainsAny(scope, `*?[{\`) || slices.Contains(tried, scope) || len(tried) >= maxMissing {
			continue
		}
		tried = append(tried, scope)
		r.Scopes, in.vars = append(own, scope), nil // the arguments stay decoded
		if p.decide(in).Allowed {
			return scope
		}
	}
	return ""
}

// what names the thing that is asked for.
func (r *Request) what() string {
	return [...]string{"the tool ", "the prompt ", "the resource ", "the method "}[r.Kind] + shorten(r.Name)
}

// shorten returns a text that is foreign, and may be long, for use in a message.
func shorten(text string) string { return folding.Shorten(wire.Clip(text), 250) }

// globs returns the globs of a rule for a kind.
func (r *rule) globs(k Kind) Globs {
	switch k {
	case Tool:
		return Globs{r.Allow, r.Deny}
	case Prompt:
		return r.Prompts
	case Resource:
		return r.Resources
	}
	return Globs{}
}

// decide reports whether the globs allow and deny something: it is allowed by all names of the one
// list, and denied by any of the other. The first name of a tool or prompt is the one that hosts see.
// An entry that equals it allows, too: it can't be meant for another.
func (g Globs) decide(k Kind, toAllow, toDeny []string) (allow, deny bool) {
	allow = len(toAllow) > 0 && !slices.ContainsFunc(toAllow, func(name string) bool { return !globs.Any(g.Allow, name) })
	if !allow && len(toAllow) > 0 && (k == Tool || k == Prompt) {
		allow = slices.Contains(g.Allow, toAllow[0])
	}
	return allow, slices.ContainsFunc(toDeny, func(name string) bool { return globs.Any(g.Deny, name) })
}

// Matches reports whether w selects a caller.
func (w Who) Matches(id interceptor.Identity) bool {
	one := func(glob, value string) bool { return glob == "" || globs.Match(glob, value) }
	some := func(glob string, values []string) bool {
		return glob == "" || slices.ContainsFunc(values, func(v string) bool { return globs.Match(glob, v) })
	}
	return one(w.Principal, id.Principal) && one(w.Team, id.Team) && some(w.Role, id.Roles) && some(w.Scope, id.Scopes)
}
