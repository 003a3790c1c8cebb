package regexset

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// A Span is a range of bytes of a text.
type Span struct{ Start, End int }

// A Limit bounds the work of a scan.
type Limit interface {
	// Spend counts the steps that were done since the last call, and returns an error if the scan has to stop. A step takes
	// about a nanosecond. A scan calls it every few ten thousand steps.
	Spend(steps int) error
}

// Work in steps.
const (
	perByte   = 1  // of a search for literals
	perFolded = 15 // of a text with other forms of ASCII letters
	perHit    = 8  // of a literal
	perState  = 2  // of a DFA
	perRun    = 20 // of a DFA, in states
	perTry    = 10 // of a start
	perRune   = 60 // that package regexp reads
)

// A Scratch is the memory to scan one text at a time. It keeps the DFAs that it has built.
type Scratch struct {
	set  *Set
	dfas []*dfa // by program; nil if it was not needed yet or has none
	back tracer

	// Of the scanned text.
	text       string
	limit      Limit
	ascii      bool
	hasSign    bool
	scans      uint64
	seen       []uint64  // by literal: the last scan that found it
	hits       [][]int32 // by list of the set: where its literals are, ascending
	touched    []int     // lists with hits
	enabled    []bool    // by pattern
	candidates []int
	run        []*dfa // DFAs with notes
	tested     map[part]bool

	found   []literalHit
	matches []Span   // see FindAll
	cursors []cursor // of the pattern that is searched,
	values  []look   // and their values
}

// A part is a range of the text that a pattern was tested on.
type part struct {
	pattern int
	Span
}

// NewScratch returns a Scratch for scans with s.
func (s *Set) NewScratch() *Scratch {
	return &Scratch{
		set:     s,
		dfas:    make([]*dfa, s.programs),
		hits:    make([][]int32, len(s.gates)),
		enabled: make([]bool, len(s.patterns)),
		seen:    make([]uint64, len(s.uses)),
	}
}

// maxKept is the number of bytes of each buffer that a Scratch keeps for the next text.
const maxKept = 2 << 20

// Scan prepares the search of a text of less than 1 GB: it notes the literals in it. limit bounds
// this and all that is asked about the text until the next Scan or Reset. After an error or a
// panic the Scratch must not be used again.
func (c *Scratch) Scan(text string, limit Limit) error {
	c.Reset()
	c.text, c.limit = text, limit
	c.scans++
	s := c.set
	c.ascii, c.hasSign = ASCII(text), false
	if len(text) < s.minLen {
		return nil
	}
	search, places := text, []int32(nil)
	if !c.ascii && folds(text) {
		search, places = fold(text)
		if err := limit.Spend(perFolded * len(text)); err != nil {
			return err
		}
	}
	if err := c.scanLiterals(search, places); err != nil {
		return err
	}
	for _, i := range s.unfiltered {
		c.enable(i)
	}
	if places != nil || s.inexact {
		lower := strings.ToLower(text)
		c.candidates = slices.DeleteFunc(c.candidates, func(i int) bool {
			c.enabled[i] = s.patterns[i].hasKeyword(lower)
			return !c.enabled[i]
		})
	}
	slices.Sort(c.candidates)
	return nil
}

// scanLiterals notes the patterns that literals of search enable, and the hits that gates let pass. places
// are the places in c.text of the bytes of search, nil if both are the same.
func (c *Scratch) scanLiterals(search string, places []int32) error {
	s, text := c.set, c.text
	word := 0 // the end of the word in which the last literal begins
	for end := 0; end < len(search); {
		begin := end
		end, c.found = s.literals.block(search, end, c.found[:0])
		if err := c.limit.Spend(perByte*(end-begin) + perHit*len(c.found)); err != nil {
			return err
		}
		for _, f := range c.found {
			u := &s.uses[f.literal]
			at, from := int(f.at), int(f.at)+u.word
			if places != nil {
				at, from = int(places[f.at]), int(places[f.at])
			}
			if !u.inWords && withinWord(text, at) {
				continue
			}
			if c.seen[f.literal] != c.scans {
				c.seen[f.literal] = c.scans
				c.hasSign = c.hasSign || u.sign
				for _, i := range u.patterns {
					c.enable(i)
				}
			}
			if u.sieve == nil {
				continue
			}
			word = wordEnd(text, max(word, from))
			first, second := byte(utf8.RuneSelf), byte(0)
			if word+1 < len(text) {
				first, second = text[word], text[word+1]
			}
			for _, l := range u.sieve.lets(first, second) {
				if len(c.hits[l]) == 0 {
					c.touched = append(c.touched, l)
				}
				c.hits[l] = append(c.hits[l], int32(at))
			}
		}
	}
	return nil
}

