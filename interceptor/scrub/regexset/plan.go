package regexset

import (
	"math"
	"regexp/syntax"
	"slices"
	"sync"
	"unicode/utf8"
)

// A plan says how the matches of one expression, or of one branch of it, are found in a text. The
// matches of a whole expression are, from p = 0 on, the leftmost start at or after p, with the
// end that package regexp prefers there, and again from that end. So a plan needs all starts, or
// more, in order, and the end for each start, which a [dfa] gives.
//
//   - Expressions with required literals: the literal hits, less the offsets of
//     the literals, are the starts.
//   - Expressions that begin with a lazy repetition, [\w.-]{0,50}?tail: the tail
//     runs from the places of its own literals. The first place h at or after p
//     where the tail matches decides the match. The end is the tail's: a start
//     before h tries the shortest repetitions first, so it meets h before any
//     later place. The start is the farthest that a repetition reaches back
//     from h, but not before p: if a later place h2 could be reached from
//     farther left, the repetition up to it would pass over h, and its part up
//     to h is a repetition too.
//   - All others: every position is a start.
type plan struct {
	hits      int          // index of its literal hits in a Scratch
	prefix    []repetition // lazy, before the tail, from left to right
	tail      *program
	required  *required  // by the tail; nil for none
	first     byteSet    // without required literals: the bytes that the tail may begin with
	lookahead *lookahead // of the tail; nil for none
}

// newPlans returns a plan for each branch of tree if one begins with a lazy repetition, or else
// one plan.
func newPlans(tree *syntax.Regexp) []*plan {
	branches := []*syntax.Regexp{tree}
	if top := flat(tree, nil, true); len(top) == 1 && top[0].Op == syntax.OpAlternate {
		for _, b := range top[0].Sub {
			if prefix, _ := lazyPrefix(b); len(prefix) > 0 {
				branches = top[0].Sub
				break
			}
		}
	}
	var plans []*plan
	for _, b := range branches {
		prefix, tail := lazyPrefix(b)
		p := newPlan(tail)
		p.prefix = prefix
		if p.required == nil || p.tail.minLen == 0 {
			p = newPlan(b)
		}
		p.lookahead = newLookahead(p.tail.tree)
		plans = append(plans, p)
	}
	return plans
}

// newPlan returns the plan of an expression without a lazy prefix.
func newPlan(tail *syntax.Regexp) *plan {
	p := &plan{tail: newProgram(tail), required: findRequired(tail)}
	if p.required == nil {
		p.first.addFirst(tail)
	}
	return p
}

// lazyPrefix splits x into the lazy repetitions at its start and the rest. If there are several,
// each may only contain runes that the next one contains too: then the farthest reach back is
// found from right to left.
func lazyPrefix(x *syntax.Regexp) ([]repetition, *syntax.Regexp) {
	subs := flat(x, nil, false)
	var prefix []repetition
	for len(subs) > 1 {
		r := subs[0]
		if r.Op != syntax.OpRepeat || r.Min != 0 || r.Max < 0 || r.Flags&syntax.NonGreedy == 0 || r.Sub[0].Op != syntax.OpCharClass {
			break
		}
		c := repetition{r.Sub[0].Rune, r.Max}
		if n := len(prefix); n > 0 && !prefix[n-1].within(&c) {
			return nil, x
		}
		prefix = append(prefix, c)
		subs = subs[1:]
	}
	if len(prefix) == 0 {
		return nil, x
	}
	return prefix, concat(subs...)
}

// within reports whether every rune of c is one of d.
func (c *repetition) within(d *repetition) bool {
	for i := 0; i+1 < len(c.ranges); i += 2 {
		if !d.has(c.ranges[i], c.ranges[i+1]) {
			return false
		}
	}
	return true
}

