package scrub

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"

	"github.com/zricethezav/gitleaks/v8/config"
)

// ownRules are the rules that gitleaks lacks, in its own format.
//
//go:embed own.toml
var ownRules string

// A rule finds one kind of secret.
type rule struct {
	id       string
	expr     string  // "" for a rule that looks at paths only
	path     string  // expression for a file's path; a text has none
	group    int     // of the secret; 0 stands for the first group that is not empty
	entropy  float64 // the secret's must be higher; 0 asks for none
	keywords []string
	allow    []*allowlist
	required []required
	silent   bool // only ever required by another rule
	own      bool // ours, not gitleaks' or the user's
	certain  bool // of known texts: no allow-list holds for it
	generic  bool // gives way to a more exact rule

	index  int            // in the active rules, -1 for those that are not
	tree   *syntax.Regexp // of expr, parsed and not simplified
	groups int            // of expr
	regexp func() *regexp.Regexp
}

// A ruleSet is all rules and the allow-lists that hold for all of them.
type ruleSet struct {
	rules []*rule
	byID  map[string]*rule
	allow []*allowlist

	targeted []targetedAllow
	disabled map[string]bool
}

type targetedAllow struct {
	rules []string
	list  *allowlist
}

// loadRules returns gitleaks' default rules, ours, and those of the file at
// path if it is not "". A rule of the file with the id of a default rule
// changes that one, as extend does in gitleaks. known are secrets as they are,
// which no file can except.
func loadRules(path string, known []string) (*ruleSet, error) {
	set := &ruleSet{byID: map[string]*rule{}, disabled: map[string]bool{}}
	if path != "" {
		if err := set.loadFile(path, 0); err != nil {
			return nil, err
		}
	}
	for _, base := range []struct {
		name, text string
		own        bool
	}{{"gitleaks' default rules", config.DefaultConfig, false}, {"foldgate's rules", ownRules, true}} {
		if err := set.load(base.name, []byte(base.text), base.own); err != nil {
			return nil, err
		}
	}
	if len(known) > 0 {
		r, err := knownRule(known)
		if err != nil {
			return nil, err
		}
		set.rules = append(set.rules, r)
	}
	return set, set.finish()
}

// knownRule returns the rule that finds the given texts wherever they are.
func knownRule(texts []string) (*rule, error) {
	texts = slices.Clone(texts)
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) }) // of two that begin alike the longer
	e := &ruleEntry{ID: "foldgate-token"}
	quoted := make([]string, len(texts))
	for i, t := range texts {
		if odd(t) {
			return nil, fmt.Errorf("a known secret of %d bytes is too short, or not ASCII", len(t))
		}
		quoted[i] = regexp.QuoteMeta(t)
		e.Keywords = append(e.Keywords, t)
	}
	e.Regex = strings.Join(quoted, "|")
	r, err := newRule(e)
	if err != nil {
		return nil, err
	}
	r.own, r.certain = true, true
	return r, nil
}

// add adds a base rule. What a rule of the same id said before wins over it.
func (s *ruleSet) add(base *rule) {
	r := s.byID[base.id]
	if r == nil {
		if !s.disabled[base.id] {
			s.byID[base.id] = base
			s.rules = append(s.rules, base)
		}
		return
	}
	if s.disabled[base.id] {
		return
	}
	if r.entropy == 0 {
		r.entropy = base.entropy
	}
	if r.group == 0 {
		r.group = base.group
	}
	if r.expr == "" {
		r.expr, r.tree, r.groups, r.regexp = base.expr, base.tree, base.groups, base.regexp
	}
	if r.path == "" {
		r.path = base.path
	}
	r.keywords = append(base.keywords[:len(base.keywords):len(base.keywords)], r.keywords...)
	r.allow = append(base.allow[:len(base.allow):len(base.allow)], r.allow...)
	r.required, r.silent = base.required, base.silent
}

// finish checks what can only be checked once all rules are known, and drops
// the rules that never find anything in a text without a path.
func (s *ruleSet) finish() error {
	for _, t := range s.targeted {
		for _, id := range t.rules {
			r := s.byID[id]
			if r == nil {
				return fmt.Errorf("rules: allow-list for rule %q: there is no such rule", id)
			}
			r.allow = append(r.allow, t.list)
		}
	}
	var active []*rule
	for _, r := range s.rules {
		for _, q := range r.required {
			if s.byID[q.ID] == nil {
				return fmt.Errorf("rules: rule %q requires %q: there is no such rule", r.id, q.ID)
			}
		}
		if r.expr == "" && r.path == "" {
			return fmt.Errorf("rules: rule %q has neither regex nor path", r.id)
		}
		if r.tree != nil && r.group > r.groups {
			return fmt.Errorf("rules: rule %q: secretGroup %d, but its regex has %d groups", r.id, r.group, r.groups)
		}
		if r.expr == "" {
			continue
		}
		if r.path != "" {
			if path, err := regexp.Compile(r.path); err != nil || !path.MatchString("") {
				continue
			}
		}
		active = append(active, r)
	}
	s.rules = active
	return nil
}

func newRule(e *ruleEntry) (*rule, error) {
	if strings.TrimSpace(e.ID) == "" {
		return nil, errors.New("has no id")
	}
	r := &rule{
		index: -1, id: e.ID, expr: e.Regex, path: e.Path, group: e.SecretGroup, entropy: e.Entropy,
		required: e.Required, silent: e.SkipReport,
		generic: strings.Contains(strings.ToLower(e.ID), "generic"),
	}
	for _, k := range e.Keywords {
		r.keywords = append(r.keywords, strings.ToLower(k))
	}
	if e.Path != "" {
		if _, err := syntax.Parse(e.Path, syntax.Perl); err != nil {
			return nil, fmt.Errorf("path: %w", err)
		}
	}
	if e.Regex != "" {
		tree, err := syntax.Parse(e.Regex, syntax.Perl)
		if err != nil {
			return nil, fmt.Errorf("regex: %w", err)
		}
		r.tree, r.groups, r.regexp = tree, tree.MaxCap(), lazyRegexp(e.Regex)
	}
	for _, q := range e.Required {
		if q.ID == "" {
			return nil, errors.New("requires a rule without an id")
		}
	}
	if e.AllowList != nil {
		e.Allowlists = append(e.Allowlists, e.AllowList)
	}
	for _, a := range e.Allowlists {
		list, err := newAllowlist(a)
		if err != nil {
			return nil, fmt.Errorf("allow-list: %w", err)
		}
		r.allow = append(r.allow, list)
	}
	return r, nil
}

// lazyRegexp compiles expr, which must have been parsed before, on first use:
// most rules never match, and compiling all of them costs most of the start-up.
func lazyRegexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
