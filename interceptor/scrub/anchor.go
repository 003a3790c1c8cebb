package scrub

import (
	"math/bits"
	"regexp/syntax"
	"unicode/utf8"
)

const (
	minLiteral = 2  // bytes; shorter ones are everywhere
	longEnough = 3  // bytes; shorter ones are lengthened
	maxLonger  = 96 // literals of one anchor once they are lengthened
	maxSlack   = 64 // positions that one literal leaves for the start
)

// An anchor is a set of literals, in lower case, of which every match of an
// expression holds one, at lo to hi bytes after its start.
type anchor struct {
	literals []string
	lo, hi   int
	longer   []string // the literals, the short ones with each letter that may follow; nil if that is no use
}

// better reports whether a finds fewer places than b, roughly.
func (a *anchor) better(b *anchor) bool {
	if b == nil {
		return true
	}
	return a.worth() > b.worth()
}

func (a *anchor) worth() int {
	return 8*min(shortest(a.literals), 8) - 4*bits.Len(uint(len(a.literals))) - (a.hi - a.lo)
}

// usable reports whether the literals are long enough and near enough.
func (a *anchor) usable() bool {
	return len(a.literals) > 0 && shortest(a.literals) >= minLiteral && a.hi-a.lo <= maxSlack
}

func shortest(literals []string) int {
	n := maxLiteral
	for _, l := range literals {
		n = min(n, len(l))
	}
	return n
}

// sights returns the literals to look for.
func (a *anchor) sights() []string {
	if a.longer != nil {
		return a.longer
	}
	return a.literals
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
		all.longer = union(all.longer, a.sights())
		all.lo, all.hi = min(all.lo, a.lo), max(all.hi, a.hi)
	}
	if all == nil || len(all.literals) > maxLiterals || !all.usable() {
		return nil
	}
	if len(all.longer) > maxLonger || len(all.longer) == len(all.literals) {
		all.longer = nil
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
		shifted := &anchor{a.literals, a.lo + lo, min(a.hi+hi, unlimited), a.longer}
		if shifted.usable() && shifted.better(best) {
			best = shifted
		}
	}
	lo, hi := 0, 0
	for i, x := range subs {
		run := []string{""}
		for k, y := range subs[i:] {
			set, ok := exactly(y)
			if ok {
				run = product(run, set)
			}
			if !ok || run == nil {
				if k == 0 {
					try(findAnchor(y), lo, hi)
				}
				break
			}
			try(&anchor{literals: run, longer: lengthen(run, subs[i+k+1:])}, lo, hi)
		}
		least, most := lengths(x)
		lo, hi = min(lo+least, unlimited), min(hi+most, unlimited)
	}
	return best
}

// lengthen returns the literals of a run, the short ones with each letter with
// which the elements after the run may begin; nil if there are too many.
func lengthen(run []string, next []*syntax.Regexp) []string {
	var letters [utf8.RuneSelf]bool
	if n := shortest(run); n < minLiteral || n >= longEnough || !addLetters(&letters, next) {
		return nil
	}
	var longer []string
	for _, l := range run {
		if len(l) >= longEnough {
			longer = append(longer, l)
			continue
		}
		for c, has := range letters {
			if has {
				longer = append(longer, l+string(rune(c)))
			}
		}
	}
	if len(longer) > maxLonger || len(longer) == len(run) {
		return nil
	}
	return longer
}

// addLetters adds the characters, in lower case, with which a match of the
// elements begins. It reports false where they are not all ASCII or there may
// be none.
func addLetters(set *[utf8.RuneSelf]bool, elements []*syntax.Regexp) bool {
	for _, x := range elements {
		switch least, most := lengths(x); {
		case most == 0: // an assertion
		case !addFirstLetters(set, x):
			return false
		case least > 0:
			return true
		}
	}
	return false
}

// addFirstLetters adds the characters, in lower case, with which what x
// matches begins, where it is not empty.
func addFirstLetters(set *[utf8.RuneSelf]bool, x *syntax.Regexp) bool {
	switch x.Op {
	case syntax.OpLiteral:
		c, ok := foldASCII(x.Rune[0])
		set[c] = true
		return ok
	case syntax.OpCharClass:
		for i := 0; i+1 < len(x.Rune); i += 2 {
			for r := x.Rune[i]; r <= x.Rune[i+1]; r++ {
				c, ok := foldASCII(r)
				if !ok {
					return false
				}
				set[c] = true
			}
		}
		return true
	case syntax.OpCapture, syntax.OpPlus, syntax.OpStar, syntax.OpQuest, syntax.OpRepeat:
		return addFirstLetters(set, x.Sub[0])
	}
	return false
}
