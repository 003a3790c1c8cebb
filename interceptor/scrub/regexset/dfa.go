package regexset

import (
	"encoding/binary"
	"regexp/syntax"
	"slices"
	"unicode/utf8"
)

const (
	// maxTable bounds the transitions of a DFA. When they are more, it starts anew.
	maxTable = 1 << 16
	// stride is the least distance between two notes of a run, in bytes. An expression that counts bytes is in
	// different states when it comes to one place from different starts, so no run finds the note of another.
	// After maxMisses searches in vain the distance doubles, up to maxEvery strides. A note that is found sets it
	// back to one stride.
	stride    = 64
	maxMisses = 256
	maxEvery  = 16
	// patience is the number of strides whose work the limit is told of at once.
	patience = 16
)

// A dfa runs a program from a given start and returns the end that package regexp prefers there.
// It builds its states while it runs.
//
// A state is the list of threads of package regexp's machine, in order of priority, before
// assertions are decided. The next class decides them. Its transition says whether a thread
// matches before that class, which cuts the threads after it. So a dfa has the program and the
// priorities of package regexp, and the same results.
//
// A state at a position determines the rest of a run. Each run leaves notes of its result, see
// stride, and a later run that reaches the same state at the same place takes that result.
// So runs from many starts that end nowhere cost the time of few. Notes hold for one text.
type dfa struct {
	p *program
	// trans has, at state + class, the next state if nothing matches before the class, 0 if it is
	// not known yet, or else a negative value; see unpack. States are multiples of the number of
	// classes.
	trans []int32
	list  [][]uint32 // threads, by state / classes
	kind  []uint8    // of the character before, likewise
	index map[string]int32
	begin [kindEdge + 1]int32

	clears  int             // how often it has started anew
	origins [][]origin      // by transition, as far as they were needed; see originsOf
	used    bool            // in the present text
	notes   map[place]int32 // end of the match from there, or -1
	passed  []place         // by this run
	far     bool            // a run in the text went far enough to leave a note
	every   int             // strides between notes
	misses  int             // searches for a note in vain since every changed
	spent   int             // states since the limit was told of them

	seen  []uint32 // sparse set of instructions, by generation
	added []uint32
	gen   uint32
	next  []uint32
	key   []byte

	traced *[]origin // while origins are noted, those of next
	path   []uint32  // bounds of groups on the way of the present thread
}

// A place is a byte of the text, in the high half, and a state.
type place uint64

// newDFA returns a DFA of p, or nil if it has none.
func newDFA(p *program) *dfa {
	if !p.compile() {
		return nil
	}
	d := &dfa{p: p, notes: map[place]int32{}, seen: make([]uint32, len(p.inst)), added: make([]uint32, len(p.inst))}
	d.clear()
	return d
}

// end returns the end of the preferred match that starts at byte from, or -1. With notes, it uses
// and leaves notes for the text.
func (d *dfa) end(text string, from int, limit Limit, notes bool) (int, error) {
	state := d.start(text, from)
	end := -1
	d.passed = d.passed[:0]
	stop := from - from%stride + stride
	if !d.far {
		stop += stride // most runs end before, and a note costs more than the steps
	}
	for i := from; ; stop += stride {
		begin := i
		i, state, end = d.run(text, i, min(stop, len(text)), state, end)
		if d.spent += perRun + i - begin; d.spent >= stride*patience {
			if err := limit.Spend(perState * d.spent); err != nil {
				return -1, err
			}
			d.spent = 0
		}
		if state != d.dead() && i >= len(text) {
			if _, match := d.step(state, uint8(d.p.classes-1)); match {
				end = len(text)
			}
			state = d.dead()
		}
		if state == d.dead() {
			break
		}
		if !notes || stop/stride%d.every != 0 {
			continue
		}
		d.far = true
		here := place(i)<<32 | place(state)
		if known, ok := d.notes[here]; ok {
			d.every, d.misses = 1, 0
			if known >= 0 {
				end = int(known)
			}
			break
		}
		d.passed = append(d.passed, here)
		if d.misses++; d.misses == maxMisses && d.every < maxEvery {
			d.every, d.misses = 2*d.every, 0
		}
	}
	for _, p := range d.passed {
		if end >= int(p>>32) {
			d.notes[p] = int32(end)
		} else {
			d.notes[p] = -1
		}
	}
	return end, nil
}

// failsSoon reports whether a run from byte i fails within a few bytes of ASCII. Most do, and this is
// cheaper to know than the end of a match.
func (d *dfa) failsSoon(text string, i int) bool {
	const soon = 16
	state := d.start(text, i) // which may grow d.trans
	p, trans, fails := d.p, d.trans, d.pack(d.dead(), false)
	for _, c := range []byte(text[i:min(i+soon, len(text))]) {
		if c >= utf8.RuneSelf {
			break
		}
		t := trans[int(state)+int(p.ascii[c])]
		if t == 0 {
			t = d.transition(state, p.ascii[c])
			trans = d.trans
		}
		if t <= 0 {
			return t == fails
		}
		state = t
	}
	return false
}

// start returns the state in which a run from byte from begins.
func (d *dfa) start(text string, from int) int32 {
	kind := uint8(0)
	if d.p.looks {
		kind = kindBefore(text, from)
	}
	if d.begin[kind] == 0 {
		d.begin[kind] = d.state([]uint32{d.p.start}, kind)
	}
	return d.begin[kind]
}

