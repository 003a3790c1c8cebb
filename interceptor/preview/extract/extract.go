// Package extract takes a part out of a stored text: lines, the matches of a regular expression,
// the outputs of a jq program over its JSON, YAML, XML or CSV, or one page.
//
// Lines have numbers from 1. Regular expressions are RE2 and take linear time; jq programs have
// limits of time and memory. If the question is wrong, the error is an [*Error] with the remedy.
// All functions are safe for concurrent use.
package extract

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"
)

// Error is a fault of a question.
type Error struct {
	Field string // the argument at fault: lines, grep, jq, search or page
	Text  string // the fault and its remedy
}

// Error returns the field and the text.
func (e *Error) Error() string { return e.Field + ": " + e.Text }

// maxFault is the largest text of an Error in bytes. It is delivered whole and costs nothing, but a
// jq program can put its whole input into its error.
const maxFault = 500

func wrong(field, format string, args ...any) error {
	return &Error{field, words(fmt.Sprintf(format, args...), maxFault)}
}

// Lines returns a range of lines: "a-b", "a-" (to the end), "-b" (the last b lines) or "a".
func Lines(text, spec string) (string, error) {
	lines := split(text)
	from, to, err := lineRange(spec, len(lines))
	if err != nil {
		return "", err
	}
	return strings.Join(lines[from-1:to], "\n"), nil
}

