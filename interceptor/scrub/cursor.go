package scrub

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"
	"unsafe"
)

// findRule returns the findings of r in the text of t, for which look has run.
func (e *engine) findRule(t *site, r *rule) ([]hit, error) {
	s, lim := t.scratch, t.limit
	var hits []hit
	add := func(m span) error {
		h, ok, err := t.inspect(r, m)
		if ok {
			hits = append(hits, h)
		}
		return err
	}
	cursors := make([]cursor, 0, 4)
	for _, p := range e.plans[r.index] {
		c := cursor{plan: p, hits: s.hits[p.id]}
		if p.anchor != nil && len(c.hits) == 0 {
			continue
		}
		if c.dfa = s.dfa(p); c.dfa == nil {
			cursors = nil
			break
		}
		if p.gate != nil {
			c.rest, c.pivot = s.dfa(p.gate.rest), -1
		}
		if !slices.IsSorted(c.hits) {
			slices.Sort(c.hits)
		}
		cursors = append(cursors, c)
	}
	if cursors == nil || e.plans[r.index] == nil {
		for _, m := range r.regexp().FindAllStringIndex(t.text, -1) {
			if err := add(span{m[0], m[1]}); err != nil {
				return nil, err
			}
		}
		return hits, lim.check()
	}
	for p := 0; ; {
		var first *cursor
		for i := range cursors {
			c := &cursors[i]
			if err := c.seek(t.text, p, lim); err != nil {
				return nil, err
			}
			if c.found && (first == nil || c.match.start < first.match.start) {
				first = c
			}
		}
		if first == nil {
			return hits, nil
		}
		if err := add(first.match); err != nil {
			return nil, err
		}
		p = first.match.end
	}
}

// A cursor walks the matches of one plan.
type cursor struct {
	plan  *plan
	dfa   *dfa
	hits  []int32
	base  int // of the text in the one that hits are of
	hit   int // index of the next hit
	next  int // no start before it is left to try
	tries int

	// Of the plan's gate; see passes.
	rest    *dfa // nil for no gate
	skipped int  // bytes from the last place on to here are in skip
	pivot   int  // where the rest was last tried,
	open    bool // and whether it matches there

	found bool
	tail  int // where the tail of the match starts
	match span
}

// seek finds the leftmost match that starts at or after p.
func (c *cursor) seek(text string, p int, lim *limit) error {
	for {
		if c.found && c.tail >= p {
			c.match.start = c.plan.reach(text, c.tail, p)
			return nil
		}
		c.found = false
		s := c.start(text, max(p, c.next))
		if s < 0 || s+c.plan.least > len(text) {
			return nil
		}
		c.next = s + 1
		if c.tries++; c.tries%(stride*patience) == 0 {
			if err := lim.check(); err != nil {
				return err
			}
		}
		if inside(text, s) {
			continue
		}
		if c.rest != nil {
			if open, err := c.passes(text, s, lim); err != nil || !open {
				if err != nil {
					return err
				}
				continue
			}
		}
		end, err := c.dfa.end(text, s, lim)
		if err != nil {
			return err
		}
		c.found, c.tail, c.match.end = end >= 0, s, end
	}
}

// start returns the first possible start at or after s, or -1.
func (c *cursor) start(text string, s int) int {
	a := c.plan.anchor
	if a == nil {
		first := c.dfa.firsts()
		for ; s < len(text); s++ {
			if first[text[s]] {
				return s
			}
		}
		return -1
	}
	for ; c.hit < len(c.hits); c.hit++ {
		at := int(c.hits[c.hit]) - c.base
		if s = max(s, at-a.hi); s <= at-a.lo {
			return s
		}
	}
	return -1
}

// inside reports whether byte i is in the middle of a rune, where no match
// can start.
func inside(text string, i int) bool {
	if utf8.RuneStart(text[i]) {
		return false
	}
	for k := i - 1; k >= 0 && k > i-utf8.UTFMax; k-- {
		if utf8.RuneStart(text[k]) {
			return k+runeSize(text, k) > i
		}
	}
	return false
}

func runeSize(text string, i int) int {
	_, size := utf8.DecodeRuneInString(text[i:])
	return size
}

// ascii reports whether s is plain ASCII.
func ascii(s string) bool {
	b := unsafe.Slice(unsafe.StringData(s), len(s))
	var w uint64
	for ; len(b) >= 32; b = b[32:] {
		w = binary.LittleEndian.Uint64(b) | binary.LittleEndian.Uint64(b[8:]) |
			binary.LittleEndian.Uint64(b[16:]) | binary.LittleEndian.Uint64(b[24:])
		if w&high8 != 0 {
			return false
		}
	}
	for _, c := range b {
		w |= uint64(c)
	}
	return w&high8 == 0
}
