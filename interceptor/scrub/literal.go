package scrub

import (
	"math/bits"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

const (
	maxLiterals  = 64  // of one anchor
	maxLiteral   = 16  // bytes of a literal that are looked at
	minLiteral   = 2   // bytes; shorter ones are everywhere
	maxSlack     = 64  // positions that one literal leaves for the start
	unlimited    = 1e6 // bytes
	maxRepeatLit = 4   // copies of a repeated literal
)

// An anchor is a set of literals, in lower case, of which every match of an
// expression holds one, at lo to hi bytes after its start.
type anchor struct {
	literals []string
	lo, hi   int
}

// better reports whether a finds fewer places than b, roughly.
func (a *anchor) better(b *anchor) bool {
	if b == nil {
		return true
	}
	return a.worth() > b.worth()
}

func (a *anchor) worth() int {
	shortest := maxLiteral
	for _, l := range a.literals {
		shortest = min(shortest, len(l))
	}
	return 8*min(shortest, 8) - 4*bits.Len(uint(len(a.literals))) - (a.hi - a.lo)
}

// usable reports whether the literals are long enough and near enough.
func (a *anchor) usable() bool {
	for _, l := range a.literals {
		if len(l) < minLiteral {
			return false
		}
	}
	return len(a.literals) > 0 && a.hi-a.lo <= maxSlack
}

// findAnchor returns the best anchor of x, or nil. It promises only that no
// match is without it, not that what holds it matches: letters are compared
// without their case, everywhere.
func findAnchor(x *syntax.Regexp) *anchor {
	if set, ok := exactly(x); ok {
		if a := (&anchor{literals: set}); a.usable() {
			return a
		}
		return nil
	}
	switch x.Op {
	case syntax.OpLiteral:
		if set, ok := literal(x.Rune[:min(len(x.Rune), maxLiteral)]); ok {
			return &anchor{literals: set}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return findAnchor(x.Sub[0])
	case syntax.OpRepeat:
		if x.Min > 0 {
			return findAnchor(x.Sub[0])
		}
	case syntax.OpAlternate:
		return eitherAnchor(x.Sub)
	case syntax.OpConcat:
		return concatAnchor(x.Sub)
	}
	return nil
}

// eitherAnchor returns an anchor that holds for each of the branches.
func eitherAnchor(branches []*syntax.Regexp) *anchor {
	var all *anchor
	for _, b := range branches {
		a := findAnchor(b)
		if a == nil {
			return nil
		}
		if all == nil {
			all = &anchor{lo: a.lo, hi: a.hi}
		}
		all.literals = union(all.literals, a.literals)
		all.lo, all.hi = min(all.lo, a.lo), max(all.hi, a.hi)
	}
	if all == nil || len(all.literals) > maxLiterals || !all.usable() {
		return nil
	}
	return all
}

// concatAnchor returns the best anchor of the elements and of runs of literals
// among them.
func concatAnchor(subs []*syntax.Regexp) *anchor {
	var best *anchor
	try := func(a *anchor, lo, hi int) {
		if a == nil {
			return
		}
		shifted := &anchor{a.literals, a.lo + lo, min(a.hi+hi, unlimited)}
		if shifted.usable() && shifted.better(best) {
			best = shifted
		}
	}
	lo, hi := 0, 0
	for i, x := range subs {
		try(findAnchor(x), lo, hi)
		run := []string{""}
		for _, y := range subs[i:] {
			set, ok := exactly(y)
			if !ok {
				break
			}
			if run = product(run, set); run == nil {
				break
			}
			try(&anchor{literals: run}, lo, hi)
		}
		shortest, longest := lengths(x)
		lo, hi = min(lo+shortest, unlimited), min(hi+longest, unlimited)
	}
	return best
}

// exactly returns all that x matches, in lower case, if that is a small set of
// ASCII strings.
func exactly(x *syntax.Regexp) ([]string, bool) {
	switch x.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return []string{""}, true
	case syntax.OpLiteral:
		return literal(x.Rune)
	case syntax.OpCharClass:
		return classLiterals(x.Rune)
	case syntax.OpCapture:
		return exactly(x.Sub[0])
	case syntax.OpQuest:
		set, ok := exactly(x.Sub[0])
		return union([]string{""}, set), ok && len(set) < maxLiterals
	case syntax.OpRepeat:
		return repeated(x)
	case syntax.OpConcat:
		all := []string{""}
		for _, s := range x.Sub {
			set, ok := exactly(s)
			if !ok {
				return nil, false
			}
			if all = product(all, set); all == nil {
				return nil, false
			}
		}
		return all, true
	case syntax.OpAlternate:
		var all []string
		for _, s := range x.Sub {
			set, ok := exactly(s)
			if !ok {
				return nil, false
			}
			if all = union(all, set); len(all) > maxLiterals {
				return nil, false
			}
		}
		return all, true
	}
	return nil, false
}

func literal(runes []rune) ([]string, bool) {
	if len(runes) > maxLiteral {
		return nil, false
	}
	b := make([]byte, len(runes))
	for i, r := range runes {
		c, ok := foldASCII(r)
		if !ok {
			return nil, false
		}
		b[i] = c
	}
	return []string{string(b)}, true
}

// foldASCII returns the lower-case ASCII letter that r is, or is equal to
// without case: U+212A and U+017F are k and s.
func foldASCII(r rune) (byte, bool) {
	switch {
	case r == '\u212a':
		return 'k', true
	case r == '\u017f':
		return 's', true
	case r >= utf8.RuneSelf:
		return 0, false
	}
	return byte(unicode.ToLower(r)), true
}

func classLiterals(ranges []rune) ([]string, bool) {
	var set []string
	for i := 0; i+1 < len(ranges); i += 2 {
		if ranges[i+1]-ranges[i] > 4 {
			return nil, false
		}
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			c, ok := foldASCII(r)
			if !ok {
				return nil, false
			}
			set = union(set, []string{string(c)})
		}
	}
	return set, len(set) > 0 && len(set) <= 4
}

