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
	free      bool                  // what expr matches, it matches in any longer text
	stopWords []string              // in lower case
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
		a.expr, a.free = lazyRegexp(joined), !looksAround(tree)
	}
	for _, w := range e.StopWords {
		a.stopWords = append(a.stopWords, strings.ToLower(w))
	}
	return a, nil
}

// allows reports whether the finding h in t is on the list.
func (a *allowlist) allows(t *site, h *hit) bool {
	if a.all && a.needsPath {
		return false
	}
	switch {
	case a.all && a.expr != nil && !a.matches(t, h):
		return false
	case a.all:
		return len(a.stopWords) == 0 || a.stops(t, h)
	}
	return a.stops(t, h) || a.matches(t, h)
}

func (a *allowlist) stops(t *site, h *hit) bool {
	if len(a.stopWords) == 0 || h.secret.start == h.secret.end {
		return false
	}
	s := strings.ToLower(t.text[h.secret.start:h.secret.end])
	for _, w := range a.stopWords {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

func (a *allowlist) matches(t *site, h *hit) bool {
	if a.expr == nil {
		return false
	}
	at := h.secret
	switch a.target {
	case targetMatch:
		at = h.match
	case targetLine:
		return t.lineMatches(a, h.line)
	}
	return at.start < at.end && a.expr().MatchString(t.text[at.start:at.end])
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
