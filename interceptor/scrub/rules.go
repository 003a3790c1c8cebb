package scrub

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"

	"github.com/pelletier/go-toml/v2"
	"github.com/zricethezav/gitleaks/v8/config"
)

// ownRules are the rules that gitleaks lacks, in its own format.
//
//go:embed own.toml
var ownRules []byte

// A ruleSet is all rules, and the allow-lists that apply to all of them.
type ruleSet struct {
	rules    []*rule
	active   []*rule // those that can find anything in a text
	byID     map[string]*rule
	allow    []*allowlist // first those of the user, then those of gitleaks
	ofUser   int          // how many of allow are the user's
	targeted []*allowlist // for some rules only
	disabled map[string]bool
}

// A rule finds one kind of secret.
type rule struct {
	ruleEntry
	expr    *regexset.Expr // nil for a rule that looks at paths only
	path    *regexset.Expr // for the path of a file, nil for any; the path of a text is ""
	allow   []*allowlist
	own     bool // foldgate's, not gitleaks' or the user's
	certain bool // of known secrets: no allow-list applies
	generic bool // gives way to a more exact rule
	token   bool // the form alone gives its secrets away; see inBinary
	index   int  // in active and in the regexset; -1 for a rule that is not active
}

// A ruleFile is a gitleaks configuration. gitleaks' own loader is not used: it keeps state in
// package variables, so that a second file with extend in one process is loaded differently, and
// it panics on a wrong expression.
type ruleFile struct {
	Extend struct {
		Path, URL     string
		UseDefault    bool
		DisabledRules []string
	}
	Rules []ruleEntry
	allowEntries
}

type ruleEntry struct {
	ID, Path, Regex string
	SecretGroup     int      // the group with the secret; 0 is the first that is not empty
	Entropy         float64  // the least entropy of a secret, exclusive; 0 for none
	Keywords        []string // in any case in the file; newRule makes them lower-case
	Required        []required
	SkipReport      bool // the rule has no findings of its own; another rule requires it
	Apart           bool // the rule finds a name and its value apart; see pairs
	Begun           bool // with Apart: a match ends in its value; see valueOf
	Row             bool // with Apart: both are cells of a row; see rowTest
	Random          bool // with Apart: the value looks random; see isRandom
	Header          bool // with Apart: the name is above its column; see appendTables
	Statement       bool // with Apart: a statement of SQL, whose columns are named before its values; see addStatements
	Before          bool // the secret is the lines of base64 before the match, or with Apart the value before the name
	allowEntries
}

// required is a rule that must have a hit near a hit of the rule that requires it.
type required struct {
	ID                         string
	WithinLines, WithinColumns *int
}

// allowEntries are the allow-lists of a file or of a rule. AllowList is the older form.
type allowEntries struct {
	AllowList  *allowEntry
	Allowlists []*allowEntry
}

type allowEntry struct {
	TargetRules, Commits, Paths, Regexes, StopWords []string
	Condition, RegexTarget                          string
}

func newRuleSet() *ruleSet { return &ruleSet{byID: map[string]*rule{}, disabled: map[string]bool{}} }

// CheckRules returns why the file at path, or one that it extends, has no rules that [New] could load. It takes less
// time than New.
func CheckRules(path string) error { return newRuleSet().loadFile(path, 0) }

