package scrub

import (
	"cmp"
	"slices"
	"sort"
	"strings"
)

const (
	// maxDepth is how often decoded text is decoded again.
	maxDepth = 3
	// minDecoded is the least length of decoded text: the bytes of 16 characters of base64.
	minDecoded = 12
)

// examine returns the ranges of text to redact and the findings to report.
func (x *examination) examine(text string) ([]mark, []Finding, error) {
	clear(x.cells) // they refer to the last text
	x.cells = x.cells[:0]
	hits, apart, err := x.hitsAndPairs(text)
	if err != nil {
		return nil, nil, err
	}
	marks := appendMarks(nil, text, hits)
	found, err := x.findingsOf(hits)
	if err != nil {
		return nil, nil, err
	}
	hidden, err := x.decode(text, []span{{0, len(text)}}, apart, 1)
	if err != nil {
		return nil, nil, err
	}
	x.cells = kept(x.cells)
	if hidden = merge(hidden); len(marks) > 0 {
		known := merge(slices.Clone(marks))
		hidden = slices.DeleteFunc(hidden, func(m mark) bool { return covered(known, m.span) })
	}
	line, at := 1, 0
	found = slices.Grow(found, len(hidden))
	for _, m := range hidden {
		line += strings.Count(text[at:m.Start], "\n")
		at = m.Start
		found = append(found, Finding{Rule: m.rule.ID, Line: line})
	}
	if len(marks) == 0 {
		marks = hidden
	} else {
		marks = append(marks, hidden...)
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Rule, b.Rule))
	})
	return marks, found, nil
}

// findingsOf returns the findings to report for hits in the scanned text.
func (x *examination) findingsOf(hits []hit) ([]Finding, error) {
	if len(hits) == 0 {
		return nil, nil
	}
	if err := x.limit.Spend(perFinding * len(hits)); err != nil {
		return nil, err
	}
	hits, lines := x.reported(hits)
	found := make([]Finding, len(hits))
	for i, h := range hits {
		found[i] = Finding{Rule: h.rule.ID, Line: lines[i] + 1}
	}
	return found, nil
}

// decode returns the marks for the secrets that text contains, in the ranges within, in other encodings,
// and of those in its pairs. depth counts how often text has been decoded, from 1. text was scanned last.
func (x *examination) decode(text string, within []span, apart pairs, depth int) ([]mark, error) {
	if depth > maxDepth || len(within) == 0 {
		return nil, nil
	}
	lists, err := x.runs(text, within)
	if err == nil {
		lists, err = x.appendByteLists(lists, text, within)
	}
	runs := len(lists)
	quoted := x.scratch.HasSign() && isQuotedPrintable(text[within[0].Start:within[len(within)-1].End])
	for _, first := range spellings {
		if first == "=" && !quoted {
			continue
		}
		var escapes edits
		for _, w := range within {
			if err == nil {
				err = x.addEscapes(&escapes, text, w, first)
			}
		}
		if len(escapes.all) > 0 {
			lists = append(lists, escapes)
		}
	}
	var marks []mark
	for _, cells := range apart.cells {
		for len(cells) > 0 && err == nil {
			p := pairing{text: text, cells: cells, left: cells[:0], known: merge(slices.Clone(marks))} // what is found is not sought again
			for d, ok := p.next(); ok && err == nil; d, ok = p.next() {
				marks, err = x.appendHidden(marks, text, []decoded{d}, depth)
			}
			cells = p.left
		}
	}
	if err == nil {
		marks, err = x.appendHidden(marks, text, apart.stripped, depth)
	}
	for i := range lists {
		if err == nil {
			marks, err = x.appendHidden(marks, text, parts(text, &lists[i], i < runs), depth)
		}
	}
	return marks, err
}

// appendHidden appends the marks for the secrets in decoded parts of text, and in what they contain in other
// encodings.
func (x *examination) appendHidden(marks []mark, text string, all []decoded, depth int) ([]mark, error) {
	for i := range all {
		d := &all[i]
		was := x.paired
		x.paired = x.paired || d.paired
		hits, apart, err := x.hitsAndPairs(d.text)
		if err != nil {
			return nil, err
		}
		shown := appendMarks(nil, d.text, hits)
		deeper, err := x.decode(d.text, d.fresh(shown), apart, depth+1)
		x.paired = was
		if err != nil {
			return nil, err
		}
		shown = append(shown, deeper...)
		if err := x.limit.Spend(perMark * len(shown)); err != nil {
			return nil, err
		}
		marks = slices.Grow(marks, len(shown))
		for _, m := range shown {
			if !d.touched(m.span) {
				continue
			}
			if s := d.origin(m.span); s.Start < s.End {
				marks = append(marks, mark{valueIn(text, s), m.rule})
			}
		}
	}
	return marks, nil
}

// A decoded is a part of a text with edits: for runs of base64 or hexadecimal, for escapes, or for pairs.
type decoded struct {
	text  string
	part  span // of the encoded text
	edits []edit
	last  int  // what ended returned last
	runs  bool // only what overlaps with an edit is new
	whole bool // the edits change what all of text means, not only what is near them

	// The text is pairs. No pair is sought in it: one in a value is found where it stands.
	paired bool
}

// edits replace ranges of a text, each by a few bytes or by none.
type edits struct {
	all  []edit
	with []byte // the replacements
}

// An edit is small because a text can consist of escapes. Examined texts have less than 2 GB; see find.
type edit struct {
	start, end int32 // the range
	at, until  int32 // the replacement: its place in edits.with, and in the text after the edits once apply has made that
}

func (e edit) span() span { return span{int(e.start), int(e.end)} }

