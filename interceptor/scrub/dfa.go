package scrub

import "unicode/utf8"

const (
	// maxTable bounds the transitions of an automaton; then it starts anew.
	maxTable = 1 << 16
	// stride is after how many bytes a run notes where it is.
	stride = 64
	// patience is after how many strides or tries the time is checked.
	patience = 16
)

// A dfa runs a program from a given start and returns the end that the
// standard library prefers there. It is built while it runs.
//
// A state is the list of threads of the standard library's machine, in order
// of priority, before assertions are decided; the next class decides them. Its
// transition says whether a thread matches before that class, which cuts the
// threads after it. So program and priorities are those of the standard
// library, and the results are too.
//
// A state at a position determines all that follows. Each run leaves a note
// every stride bytes of what came of it, and a later run that arrives in the
// same state at the same place takes that for an answer. So runs from many
// starts, none of which matches before the end of the text, cost the time of
// few. A dfa serves one text at a time.
type dfa struct {
	p *program
	// trans holds, at state + class, the next state if nothing matches before
	// the class, 0 if that is not yet known, and else, negative, what [told]
	// takes apart. States are multiples of the number of classes.
	trans   []int32
	list    [][]uint32 // by state / classes
	kind    []uint8    // likewise
	index   map[string]int32
	begin   [kindEdge + 1]int32
	first   *[256]bool
	soon    bool            // stop at the first end
	used    bool            // in the present text
	alone   bool            // runs in another text: take and leave no notes
	notes   map[place]int32 // end of the match from there, or -1
	passed  []place         // by this run
	far     bool            // a run in the present text went far enough to take notes
	strides int

	seen  []uint32 // sparse set of instructions, by generation
	added []uint32
	gen   uint32
	next  []uint32
	key   []byte
}

// A place is a state at a position.
type place struct{ at, state int32 }

func newDFA(p *program) *dfa {
	d := &dfa{p: p, notes: map[place]int32{}, seen: make([]uint32, len(p.inst)), added: make([]uint32, len(p.inst))}
	d.clear()
	return d
}

// clear forgets all states.
func (d *dfa) clear() {
	d.index = map[string]int32{}
	d.list, d.kind = [][]uint32{nil, nil}, []uint8{0, 0}
	d.trans = make([]int32, 2*d.p.classes, 16*d.p.classes)
	for i := d.p.classes; i < len(d.trans); i++ {
		d.trans[i] = d.tell(d.dead(), false)
	}
	d.begin = [kindEdge + 1]int32{}
	d.forget()
}

// forget drops the notes, which hold for one text.
func (d *dfa) forget() {
	if len(d.notes) > 0 {
		clear(d.notes)
	}
	d.passed, d.far = d.passed[:0], false
}

// end returns where the preferred match that starts at from ends, or -1.
func (d *dfa) end(text string, from int, lim *limit) (int, error) {
	state := d.start(text, from)
	end := -1
	d.passed = d.passed[:0]
	stop := from - from%stride + stride
	if !d.far {
		stop += stride // most runs end before, and a note costs more than the steps
	}
	for i := from; ; stop += stride {
		i, state, end = d.run(text, i, min(stop, len(text)), state, end)
		if state != d.dead() && i >= len(text) {
			t := d.trans[int(state)+d.p.classes-1]
			if t == 0 {
				t = d.step(state, uint8(d.p.classes-1))
			}
			if _, match := told(t); match {
				end = len(text)
			}
			state = d.dead()
		}
		if state == d.dead() {
			d.note(end)
			return end, nil
		}
		if d.strides++; d.strides%patience == 0 {
			if err := lim.check(); err != nil {
				return -1, err
			}
		}
		if d.alone {
			continue
		}
		d.far = true
		here := place{int32(i), state}
		if known, ok := d.notes[here]; ok {
			if known >= 0 {
				end = int(known)
			}
			d.note(end)
			return end, nil
		}
		d.passed = append(d.passed, here)
	}
}

// start returns the state in which a run from a place begins.
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

// run goes on from byte i in a state to stop, or a little further in a rune. It
// returns where it got, the state there and the end of the last match that it
// met, or end if it met none.
func (d *dfa) run(text string, i, stop int, state int32, end int) (int, int32, int) {
	p, trans := d.p, d.trans
	for i < stop {
		c := text[i]
		if c < utf8.RuneSelf {
			if t := trans[int(state)+int(p.ascii[c])]; t > 0 {
				state = t
				i++
				continue
			}
		}
		class, size := uint8(0), 1
		if c < utf8.RuneSelf {
			class = p.ascii[c]
		} else {
			var r rune
			r, size = utf8.DecodeRuneInString(text[i:])
			class = p.classOf(r)
		}
		t := trans[int(state)+int(class)]
		if t == 0 {
			t = d.step(state, class)
			trans = d.trans
		}
		var match bool
		if state, match = told(t); match {
			if end = i; d.soon {
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

// note writes down the end of this run for all places that it passed.
func (d *dfa) note(end int) {
	for _, p := range d.passed {
		if end >= int(p.at) {
			d.notes[p] = int32(end)
		} else {
			d.notes[p] = -1
		}
	}
}
