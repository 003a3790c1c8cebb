package scrub

import (
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
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
	least, most int
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
		if n > 0 {
			rest := &syntax.Regexp{Op: syntax.OpConcat, Flags: x.Flags, Sub: subs[n:]}
			g.pivot = byteSet{}
			if empty := g.pivot.addFirst(rest); !empty && g.pivot.size() <= maxPivots && !g.skip.meets(&g.pivot) {
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
	i, end := max(s, c.skipped), min(s+g.most+1, len(text))
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

// A byteSet is a set of bytes of UTF-8 text. It has either all bytes that are
// not ASCII or none of them.
type byteSet [256]bool

// addAll adds the bytes that matches of x may consist of.
func (b *byteSet) addAll(x *syntax.Regexp) {
	switch x.Op {
	case syntax.OpLiteral:
		for _, r := range x.Rune {
			b.addLetter(r, x.Flags)
		}
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.addFirst(x)
	default:
		for _, s := range x.Sub {
			b.addAll(s)
		}
	}
}

// addFirst adds the bytes that matches of x may begin with, and reports whether
// x may match nothing.
func (b *byteSet) addFirst(x *syntax.Regexp) (empty bool) {
	switch x.Op {
	case syntax.OpNoMatch:
		return false
	case syntax.OpLiteral:
		if len(x.Rune) == 0 {
			return true
		}
		b.addLetter(x.Rune[0], x.Flags)
		return false
	case syntax.OpCharClass:
		for i := 0; i+1 < len(x.Rune); i += 2 {
			b.addRange(x.Rune[i], x.Rune[i+1])
		}
		return false
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.addRange(0, unicode.MaxRune)
		return false
	case syntax.OpConcat:
		for _, s := range x.Sub {
			if !b.addFirst(s) {
				return false
			}
		}
		return true
	case syntax.OpAlternate:
		for _, s := range x.Sub {
			empty = b.addFirst(s) || empty
		}
		return empty
	case syntax.OpCapture, syntax.OpPlus:
		return b.addFirst(x.Sub[0])
	case syntax.OpStar, syntax.OpQuest:
		b.addFirst(x.Sub[0])
		return true
	case syntax.OpRepeat:
		return b.addFirst(x.Sub[0]) || x.Min == 0
	}
	return true // assertions and the empty match
}

// addLetter adds a rune of a literal.
func (b *byteSet) addLetter(r rune, flags syntax.Flags) {
	b.addRange(r, r)
	if flags&syntax.FoldCase == 0 {
		return
	}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		b.addRange(f, f)
	}
}

func (b *byteSet) addRange(lo, hi rune) {
	for r := lo; r <= min(hi, utf8.RuneSelf-1); r++ {
		b[r] = true
	}
	for c := utf8.RuneSelf; c < len(b) && hi >= utf8.RuneSelf; c++ {
		b[c] = true
	}
}

func (b *byteSet) size() int {
	n := 0
	for _, has := range b {
		if has {
			n++
		}
	}
	return n
}

// meets reports whether b and o have a byte in common.
func (b *byteSet) meets(o *byteSet) bool {
	for c := range b {
		if b[c] && o[c] {
			return true
		}
	}
	return false
}