// add adds the edit that replaces s.
func (l *edits) add(s span, with string) {
	at := len(l.with)
	l.with = append(l.with, with...)
	l.all = append(l.all, edit{int32(s.Start), int32(s.End), int32(at), int32(len(l.with))})
}

// fresh returns the ranges of d.text in which encodings are sought: what runs encode, of pairs those whose
// value is not known, or all.
func (d *decoded) fresh(known []mark) []span {
	switch {
	case d.paired && len(known) > 0:
		return d.unknown(merge(slices.Clone(known)))
	case !d.runs:
		return []span{{0, len(d.text)}}
	}
	all := make([]span, len(d.edits))
	for i := range d.edits {
		all[i] = span{int(d.edits[i].at), int(d.edits[i].until)}
	}
	return all
}

// unknown returns the ranges of the pairs, each with its name, whose values are not all in one of the known marks.
func (d *decoded) unknown(known []mark) (all []span) {
	last := len(d.edits) - 1 // it ends the last pair
	for i := 0; i < last; {
		pair := span{int(d.edits[i].at), len(d.text)}
		value := int(d.edits[i].until)
		for i++; i < last && d.edits[i].at == d.edits[i].until; i++ {
		}
		if pair.End = int(d.edits[i].at); covered(known, span{value, pair.End}) {
			continue
		}
		if n := len(all) - 1; n >= 0 && all[n].End == pair.Start {
			all[n].End = pair.End
		} else {
			all = append(all, pair)
		}
	}
	return all
}

// origin maps a range of d.text to the encoded range to redact. Of a run that is the whole.
func (d *decoded) origin(s span) span {
	return span{d.back(s.Start, false), d.back(s.End, true)}
}

// back returns the place in the encoded text of byte i of d.text. Within a replacement that is
// the start of the edit or, if up, its end. In pairs it is the other one: what stands between values stays.
func (d *decoded) back(i int, up bool) int {
	n := d.ended(i)
	switch {
	case n < len(d.edits) && i > int(d.edits[n].at) && up != d.paired:
		return int(d.edits[n].end)
	case n < len(d.edits) && i > int(d.edits[n].at):
		return int(d.edits[n].start)
	case n == 0:
		return d.part.Start + i
	}
	return int(d.edits[n-1].end-d.edits[n-1].until) + i
}

// near is the distance at which an edit still reveals a secret: in \\nTOKEN the first edit gives
// \nTOKEN, and only the next one, which leaves nothing in TOKEN, separates the word.
const near = 13

// touched reports whether a range of d.text overlaps with an edit or, unless they are of runs, is near one.
func (d *decoded) touched(s span) bool {
	if !d.runs {
		s = span{s.Start - near, s.End + near}
	}
	n := d.ended(s.Start)
	return d.whole || n < len(d.edits) && int(d.edits[n].at) < s.End
}

// ended returns the number of replacements that end at or before byte i. It is asked for ascending bytes, for the most part.
func (d *decoded) ended(i int) int {
	if d.last > 0 && int(d.edits[d.last-1].until) > i {
		d.last = sort.Search(d.last, func(n int) bool { return int(d.edits[n].until) > i })
	}
	for d.last < len(d.edits) && int(d.edits[d.last].until) <= i {
		d.last++
	}
	return d.last
}

// The most bytes of context around a run. The name before a value decides whether it is a secret.
const before, after = 64, 16

// margin is the number of bytes around an escape that are examined with it.
const margin = 256

// parts returns the parts of text that read differently after edits. Those near each other are applied together.
func parts(text string, l *edits, runs bool) (all []decoded) {
	around, gap := aroundEscape, 2*margin
	if runs {
		around, gap = aroundRun, before+after
	}
	for left := l.all; len(left) > 0; {
		n := 1
		for n < len(left) && (int(left[n].start-left[n-1].end) < gap || around(text, left[n].span()).Start < around(text, left[n-1].span()).End) {
			n++
		}
		d := apply(text, span{around(text, left[0].span()).Start, around(text, left[n-1].span()).End}, left[:n], l.with)
		d.runs = runs
		all, left = append(all, d), left[n:]
	}
	return all
}

// aroundRun returns a run with its context, which begins in its line.
func aroundRun(text string, s span) span {
	start := max(0, s.Start-before)
	return span{start + strings.LastIndexByte(text[start:s.Start], '\n') + 1, min(len(text), s.End+after)}
}

// aroundEscape returns an escape with its context.
func aroundEscape(text string, s span) span {
	return span{widen(text, s.Start, -1), widen(text, s.End, +1)}
}

// widen moves at by a margin, and on to white space if that is near, so that it cuts no word.
func widen(text string, at, step int) int {
	end := len(text)
	if step < 0 {
		end = 0
	}
	for n := 0; n < 4*margin && at != end; n++ {
		if c := text[min(at, at+step)]; n >= margin && (c == ' ' || c == '\n' || c == '\t') {
			break
		}
		at += step
	}
	return at
}

// apply returns part of text after edits, which are in order, with their replacements. It keeps the edits.
func apply(text string, part span, edits []edit, with []byte) decoded {
	size := part.End - part.Start
	for _, e := range edits {
		size += int(e.until - e.at - e.end + e.start)
	}
	b, pos := make([]byte, 0, size), part.Start
	for i := range edits {
		e := &edits[i]
		b = append(b, text[pos:e.start]...)
		at := len(b)
		b = append(b, with[e.at:e.until]...)
		e.at, e.until = int32(at), int32(len(b))
		pos = int(e.end)
	}
	b = append(b, text[pos:part.End]...)
	return decoded{text: view(b), part: part, edits: edits}
}
