package scrub

import (
	"strings"
)

// An engine finds what gitleaks' detector finds.
type engine struct {
	set *ruleSet
}

// find returns the findings in text, before a generic one gives way to a more
// exact one.
func (e *engine) find(text string, lim *limit) ([]hit, error) {
	t := &site{text: text, set: e.set}
	lower := strings.ToLower(text)
	var hits []hit
	for _, r := range e.set.rules {
		if r.silent || !r.enabled(lower) {
			continue
		}
		found, err := e.findRule(t, r, lim)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 && len(r.required) > 0 {
			if found, err = e.companions(t, found, lim); err != nil {
				return nil, err
			}
		}
		hits = append(hits, found...)
	}
	return hits, nil
}

// enabled reports whether one of the rule's keywords is in the text.
func (r *rule) enabled(lower string) bool {
	for _, k := range r.keywords {
		if strings.Contains(lower, k) {
			return true
		}
	}
	return len(r.keywords) == 0
}

func (e *engine) findRule(t *site, r *rule, lim *limit) ([]hit, error) {
	if err := lim.check(); err != nil {
		return nil, err
	}
	var hits []hit
	for _, m := range r.regexp().FindAllStringIndex(t.text, -1) {
		if h, ok := t.inspect(r, span{m[0], m[1]}); ok {
			hits = append(hits, h)
		}
	}
	return hits, nil
}

// companions returns those of found, all of one rule, that have a finding of
// every rule it requires near them.
func (e *engine) companions(t *site, found []hit, lim *limit) ([]hit, error) {
	for _, q := range found[0].rule.required {
		near, err := e.findRule(t, e.set.byID[q.ID], lim)
		if err != nil {
			return nil, err
		}
		var kept []hit
		for i := range found {
			for k := range near {
				if q.holds(found[i].at, near[k].at) {
					kept = append(kept, found[i])
					break
				}
			}
		}
		if found = kept; len(found) == 0 {
			return nil, nil
		}
	}
	return found, nil
}

// holds reports whether two findings are near enough to each other.
func (q *required) holds(a, b location) bool {
	if q.WithinLines != nil && max(a.startLine-b.startLine, b.startLine-a.startLine) > *q.WithinLines {
		return false
	}
	return q.WithinColumns == nil ||
		max(a.startColumn-b.startColumn, b.startColumn-a.startColumn) <= *q.WithinColumns
}

// exact returns the hits without the generic ones whose secret is part of the
// secret of a more exact rule on the same line: gitleaks reports only those.
// All hits are redacted all the same.
func exact(text string, hits []hit) []hit {
	better := map[int][]string{}
	for _, h := range hits {
		if !h.rule.generic && !h.rule.own {
			better[h.at.startLine] = append(better[h.at.startLine], text[h.secret.start:h.secret.end])
		}
	}
	var out []hit
next:
	for _, h := range hits {
		if h.rule.generic {
			for _, s := range better[h.at.startLine] {
				if strings.Contains(s, text[h.secret.start:h.secret.end]) {
					continue next
				}
			}
		}
		out = append(out, h)
	}
	return out
}
