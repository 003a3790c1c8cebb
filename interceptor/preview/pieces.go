package preview

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// findings are a text, its kind, and all that a preview could tell about it.
type findings struct {
	text   string
	lines  []string // see plainLines
	sample []string // the lines that decide about the kind
	kind   Kind
	jq     bool     // jq can read the text, as far as the readers can tell
	totals []string // for the first line
	pieces []*piece
	at     map[int]*piece // the pieces that are lines, by index
	facts  int
	common string // what the times of a log begin with; only the line that needs be shown first has it
	dated  *piece // this line
}

// A piece is a line, or a part of a fact, that a preview can show.
//
// The worth is the number of questions out of a hundred that the piece is likely to answer. A line
// like lines that are shown already is worth less. A further part of a fact needs the part before it.
type piece struct {
	text  string
	worth float64
	alike string // the same for lines that differ in numbers only
	line  int    // the index of the line, for the order; negative for facts
	after *piece // must be shown, too: the part before it, or the line with the date that it lacks
	part  bool   // of the same fact as the one before
	glue  string // between the two

	cost         int
	divisor      float64 // of the worth, for the cost
	shown, tried bool
}

// lineWorth is the worth of the first line of a text. The others are measured by it.
const lineWorth = 8

// line adds line i with a note before its text. If it is there, the larger worth counts.
func (f *findings) line(i int, note string, width int, worth float64) {
	if i < 0 || i >= len(f.lines) || strings.TrimSpace(f.lines[i]) == "" {
		return
	}
	if rule(f.lines[i]) {
		worth /= 4
	}
	worth *= min(1.5, math.Sqrt(float64(3+len(strings.TrimSpace(f.lines[i])))/40)) // a brace says little
	if f.at[i] == nil && worth <= 2*leastWorth {
		return // it could never be shown
	}
	l := strings.TrimRight(f.lines[i], " \t")
	var after *piece
	if f.dated != nil && f.dated.line != i && strings.Contains(l, f.common) {
		l, after = strings.Replace(l, f.common, "…", 1), f.dated
	}
	text := fmt.Sprintf("%d:%s %s", i+1, note, clip(l, width))
	if p := f.at[i]; p != nil {
		if p.worth = max(p.worth, worth); !strings.Contains(p.text, ": (") && (note != "" || utf8.RuneCountInString(text) > utf8.RuneCountInString(p.text)) {
			p.text = text
		}
		return
	}
	p := &piece{text: text, worth: worth, line: i, after: after}
	if note == "" {
		p.alike = pattern(f.lines[i])
	}
	f.at[i] = p
	f.pieces = append(f.pieces, p)
}

// own adds a line in words of ours, shown where line i would be.
func (f *findings) own(i int, text string, worth float64) {
	if p := f.at[i]; p != nil {
		if p.worth = max(p.worth, worth); len(text) > len(p.text) {
			p.text, p.alike = text, ""
		}
		return
	}
	if worth <= 2*leastWorth {
		return // it could never be shown
	}
	f.at[i] = &piece{text: text, worth: worth, line: i}
	f.pieces = append(f.pieces, f.at[i])
}

// fact adds a line of parts behind a head, in order; the last ones of very many are left out. Each is worth a bit
// less than the one before, and less if its weight, from 0 to 1, is small.
func (f *findings) fact(worth float64, head string, parts []string, weight func(i int) float64) {
	var last *piece
	for i, part := range parts[:min(len(parts), 60)] {
		if i == 0 {
			part = head + part
		}
		last = &piece{text: part, worth: worth, line: f.facts - math.MaxInt32, after: last, part: last != nil, glue: ", "}
		if weight != nil {
			last.worth *= weight(i)
		}
		f.pieces = append(f.pieces, last)
		worth *= 0.95
	}
	f.facts++
}

// ends adds the first and the last lines of the text.
func (f *findings) ends(scale float64) {
	w, from := lineWorth*scale, 0
	for from < len(f.lines) && (isComment(f.lines[from]) || strings.TrimSpace(f.lines[from]) == "") {
		from++
	}
	if from > 2*firstLines && from < len(f.lines) { // behind a long comment, such as a licence
		f.line(0, "", wide, w)
		f.line(1, "", wide, w/2)
	} else {
		from = 0
	}
	for i, n := from, 0; i < len(f.lines) && n < 60; i++ {
		if strings.TrimSpace(f.lines[i]) != "" {
			first := w
			if n < firstLines {
				first = max(w, 0.9*lineWorth)
			}
			f.line(i, "", wide, first)
			w *= 0.94
			n++
		}
	}
	w = lineWorth * scale * 0.9
	for i, n := len(f.lines)-1, 0; i >= from && n < 40; i-- {
		if strings.TrimSpace(f.lines[i]) != "" {
			f.line(i, "", wide, w)
			w *= 0.92
			n++
		}
	}
}