// A lookahead is a cheap test of what has to follow a place if an expression matches there. It
// turns most places away: after a keyword, half of gitleaks' rules allow only blanks and parts of
// a name before a sign such as = or :, and most text goes on with something else.
//
// Let the expression be a sequence h t, where the bytes that h may consist of (skip) and the
// bytes that a match of t may begin with (pivot) have none in common. In a match from s on, all
// bytes of h are in skip, and the byte after them is not. So the part of t begins at the first
// byte from s on that is not in skip; that byte is in pivot, or there the text ends; it is least to
// most bytes after s; and t matches there, with the same text around it. If one of these fails, the
// expression does not match from s on. If none does, the expression is tried.
//
// If t has a long value, there is a lookahead from the pivot on that finds the end of the value. Its h
// is what may stand before the value, which it does not look at, and the value. Without it a run for
// each of many starts would read the same value.
type lookahead struct {
	skip, pivot byteSet
	from        int          // bytes after s that are not looked at
	least, most int          // most is unlimited for no limit
	mostASCII   int          // most in a text that is ASCII
	rest        *program     // of t
	values      []*lookahead // for each alternative of the value in t, one of which has to hold; nil for none
}

// maxPivots bounds the bytes of pivot: more of them turn too few places away.
const maxPivots = 32

// newLookahead returns the lookahead of x, or nil if there is none. That of an alternation is for all
// of its branches.
func newLookahead(x *syntax.Regexp) *lookahead {
	top := flat(x, nil, true)
	branches := [][]*syntax.Regexp{top}
	if len(top) == 1 && top[0].Op == syntax.OpAlternate {
		branches = nil
		for _, b := range top[0].Sub {
			branches = append(branches, flat(b, nil, true))
		}
	}
	l := &lookahead{least: unlimited}
	var rests []*syntax.Regexp
	valued := true // all rests have a value
	for _, subs := range branches {
		b, rest := lookaheadOf(subs, 0)
		if b == nil {
			return nil
		}
		l.skip.add(&b.skip)
		l.pivot.add(&b.pivot)
		l.least, l.most, l.mostASCII = min(l.least, b.least), max(l.most, b.most), max(l.mostASCII, b.mostASCII)
		rests = append(rests, concat(rest...))
		values := valuesOf(rest)
		valued = valued && values != nil
		l.values = append(l.values, values...)
	}
	if !l.pivot.narrow(maxPivots, &l.skip) {
		return nil
	}
	if !valued {
		l.values = nil
	}
	l.from = l.least // if a byte before it is not in skip, no match starts at s, or after s and before that byte
	l.rest = newProgram(&syntax.Regexp{Op: syntax.OpAlternate, Sub: rests})
	l.rest.earliest = true
	return l
}

// lookaheadOf returns the lookahead of a sequence and its t, or nil: the first one whose pivots a gate can
// look at, or else the first one. It does not look at what the elements match that stand before a value,
// whose number is before.
func lookaheadOf(subs []*syntax.Regexp, before int) (best *lookahead, t []*syntax.Regexp) {
	l := &lookahead{}
	for n, s := range subs {
		if n == before {
			l.from = l.most
		}
		if l.least >= max(l.from, 1) && n > before {
			l.pivot = byteSet{}
			empty := l.pivot.addFirst(concat(subs[n:]...))
			// The end of the text is for values alone: more of the others would turn too few places away.
			if !empty && (!l.pivot.end || before > 0) && l.pivot.narrow(maxPivots, &l.skip) {
				apart := l.pivot.apart()
				if apart || best == nil {
					best, t = new(*l), subs[n:]
				}
				if apart {
					break
				}
			}
		}
		if n >= before {
			l.skip.addAll(s)
		}
		lo, hi := lengths(s, utf8.UTFMax)
		_, ascii := lengths(s, 1)
		l.least, l.most, l.mostASCII = min(l.least+lo, unlimited), min(l.most+hi, unlimited), min(l.mostASCII+ascii, unlimited)
	}
	return best, t
}

