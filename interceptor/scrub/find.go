package scrub

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
)

// find returns the findings in text, before a generic one gives way to a more
// exact one, in the order of the rules.
func (e *engine) find(text string, s *scratch, lim *limit) ([]hit, error) {
	s.excused = false
	if len(text) > math.MaxInt32/2 {
		return nil, fmt.Errorf("scrub: text of %d bytes: at most %d are examined at once", len(text), math.MaxInt32/2)
	}
	if len(text) < e.shortest {
		return nil, nil
	}
	defer s.reset()
	if err := e.look(text, s, lim); err != nil {
		return nil, err
	}
	for _, r := range e.always {
		if e.set.rules[r].enabled(text) {
			s.active = append(s.active, r)
		}
	}
	if len(s.active) == 0 {
		return nil, nil
	}
	slices.Sort(s.active)
	t := &site{text: text, set: e.set, scratch: s, limit: lim}
	var hits []hit
	for _, i := range s.active {
		r := e.set.rules[i]
		if r.silent {
			continue
		}
		found, err := e.findRule(t, r)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 && len(r.required) > 0 {
			if found, err = e.companions(t, found); err != nil {
				return nil, err
			}
		}
		hits = append(hits, found...)
	}
	return hits, nil
}

// look notes which rules are switched on and where the anchors are.
func (e *engine) look(text string, s *scratch, lim *limit) error {
	if !folds(text) {
		return e.sight(text, s, lim, nil)
	}
	// A few letters of the text are ASCII letters without case. Keywords and
	// expressions do not even agree on which.
	if err := e.switchOn(strings.ToLower(text), s, lim); err != nil {
		return err
	}
	folded, from := fold(text)
	return e.sight(folded, s, lim, from)
}

// sight notes the anchors that are in text and switches on the rules of which
// there is a sign. With a from, no rules are switched on, and byte from[i] is
// noted for byte i.
func (e *engine) sight(text string, s *scratch, lim *limit, from []int32) error {
	for at := 0; at < len(text); {
		if at > 0 {
			if err := lim.check(); err != nil {
				return err
			}
		}
		at, s.found = e.matcher.look(text, at, s.found[:0])
		for _, f := range s.found {
			u := &e.literals[f.literal]
			if from != nil {
				f.at = from[f.at]
			} else {
				for _, r := range u.enables {
					s.enable(r)
				}
			}
			for _, p := range u.anchors {
				if len(s.hits[p]) == 0 {
					s.touched = append(s.touched, p)
				}
				s.hits[p] = append(s.hits[p], f.at)
			}
		}
	}
	return nil
}

// switchOn switches on the rules that have a keyword in text.
func (e *engine) switchOn(text string, s *scratch, lim *limit) error {
	for at := 0; at < len(text); {
		if err := lim.check(); err != nil {
			return err
		}
		at, s.found = e.keywords.look(text, at, s.found[:0])
		for _, f := range s.found {
			s.enable(e.enables[f.literal])
		}
	}
	return nil
}

// folds reports whether text holds a letter that is an ASCII letter in lower
// case (U+0130, U+212A) or without case (U+017F, U+212A).
func folds(text string) bool {
	return !ascii(text) && (strings.Contains(text, "\u212a") || strings.Contains(text, "\u017f") || strings.Contains(text, "\u0130"))
}

// fold returns text with U+212A and U+017F as k and s, and for each of its
// bytes the place in text.
func fold(text string) (folded string, from []int32) {
	var b strings.Builder
	b.Grow(len(text))
	from = make([]int32, 0, len(text))
	for i, r := range text {
		c, ok := foldASCII(r)
		if !ok || r < 0x80 {
			size := runeSize(text, i)
			b.WriteString(text[i : i+size])
			for k := range size {
				from = append(from, int32(i+k))
			}
			continue
		}
		b.WriteByte(c)
		from = append(from, int32(i))
	}
	return b.String(), from
}

// enabled reports whether a rule that the matcher cannot switch on is on.
func (r *rule) enabled(text string) bool {
	if len(r.keywords) == 0 {
		return true
	}
	lower := strings.ToLower(text)
	return slices.ContainsFunc(r.keywords, func(k string) bool { return strings.Contains(lower, k) })
}

// companions returns those of found, all of one rule, that have a finding of
// every rule it requires near them.
func (e *engine) companions(t *site, found []hit) ([]hit, error) {
	for _, q := range found[0].rule.required {
		r := e.set.byID[q.ID]
		if r.tree == nil || r.index < 0 {
			return nil, nil // looks at paths, and a text has none
		}
		near, err := e.findRule(t, r)
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(h hit) bool {
			return !slices.ContainsFunc(near, func(n hit) bool { return q.holds(h.at, n.at) })
		})
		if len(found) == 0 {
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
	// The secrets of a line in one string: a line may be the whole text, and
	// looking through thousands one by one for thousands takes too long.
	const between = "\xff\x00\xff" // no generic secret holds it
	better := map[int][]byte{}
	for _, h := range hits {
		if !h.rule.generic && !h.rule.own {
			line := append(better[h.at.startLine], text[h.secret.start:h.secret.end]...)
			better[h.at.startLine] = append(line, between...)
		}
	}
	if len(better) == 0 {
		return hits
	}
	return slices.DeleteFunc(slices.Clone(hits), func(h hit) bool {
		line := better[h.at.startLine]
		return h.rule.generic && line != nil && bytes.Contains(line, []byte(text[h.secret.start:h.secret.end]))
	})
}
