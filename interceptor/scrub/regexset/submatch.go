package regexset

import (
	"io"
	"slices"
	"unicode/utf8"
)

const (
	// maxStarts bounds the starts that are tried in a part.
	maxStarts = 16
	// block is the number of bytes of which the steps are kept at once.
	block = 4096
)

// Submatches returns what FindStringSubmatchIndex of package regexp returns for a part of the
// scanned text, taken alone, except for the first pair. The slice is valid until the next call.
//
// Its time is linear, and a fraction of package regexp's.
func (c *Scratch) Submatches(pattern int, in Span) ([]int, error) {
	p := &c.set.patterns[pattern]
	text := c.text[in.Start:in.End]
	if len(p.plans) == 1 {
		groups, ok, err := c.groups(p, text, in.Start)
		if ok || err != nil {
			return groups, err
		}
	}
	if len(text) < block {
		return p.Expr.regexp().FindStringSubmatchIndex(text), nil
	}
	r := runes{text: text, limit: c.limit}
	groups := p.Expr.regexp().FindReaderSubmatchIndex(&r)
	return groups, r.err
}

// runes gives a long text to package regexp, and ends it when the limit is reached.
type runes struct {
	text  string
	next  int
	reads int
	limit Limit
	err   error
}

func (r *runes) ReadRune() (rune, int, error) {
	if r.reads++; r.reads%block == 0 && r.err == nil {
		r.err = r.limit.Spend(perRune * block)
	}
	if r.err != nil || r.next == len(r.text) {
		return 0, 0, io.EOF
	}
	c, size := utf8.DecodeRuneInString(r.text[r.next:])
	r.next += size
	return c, size, nil
}

// groups is Submatches for a text at byte base, or false if package regexp has to search.
func (c *Scratch) groups(p *pattern, text string, base int) ([]int, bool, error) {
	plan := p.plans[0]
	d := c.dfa(plan.tail)
	if d == nil {
		return nil, false, nil
	}
	hits := c.hits[plan.hits]
	first, _ := slices.BinarySearch(hits, int32(base))
	cur := cursor{plan: plan, hits: hits[first:], base: base}
	for range maxStarts {
		s, err := cur.start(text, cur.next, c.limit)
		if s < 0 || err != nil {
			return nil, err == nil, err
		}
		n := 2*p.Expr.NumSubexp() + 2
		if len(text)-s < block {
			if groups, found, ok := c.back.short(d, text, s, n); found || !ok {
				return groups, ok, nil
			}
			continue
		}
		end, err := d.end(text, s, c.limit, false)
		if err != nil {
			return nil, false, err
		}
		if end >= 0 {
			return c.back.groups(d, text, Span{s, end}, n, c.limit)
		}
	}
	return nil, false, nil
}

// A tracer finds the groups of a match. A thread of a state comes from one thread of the state
// before, so the way of the thread that matches is followed back, and the bounds on it are noted.
// For a long match the states come from a second run, and those of one block are kept at a time.
type tracer struct {
	bounds []int
	left   int // bounds of groups that are not known
	blocks []step
	steps  []step
}

// A step is the place before a character, the state there, and the class of the character.
type step struct {
	at    int
	state int32
	class uint8
}

// groups returns the bounds, n of them, of the groups of the preferred match at m, or false if
// the DFA has no room for its states.
func (t *tracer) groups(d *dfa, text string, m Span, n int, limit Limit) ([]int, bool, error) {
	t.begin(n)
	t.blocks = t.blocks[:0]
	clears := d.clears
	state := d.start(text, m.Start)
	for i := m.Start; i < m.End; {
		t.blocks = append(t.blocks, step{at: i, state: state})
		i, state, _ = d.run(text, i, min(i+block, m.End), state, -1)
		if err := limit.Spend(perState * block); err != nil {
			return nil, false, err
		}
	}
	class := uint8(d.p.classes - 1)
	if m.End < len(text) {
		class, _ = d.p.classAt(text, m.End)
	}
	matches := d.originsOf(state, class)
	if d.clears != clears {
		return nil, false, nil
	}
	thread := t.from(matches[len(matches)-1], m.End)
	for len(t.blocks) > 0 && t.left > 0 {
		last := t.blocks[len(t.blocks)-1]
		t.blocks = t.blocks[:len(t.blocks)-1]
		t.steps = t.steps[:0]
		for i, state := last.at, last.state; i < min(last.at+block, m.End); {
			class, size := d.p.classAt(text, i)
			t.steps = append(t.steps, step{i, state, class})
			state, _ = d.step(state, class)
			i += size
		}
		if err := limit.Spend(perState * block); err != nil {
			return nil, false, err
		}
		thread = t.back(d, thread)
	}
	return t.bounds, true, nil
}

// short is groups for the preferred match that starts at byte from of a text shorter than a block, if there
// is one. It finds the end and the states in one run.
func (t *tracer) short(d *dfa, text string, from, n int) (groups []int, found, ok bool) {
	t.steps = t.steps[:0]
	clears, through := d.clears, 0 // steps through the end of the match
	state := d.start(text, from)
	p, trans, dead := d.p, d.trans, d.dead()
	for i := from; i <= len(text) && state != dead; {
		class, size := uint8(p.classes-1), 1
		if i < len(text) {
			if class = p.ascii[text[i]%utf8.RuneSelf]; text[i] >= utf8.RuneSelf {
				class, size = p.classAt(text, i)
			}
		}
		t.steps = append(t.steps, step{i, state, class})
		i += size
		if next := trans[int(state)+int(class)]; next > 0 {
			state = next
			continue
		}
		var match bool
		state, match = d.step(state, class)
		if trans = d.trans; match {
			through = len(t.steps)
		}
	}
	if d.clears != clears || through == 0 {
		return nil, false, d.clears == clears
	}
	t.begin(n)
	last := t.steps[through-1]
	matches := d.originsOf(last.state, last.class)
	t.steps = t.steps[:through-1]
	t.back(d, t.from(matches[len(matches)-1], last.at))
	return t.bounds, true, true
}

// begin clears n bounds.
func (t *tracer) begin(n int) {
	t.left = n - 2 // without the first pair
	t.bounds = slices.Grow(t.bounds[:0], n)[:n]
	for i := range t.bounds {
		t.bounds[i] = -1
	}
}

// back follows a thread after the kept steps back to where it comes from, or until all bounds are known.
func (t *tracer) back(d *dfa, thread int) int {
	for i := len(t.steps) - 1; i >= 0 && t.left > 0; i-- {
		s := &t.steps[i]
		thread = t.from(d.originsOf(s.state, s.class)[thread], s.at)
	}
	return thread
}

// from notes the bounds on the way of a thread, which are at byte at, and returns its origin. The
// last bound of a group counts, and the way is followed from its end.
func (t *tracer) from(o origin, at int) int {
	for _, b := range o.bounds {
		if int(b) < len(t.bounds) && t.bounds[b] < 0 {
			t.bounds[b] = at
			t.left--
		}
	}
	return o.thread
}

// An origin is where a thread comes from: the index of the thread in the state before, and the
// bounds of groups that it passes on its way.
type origin struct {
	thread int
	bounds []uint32
}

// originsOf returns the origins of the threads after a class, and behind them that of a match.
func (d *dfa) originsOf(state int32, class uint8) []origin {
	if len(d.origins) < len(d.trans) {
		d.origins = append(d.origins, make([][]origin, len(d.trans)-len(d.origins))...)
	}
	known := &d.origins[int(state)+int(class)]
	if *known == nil {
		d.traced = new([]origin)
		d.follow(state, class)
		*known, d.traced = *d.traced, nil
	}
	return *known
}
