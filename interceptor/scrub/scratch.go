package scrub

import (
	"runtime"
	"unsafe"
)

// A scratch is the memory of one examination at a time.
type scratch struct {
	plans   [][]*plan // the engine's
	dfas    []*dfa    // by plan
	hits    [][]int32 // by plan: places of its anchor
	touched []int     // plans with hits
	enabled []bool    // by rule
	active  []int     // the enabled rules
	scans   []int     // plans whose dfa ran
	found   []sighting
	lines   []int32 // see site.lineBreaks
	walk    walker
	excused bool // a finding was let through for what is in the whole text; see job.excused

	// Of a document.
	stack   []frame
	hot     []uint64 // see survey
	decoded []byte   // the string that is being examined
	joined  []byte   // what document.joined examines
}

// maxKept is how many bytes of each part of its memory a scratch keeps for the
// next text.
const maxKept = 2 << 20

// keep returns b if it is not too large to be kept.
func keep[T any](b []T) []T {
	if cap(b)*int(unsafe.Sizeof(*new(T))) > maxKept {
		return nil
	}
	return b
}

func (e *engine) acquire() *scratch {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.free); n > 0 {
		s := e.free[n-1]
		e.free = e.free[:n-1]
		return s
	}
	return &scratch{
		plans:   e.plans,
		dfas:    make([]*dfa, e.numPlans),
		hits:    make([][]int32, e.numPlans),
		enabled: make([]bool, len(e.set.rules)),
	}
}

// release gives s back. A scratch that saw a panic is not given back.
func (e *engine) release(s *scratch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.free) < runtime.GOMAXPROCS(0) {
		e.free = append(e.free, s)
	}
}

// reset empties s after a text.
func (s *scratch) reset() {
	for _, p := range s.touched {
		s.hits[p] = keep(s.hits[p])[:0]
	}
	s.lines = keep(s.lines)
	for _, p := range s.scans {
		s.dfas[p].forget()
		s.dfas[p].used = false
	}
	for _, r := range s.active {
		s.enabled[r] = false
	}
	s.touched, s.scans, s.active = s.touched[:0], s.scans[:0], s.active[:0]
}

// enable switches a rule on.
func (s *scratch) enable(rule int) {
	if !s.enabled[rule] {
		s.enabled[rule] = true
		s.active = append(s.active, rule)
	}
}

// dfa returns the automaton of p, or nil if it has none.
func (s *scratch) dfa(p *plan) *dfa {
	if s.dfas[p.id] == nil {
		prog := p.program()
		if prog == nil {
			return nil
		}
		s.dfas[p.id] = newDFA(prog)
		s.dfas[p.id].soon = p.first
	}
	d := s.dfas[p.id]
	if !d.used {
		d.used = true
		s.scans = append(s.scans, p.id)
	}
	return d
}