// valuesOf returns lookaheads for the alternatives of the first long element of a sequence. It returns nil if one
// has none, and if all are unlimited: runs that count no bytes end at each other's notes.
func valuesOf(subs []*syntax.Regexp) (all []*lookahead) {
	counts := false
	for n, s := range subs {
		if _, most := lengths(s, 1); most <= stride {
			continue
		}
		alternatives := []*syntax.Regexp{s}
		if s.Op == syntax.OpAlternate {
			alternatives = s.Sub
		}
		for _, a := range alternatives {
			l, t := lookaheadOf(slices.Concat(subs[:n], flat(a, nil, true), subs[n+1:]), n)
			if l == nil {
				return nil
			}
			l.rest = newProgram(concat(t...))
			l.rest.earliest = true
			counts = counts || l.most < unlimited
			all = append(all, l)
		}
		break
	}
	if !counts {
		return nil
	}
	return all
}

// A gate turns away literal hits by the two bytes after the word in which they begin, for all plans
// with these hits at once. If a match starts there, the lookahead finds no pivot in that word, so the
// pivot is the byte after it, or that byte is in skip.
type gate struct {
	plans []*plan
	once  sync.Once
	open  [utf8.RuneSelf][2]uint64 // by the first byte: a bit for each second one that lets a hit pass
}

// inWord has the bytes of words: no gated plan has one of them as a pivot.
var inWord = func() (in [256]bool) {
	for c := range utf8.RuneSelf {
		in[c] = kindOf(rune(c)) == kindWord || c == '.' || c == '-'
	}
	return in
}()

// gated reports whether a gate can decide on the hits of p.
func (p *plan) gated() bool {
	return p.required != nil && p.required.hi == 0 && p.lookahead != nil && p.lookahead.pivot.apart()
}

// atBoundary reports whether the matches of p begin with a required literal, at the boundary of a word.
// Behind a prefix they don't: the literals in it may begin a word of the match alone; see Submatches.
func (p *plan) atBoundary() bool {
	return p.required != nil && p.required.hi == 0 && len(p.prefix) == 0 && beginsWord(p.tail.tree)
}

func beginsWord(x *syntax.Regexp) bool {
	first := flat(x, nil, true)[0]
	if first.Op == syntax.OpAlternate {
		return !slices.ContainsFunc(first.Sub, func(b *syntax.Regexp) bool { return !beginsWord(b) })
	}
	return first.Op == syntax.OpWordBoundary
}

// apart reports whether b has only ASCII outside of words.
func (b *byteSet) apart() bool {
	for c, has := range b.has {
		if has && (inWord[c] || c >= utf8.RuneSelf) {
			return false
		}
	}
	return true
}

// wordEnd returns the end of the bytes of words from byte i of text on.
func wordEnd(text string, i int) int {
	for i < len(text) && inWord[text[i]] {
		i++
	}
	return i
}

// lets reports whether the gate lets a hit pass before two bytes of ASCII after its word.
func (g *gate) lets(first, second byte) bool {
	if g == nil {
		return true
	}
	g.once.Do(g.build)
	return g.open[first&(utf8.RuneSelf-1)][second>>6&1]>>(second&63)&1 != 0
}

func (g *gate) build() {
	for _, p := range g.plans {
		l, d := p.lookahead, newDFA(p.lookahead.rest)
		for first := range g.open {
			if inWord[first] {
				continue // it ends no word
			}
			for second := range utf8.RuneSelf {
				if l.skip.has[first] || l.pivot.has[first] && (d == nil || d.goesOn(byte(first), byte(second))) {
					g.open[first][second>>6] |= 1 << (second & 63)
				}
			}
		}
	}
}

// A sieve asks the gates of several lists at once.
type sieve struct {
	all   []int
	gates []*gate // of all lists; nil for a list without
	once  sync.Once
	some  [][]int                              // first all lists, then those into which hits before some two bytes go
	open  *[utf8.RuneSelf][utf8.RuneSelf]uint8 // by the two bytes: the index in some
}