// split returns the lines of a text. The last line end starts no line.
func split(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

// lineRange returns the first and the last line of a range of [Lines] in a text of total lines.
func lineRange(spec string, total int) (first, last int, err error) {
	number := func(s string, absent int) (n int, ok bool) {
		if s == "" {
			return absent, true
		}
		n, err := strconv.Atoi(s)
		return n, err == nil && n > 0
	}
	a, b, ranged := strings.Cut(strings.ReplaceAll(strings.TrimSpace(spec), " ", ""), "-")
	first, okA := number(a, 0)
	last, okB := number(b, total)
	switch {
	case !ranged:
		last = first
	case a == "":
		first, last = max(total-last+1, 1), total
	}
	switch {
	case okA && okB && first > total: // also of "120-", whose end is before
		return 0, 0, wrong("lines", "the text has %d lines", total)
	case !okA || !okB || a == "" && b == "" || first > last:
		return 0, 0, wrong("lines", "%q is not a range: write \"120-140\", \"120-\" to the end, or \"-50\" for the last 50 (the text has %d lines)", clip(spec, 40), total)
	}
	return first, min(last, total), nil
}

// Pattern is a question to [Grep].
type Pattern struct {
	Expr    string // a regular expression in RE2 syntax
	Context int    // lines shown before and after a match
	Lines   string // the range to search, as in [Lines]; "" is the whole text
	Count   bool   // only count
}

const (
	maxMatches = 2000  // matching lines that Grep returns
	maxContext = 50    // largest Pattern.Context
	longLine   = 600   // bytes; of a longer line only parts are shown
	margin     = 160   // bytes shown before and after a match in a long line
	maxWindows = 8     // matches shown of a long line
	maxGroups  = 10000 // texts that are counted apart
	groupsSeen = 200   // of them shown
)

// Grep returns how many lines match, and these lines with their numbers as "12:text", the lines
// around them as "11-text", and "--" between groups. Of a long line it shows the parts around the
// matches. If no line matches, the text says so. With Count it returns the number of lines and of
// matches; if the expression has a group, also how often the group matched each text. Grep ends with
// ctx, even within a line.
func Grep(ctx context.Context, text string, p Pattern) (string, error) {
	m, err := newMatcher(ctx, p.Expr)
	if err != nil {
		return "", err
	}
	defer m.stop()
	lines := split(text)
	from, to := 1, len(lines)
	if p.Lines != "" {
		if from, to, err = lineRange(p.Lines, len(lines)); err != nil {
			return "", err
		}
	}
	around := max(min(p.Context, maxContext), 0)
	var out strings.Builder
	var t tally
	matched, shown, after, rest := 0, 0, 0, 0 // shown is the last line in out, after the last one around a match, rest the first match left out
	for n := from; n <= to && !m.ended.Load(); n++ {
		line := lines[n-1]
		at := m.find(line)
		switch {
		case at == nil && (n > after || rest > 0):
			continue
		case at == nil:
			fmt.Fprintf(&out, "%d-%s\n", n, clip(line, longLine))
			shown = n
			continue
		}
		if matched++; p.Count {
			t.add(m, line)
			continue
		}
		if matched > maxMatches {
			rest = cmp.Or(rest, n)
			continue
		}
		first := max(n-around, shown+1, from)
		if around > 0 && shown > 0 && first > shown+1 {
			out.WriteString("--\n")
		}
		for i := first; i < n; i++ {
			fmt.Fprintf(&out, "%d-%s\n", i, clip(lines[i-1], longLine))
		}
		fmt.Fprintf(&out, "%d:%s\n", n, m.windows(line))
		shown, after = n, n+around
	}
	switch {
	case m.ended.Load(): // a line that was not searched may match
		return "", wrong("grep", "took too long: narrow it with lines, or use a simpler expression")
	case matched == 0:
		return fmt.Sprintf("[no match in lines %d-%d]", from, to), nil
	}
	head := fmt.Sprintf("[%d lines match", matched)
	if matched == 1 {
		head = "[1 line matches"
	}
	if t.matches > matched {
		head += fmt.Sprintf(", %d matches", t.matches)
	}
	switch {
	case len(t.times) > 1:
		over := ""
		if t.others > 0 {
			over = "over "
		}
		head += fmt.Sprintf("; the group has %s%d different matches", over, len(t.times))
	case rest > 0:
		head += fmt.Sprintf(", the first %d shown: narrow the expression, or go on with lines \"%d-\"", maxMatches, rest)
	}
	return strings.TrimSuffix(head+"]\n"+t.groups()+out.String(), "\n"), nil
}

// tally counts matches.
type tally struct {
	matches int
	times   map[string]int // by the text of the first group that took part
	others  int            // with a text that is not in times, because that is full
}

func (t *tally) add(m *matcher, line string) {
	for at := range m.all(line) {
		t.matches++
		for i := 2; i < len(at); i += 2 {
			if at[i] < 0 {
				continue
			}
			key := clip(line[at[i]:at[i+1]], margin)
			if t.times == nil {
				t.times = map[string]int{}
			}
			if _, known := t.times[key]; !known && len(t.times) == maxGroups {
				t.others++
			} else {
				t.times[strings.Clone(key)]++
			}
			break
		}
	}
}

// groups returns the texts, the most frequent first.
func (t *tally) groups() string {
	keys := slices.SortedFunc(maps.Keys(t.times), func(a, b string) int { return cmp.Or(t.times[b]-t.times[a], strings.Compare(a, b)) })
	var out strings.Builder
	for i, k := range keys {
		if i == groupsSeen {
			fmt.Fprintf(&out, "[%d more texts]\n", len(keys)-i)
			break
		}
		fmt.Fprintf(&out, "%d %s\n", t.times[k], k)
	}
	if t.others > 0 {
		fmt.Fprintf(&out, "[%d matches of other texts]\n", t.others)
	}
	return out.String()
}

// matcher searches lines for an expression until its context ends.
type matcher struct {
	re        *regexp.Regexp
	steps     int         // instructions of the expression
	looksBack bool        // it has ^ or \b, or the like
	ended     atomic.Bool // the context has ended
	stop      func() bool // releases the matcher
}

// maxWork bounds the search of a line without a look at the time: the bytes of the line times the
// instructions of the expression. Each product takes a few nanoseconds.
const maxWork = 1 << 27

func newMatcher(ctx context.Context, expr string) (*matcher, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, wrong("grep", "%v; the syntax is RE2: no look-around, no back-references", err)
	}
	m := &matcher{re: re}
	if tree, err := syntax.Parse(expr, syntax.Perl); err == nil { // as in regexp.Compile
		if prog, err := syntax.Compile(tree.Simplify()); err == nil {
			m.steps = len(prog.Inst)
			m.looksBack = slices.ContainsFunc(prog.Inst, func(i syntax.Inst) bool {
				return i.Op == syntax.InstEmptyWidth && syntax.EmptyOp(i.Arg)&^(syntax.EmptyEndLine|syntax.EmptyEndText) != 0
			})
		}
	}
	m.ended.Store(ctx.Err() != nil)
	m.stop = context.AfterFunc(ctx, func() { m.ended.Store(true) })
	return m, nil
}

// find returns the place of the first match in a line, or nil. The end of a line with CR LF is before
// both.
func (m *matcher) find(line string) []int {
	at := m.first(line, false)
	if bare, ok := strings.CutSuffix(line, "\r"); ok && at == nil {
		return m.first(bare, false)
	}
	return at
}