func (c *Scratch) enable(pattern int) {
	if !c.enabled[pattern] {
		c.enabled[pattern] = true
		c.candidates = append(c.candidates, pattern)
	}
}

// Reset forgets the scanned text and frees buffers that have become large.
func (c *Scratch) Reset() {
	for _, p := range c.touched {
		if cap(c.hits[p])*int(unsafe.Sizeof(c.hits[p][0])) > maxKept {
			c.hits[p] = nil
		}
		c.hits[p] = c.hits[p][:0]
	}
	for _, d := range c.run {
		d.forget()
		d.used = false
	}
	for _, i := range c.candidates {
		c.enabled[i] = false
	}
	c.touched, c.run, c.candidates = c.touched[:0], c.run[:0], c.candidates[:0]
	c.text, c.limit, c.tested = "", nil, nil
}

// Candidates returns the indexes of the patterns that may have matches in the scanned text, in
// ascending order. The slice is valid until the next Scan.
func (c *Scratch) Candidates() []int { return c.candidates }

// ASCII reports whether the scanned text is ASCII.
func (c *Scratch) ASCII() bool { return c.ascii }

// HasSign reports whether the scanned text contains a sign of the set, without regard to the case of ASCII
// letters. It does not know the signs in texts of fewer than [Set.MinLen] bytes.
func (c *Scratch) HasSign() bool { return c.hasSign }

// LiteralHits calls hit for each place in a text where a literal begins, without regard to the
// case of ASCII letters. It leaves out places within a word if no match can begin there. It does not
// scan the text, and finds no literals with U+0130, U+017F or U+212A in place of ASCII letters.
func (c *Scratch) LiteralHits(text string, limit Limit, hit func(at int)) error {
	for end := 0; end < len(text); {
		begin := end
		end, c.found = c.set.literals.block(text, end, c.found[:0])
		if err := limit.Spend(perByte*(end-begin) + perHit*len(c.found)); err != nil {
			return err
		}
		for _, f := range c.found {
			if c.set.uses[f.literal].inWords || !withinWord(text, int(f.at)) {
				hit(int(f.at))
			}
		}
	}
	return nil
}

// withinWord reports whether there is no boundary of a word at byte i.
func withinWord(text string, i int) bool {
	return (kindBefore(text, i) == kindWord) == (kindOfByte[text[i]] == kindWord)
}

// FindAll returns the matches of a pattern in the scanned text, as FindAllStringIndex of package
// regexp does. It does not ask for keywords. The slice is valid until the next call.
func (c *Scratch) FindAll(pattern int) ([]Span, error) {
	return c.FindFrom(pattern, func(_ string, m Span) int { return m.End })
}

// FindFrom is FindAll, but goes on after a match at the byte of the text that next says. It is behind the
// start of the match. The matches may overlap.
func (c *Scratch) FindFrom(pattern int, next func(text string, m Span) int) ([]Span, error) {
	p := &c.set.patterns[pattern]
	c.matches, c.cursors, c.values = c.matches[:0], c.cursors[:0], c.values[:0]
	for _, plan := range p.plans {
		if plan.required != nil && len(c.hits[plan.hits]) == 0 {
			continue
		}
		cur, ok := c.cursor(plan)
		if !ok {
			return nil, errClasses
		}
		c.cursors = append(c.cursors, cur)
	}
	for at := 0; ; {
		var first *cursor
		for i := range c.cursors {
			cur := &c.cursors[i]
			if err := cur.seek(c, at); err != nil {
				return nil, err
			}
			if cur.found && (first == nil || cur.match.Start < first.match.Start) {
				first = cur
			}
		}
		if first == nil {
			return c.matches, nil
		}
		c.matches = append(c.matches, first.match)
		at = next(c.text, first.match)
	}
}

