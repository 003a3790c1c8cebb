package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/proxy/policy"
)

// policyTest is one expected decision, in the file of [Config.TestPolicy]. Exactly one of Tool,
// Prompt and Resource is set.
type policyTest struct {
	Principal   string         `yaml:"principal"` // its team, roles and scopes are those of the configuration
	Team        string         `yaml:"team"`      // replaces that of the principal
	Roles       []string       `yaml:"roles"`     // as well
	Scopes      []string       `yaml:"scopes"`    // as well
	Tool        string         `yaml:"tool"`      // as hosts see it, but not shortened
	Prompt      string         `yaml:"prompt"`    // as well
	Resource    string         `yaml:"resource"`  // a URI
	Server      string         `yaml:"server"`    // "" is found by the prefix of the tool or prompt
	Annotations map[string]any `yaml:"annotations"`
	Args        map[string]any `yaml:"args"`
	Branch      bool           `yaml:"branch"` // the call is in a branch
	Expect      string         `yaml:"expect"` // allow or deny
	Rule        string         `yaml:"rule"`   // that decides; "" is any
}

// shortName matches names that look shortened. A test must give the full name, because rules also match it.
var shortName = regexp.MustCompile(`^.{52,55}_[0-9a-f]{8}$`)

// PolicyResult is the outcome of one test of [Config.TestPolicy].
type PolicyResult struct {
	Test     string // what was asked
	Want     string // the expected decision, such as "deny by no-deletes"
	Decision policy.Decision
	OK       bool
}

// TestPolicy decides the calls that a file lists, and compares the decisions with those that the
// file expects. The file is a list in YAML. own reports whether foldgate always has a tool of its own of a
// name: those are for all. The error is an [*Error].
func (c *Config) TestPolicy(file string, own func(tool string) bool) (results []PolicyResult, err error) {
	enforced := c.Policy
	enforced.Action = ""             // a file of tests is about what the rules say
	p, _ := policy.Compile(enforced) // Load has checked it
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, NewError(file, Fault{Msg: readError(err)})
	}
	var tests []policyTest
	doc := newDocument(nil)
	if faults := doc.parse(data, func(body ast.Node) []Fault { return doc.decode(body, &tests) }); len(faults) > 0 {
		return nil, NewError(file, faults...)
	}
	var k checker
	k.If(len(tests) == 0, "", "has no tests: foldgate policy test --help lists the keys of a test")
	for i, t := range tests {
		at := fmt.Sprintf("[%d]", i)
		k.oneOf(at+".expect", t.Expect, "allow", "deny")
		q := policy.Request{Identity: c.IdentityAs(t.Principal, t.Team, t.Roles, t.Scopes), Server: t.Server}
		asked := 0
		for kind, name := range []string{policy.Tool: t.Tool, policy.Prompt: t.Prompt, policy.Resource: t.Resource} {
			if name != "" {
				q.Kind, q.Name, asked = policy.Kind(kind), name, asked+1
			}
		}
		if q.Kind != policy.Resource {
			k.If(shortName.MatchString(q.Name) && ShortName(q.Name) == q.Name, at, "%s is a shortened name: write the whole one, the server's prefix and its own name", q.Name)
			q.Full, q.Name = q.Name, ShortName(q.Name)
		}
		k.If(asked != 1, at, "needs exactly one of tool, prompt and resource, and has %d", asked)
		k.If(t.Principal != "" && !c.Knows(t.Principal), at+".principal", "there is no principal %.80q; there are %s", t.Principal, cmp.Or(strings.Join(c.PrincipalNames(), ", "), "none"))
		ours := t.Tool != "" && (own(t.Tool) || ForSearch(t.Tool))
		if q.Server == "" && q.Kind != policy.Resource {
			q.Server, _, _ = c.ByPrefix(q.Full)
		}
		of := c.UpstreamKeys() // that may have the name
		if t.Server != "" {
			k.If(c.Upstreams[t.Server] == nil, at+".server", "there is no upstream %.80q; there are %s", t.Server, strings.Join(of, ", "))
			of = []string{t.Server}
		}
		if seen := c.seen(of); q.Full != "" && !ours && len(seen) > 0 {
			k.If(!globs.Any(seen, q.Full), at, "no server has %.80q: hosts see names such as %s", q.Full, strings.Join(seen, ", "))
		}
		if t.Branch {
			q.Branch = "br_test"
		}
		for _, part := range []struct {
			to   *[]byte
			from map[string]any
		}{{&q.Annotations, t.Annotations}, {&q.Arguments, t.Args}} {
			if *part.to, err = json.Marshal(part.from); err != nil {
				k.Add(at, "its args or annotations are not JSON: %v", err)
			}
		}
		d := policy.Decision{Allowed: true, Rule: policy.DefaultRule}
		if !ours || ForSearch(t.Tool) && !c.Tools.Searchable() {
			d = p.Decide(q)
		}
		who := cmp.Or(t.Principal, t.Team, strings.Join(append(t.Roles, t.Scopes...), ","), "anyone")
		r := PolicyResult{Test: who + " " + q.Name, Want: t.Expect, Decision: d}
		if t.Args != nil {
			r.Test += " " + string(q.Arguments)
		}
		if t.Rule != "" {
			r.Want += " by " + t.Rule
		}
		r.OK = d.Allowed == (t.Expect == "allow") && (t.Rule == "" || t.Rule == d.Rule)
		results = append(results, r)
	}
	if len(k.List) > 0 {
		return nil, NewError(file, Config{lines: doc.lines}.Locate(k.List)...)
	}
	return results, nil
}

// seen returns, for each of some upstreams that there are, a glob on the names that hosts see of it.
func (c *Config) seen(keys []string) (all []string) {
	for _, key := range keys {
		if u := c.Upstreams[key]; u != nil && u.NamePrefix(key) != "" {
			all = append(all, u.NamePrefix(key)+"__*")
		} else if u != nil {
			all = append(all, "*")
		}
	}
	return all
}
