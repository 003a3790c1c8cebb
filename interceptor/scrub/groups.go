package scrub

import (
	"regexp/syntax"
	"slices"
	"unicode/utf8"
)

const (
	// maxVisited bounds the bits that a walk needs: instructions by positions.
	maxVisited = 1 << 22
	// maxStarts bounds the places at which a match alone is tried again.
	maxStarts = 16
)

// secretOf returns where in the match of r, which is t.text[m.start:m.end],
// the secret is, relative to the match. The expression runs again on the match
// alone, as in gitleaks, so that $ and \b may match differently.
func (t *site) secretOf(r *rule, m span) (span, error) {
	match := t.text[m.start:m.end]
	all := span{0, len(match)}
	if r.groups == 0 {
		return all, nil
	}
	groups, ok, err := t.groups(r, m)
	if err != nil {
		return all, err
	}
	if !ok {
		groups = r.regexp().FindStringSubmatchIndex(match)
	}
	if groups == nil {
		return all, nil
	}
	if r.group > 0 {
		if g := groups[2*r.group:]; g[0] >= 0 {
			return span{g[0], g[1]}, nil
		}
		return span{}, nil
	}
	for i := 2; i < len(groups); i += 2 {
		if groups[i] < groups[i+1] {
			return span{groups[i], groups[i+1]}, nil
		}
	}
	return all, nil
}

// groups does what FindStringSubmatchIndex does with the match alone, but for
// the first pair, in a fraction of the time. It reports false where that is
// left to the standard library.
func (t *site) groups(r *rule, m span) ([]int, bool, error) {
	plans := t.scratch.plans[r.index]
	if len(plans) != 1 {
		return nil, false, nil
	}
	p := plans[0]
	d := t.scratch.dfa(p)
	if d == nil || (m.end-m.start+1)*len(d.p.inst) > maxVisited {
		return nil, false, nil
	}
	text := t.text[m.start:m.end]
	places := t.scratch.hits[p.id]
	first, _ := slices.BinarySearch(places, int32(m.start))
	c := cursor{plan: p, dfa: d, hits: places[first:], base: m.start}
	d.alone = true
	defer func() { d.alone = false }()
	for range maxStarts {
		s := c.start(text, c.next)
		if s < 0 || s+p.least > len(text) { // hits go on behind the match
			return nil, true, nil
		}
		c.next = s + 1
		if inside(text, s) {
			continue
		}
		end, err := d.end(text, s, t.limit)
		if err != nil {
			return nil, false, err
		}
		if end >= 0 {
			return t.scratch.walk.groups(d.p, text, s, r.groups), true, nil
		}
	}
	return nil, false, nil
}

// A walker finds the groups of a match by walking a program's threads one
// after the other in order of priority, never twice to the same place.
type walker struct {
	visited []uint64
	stack   []thread
	bounds  []int
}

// A thread is one to go on with, or a group's bound to set back before.
type thread struct {
	pc, at  int
	setBack bool // pc is the bound, at its value
}

// groups returns the groups of the preferred match that starts at from. There
// must be one.
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
		if th.setBack {
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
			class, size := p.ascii[text[at]&0x7f], 1
			if text[at] >= utf8.RuneSelf {
				var r rune
				r, size = utf8.DecodeRuneInString(text[at:])
				class = p.classOf(r)
			}
			if !p.takes[p.set[pc]][class] {
				return false
			}
			at += size
		}
		pc = int(in.Out)
	}
}