// loadRules returns gitleaks' default rules, foldgate's, and those of the file at path if it is
// not "". A rule of the file with the id of a default rule changes that one, as extend does in
// gitleaks. known are literal secrets, which no file can except.
func loadRules(path string, known []string) (*ruleSet, error) {
	set := newRuleSet()
	if path != "" {
		if err := set.loadFile(path, 0); err != nil {
			return nil, err
		}
	}
	set.ofUser = len(set.allow)
	if _, err := set.load("gitleaks' default rules", []byte(config.DefaultConfig), false); err != nil {
		return nil, err
	}
	if _, err := set.load("foldgate's rules", ownRules, true); err != nil {
		return nil, err
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

// maxExtend is the longest chain of extend.path, as in gitleaks.
const maxExtend = 2

func (s *ruleSet) loadFile(path string, depth int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	f, err := s.load(path, b, false)
	if err != nil {
		return err
	}
	for _, r := range s.rules {
		if r.expr == nil {
			continue
		}
		if err := r.expr.Searchable(); err != nil {
			return fmt.Errorf("rules %s: rule %q: its regex %w", path, r.ID, err)
		}
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

// load adds the rules of one configuration, called name in errors. Rules that were loaded before
// win over them.
func (s *ruleSet) load(name string, text []byte, own bool) (*ruleFile, error) {
	var f ruleFile
	if err := toml.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("rules %s: %w", name, plainTOML(err))
	}
	lists, err := f.lists()
	if err != nil {
		return nil, fmt.Errorf("rules %s: %w", name, err)
	}
	for _, a := range lists {
		if len(a.rules) > 0 {
			s.targeted = append(s.targeted, a)
		} else {
			s.allow = append(s.allow, a)
		}
	}
	for i := range f.Rules {
		r, err := newRule(f.Rules[i])
		if err != nil {
			return nil, fmt.Errorf("rules %s: rule %q: %w", name, f.Rules[i].ID, err)
		}
		r.own, r.token = own, own && strings.HasSuffix(r.ID, "-service-token")
		s.add(r)
	}
	return &f, nil
}

// plainTOML returns the error of a file that is no TOML, or has a value of the wrong type, with the line, and without
// the names of Go's types.
func plainTOML(err error) error {
	at, ok := errors.AsType[*toml.DecodeError](err)
	if !ok {
		return err
	}
	line, _ := at.Position()
	text := strings.TrimPrefix(at.Error(), "toml: ")
	if what, _, is := strings.Cut(strings.TrimPrefix(text, "cannot decode TOML "), " into "); is {
		text = fmt.Sprintf("%s has the wrong type, %s", strings.Join(at.Key(), "."), what)
	}
	return fmt.Errorf("line %d: %s", line, text)
}

// add adds a base rule. A rule of the same id that was added before changes it: its regex, path, entropy and secretGroup
// replace those of base, its keywords and allow-lists are added, and the rest of it counts for nothing, as in gitleaks.
func (s *ruleSet) add(base *rule) {
	if s.disabled[base.ID] {
		return
	}
	r := s.byID[base.ID]
	if r == nil {
		s.byID[base.ID] = base
		s.rules = append(s.rules, base)
		return
	}
	merged := *base
	merged.Entropy, merged.SecretGroup = cmp.Or(r.Entropy, base.Entropy), cmp.Or(r.SecretGroup, base.SecretGroup)
	merged.Regex, merged.expr, merged.path = cmp.Or(r.Regex, base.Regex), cmp.Or(r.expr, base.expr), cmp.Or(r.path, base.path)
	merged.Keywords, merged.allow = slices.Concat(base.Keywords, r.Keywords), slices.Concat(base.allow, r.allow)
	*r = merged
}

// knownRule returns the rule that finds literal secrets.
func knownRule(texts []string) (*rule, error) {
	// The longer of two that begin alike wins.
	texts = slices.SortedFunc(slices.Values(texts), func(a, b string) int { return len(b) - len(a) })
	quoted := make([]string, len(texts))
	for i, t := range texts {
		if !regexset.Searchable(t) {
			return nil, fmt.Errorf("a known secret of %d bytes is too short, or not ASCII", len(t))
		}
		quoted[i] = regexp.QuoteMeta(t)
	}
	r, err := newRule(ruleEntry{ID: "foldgate-token", Keywords: texts, Regex: strings.Join(quoted, "|")})
	if err != nil {
		return nil, err
	}
	r.own, r.certain = true, true
	return r, nil
}

func newRule(e ruleEntry) (*rule, error) {
	if strings.TrimSpace(e.ID) == "" {
		return nil, errors.New("has no id")
	}
	for i, k := range e.Keywords {
		e.Keywords[i] = strings.ToLower(k)
	}
	r := &rule{ruleEntry: e, index: -1, generic: strings.Contains(strings.ToLower(e.ID), "generic")}
	var err error
	if e.Path != "" {
		if r.path, err = regexset.Parse(e.Path); err != nil {
			return nil, fmt.Errorf("path: %w", err)
		}
	}
	if e.Regex != "" {
		if r.expr, err = regexset.Parse(e.Regex); err != nil {
			return nil, fmt.Errorf("regex: %w", err)
		}
	}
	for _, q := range e.Required {
		if q.ID == "" {
			return nil, errors.New("requires a rule without an id")
		}
	}
	r.allow, err = e.lists()
	return r, err
}

// finish checks what needs all rules, and finds the active ones: a rule for paths finds nothing
// in a text.
func (s *ruleSet) finish() error {
	for _, a := range s.targeted {
		for _, id := range a.rules {
			r := s.byID[id]
			if r == nil && s.disabled[id] {
				continue
			}
			if r == nil {
				return fmt.Errorf("rules: allow-list for rule %q: there is no such rule", id)
			}
			r.allow = append(r.allow, a)
		}
	}
	notNames, err := newAllowlist(&allowEntry{Regexes: []string{`^\w\.(?:[A-Z][a-z]{2,}[0-9]{0,2}){2,}$`}}) // s.ReadUint16LengthPrefixed
	if err != nil {
		return err
	}
	for _, r := range s.rules {
		for _, q := range r.Required {
			if s.byID[q.ID] == nil {
				return fmt.Errorf("rules: rule %q requires %q: there is no such rule", r.ID, q.ID)
			}
		}
		if r.expr == nil && r.path == nil {
			return fmt.Errorf("rules: rule %q has neither regex nor path", r.ID)
		}
		if r.expr != nil && r.SecretGroup > r.expr.NumSubexp() {
			return fmt.Errorf("rules: rule %q: secretGroup %d, but its regex has %d groups", r.ID, r.SecretGroup, r.expr.NumSubexp())
		}
		if r.expr != nil && r.Apart && (r.Before || r.SecretGroup > 0) && r.expr.NumSubexp() < 2 {
			return fmt.Errorf("rules: rule %q: its regex needs two groups, for the value and its name", r.ID)
		}
		if r.expr == nil || r.path != nil && !r.path.MatchString("") {
			continue
		}
		s.activate(r)
		if r.own || r.generic {
			continue
		}
		for _, end := range textEnds {
			if token, ends := strings.CutSuffix(r.Regex, end); ends {
				before := *r
				before.own, before.token, before.allow = true, true, append(slices.Clip(r.allow), notNames)
				if before.expr, err = regexset.Parse(token + signEnd); err != nil {
					return fmt.Errorf("rules: rule %q before a sign: %w", r.ID, err)
				}
				s.activate(&before)
			}
		}
	}
	return nil
}

// textEnds end most expressions of gitleaks: behind a token is a blank, a quotation mark, a semicolon or the end. signEnd
// is what else ends one in prose, tables, HTML and URLs. Not (, which follows names of functions. A rule with one of
// textEnds has a second expression, with signEnd.
var textEnds = []string{`(?:[\x60'"\s;]|\\[nr]|$)`, `(?:$|[\\'"\x60\s<),])`}

const signEnd = `(?:[^\w\s;"'\x60\\(-]|\\(?:[^nr]|$))`

func (s *ruleSet) activate(r *rule) {
	r.index = len(s.active)
	s.active = append(s.active, r)
}

// patterns returns the expressions of the active rules and, after them, of their allow-lists.
func (s *ruleSet) patterns() []regexset.Pattern {
	var all []regexset.Pattern
	lists := slices.Clone(s.allow)
	for _, r := range s.active {
		all = append(all, regexset.Pattern{Expr: r.expr, Keywords: r.Keywords})
		lists = append(lists, r.allow...)
	}
	for _, a := range lists {
		if a.expr == nil || a.index >= 0 {
			continue
		}
		a.index = len(all)
		use := regexset.Test
		if a.target == targetLine {
			use = regexset.TestLines
		}
		all = append(all, regexset.Pattern{Expr: a.expr, Use: use})
	}
	return all
}

// The part of the text that the expressions of an allow-list look at.
const (
	targetSecret = iota
	targetMatch
	targetLine
)

type allowlist struct {
	rules     []string // the ids of the only rules it is for; nil for all
	all       bool     // every kind of check must hold, not any one
	target    int
	expr      *regexset.Expr     // nil for none
	index     int                // of expr in the regexset; -1 for none
	stopWords []string           // in lower case
	literals  *regexset.Literals // the stop words; nil if they are few
}

func (e *allowEntries) lists() (all []*allowlist, err error) {
	entries := e.Allowlists
	if e.AllowList != nil {
		entries = append(entries, e.AllowList)
	}
	for _, e := range entries {
		a, err := newAllowlist(e)
		if err != nil {
			return nil, fmt.Errorf("allow-list: %w", err)
		}
		all = append(all, a)
	}
	return all, nil
}

func newAllowlist(e *allowEntry) (*allowlist, error) {
	a := &allowlist{rules: e.TargetRules, index: -1}
	switch strings.ToUpper(e.Condition) {
	case "AND", "&&":
		a.all = true
	case "", "OR", "||":
	default:
		return nil, fmt.Errorf("condition %q: want AND or OR", e.Condition)
	}
	switch e.RegexTarget {
	case "", "secret":
	case "match":
		a.target = targetMatch
	case "line":
		a.target = targetLine
	default:
		return nil, fmt.Errorf("regexTarget %q: want secret, match or line", e.RegexTarget)
	}
	needsPath := len(e.Paths)+len(e.Commits) > 0
	if !needsPath && len(e.Regexes)+len(e.StopWords) == 0 {
		return nil, errors.New("has no check: add commits, paths, regexes or stopwords")
	}
	for _, x := range slices.Concat(e.Regexes, e.Paths) {
		if _, err := regexset.Parse(x); err != nil {
			return nil, err
		}
	}
	if a.all && needsPath {
		return a, nil // a text has neither path nor commit: the list excepts nothing
	}
	var err error
	if len(e.Regexes) > 0 {
		// Joined as gitleaks joins them: a flag such as (?i) in one expression applies to those
		// after it too.
		if a.expr, err = regexset.Parse("(?:" + strings.Join(e.Regexes, "|") + ")"); err != nil {
			return nil, err
		}
	}
	for _, w := range e.StopWords {
		a.stopWords = append(a.stopWords, strings.ToLower(w))
	}
	if len(a.stopWords) > 8 && !slices.ContainsFunc(a.stopWords, func(w string) bool { return !regexset.Searchable(w) }) {
		a.literals = regexset.NewLiterals(a.stopWords)
	}
	return a, nil
}

// stops reports whether a secret contains a stop word.
func (a *allowlist) stops(secret string) bool {
	if len(a.stopWords) == 0 || secret == "" {
		return false
	}
	if a.literals != nil && regexset.ASCII(secret) {
		return a.literals.Contains(secret) // in either case
	}
	secret = strings.ToLower(secret)
	if a.literals != nil {
		return a.literals.Contains(secret)
	}
	return slices.ContainsFunc(a.stopWords, func(w string) bool { return strings.Contains(secret, w) })
}