// first returns the place of the first match in s, and with groups those of its groups, too.
func (m *matcher) first(s string, groups bool) []int {
	giant := len(s) > maxWork/max(m.steps, 1) // by runes is slower, but the end of the context ends it
	switch {
	case giant && groups:
		return m.re.FindReaderSubmatchIndex(&runes{s, &m.ended})
	case giant:
		return m.re.FindReaderIndex(&runes{s, &m.ended})
	case groups:
		return m.re.FindStringSubmatchIndex(s)
	}
	return m.re.FindStringIndex(s)
}

// all yields the places of the matches in a line, with those of their groups. If the expression looks
// at what is before a match, it yields one of a long line: the search goes on after a match, and would
// not see that.
func (m *matcher) all(line string) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		if bare, ok := strings.CutSuffix(line, "\r"); ok && m.first(line, false) == nil {
			line = bare
		}
		if len(line) <= longLine {
			for _, at := range m.re.FindAllStringSubmatchIndex(line, -1) {
				if !yield(at) {
					return
				}
			}
			return
		}
		for from := 0; from <= len(line) && !m.ended.Load(); {
			at := m.first(line[from:], true)
			if at == nil {
				return
			}
			for i := range at {
				if at[i] >= 0 {
					at[i] += from
				}
			}
			if !yield(at) || m.looksBack {
				return
			}
			if from = at[1]; at[0] == at[1] { // empty: go on with the next character
				_, n := utf8.DecodeRuneInString(line[from:])
				from += max(n, 1)
			}
		}
	}
}

// runes reads a line until the context ends.
type runes struct {
	rest  string
	ended *atomic.Bool
}

func (r *runes) ReadRune() (rune, int, error) {
	if r.rest == "" || r.ended.Load() {
		return 0, 0, io.EOF
	}
	c, n := utf8.DecodeRuneInString(r.rest)
	r.rest = r.rest[n:]
	return c, n, nil
}

// windows returns the parts of a long line around the matches, each with its place.
func (m *matcher) windows(line string) string {
	if len(line) <= longLine {
		return line
	}
	var out strings.Builder
	from, to, n := 0, 0, 0 // the part that is not in out yet
	flush := func() {
		for from > 0 && !utf8.RuneStart(line[from]) {
			from--
		}
		for to < len(line) && !utf8.RuneStart(line[to]) {
			to++
		}
		if from > 0 {
			fmt.Fprintf(&out, "…(byte %d) ", from)
		}
		out.WriteString(line[from:to])
	}
	for at := range m.all(line) {
		if n++; n > maxWindows {
			break
		}
		a, b := max(at[0]-margin, 0), min(min(at[1], at[0]+longLine)+margin, len(line))
		if n > 1 && a > to {
			flush()
			from = a
		} else if n == 1 {
			from = a
		}
		to = max(to, b)
	}
	flush()
	if to < len(line) {
		out.WriteString("…")
	}
	return out.String()
}

// words shortens a text for an error, which is searched for secrets later. It cuts at a blank: a part of a secret is
// not found.
func words(s string, max int) string {
	if len(s) <= max {
		return s
	}
	return s[:strings.LastIndexFunc(s[:max+1], unicode.IsSpace)+1] + "…"
}

func clip(s string, max int) string {
	if len(s) <= max {
		return s
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max] + "…"
}

// Page returns page n of a text, from 1, and the number of lines after it, the rest of a line
// included. A page has at most size tokens. It ends at a line end, unless that would leave half of
// the page empty. truncate returns the start of a text that has at most n tokens, like
// budget.Counter.Truncate. All pages of one size together are the text. Page cuts all pages before n,
// until ctx ends.
func Page(ctx context.Context, text string, n, size int, truncate func(string, int) (string, int)) (page string, restLines int, err error) {
	for at := 1; ; at++ {
		if ctx.Err() != nil {
			return "", 0, wrong("page", "took too long: %d pages of %d tokens were cut; use lines or grep", at-1, size)
		}
		page, _ = truncate(text, size)
		if len(page) < len(text) {
			if i := strings.LastIndexByte(page, '\n'); i >= len(page)/2 {
				page = page[:i+1]
			}
			if page == "" { // not one character fits: take one nevertheless
				_, w := utf8.DecodeRuneInString(text)
				page = text[:w]
			}
		}
		text = text[len(page):]
		switch {
		case at == n && text == "":
			return page, 0, nil
		case at == n:
			return page, strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1, nil
		case text == "":
			return "", 0, wrong("page", "there are %d pages of %d tokens", at, size)
		}
	}
}
