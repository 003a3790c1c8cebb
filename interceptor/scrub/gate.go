package scrub

import (
	"math"
	"regexp/syntax"
)

// A gate is what must come after a place so that an expression may match from
// there. It turns most places away at the cost of a glance: after a keyword,
// half of gitleaks' rules let only blanks and parts of a name stand before a
// sign such as = or :, and text mostly goes on with something else.
//
// Let the expression be a sequence h t, where the bytes that h may consist of
// (skip) and those that a match of t may begin with (pivot) have none in
// common. In a match from s on, all bytes of h are in skip, and the byte after
// them is not. So the part of t begins at the first byte from s on that is not
// in skip; that byte is in pivot; it is least to most bytes after s; and t
// matches there, with the same text around it. Where one of these fails, the
// expression matches nothing from s on. Where none does, it is tried.
type gate struct {
	skip, pivot byteSet
	least, most int   // most is math.MaxInt for no limit
	rest        *plan // of t: any match will do
}

// maxPivots is how many of the 256 bytes may be in pivot: with more of them a
// gate turns too little away.
const maxPivots = 32

// newGate returns the gate of x, or nil if there is none.
func newGate(x *syntax.Regexp) *gate {
	subs := sequence(x, nil)
	g := &gate{}
	for n, s := range subs {
		if g.least > 0 {
			rest := &syntax.Regexp{Op: syntax.OpConcat, Flags: x.Flags, Sub: subs[n:]}
			g.pivot = byteSet{}
			if empty := g.pivot.addFirst(rest); !empty && g.pivot.size() <= maxPivots && !g.skip.meets(&g.pivot) {
				if g.most >= unlimited {
					g.most = math.MaxInt
				}
				g.rest = unanchored(rest)
				g.rest.first = true
				return g
			}
		}
		g.skip.addAll(s)
		lo, hi := lengths(s)
		g.least, g.most = min(g.least+lo, unlimited), min(g.most+hi, unlimited)
	}
	return nil
}

// sequence appends the elements of nested concatenations and groups to subs.
func sequence(x *syntax.Regexp, subs []*syntax.Regexp) []*syntax.Regexp {
	if x.Op != syntax.OpCapture && x.Op != syntax.OpConcat {
		return append(subs, x)
	}
	for _, s := range x.Sub {
		subs = sequence(s, subs)
	}
	return subs
}

// passes reports whether a match of the plan may start at s, for places in
// ascending order.
func (c *cursor) passes(text string, s int, lim *limit) (bool, error) {
	g := c.plan.gate
	i, end := max(s, c.skipped), len(text)
	if g.most < end-s {
		end = s + g.most + 1
	}
	for i < end && g.skip[text[i]] {
		i++
	}
	c.skipped = i
	if n := i - s; n < g.least || n > g.most || i >= len(text) || !g.pivot[text[i]] {
		return false, nil
	}
	if i != c.pivot {
		end, err := c.rest.end(text, i, lim)
		if err != nil {
			return false, err
		}
		c.pivot, c.open = i, end >= 0
	}
	return c.open, nil
}