// around tells the lines before and after the part from..to (excluded) that a reader reads.
func (f *findings) around(from, to int) {
	for i := range f.lines {
		if i < from || i >= to {
			f.line(i, "", wide, 3*lineWorth)
		}
	}
}

// firstLines often say what a text is, also where it is told by other things.
const firstLines = 3

// leastWorth is the worth of a token below which a preview ends early.
const leastWorth = 0.17

// choose returns the lines of a preview of at most room tokens: again and again the piece that is
// worth most for its tokens. The exponent of the tokens is less than one, because the room is filled
// better if short pieces do not come before all long ones.
func choose(pieces []*piece, room int, count func(string) int) []string {
	if room <= 0 {
		return nil
	}
	shown := map[string]int{} // by alike
	lines := 0
	for _, p := range pieces {
		p.shown, p.tried = false, false
		if p.cost == 0 {
			p.cost = count(p.text + "\n")
			p.divisor = math.Pow(float64(p.cost), 0.6)
		}
	}
	// best returns the piece that is worth most for its tokens. Without least, a long one need not be worth them.
	best := func(least float64) (best *piece) {
		most := 0.0
		for _, p := range pieces {
			if p.tried || p.after != nil && !p.after.shown {
				continue
			}
			w := p.worth
			if p.alike != "" && shown[p.alike] > 0 {
				w *= math.Pow(0.6, float64(shown[p.alike]))
			}
			if w < least*float64(p.cost) {
				continue
			}
			if w /= p.divisor; w > most {
				best, most = p, w
			}
		}
		return best
	}
	for misses, least := 0, leastWorth; misses < 12; {
		p := best(least)
		if p == nil && lines == 0 && least > 0 { // nothing of the text itself
			least = 0
			continue
		}
		if p == nil || least == 0 && lines > 0 {
			break
		}
		p.tried = true
		if p.cost > room {
			misses++
			continue
		}
		room -= p.cost
		p.shown = true
		shown[p.alike]++
		if p.line > -math.MaxInt32/2 {
			lines++
		}
	}
	var out []string
	order := slices.Clone(pieces)
	slices.SortStableFunc(order, func(a, b *piece) int { return cmp.Compare(a.line, b.line) })
	for _, p := range order {
		switch {
		case !p.shown:
			if p.part && p.after.shown && p.glue != "" { // the fact goes on
				out[len(out)-1] += ", …"
			}
		case p.part:
			out[len(out)-1] += p.glue + p.text
		default:
			out = append(out, p.text)
		}
	}
	return out
}

// spread calls yield for the numbers below n: first, last, middle, quarters, ..., with their rank. An
// outline with gaps is better than one that ends in the middle.
func spread(n int, yield func(i, rank int)) {
	seen := map[int]bool{}
	put := func(i int) {
		if !seen[i] && i >= 0 && i < n && len(seen) < 80 {
			seen[i] = true
			yield(i, len(seen)-1)
		}
	}
	put(0)
	put(n - 1)
	for parts := 2; len(seen) < min(n, 80) && parts <= 2*n; parts *= 2 {
		for i := 1; i < parts; i += 2 {
			put(i * (n - 1) / parts)
		}
	}
}

// tally counts values and remembers where each was first.
type tally struct {
	n map[string]*seen
}

type seen struct {
	value          string
	n, first, last int
}

// note says how often a value occurs, if more than once.
func (s *seen) note() string {
	if s.n == 1 {
		return ""
	}
	return fmt.Sprintf(" (×%d)", s.n)
}

const maxTally = 200_000 // different values

func (t *tally) add(value string, at int) *seen {
	if t.n == nil {
		t.n = map[string]*seen{}
	}
	s := t.n[value]
	if s == nil {
		if len(t.n) >= maxTally {
			return nil
		}
		s = &seen{value: value, first: at}
		t.n[value] = s
	}
	s.n++
	s.last = at
	return s
}

// count returns how often a value occurs: 0 for one that the tally has no room for.
func (t *tally) count(value string) int {
	if s := t.n[value]; s != nil {
		return s.n
	}
	return 0
}

// most returns the most frequent value, and how often it occurs.
func (t *tally) most() (value string, n int) {
	for _, s := range t.n {
		if s.n > n || s.n == n && s.value < value {
			value, n = s.value, s.n
		}
	}
	return value, n
}

// top returns the values, the most frequent first.
func (t *tally) top() []*seen {
	return slices.SortedFunc(maps.Values(t.n), func(a, b *seen) int { return cmp.Or(b.n-a.n, a.first-b.first, strings.Compare(a.value, b.value)) })
}
