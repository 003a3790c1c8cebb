package scrub

import (
	"encoding/binary"
	"regexp/syntax"
	"unicode/utf8"
)

// dead returns the state from which nothing matches. No state is 0.
func (d *dfa) dead() int32 { return int32(d.p.classes) }

// tell returns a transition to state, and told what it says.
func (d *dfa) tell(state int32, match bool) int32 {
	switch {
	case match:
		return -(state<<1 | 1)
	case state == d.dead():
		return -(state << 1)
	}
	return state
}

func told(t int32) (state int32, match bool) {
	if t > 0 {
		return t, false
	}
	return -t >> 1, t&1 != 0
}

// firsts returns the bytes with which a match may start.
func (d *dfa) firsts() *[256]bool {
	if d.first != nil {
		return d.first
	}
	d.first = new([256]bool)
	for class := range d.p.classes - 1 {
		d.gen++
		d.next = d.next[:0]
		if matches := d.follow(d.p.start, uint8(class), ^syntax.EmptyOp(0)); !matches && len(d.next) == 0 {
			continue
		}
		for c := range utf8.RuneSelf {
			d.first[c] = d.first[c] || d.p.ascii[c] == uint8(class)
		}
		for i, b := range d.p.bounds {
			if b >= utf8.RuneSelf && d.p.class[i] == uint8(class) {
				for c := utf8.RuneSelf; c < 256; c++ {
					d.first[c] = true
				}
			}
		}
	}
	return d.first
}

// step computes the transition of a state.
func (d *dfa) step(state int32, class uint8) int32 {
	p := d.p
	n := int(state) / p.classes
	ops := assertions(d.kind[n], p.kind[class])
	d.gen++
	d.next = d.next[:0]
	match := false
	for _, pc := range d.list[n] {
		if match = d.follow(pc, class, ops); match {
			break
		}
	}
	to := d.dead()
	if len(d.next) > 0 {
		kind := uint8(0)
		if p.looks {
			kind = p.kind[class]
		}
		if len(d.trans) >= maxTable {
			d.clear()
			return d.tell(d.state(d.next, kind), match)
		}
		to = d.state(d.next, kind)
	}
	t := d.tell(to, match)
	d.trans[int(state)+int(class)] = t
	return t
}

// follow walks a thread through all that reads nothing. It adds to next where
// the class takes it, in order of priority, and reports whether it matches.
func (d *dfa) follow(pc uint32, class uint8, ops syntax.EmptyOp) bool {
	for {
		if d.seen[pc] == d.gen {
			return false
		}
		d.seen[pc] = d.gen
		in := &d.p.inst[pc]
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			if d.follow(in.Out, class, ops) {
				return true
			}
			pc = in.Arg
		case syntax.InstNop, syntax.InstCapture:
			pc = in.Out
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^ops != 0 {
				return false
			}
			pc = in.Out
		case syntax.InstMatch:
			return true
		case syntax.InstFail:
			return false
		default:
			if d.p.takes[d.p.set[pc]][class] && d.added[in.Out] != d.gen {
				d.added[in.Out] = d.gen
				d.next = append(d.next, in.Out)
			}
			return false
		}
	}
}

// state returns the state with these threads.
func (d *dfa) state(list []uint32, kind uint8) int32 {
	d.key = append(d.key[:0], kind)
	for _, pc := range list {
		d.key = binary.LittleEndian.AppendUint32(d.key, pc)
	}
	if n, ok := d.index[string(d.key)]; ok {
		return n
	}
	n := int32(len(d.trans))
	d.index[string(d.key)] = n
	d.list = append(d.list, append([]uint32(nil), list...))
	d.kind = append(d.kind, kind)
	d.trans = append(d.trans, make([]int32, d.p.classes)...)
	return n
}
