package scrub

import (
	"regexp/syntax"
	"sync"
	"unicode/utf8"
)

// A plan says how all matches of one expression, or of one branch of it, are
// found in a text. The matches of a whole expression are, from p = 0 on, the
// leftmost start at or after p, with the end that the standard library prefers
// there, and again from that end. So a plan needs all starts, or more, in
// order, and the end for one start; the latter is what a [dfa] gives.
//
//   - Expressions with an anchor: the starts are where its literals are, less
//     their offsets.
//   - Expressions that begin with a lazy run, [\w.-]{0,50}?tail, which is half
//     of gitleaks' rules: the tail is run from the places of its own literals.
//     The first place h at or after p where it matches decides the match. The
//     end is the tail's: a start before h tries the shortest runs first, so it
//     meets h before any later place. The start is the farthest that a run
//     reaches back from h, not before p: if a later place h2 could be reached
//     from farther left, the run to it would pass over h, and its part up to h
//     is a run too.
//   - All others: every position is a start.
type plan struct {
	prefix  []class // lazy runs before the tail, from left to right
	anchor  *anchor // of the tail; nil for none
	gate    *gate   // of the tail; nil for none
	tail    *syntax.Regexp
	program func() *program // of the tail; nil if it does not fit an automaton
	least   int             // bytes of a match of the tail
	first   bool            // any end will do, not the preferred one
	id      int             // index of what it has in a scratch; -1 for none yet
}

// A class is a set of runes and how many of them a lazy run may have.
type class struct {
	ranges []rune
	max    int
}

func (c *class) has(r rune) bool {
	for i := 0; i+1 < len(c.ranges); i += 2 {
		if c.ranges[i] <= r && r <= c.ranges[i+1] {
			return true
		}
	}
	return false
}

// within reports whether every rune of c is one of d.
func (c *class) within(d *class) bool {
next:
	for i := 0; i+1 < len(c.ranges); i += 2 {
		for k := 0; k+1 < len(d.ranges); k += 2 {
			if d.ranges[k] <= c.ranges[i] && c.ranges[i+1] <= d.ranges[k+1] {
				continue next
			}
		}
		return false
	}
	return true
}

// newPlans returns a plan for each branch of tree. Only a tree in which a
// branch begins with a lazy run is taken apart: their starts are found
// differently. It returns nil for what is left to the standard library: an
// expression that can match nothing at all.
func newPlans(tree *syntax.Regexp) []*plan {
	if least, _ := lengths(tree); least == 0 {
		return nil
	}
	branches := []*syntax.Regexp{tree}
	if top := bare(tree); top.Op == syntax.OpAlternate {
		for _, b := range top.Sub {
			if prefix, _ := lazyPrefix(b); len(prefix) > 0 {
				branches = top.Sub
				break
			}
		}
	}
	var plans []*plan
	for _, b := range branches {
		prefix, tail := lazyPrefix(b)
		p := newPlan(tail)
		p.prefix = prefix
		if least, _ := lengths(tail); p.anchor == nil || least == 0 {
			p = newPlan(b)
		}
		p.gate = newGate(p.tail)
		plans = append(plans, p)
	}
	return plans
}

// newPlan returns the plan of an expression without a lazy run.
func newPlan(tail *syntax.Regexp) *plan {
	p := unanchored(tail)
	p.anchor = findAnchor(tail)
	return p
}

// unanchored returns a plan for which every position is a start.
func unanchored(tail *syntax.Regexp) *plan {
	least, _ := lengths(tail)
	return &plan{id: -1, tail: tail, least: least, program: sync.OnceValue(func() *program {
		prog, ok := newProgram(tail)
		if !ok {
			return nil
		}
		return prog
	})}
}

// bare returns x without the groups around it.
func bare(x *syntax.Regexp) *syntax.Regexp {
	for x.Op == syntax.OpCapture || x.Op == syntax.OpConcat && len(x.Sub) == 1 {
		x = x.Sub[0]
	}
	return x
}

// lazyPrefix splits x into the lazy runs it begins with and the rest. Where
// there are several, each may only hold what the next one holds too: then the
// run that reaches back farthest is found from right to left.
func lazyPrefix(x *syntax.Regexp) ([]class, *syntax.Regexp) {
	subs := flat(x, nil)
	var prefix []class
	for len(subs) > 1 {
		r := subs[0]
		if r.Op != syntax.OpRepeat || r.Min != 0 || r.Max < 0 || r.Flags&syntax.NonGreedy == 0 || r.Sub[0].Op != syntax.OpCharClass {
			break
		}
		c := class{r.Sub[0].Rune, r.Max}
		if n := len(prefix); n > 0 && !prefix[n-1].within(&c) {
			return nil, x
		}
		prefix = append(prefix, c)
		subs = subs[1:]
	}
	if len(prefix) == 0 {
		return nil, x
	}
	return prefix, &syntax.Regexp{Op: syntax.OpConcat, Flags: x.Flags, Sub: subs}
}

// flat appends the elements of nested concatenations to subs.
func flat(x *syntax.Regexp, subs []*syntax.Regexp) []*syntax.Regexp {
	if x.Op != syntax.OpConcat {
		return append(subs, x)
	}
	for _, s := range x.Sub {
		subs = flat(s, subs)
	}
	return subs
}

// reach returns how far left of at, but not before from, the lazy runs reach.
func (p *plan) reach(text string, at, from int) int {
	for i := len(p.prefix) - 1; i >= 0; i-- {
		c := &p.prefix[i]
		for n := 0; n < c.max && at > from; n++ {
			r, size := utf8.DecodeLastRuneInString(text[from:at])
			if !c.has(r) {
				break
			}
			at -= size
		}
	}
	return at
}