func newSieve(lists []int, gates []*gate) *sieve {
	s := &sieve{all: lists}
	for _, l := range lists {
		s.gates = append(s.gates, gates[l])
	}
	return s
}

// lets returns the lists into which a hit goes before two bytes after its word.
func (s *sieve) lets(first, second byte) []int {
	if first|second >= utf8.RuneSelf {
		return s.all
	}
	s.once.Do(s.build)
	return s.some[s.open[first][second]]
}

func (s *sieve) build() {
	s.some, s.open = [][]int{s.all}, new([utf8.RuneSelf][utf8.RuneSelf]uint8)
	var open []int
	for first := range s.open {
		if inWord[first] {
			continue
		}
		for second := range s.open[first] {
			open = open[:0]
			for i, g := range s.gates {
				if g.lets(byte(first), byte(second)) {
					open = append(open, s.all[i])
				}
			}
			n := slices.IndexFunc(s.some, func(lists []int) bool { return slices.Equal(lists, open) })
			if n < 0 && len(s.some) <= math.MaxUint8 {
				n = len(s.some)
				s.some = append(s.some, slices.Clone(open))
			}
			s.open[first][second] = uint8(max(n, 0))
		}
	}
}

// A cursor walks the matches of one plan in ascending order.
type cursor struct {
	plan  *plan
	dfa   *dfa
	hits  []int32 // of the required literals, ascending: those that are left
	base  int     // of the text in the text that hits are of
	next  int     // no start before it is left to try
	tries int

	// Of the plan's lookahead.
	near   look // its rest is nil for no lookahead
	values []look
	pivot  int  // where the rest was tried last,
	open   bool // and whether it matches there

	found bool
	tail  int // where the tail of the match starts
	match Span
}

// seek finds the leftmost match in the scanned text that starts at or after p.
func (c *cursor) seek(in *Scratch, p int) error {
	text, limit := in.text, in.limit
	for {
		if c.found && c.tail >= p {
			c.match.Start = c.plan.reach(text, c.tail, p)
			return nil
		}
		c.found = false
		if err := c.skipHits(text, max(p, c.next), limit); err != nil {
			return err
		}
		s, err := c.start(text, max(p, c.next), limit)
		if s < 0 || err != nil {
			return err
		}
		if c.near.rest != nil {
			if open, err := c.passes(in); err != nil {
				return err
			} else if !open {
				continue
			}
		} else if c.dfa.failsSoon(text, s) {
			continue
		}
		end, err := c.dfa.end(text, s, limit, true)
		if err != nil {
			return err
		}
		c.found, c.tail, c.match.End = end >= 0, s, end
	}
}

// skipHits drops the hits before s, and those after it from which no match starts, as far as that is cheap
// to know. Most hits end here.
func (c *cursor) skipHits(text string, s int, limit Limit) error {
	if r := c.plan.required; c.near.rest == nil || r == nil || r.hi > 0 {
		return nil
	}
	failed := -1
	for ; len(c.hits) > 0; c.hits = c.hits[1:] {
		hit := int(c.hits[0]) - c.base
		if hit < s {
			continue
		}
		if c.tries++; c.tries%(stride*patience) == 0 {
			if err := limit.Spend(perTry * stride * patience); err != nil {
				return err
			}
		}
		if c.near.lets(text, hit) && c.near.at != failed {
			if !c.near.rest.failsSoon(text, c.near.at) {
				break
			}
			failed = c.near.at
		}
	}
	return nil
}

// start returns the first possible start at or after s, or -1, and moves on behind it.
func (c *cursor) start(text string, s int, limit Limit) (int, error) {
	r := c.plan.required
	for ; ; s++ {
		if c.tries++; c.tries%(stride*patience) == 0 {
			if err := limit.Spend(perTry * stride * patience); err != nil {
				return -1, err
			}
		}
		if r == nil {
			for s < len(text) && !c.plan.first.has[text[s]] {
				s++
			}
		} else {
			hits := c.hits
			for len(hits) > 0 && int(hits[0])-c.base-r.lo < s {
				hits = hits[1:]
			}
			if c.hits = hits; len(hits) == 0 {
				return -1, nil
			}
			s = max(s, int(hits[0])-c.base-r.hi)
		}
		if s+c.plan.tail.minLen > len(text) {
			return -1, nil
		}
		if (c.near.rest == nil || c.near.lets(text, s)) && (text[s] < utf8.RuneSelf || !inside(text, s)) {
			c.next = s + 1
			return s, nil
		}
	}
}

