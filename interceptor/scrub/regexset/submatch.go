package regexset

import (
	"regexp/syntax"
	"slices"
)

const (
	// maxVisited bounds the bits that a walk needs: instructions by positions.
	maxVisited = 1 << 22
	// maxStarts bounds the starts that are tried in a part.
	maxStarts = 16
)

// Submatches returns what FindStringSubmatchIndex of package regexp returns for a part of the
// scanned text, taken alone, except for the first pair. The slice is valid until the next call.
//
// It costs a quarter of package regexp's time on text with many matches.
func (c *Scratch) Submatches(pattern int, in Span) ([]int, error) {
	p := &c.set.patterns[pattern]
	text := c.text[in.Start:in.End]
	if len(p.plans) == 1 {
		groups, ok, err := c.walkGroups(p, text, in.Start)
		if ok || err != nil {
			return groups, err
		}
	}
	return p.Expr.regexp().FindStringSubmatchIndex(text), nil
}

// walkGroups is Submatches for a text at byte base, or false if package regexp has to search.
func (c *Scratch) walkGroups(p *pattern, text string, base int) ([]int, bool, error) {
	plan := p.plans[0]
	d := c.dfa(plan.tail)
	if d == nil || (len(text)+1)*len(d.p.inst) > maxVisited {
		return nil, false, nil
	}
	hits := c.hits[plan.id]
	first, _ := slices.BinarySearch(hits, int32(base))
	cur := cursor{plan: plan, hits: hits[first:], base: base}
	for range maxStarts {
		s := cur.start(text, cur.next)
		if s < 0 {
			return nil, true, nil
		}
		end, err := d.end(text, s, c.limit, false)
		if err != nil {
			return nil, false, err
		}
		if end >= 0 {
			return c.walk.groups(d.p, text, s, p.Expr.NumSubexp()), true, nil
		}
	}
	return nil, false, nil
}

// A walker finds the groups of a match: it follows the threads of a program one after the other
// in order of priority, and none twice to the same place.
type walker struct {
	visited []uint64
	stack   []thread
	bounds  []int
}

// A thread is one to go on with, or the bound of a group to restore before.
type thread struct {
	pc, at  int
	restore bool // pc is the bound, at its value
}

// groups returns the groups of the preferred match that starts at byte from. There must be one.
func (w *walker) groups(p *program, text string, from, n int) []int {
	size := len(p.inst)*(len(text)+1)/64 + 1
	w.visited = slices.Grow(w.visited[:0], size)[:size]
	clear(w.visited)
	w.bounds = slices.Grow(w.bounds[:0], 2*n+2)[:2*n+2]
	for i := range w.bounds {
		w.bounds[i] = -1
	}
	w.stack = append(w.stack[:0], thread{pc: int(p.start), at: from})
	for len(w.stack) > 0 {
		th := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		if th.restore {
			w.bounds[th.pc] = th.at
		} else if w.run(p, text, th.pc, th.at) {
			return w.bounds
		}
	}
	return nil
}

// run follows one thread until it matches or ends.
func (w *walker) run(p *program, text string, pc, at int) bool {
	for {
		bit := at*len(p.inst) + pc
		if w.visited[bit/64]>>(bit%64)&1 != 0 {
			return false
		}
		w.visited[bit/64] |= 1 << (bit % 64)
		in := &p.inst[pc]
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			w.stack = append(w.stack, thread{pc: int(in.Arg), at: at})
		case syntax.InstCapture:
			if g := int(in.Arg); g < len(w.bounds) {
				w.stack = append(w.stack, thread{g, w.bounds[g], true})
				w.bounds[g] = at
			}
		case syntax.InstNop:
		case syntax.InstEmptyWidth:
			after := uint8(kindEdge)
			if at < len(text) {
				after = kindOf(rune(text[at]))
			}
			if syntax.EmptyOp(in.Arg)&^assertions(kindBefore(text, at), after) != 0 {
				return false
			}
		case syntax.InstMatch:
			return true
		case syntax.InstFail:
			return false
		default:
			if at == len(text) {
				return false
			}
			class, size := p.classAt(text, at)
			if !p.takes[p.set[pc]][class] {
				return false
			}
			at += size
		}
		pc = int(in.Out)
	}
}