// goesOn reports whether a match can begin with two bytes of ASCII, or end between or after them.
func (d *dfa) goesOn(first, second byte) bool {
	for kind := range uint8(kindEdge + 1) {
		state, match := d.step(d.state([]uint32{d.p.start}, kind), d.p.ascii[first])
		if !match && state != d.dead() {
			state, match = d.step(state, d.p.ascii[second])
		}
		if match || state != d.dead() {
			return true
		}
	}
	return false
}

// run goes on from byte i to stop, or to the end of the rune there. It returns its place and
// state, and the end of the last match that it met, or end.
func (d *dfa) run(text string, i, stop int, state int32, end int) (int, int32, int) {
	p, trans, fails := d.p, d.trans, d.pack(d.dead(), false)
	for i < stop {
		if c := text[i]; c < utf8.RuneSelf {
			t := trans[int(state)+int(p.ascii[c])]
			if t > 0 {
				state = t
				i++
				continue
			}
			if t == fails { // most runs end here
				return i, d.dead(), end
			}
			if t < 0 && !p.earliest { // a match ends here, and may go on
				if state, end = -t>>1, i; state == d.dead() {
					return i, state, end
				}
				i++
				continue
			}
		}
		class, size := p.classAt(text, i)
		var match bool
		state, match = d.step(state, class)
		trans = d.trans
		if match {
			if end = i; p.earliest {
				state = d.dead()
			}
		}
		if state == d.dead() {
			return i, state, end
		}
		i += size
	}
	return i, state, end
}

// step returns the state after a class, and whether there is a match before it.
func (d *dfa) step(state int32, class uint8) (int32, bool) {
	t := d.trans[int(state)+int(class)]
	if t == 0 {
		t = d.transition(state, class)
	}
	return unpack(t)
}

func (d *dfa) transition(state int32, class uint8) int32 {
	p := d.p
	match := d.follow(state, class)
	to := d.dead()
	if len(d.next) > 0 {
		kind := uint8(0)
		if p.looks {
			kind = p.kind[class]
		}
		if len(d.trans) >= maxTable {
			d.clear()
			return d.pack(d.state(d.next, kind), match)
		}
		to = d.state(d.next, kind)
	}
	t := d.pack(to, match)
	d.trans[int(state)+int(class)] = t
	return t
}

// follow follows the threads of a state into next, and reports whether one of them matches.
func (d *dfa) follow(state int32, class uint8) bool {
	n := int(state) / d.p.classes
	ops := assertions(d.kind[n], d.p.kind[class])
	d.gen++
	d.next = d.next[:0]
	for i, pc := range d.list[n] {
		d.path = d.path[:0]
		if d.followThread(pc, i, class, ops) {
			return true
		}
	}
	return false
}

// followThread follows a thread to the instructions that read a rune. It adds those that read the
// class to next, in order of priority. It reports whether the thread matches.
func (d *dfa) followThread(pc uint32, thread int, class uint8, ops syntax.EmptyOp) bool {
	for {
		if d.seen[pc] == d.gen {
			return false
		}
		d.seen[pc] = d.gen
		in := &d.p.inst[pc]
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			passed := len(d.path)
			if d.followThread(in.Out, thread, class, ops) {
				return true
			}
			d.path = d.path[:passed]
			pc = in.Arg
		case syntax.InstCapture:
			d.path = append(d.path, in.Arg)
			pc = in.Out
		case syntax.InstNop:
			pc = in.Out
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^ops != 0 {
				return false
			}
			pc = in.Out
		case syntax.InstMatch:
			d.trace(thread)
			return true
		case syntax.InstFail:
			return false
		default:
			if d.p.takes[d.p.set[pc]][class] && d.added[in.Out] != d.gen {
				d.added[in.Out] = d.gen
				d.next = append(d.next, in.Out)
				d.trace(thread)
			}
			return false
		}
	}
}

func (d *dfa) trace(thread int) {
	if d.traced != nil {
		*d.traced = append(*d.traced, origin{thread, slices.Clone(d.path)})
	}
}

func (d *dfa) clear() {
	d.clears++
	d.origins = nil
	d.index = map[string]int32{}
	d.list, d.kind = [][]uint32{nil, nil}, []uint8{0, 0}
	d.trans = make([]int32, 2*d.p.classes, 16*d.p.classes)
	for i := d.p.classes; i < len(d.trans); i++ {
		d.trans[i] = d.pack(d.dead(), false)
	}
	d.begin = [kindEdge + 1]int32{}
	d.forget()
}

func (d *dfa) forget() {
	if len(d.notes) > 0 {
		clear(d.notes)
	}
	d.passed, d.far, d.every, d.misses, d.spent = d.passed[:0], false, 1, 0, 0
}

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

// pack returns the transition to a state.
func (d *dfa) pack(state int32, match bool) int32 {
	switch {
	case match:
		return -(state<<1 | 1)
	case state == d.dead():
		return -(state << 1)
	}
	return state
}

func unpack(t int32) (state int32, match bool) {
	if t > 0 {
		return t, false
	}
	return -t >> 1, t&1 != 0
}

// dead returns the state from which nothing matches. No state is 0.
func (d *dfa) dead() int32 { return int32(d.p.classes) }