// cursor returns a cursor for the scanned text, or false if the plan has no DFA.
func (c *Scratch) cursor(p *plan) (cursor, bool) {
	cur := cursor{plan: p, hits: c.hits[p.hits], dfa: c.dfa(p.tail), pivot: -1}
	if l := p.lookahead; l != nil {
		cur.near = c.look(l)
	}
	return cur, cur.dfa != nil
}

// longLine is the length in bytes above which lines may overlap so often that it costs time.
const longLine = 256

// Match reports whether a pattern for Test or TestLines matches in a part of the scanned text,
// taken alone. A part for TestLines does not begin or end within a character.
func (c *Scratch) Match(pattern int, in Span) (bool, error) {
	p := &c.set.patterns[pattern]
	if p.Use == TestLines && p.plans[0].required != nil && len(c.hits[p.plans[0].hits]) == 0 {
		return false, nil
	}
	d := c.dfa(p.test)
	if d != nil && p.Use == TestLines && !d.p.looks && in.End-in.Start > longLine {
		// A match in the part is one in the text, and ends in the part. Notes make many long lines
		// that overlap cost no more than one.
		end, err := d.end(c.text, in.Start, c.limit, true)
		return 0 <= end && end <= in.End, err
	}
	key := part{pattern, in}
	if yes, known := c.tested[key]; known {
		return yes, nil
	}
	text := c.text[in.Start:in.End]
	if d == nil {
		r := runes{text: text, limit: c.limit}
		yes := p.Expr.regexp().MatchReader(&r)
		return yes, r.err
	}
	end, err := d.end(text, 0, c.limit, false)
	if p.Use == TestLines && err == nil {
		if c.tested == nil {
			c.tested = map[part]bool{}
		}
		c.tested[key] = end >= 0
	}
	return end >= 0, err
}

// dfa returns the DFA of a program, or nil if the program has none.
func (c *Scratch) dfa(p *program) *dfa {
	d := c.dfas[p.index]
	if d == nil || d.p != p { // a program without a number of its own must not run as another one
		d = newDFA(p)
		c.dfas[p.index] = d
	}
	if d != nil && !d.used {
		d.used = true
		c.run = append(c.run, d)
	}
	return d
}

// folds reports whether a text contains a character that unicode.ToLower (U+0130, U+212A) or
// unicode.SimpleFold (U+017F, U+212A) makes an ASCII letter.
func folds(text string) bool {
	return strings.Contains(text, "\u212a") || strings.Contains(text, "\u017f") || strings.Contains(text, "\u0130")
}

// fold replaces these by their ASCII letters, and returns the place in text of each byte.
func fold(text string) (folded string, from []int32) {
	var b strings.Builder
	b.Grow(len(text))
	from = make([]int32, 0, len(text))
	for i, r := range text {
		if c, ok := foldASCII(r); ok && r >= utf8.RuneSelf {
			b.WriteByte(c)
			from = append(from, int32(i))
			continue
		}
		_, size := utf8.DecodeRuneInString(text[i:])
		b.WriteString(text[i : i+size])
		for k := range size {
			from = append(from, int32(i+k))
		}
	}
	return b.String(), from
}

// ASCII reports whether s is ASCII.
func ASCII(s string) bool { return ASCIIPrefix(s) == len(s) }

// ASCIIPrefix returns the number of bytes of ASCII with which s begins.
func ASCIIPrefix(s string) int {
	b := unsafe.Slice(unsafe.StringData(s), len(s))
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	for ; len(b) >= 32; b = b[32:] {
		if (word(0)|word(8)|word(16)|word(24))&0x8080808080808080 != 0 {
			break
		}
	}
	for i, c := range b {
		if c >= utf8.RuneSelf {
			return len(s) - len(b) + i
		}
	}
	return len(s)
}