// passes reports whether the rest of the lookahead matches at its pivot.
func (c *cursor) passes(in *Scratch) (bool, error) {
	at := c.near.at
	if at == c.pivot {
		return c.open, nil
	}
	c.pivot, c.open = at, len(c.near.values) == 0
	if len(c.values) < len(c.near.values) {
		first := len(in.values)
		for _, v := range c.near.values {
			in.values = append(in.values, in.look(v))
		}
		c.values = in.values[first:]
	}
	for i := range c.values {
		v := &c.values[i]
		c.open = c.open || v.lets(in.text, at) && !v.rest.failsSoon(in.text, v.at)
	}
	if !c.open {
		return false, nil
	}
	end, err := c.near.rest.end(in.text, at, in.limit, true)
	c.open = end >= 0
	return c.open, err
}

// A look is a lookahead at places of one text, in ascending order.
type look struct {
	*lookahead
	rest *dfa
	most int // for the text
	at   int // the bytes before it that the last place looked at are in skip
}

func (c *Scratch) look(l *lookahead) look {
	most := l.most
	if c.ascii {
		most = l.mostASCII
	}
	if most >= unlimited {
		most = math.MaxInt / 2 // more than a text has
	}
	return look{lookahead: l, rest: c.dfa(l.rest), most: most}
}

// lets reports whether the lookahead lets a match start at s, as far as that is cheap to know: then its pivot
// is l.at, or there the text ends.
func (l *look) lets(text string, s int) bool {
	i, end := max(s+l.from, l.at), min(s+l.most+1, len(text))
	for i < end && l.skip.has[text[i]] {
		i++
	}
	l.at = i
	return i >= s+l.least && (i == len(text) || i < end && l.pivot.has[text[i]])
}

// inside reports whether byte i is in the middle of a rune, where no match starts.
func inside(text string, i int) bool {
	if utf8.RuneStart(text[i]) {
		return false
	}
	for k := i - 1; k >= 0 && k > i-utf8.UTFMax; k-- {
		if utf8.RuneStart(text[k]) {
			_, size := utf8.DecodeRuneInString(text[k:])
			return k+size > i
		}
	}
	return false
}

// flat appends the elements of nested concatenations, and of groups if asked, to subs.
func flat(x *syntax.Regexp, subs []*syntax.Regexp, groups bool) []*syntax.Regexp {
	if x.Op != syntax.OpConcat && (x.Op != syntax.OpCapture || !groups) {
		return append(subs, x)
	}
	for _, s := range x.Sub {
		subs = flat(s, subs, groups)
	}
	return subs
}

// reach returns how far left of at the lazy prefix reaches, not before from.
func (p *plan) reach(text string, at, from int) int {
	for i := len(p.prefix) - 1; i >= 0; i-- {
		c := &p.prefix[i]
		for n := 0; n < c.max && at > from; n++ {
			r, size := utf8.DecodeLastRuneInString(text[from:at])
			if !c.has(r, r) {
				break
			}
			at -= size
		}
	}
	return at
}

// A repetition is a set of runes and the most that a lazy repetition takes.
type repetition struct {
	ranges []rune
	max    int
}

// has reports whether one range of c contains the runes from lo to hi.
func (c *repetition) has(lo, hi rune) bool {
	for i := 0; i+1 < len(c.ranges); i += 2 {
		if c.ranges[i] <= lo && hi <= c.ranges[i+1] {
			return true
		}
	}
	return false
}
