package scrub

import (
	"bytes"
	"fmt"
	"index/suffixarray"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// A span is a range of bytes of a text, as in package regexset.
type span struct{ Start, End int }

type hit struct {
	rule     *rule
	match    span // the match of the expression, without line breaks around it
	secret   span // the group with the secret; empty if it did not take part
	gitleaks span // the match where gitleaks places it; see locate
}

// A location is where gitleaks places a match. It counts lines from 0 and columns from 1, and a line break as the
// first byte of the line after it.
type location struct {
	startLine, endLine, startColumn, endColumn int

	line span // that gitleaks' allow-lists look at
	open bool // the line is the whole text; gitleaks does so after the last line break
}

// hitsAndPairs returns the hits in text that are not foldgate's ids, checksums or names, and the pairs
// in it.
func (x *examination) hitsAndPairs(text string) ([]hit, pairs, error) {
	if err := x.limit.Spend(perText + perByte*len(text)); err != nil {
		return nil, pairs{}, err
	}
	hits, err := x.find(text)
	if err == nil && x.excused {
		hits, err = x.lastLine(text, hits)
	}
	if err != nil {
		return nil, pairs{}, err
	}
	apart, err := x.pairs(text, hits)
	var room [1]mark
	return slices.DeleteFunc(hits, func(h hit) bool {
		return len(h.mark(room[:0], text)) == 0 || h.rule.token && inBinary(text, h.secret) ||
			h.rule.generic && (isChecksum(text, &h) || isName(text, &h) || isNamedPublic(text, &h) || x.paired && constant.MatchString(text[h.secret.Start:h.secret.End]))
	}), apart, err
}

// lastLine adds the hits in the last line that another line excepts: gitleaks takes a last line
// without a line break, and everything before it, for one line.
func (x *examination) lastLine(text string, hits []hit) ([]hit, error) {
	more, err := x.find(text + "\n")
	if err != nil {
		return nil, err
	}
	type ruleStart struct {
		rule  *rule
		start int
	}
	known := map[ruleStart]bool{}
	for i := range hits {
		known[ruleStart{hits[i].rule, hits[i].match.Start}] = true
	}
	for _, h := range more {
		h.match.End, h.secret.End = min(h.match.End, len(text)), min(h.secret.End, len(text))
		if !known[ruleStart{h.rule, h.match.Start}] {
			hits = append(hits, h)
		}
	}
	return hits, nil
}

// find returns the hits in text, in the order of the rules.
func (x *examination) find(text string) ([]hit, error) {
	if len(text) > math.MaxInt32/2 {
		return nil, fmt.Errorf("scrub: text of %d bytes: at most %d are examined at once", len(text), math.MaxInt32/2)
	}
	x.text, x.lines, x.returns, x.excused = text, x.lines[:0], x.returns[:0], false
	if err := x.scratch.Scan(text, &x.limit); err != nil {
		return nil, err
	}
	var hits []hit
	for _, i := range x.scratch.Candidates() {
		r := x.s.rules.active[i]
		if r.SkipReport || r.Apart {
			continue
		}
		n := len(hits)
		var err error
		if hits, err = x.findRule(hits, r); err != nil {
			return nil, err
		}
		if len(r.Required) > 0 && len(hits) > n {
			found, err := x.withRequired(r, hits[n:])
			if err != nil {
				return nil, err
			}
			hits = append(hits[:n], found...)
		}
	}
	return hits, nil
}

// withRequired returns the hits of r that have a hit of every rule that r requires near them.
func (x *examination) withRequired(r *rule, found []hit) ([]hit, error) {
	for _, q := range r.Required {
		other := x.s.rules.byID[q.ID]
		if other.index < 0 {
			return nil, nil // it looks at paths, and a text has none
		}
		near, err := x.findRule(nil, other)
		if err != nil {
			return nil, err
		}
		places := make([]location, len(near))
		for i := range near {
			places[i] = x.locate(near[i].gitleaks)
		}
		held := found[:0]
		for _, h := range found {
			if err := x.limit.Spend(10 * len(near)); err != nil {
				return nil, err
			}
			at := x.locate(h.gitleaks)
			if slices.ContainsFunc(places, func(near location) bool { return q.holds(at, near) }) {
				held = append(held, h)
			}
		}
		found = held
	}
	return found, nil
}

func (q *required) holds(a, b location) bool {
	if q.WithinLines != nil && max(a.startLine-b.startLine, b.startLine-a.startLine) > *q.WithinLines {
		return false
	}
	return q.WithinColumns == nil ||
		max(a.startColumn-b.startColumn, b.startColumn-a.startColumn) <= *q.WithinColumns
}

// findRule appends the hits of r in the scanned text.
func (x *examination) findRule(hits []hit, r *rule) ([]hit, error) {
	matches, err := x.matches(r)
	if err != nil {
		return nil, err
	}
	for i, m := range matches {
		h, ok, err := x.inspect(r, span(m))
		if err == nil {
			err = x.limit.Spend(perMatch + perList*len(r.allow) + perByte*(m.End-m.Start))
		}
		if err != nil {
			return nil, err
		}
		if ok {
			if len(hits) == cap(hits) {
				hits = slices.Grow(hits, len(matches)-i)
			}
			hits = append(hits, h)
		}
	}
	return hits, nil
}

// inspect decides as gitleaks does whether the match of r at m is a secret. Each step only
// rejects, so the cheap ones come first.
func (x *examination) inspect(r *rule, m span) (hit, bool, error) {
	match := x.text[m.Start:m.End]
	// gitleaks trims line breaks off the match, but places it as if only its end had moved.
	lead := len(match) - len(strings.TrimLeft(match, "\n"))
	match = strings.Trim(match, "\n")
	h := hit{
		rule:     r,
		match:    span{m.Start + lead, m.Start + lead + len(match)},
		gitleaks: span{m.Start, m.Start + len(match)},
	}
	var err error
	if h.secret, err = x.secretOf(r, h.match); err != nil {
		return h, false, err
	}
	if r.own && !r.certain && !x.scratch.ASCII() && h.secret.End == h.match.End {
		h.secret = valueIn(x.text, h.secret)
	}
	if r.Before {
		if h.secret = linesBefore(x.text, h.match.Start); h.secret.End == 0 {
			return h, false, nil
		}
	}
	if r.Entropy != 0 && entropy(x.text[h.secret.Start:h.secret.End]) <= r.Entropy {
		return h, false, nil
	}
	if !r.certain {
		global := x.s.rules.allow
		if r.own && h.secret.End-h.secret.Start > maxPlaceholder {
			global = global[:x.s.rules.ofUser]
		}
		for _, lists := range [2][]*allowlist{r.allow, global} {
			for _, a := range lists {
				if yes, err := x.allowed(a, &h); yes || err != nil {
					return h, false, err
				}
			}
		}
	}
	return h, true, nil
}

// maxPlaceholder is the length, in bytes, up to which the allow-lists that gitleaks has for all rules
// except secrets of foldgate's rules. They are about placeholders, and one fits all base64 with the
// letters of false in it.
const maxPlaceholder = 100

// secretOf returns the place of the secret in the match of r at m. Like gitleaks it matches again
// on the match alone, so that $ and \b may match differently.
func (x *examination) secretOf(r *rule, m span) (span, error) {
	if r.expr.NumSubexp() == 0 {
		return m, nil
	}
	groups, err := x.scratch.Submatches(r.index, regexset.Span(m))
	if groups == nil || err != nil {
		return m, err
	}
	if r.SecretGroup > 0 {
		g := groups[2*r.SecretGroup:] // -1 if the group took no part
		return span{m.Start + max(g[0], 0), m.Start + max(g[1], 0)}, nil
	}
	for i := 2; i < len(groups); i += 2 {
		if groups[i] < groups[i+1] {
			return span{m.Start + groups[i], m.Start + groups[i+1]}, nil
		}
	}
	return m, nil
}

func (x *examination) allowed(a *allowlist, h *hit) (bool, error) {
	stopped := a.stops(x.text[h.secret.Start:h.secret.End])
	if a.expr == nil || stopped && !a.all {
		return stopped, nil
	}
	if a.all && len(a.stopWords) > 0 && !stopped {
		return false, nil
	}
	part, open := h.secret, false
	switch a.target {
	case targetMatch:
		part = h.match
	case targetLine:
		place := x.locate(h.gitleaks)
		part, open = place.line, place.open
	}
	if part.Start == part.End {
		return false, nil
	}
	yes, err := x.scratch.Match(a.index, regexset.Span(part))
	x.excused = x.excused || yes && open
	return yes, err
}

// locate returns the lines and the columns where gitleaks places a match.
func (x *examination) locate(m span) (at location) {
	nl := x.lineBreaks()
	// Like gitleaks: line n ends at line break n, and begins with the break before.
	begin := func(n int) int {
		if n == 0 {
			return 0
		}
		return int(nl[n-1])
	}
	first := sort.Search(len(nl), func(i int) bool { return int(nl[i]) > m.Start })
	last := sort.Search(len(nl), func(i int) bool { return int(nl[i]) >= m.End })
	if last < len(nl) && begin(last) < m.End {
		at.endLine, at.endColumn = last, m.End-begin(last)
	}
	if first < len(nl) {
		at.startLine, at.startColumn = first, m.Start-begin(first)+1
		if at.endColumn == 0 || last < first {
			at.endLine = first
		}
		at.line = span{begin(first), int(nl[at.endLine])}
	} else {
		// After the last line break gitleaks takes the line from the beginning of the text.
		prev := begin(len(nl))
		at = location{len(nl), len(nl), m.Start - prev + 1, m.End - prev, span{0, len(x.text)}, true}
		returns := x.returnsAfter(prev)
		if i, _ := slices.BinarySearch(returns, int32(m.End)); i < len(returns) {
			at.line.End = int(returns[i])
		}
	}
	at.line.End = max(at.line.End, m.End)
	return at
}

// returnsAfter returns the positions of carriage returns behind the last line break, which is at byte at, and the end.
// Many matches in a long last line ask for them.
func (x *examination) returnsAfter(at int) []int32 {
	if len(x.returns) == 0 {
		for i := at; i < len(x.text); i++ {
			n := strings.IndexByte(x.text[i:], '\r')
			if n < 0 {
				break
			}
			i += n
			x.returns = append(x.returns, int32(i))
		}
		x.returns = append(x.returns, int32(len(x.text)))
	}
	return x.returns
}

// lineBreaks returns the positions of line breaks, or the end if there are none, as gitleaks
// does.
func (x *examination) lineBreaks() []int32 {
	if len(x.lines) > 0 {
		return x.lines
	}
	for at := 0; ; at++ {
		i := strings.IndexByte(x.text[at:], '\n')
		if i < 0 {
			break
		}
		at += i
		x.lines = append(x.lines, int32(at))
	}
	if len(x.lines) == 0 {
		x.lines = append(x.lines, int32(len(x.text)))
	}
	return x.lines
}

// entropy returns the Shannon entropy of s in bits a character, divided by bytes as in gitleaks.
func entropy(s string) float64 {
	var e float64
	if len(s) < len(terms) && regexset.ASCII(s) {
		var counts [utf8.RuneSelf]uint8
		for i := range len(s) {
			counts[s[i]%utf8.RuneSelf]++
		}
		for i := range len(s) {
			n := &counts[s[i]%utf8.RuneSelf]
			e -= terms[len(s)][*n] // 0 if the character has been counted
			*n = 0
		}
		return e
	}
	var counts [utf8.RuneSelf]int
	var others map[rune]int
	for _, c := range s {
		switch {
		case c < utf8.RuneSelf:
			counts[c]++
		case others == nil:
			others = map[rune]int{c: 1}
		default:
			others[c]++
		}
	}
	inv := 1 / float64(len(s))
	for _, n := range counts {
		if n > 0 {
			e -= term(n, inv)
		}
	}
	for _, n := range others {
		e -= term(n, inv)
	}
	return e
}

// term returns what a character that stands n times in a text of 1/inv characters adds to the
// entropy.
func term(n int, inv float64) float64 {
	f := float64(n) * inv
	return f * math.Log2(f)
}

// terms has the terms of short texts, by length and n.
var terms = func() (all [48][48]float64) {
	for size := range all {
		for n := 1; n <= size; n++ {
			all[size][n] = term(n, 1/float64(size))
		}
	}
	return all
}()

// reported returns the hits in the scanned text that gitleaks reports, and the line of each: not those of generic rules
// if their secret is part of the secret of a more exact rule on the same line. All hits are redacted.
func (x *examination) reported(hits []hit) (some []hit, lines []int) {
	better := map[int]*secretsOfLine{}
	lines = make([]int, len(hits))
	for i, h := range hits {
		lines[i] = x.locate(h.gitleaks).startLine
		if !h.rule.generic && !h.rule.own {
			line := better[lines[i]]
			if line == nil {
				line = &secretsOfLine{}
				better[lines[i]] = line
			}
			line.add(x.text[h.secret.Start:h.secret.End])
		}
	}
	if len(better) == 0 {
		return hits, lines
	}
	n := 0
	for i, h := range hits {
		line := better[lines[i]]
		if !h.rule.generic || line == nil || !line.hold([]byte(x.text[h.secret.Start:h.secret.End])) {
			some, lines[n] = append(some, h), lines[i]
			n++
		}
	}
	return some, lines[:n]
}

// secretsOfLine are the secrets that exact rules found in a line. A line may be the whole text, and the time must not
// grow with the product of both kinds of secrets, so many searches have an index.
type secretsOfLine struct {
	joined   []byte
	searched int // bytes, in vain or not
	index    *suffixarray.Index
}

func (l *secretsOfLine) add(secret string) {
	const between = "\xff\x00\xff" // no generic secret contains it
	l.joined = append(append(l.joined, secret...), between...)
}

// hold reports whether one of the secrets contains secret.
func (l *secretsOfLine) hold(secret []byte) bool {
	const many = 1 << 16 // bytes, which take about as long as the index of a short line
	if l.searched += len(l.joined); l.searched < many {
		return bytes.Contains(l.joined, secret)
	}
	if l.index == nil {
		l.index = suffixarray.New(l.joined)
	}
	return len(l.index.Lookup(secret, 1)) > 0
}