func repeated(x *syntax.Regexp) ([]string, bool) {
	if x.Max < 0 || x.Max > maxRepeatLit {
		return nil, false
	}
	set, ok := exactly(x.Sub[0])
	if !ok {
		return nil, false
	}
	var all []string
	power := []string{""}
	for n := 0; n <= x.Max; n++ {
		if n >= x.Min {
			all = union(all, power)
		}
		if power = product(power, set); power == nil || len(all) > maxLiterals {
			return nil, false
		}
	}
	return all, true
}

// product returns every a followed by every b, or nil if that is too much.
func product(a, b []string) []string {
	if len(a)*len(b) > maxLiterals {
		return nil
	}
	var out []string
	for _, x := range a {
		for _, y := range b {
			if len(x)+len(y) > maxLiteral {
				return nil
			}
			out = union(out, []string{x + y})
		}
	}
	return out
}

func union(a, b []string) []string {
next:
	for _, y := range b {
		for _, x := range a {
			if x == y {
				continue next
			}
		}
		a = append(a[:len(a):len(a)], y)
	}
	return a
}

// lengths returns how many bytes x matches at least and at most.
func lengths(x *syntax.Regexp) (lo, hi int) {
	switch x.Op {
	case syntax.OpLiteral:
		for _, r := range x.Rune {
			a, b := runeLengths(r, r, x.Flags&syntax.FoldCase != 0)
			lo, hi = lo+a, hi+b
		}
		return lo, hi
	case syntax.OpCharClass:
		lo, hi = utf8.UTFMax, 1
		for i := 0; i+1 < len(x.Rune); i += 2 {
			a, b := runeLengths(x.Rune[i], x.Rune[i+1], false)
			lo, hi = min(lo, a), max(hi, b)
		}
		return lo, hi
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1, utf8.UTFMax
	case syntax.OpCapture:
		return lengths(x.Sub[0])
	case syntax.OpStar:
		return 0, unlimited
	case syntax.OpPlus:
		lo, _ = lengths(x.Sub[0])
		return lo, unlimited
	case syntax.OpQuest:
		_, hi = lengths(x.Sub[0])
		return 0, hi
	case syntax.OpRepeat:
		lo, hi = lengths(x.Sub[0])
		if x.Max < 0 {
			return min(lo*x.Min, unlimited), unlimited
		}
		return min(lo*x.Min, unlimited), min(hi*x.Max, unlimited)
	case syntax.OpConcat:
		for _, s := range x.Sub {
			a, b := lengths(s)
			lo, hi = min(lo+a, unlimited), min(hi+b, unlimited)
		}
		return lo, hi
	case syntax.OpAlternate:
		lo = unlimited
		for _, s := range x.Sub {
			a, b := lengths(s)
			lo, hi = min(lo, a), max(hi, b)
		}
		return lo, hi
	}
	return 0, 0 // assertions, the empty match, no match
}

// runeLengths returns the shortest and longest encoding of the runes from a to
// b. A byte that is not UTF-8 reads as U+FFFD and is one byte long.
func runeLengths(a, b rune, fold bool) (lo, hi int) {
	lo, hi = utf8.RuneLen(a), utf8.RuneLen(b)
	if lo < 0 {
		lo = 1 // a surrogate, which no text holds
	}
	if hi < 0 {
		hi = utf8.UTFMax
	}
	if a <= utf8.RuneError && utf8.RuneError <= b {
		lo = 1
	}
	if fold {
		for f := unicode.SimpleFold(a); f != a; f = unicode.SimpleFold(f) {
			lo, hi = min(lo, utf8.RuneLen(f)), max(hi, utf8.RuneLen(f))
		}
	}
	return lo, hi
}
