package scrub

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"
)

// maxExtend is how many files a chain of extend.path may have, as in gitleaks.
const maxExtend = 2

// A ruleFile is a gitleaks configuration. gitleaks' own loader is not used: it
// keeps state in package variables (a second file with extend in one process
// is loaded differently) and panics on a wrong expression.
type ruleFile struct {
	Extend struct {
		Path          string
		URL           string
		UseDefault    bool
		DisabledRules []string
	}
	Rules      []ruleEntry
	AllowList  *allowEntry
	Allowlists []*allowEntry
}

type ruleEntry struct {
	ID          string
	Path        string
	Regex       string
	SecretGroup int
	Entropy     float64
	Keywords    []string
	AllowList   *allowEntry
	Allowlists  []*allowEntry
	Required    []required
	SkipReport  bool
}

type allowEntry struct {
	TargetRules []string
	Condition   string
	Commits     []string
	Paths       []string
	RegexTarget string
	Regexes     []string
	StopWords   []string
}

// required is a rule that must have a finding near a finding of its owner.
type required struct {
	ID            string
	WithinLines   *int
	WithinColumns *int
}

func (s *ruleSet) loadFile(path string, depth int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	if err := s.load(path, b, false); err != nil {
		return err
	}
	var f ruleFile
	if err := toml.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("rules %s: %w", path, err)
	}
	for _, id := range f.Extend.DisabledRules {
		s.disabled[id] = true
	}
	if f.Extend.URL != "" {
		return fmt.Errorf("rules %s: extend.url is not supported: download the file and name it in extend.path", path)
	}
	if f.Extend.Path == "" {
		return nil
	}
	if f.Extend.UseDefault {
		return fmt.Errorf("rules %s: extend.path and extend.useDefault are both set: the default rules always apply, remove useDefault", path)
	}
	if depth == maxExtend {
		return fmt.Errorf("rules %s: extend.path is nested more than %d deep", path, maxExtend)
	}
	next := f.Extend.Path
	if !filepath.IsAbs(next) {
		next = filepath.Join(filepath.Dir(path), next)
	}
	return s.loadFile(next, depth+1)
}

// load adds the rules of one configuration, named name in errors, below those
// that were loaded before it.
func (s *ruleSet) load(name string, text []byte, own bool) error {
	var f ruleFile
	if err := toml.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("rules %s: %w", name, err)
	}
	if f.AllowList != nil {
		f.Allowlists = append(f.Allowlists, f.AllowList)
	}
	for _, a := range f.Allowlists {
		list, err := newAllowlist(a)
		if err != nil {
			return fmt.Errorf("rules %s: allow-list: %w", name, err)
		}
		if len(a.TargetRules) > 0 {
			s.targeted = append(s.targeted, targetedAllow{a.TargetRules, list})
		} else {
			s.allow = append(s.allow, list)
		}
	}
	for i := range f.Rules {
		r, err := newRule(&f.Rules[i])
		if err != nil {
			return fmt.Errorf("rules %s: rule %q: %w", name, f.Rules[i].ID, err)
		}
		r.own = own
		s.add(r)
	}
	return nil
}
