package scrub

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// What the expressions of an allow-list look at.
const (
	targetSecret = iota
	targetMatch
	targetLine
)

// An allowlist says which findings are not secrets.
type allowlist struct {
	all       bool // every kind of check must hold, not any one
	needsPath bool // has checks on paths or commits, which a text never passes
	target    int
	expr      func() *regexp.Regexp // nil for none
	anywhere  *plan                 // of expr after any text
	inLine    *plan                 // of expr, where places in a line can be known beforehand
	stopWords []string              // in lower case
	stops     *matcher              // for stopWords; nil if they are few
}

func newAllowlist(e *allowEntry) (*allowlist, error) {
	a := &allowlist{needsPath: len(e.Paths)+len(e.Commits) > 0}
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
	if !a.needsPath && len(e.Regexes)+len(e.StopWords) == 0 {
		return nil, errors.New("has no check: add commits, paths, regexes or stopwords")
	}
	for _, x := range append(e.Regexes[:len(e.Regexes):len(e.Regexes)], e.Paths...) {
		if _, err := syntax.Parse(x, syntax.Perl); err != nil {
			return nil, err
		}
	}
	if len(e.Regexes) > 0 {
		// Joined as gitleaks joins them: a flag such as (?i) in one expression
		// holds for those after it too.
		joined := "(?:" + strings.Join(e.Regexes, "|") + ")"
		tree, err := syntax.Parse(joined, syntax.Perl)
		if err != nil {
			return nil, err
		}
		a.expr, a.anywhere = lazyRegexp(joined), newPlan(anyText(tree))
		if p := newPlan(tree); a.target == targetLine && p.anchor != nil && p.anchor.hi == 0 && !looksAround(tree) {
			a.inLine = p
		}
	}
	for _, w := range e.StopWords {
		a.stopWords = append(a.stopWords, strings.ToLower(w))
	}
	if len(a.stopWords) > 8 && !slices.ContainsFunc(a.stopWords, odd) {
		var err error
		if a.stops, err = newMatcher(a.stopWords); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// anyText returns the expression (?s:.*?)(?:x).
func anyText(x *syntax.Regexp) *syntax.Regexp {
	all := &syntax.Regexp{Op: syntax.OpStar, Flags: syntax.NonGreedy, Sub: []*syntax.Regexp{{Op: syntax.OpAnyChar}}}
	return &syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{all, x}}
}

// allows reports whether the finding h in t is on the list.
func (a *allowlist) allows(t *site, h *hit) (bool, error) {
	if a.all && a.needsPath {
		return false, nil
	}
	if a.all && a.expr != nil && len(a.stopWords) > 0 {
		if yes, err := a.stopped(t, h); !yes || err != nil {
			return false, err
		}
		return a.matches(t, h)
	}
	if yes, err := a.stopped(t, h); yes || err != nil {
		return yes, err
	}
	return a.matches(t, h)
}

// stopped reports whether the secret contains a stop word.
func (a *allowlist) stopped(t *site, h *hit) (bool, error) {
	if len(a.stopWords) == 0 || h.secret.start == h.secret.end {
		return false, nil
	}
	s := strings.ToLower(t.text[h.secret.start:h.secret.end])
	if a.stops == nil {
		return slices.ContainsFunc(a.stopWords, func(w string) bool { return strings.Contains(s, w) }), nil
	}
	return a.stops.any(s), nil
}

// matches reports whether an expression matches what the list looks at.
func (a *allowlist) matches(t *site, h *hit) (bool, error) {
	if a.target == targetLine {
		h.locate(t)
	}
	switch {
	case a.expr == nil:
		return false, nil
	case a.target == targetLine:
		yes, err := a.matchesLine(t, h)
		t.scratch.excused = t.scratch.excused || yes && h.open
		return yes, err
	case a.target == targetMatch:
		return t.holds(a, h.match)
	}
	return t.holds(a, h.secret)
}

func (a *allowlist) matchesLine(t *site, h *hit) (bool, error) {
	if a.inLine != nil && t.scratch.dfa(a.inLine) != nil {
		return t.inLine(a.inLine, h.line)
	}
	return t.verdict(a, h.line)
}

// looksAround reports whether whether x matches depends on what is around it.
func looksAround(x *syntax.Regexp) bool {
	switch x.Op {
	case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true
	}
	return slices.ContainsFunc(x.Sub, looksAround)
}
