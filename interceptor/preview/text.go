package preview

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// doc is a text and its lines, without line ends.
type doc struct {
	text  string
	lines []string
}

func newDoc(text string) *doc {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSuffix(l, "\r")
	}
	return &doc{text, lines}
}

const sampled = 400 // lines that decide about the kind

// sample returns the first lines, and further ones from all of the text.
func (d *doc) sample() []string {
	if len(d.lines) <= sampled {
		return d.lines
	}
	out := slices.Clone(d.lines[:sampled/2])
	step := max((len(d.lines)-sampled/2)/(sampled/2), 1)
	for i := sampled / 2; i < len(d.lines) && len(out) < sampled; i += step {
		out = append(out, d.lines[i])
	}
	return out
}

// share returns the part of the lines that fit. Blank lines don't count.
func share(lines []string, fits func(string) bool) float64 {
	all := count(lines, func(l string) bool { return strings.TrimSpace(l) != "" })
	return float64(count(lines, fits)) / float64(max(all, 1))
}

func count(lines []string, fits func(string) bool) (n int) {
	for _, l := range lines {
		if fits(l) {
			n++
		}
	}
	return n
}

// body collects the lines of a preview while there is room.
type body struct {
	count func(string) int
	left  int // tokens
	parts []string
}

// add appends a line and reports whether there was room for it.
func (b *body) add(line string) bool {
	n := b.count(line + "\n")
	if n > b.left {
		return false
	}
	b.left -= n
	b.parts = append(b.parts, line)
	return true
}

// addCut appends a line, or the part of it that fits.
func (b *body) addCut(line string) {
	for width := utf8.RuneCountInString(line); width >= 16 && !b.add(clip(line, width)); width = width * 2 / 3 {
	}
}

// The longest lines shown, in characters.
const (
	wide   = 240
	narrow = 120
)

// excerpt is a choice of lines. It shows them in the order of the text, with their numbers.
type excerpt struct {
	lines  []string
	width  int // the longest line shown, in characters
	b      *body
	shown  map[int]string // the text shown for a line, by the line's index
	misses int            // lines that did not fit
}

func newExcerpt(lines []string, width int, b *body) *excerpt {
	return &excerpt{lines: lines, width: width, b: b, shown: map[int]string{}}
}

const maxMisses = 8 // lines that don't fit, after which a choice ends

// full reports whether further lines are not worth a try.
func (e *excerpt) full() bool { return e.misses >= maxMisses || e.b.left < 4 }

// take chooses line i, with a note before its text, and reports whether the line is shown. A blank
// line needs no room: the numbers of its neighbours show that it is there.
func (e *excerpt) take(i int, note string) bool {
	if _, has := e.shown[i]; has || i < 0 || i >= len(e.lines) {
		return has
	}
	if strings.TrimSpace(e.lines[i]) == "" {
		return true
	}
	text := fmt.Sprintf("%d:%s %s", i+1, note, clip(strings.TrimRight(e.lines[i], " \t"), e.width))
	n := e.b.count(text + "\n")
	if n > e.b.left {
		e.misses++
		return false
	}
	e.b.left -= n
	e.shown[i] = text
	return true
}

// head chooses up to n lines from the start, while they cost at most room tokens.
func (e *excerpt) head(n, room int) { e.run(0, 1, n, room) }

// tail chooses up to n lines from the end, while they cost at most room tokens.
func (e *excerpt) tail(n, room int) { e.run(len(e.lines)-1, -1, n, room) }

func (e *excerpt) run(i, step, n, room int) {
	floor := e.b.left - room
	e.misses = 0
	for range min(n, len(e.lines)) {
		if e.b.left <= floor || e.full() {
			break
		}
		e.take(i, "")
		i += step
	}
}

// done moves the chosen lines to the body and describes them.
func (e *excerpt) done() string {
	for _, i := range slices.Sorted(maps.Keys(e.shown)) {
		e.b.parts = append(e.b.parts, e.shown[i])
	}
	return fmt.Sprintf("line numbers at left, %s shown, %s left out", plural(len(e.shown), "line"), group(len(e.lines)-len(e.shown)))
}

// spread returns at most n of the lines, evenly, with the first and the last: an outline with gaps
// is better than one that ends in the middle.
func spread(lines []int, n int) []int {
	if n < 2 || len(lines) <= n {
		return lines
	}
	out := make([]int, n)
	for i := range out {
		out[i] = lines[i*(len(lines)-1)/(n-1)]
	}
	return out
}

// clip cuts s to at most max characters and appends the number of those left out.
func clip(s string, max int) string {
	at, n := len(s), 0
	for i := range s {
		if n == max {
			at = i
			break
		}
		n++
	}
	kept := strings.ToValidUTF8(s[:at], "\uFFFD")
	if rest := utf8.RuneCountInString(s[at:]); rest > 0 {
		kept += fmt.Sprintf("…(+%s)", group(rest))
	}
	return kept
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return group(n) + " " + noun + "s"
}

// group writes n with commas between thousands.
func group(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func startsWith(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

func containsAny(s string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || (c >= 'a' && c <= 'f') }
