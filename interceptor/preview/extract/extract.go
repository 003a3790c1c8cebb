// Package extract takes the asked part out of a stored text: a range of lines,
// the matches of a regular expression, what a jq program makes of it, one page.
//
//	part, err := extract.Lines(text, "120-140")
//	part, err = extract.Grep(ctx, text, extract.Pattern{Expr: "ERROR", Context: 2})
//	part, err = extract.NewPrograms(1).JQ(ctx, caller, text, ".items[].title")
//	page := extract.PageOf(part, 1, 2000, counter.Truncate)
//
// Lines are numbered from 1. Regular expressions are RE2 and take linear time;
// jq programs are bounded in time and memory. Errors of the caller's making
// are of type [*Error] and say what to write instead. The package keeps no
// state; its functions are safe for concurrent use.
package extract

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is a question that can't be answered as it was put.
type Error struct {
	// Field is the argument at fault: lines, grep, jq, search or page.
	Field string
	// Text says what is wrong and what to write instead.
	Text string
}

// Error names the argument.
func (e *Error) Error() string { return e.Field + ": " + e.Text }

// maxFault bounds what is said of a question, in bytes. It is delivered whole and
// costs nothing, and a jq program can put all it reads into its error.
const maxFault = 500

func wrong(field, format string, args ...any) error {
	return &Error{field, clip(fmt.Sprintf(format, args...), maxFault)}
}

// split returns the lines of a text; an empty one after the last line end is
// none.
func split(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

// lineRange reads the range of [Lines] for a text of total lines, and returns
// the first and last line meant.
func lineRange(spec string, total int) (from, to int, err error) {
	bad := func() (int, int, error) {
		return 0, 0, wrong("lines", "%q is not a range: write \"120-140\", \"120-\" to the end, or \"-50\" for the last 50 (the text has %d lines)", clip(spec, 40), total)
	}
	a, b, ranged := strings.Cut(strings.ReplaceAll(strings.TrimSpace(spec), " ", ""), "-")
	number := func(s string, absent int) (int, bool) {
		if s == "" {
			return absent, true
		}
		n, err := strconv.Atoi(s)
		return n, err == nil && n > 0
	}
	first, ok1 := number(a, 0)
	last, ok2 := number(b, total)
	switch {
	case !ok1 || !ok2 || (a == "" && b == ""):
		return bad()
	case !ranged:
		last = first
	case a == "":
		first, last = max(total-last+1, 1), total
	}
	if first > last {
		return bad()
	}
	if first > total {
		return 0, 0, wrong("lines", "the text has %d lines", total)
	}
	return first, min(last, total), nil
}

// Lines returns a range of lines as they are: "a-b", "a-" (to the end), "-b" (the
// last b lines) or "a".
func Lines(text, spec string) (string, error) {
	lines := split(text)
	from, to, err := lineRange(spec, len(lines))
	if err != nil {
		return "", err
	}
	return strings.Join(lines[from-1:to], "\n"), nil
}

// Pattern is what [Grep] looks for.
type Pattern struct {
	// Expr is a regular expression in RE2 syntax.
	Expr string
	// Context is how many lines around a match are shown.
	Context int
	// Lines restricts the search to a range; see [Lines]. "" is the whole text.
	Lines string
}

const (
	// maxMatches bounds the lines that Grep returns.
	maxMatches = 2000
	// longLine is from where on a line is shown around its match only.
	longLine = 600
	// around is how much of such a line is shown on either side.
	around = 160
	// maxContext bounds Pattern.Context.
	maxContext = 50
)

// Grep returns the lines that match, with their numbers as "12:text", lines
// around them as "11-text", and "--" between groups. No match is no error: it
// says so. It ends with ctx, also within a line.
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
	context_ := max(min(p.Context, maxContext), 0)
	var out strings.Builder
	matches, shown := 0, 0 // shown is the last line written
	for n := from; n <= to; n++ {
		at := m.find(lines[n-1])
		if m.over() {
			return "", tookTooLong()
		}
		if at == nil {
			continue
		}
		if matches++; matches > maxMatches {
			fmt.Fprintf(&out, "[more than %d matches: narrow the expression, or go on with lines \"%d-\"]\n", maxMatches, n)
			break
		}
		first := max(n-context_, shown+1, from)
		if context_ > 0 && shown > 0 && first > shown+1 {
			out.WriteString("--\n")
		}
		for i := first; i < n; i++ {
			fmt.Fprintf(&out, "%d-%s\n", i, clip(lines[i-1], longLine))
		}
		fmt.Fprintf(&out, "%d:%s\n", n, window(lines[n-1], at))
		shown = n
		for i := n + 1; i <= min(n+context_, to) && m.find(lines[i-1]) == nil; i++ {
			fmt.Fprintf(&out, "%d-%s\n", i, clip(lines[i-1], longLine))
			shown = i
		}
	}
	if m.over() { // in the lines around the last match
		return "", tookTooLong()
	}
	if matches == 0 {
		return fmt.Sprintf("[no match in lines %d-%d]", from, to), nil
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

func tookTooLong() error {
	return wrong("grep", "took too long: narrow it with lines, or use a simpler expression")
}

// window shows a long line around a match.
func window(line string, at []int) string {
	if len(line) <= longLine {
		return line
	}
	a, b := max(at[0]-around, 0), min(min(at[1], at[0]+longLine)+around, len(line))
	for a > 0 && !utf8.RuneStart(line[a]) {
		a--
	}
	for b < len(line) && !utf8.RuneStart(line[b]) {
		b++
	}
	out := line[a:b]
	if a > 0 {
		out = fmt.Sprintf("…(byte %d) ", a) + out
	}
	if b < len(line) {
		out += "…"
	}
	return out
}

// clip cuts a line that is only shown for context.
func clip(s string, max int) string {
	if len(s) <= max {
		return s
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max] + "…"
}

// Page is one page of a text.
type Page struct {
	Text string
	// Number is the page, from 1; More says that others follow it, of RestLines
	// lines, begun ones included.
	Number, RestLines int
	More              bool
}

// PageOf cuts a text into pages of at most size tokens, at line ends where
// they come late enough in a page, and returns page n. truncate returns the
// start of a text that has at most n tokens, as budget.Counter.Truncate does.
// The pages are the same for the same size, and together they are the text.
func PageOf(text string, n, size int, truncate func(string, int) (string, int)) (Page, error) {
	rest := text
	for at := 1; ; at++ {
		kept, _ := truncate(rest, size)
		if len(kept) < len(rest) {
			if i := strings.LastIndexByte(kept, '\n'); i >= len(kept)/2 {
				kept = kept[:i+1]
			}
			if kept == "" { // not one character fits: take one all the same
				_, w := utf8.DecodeRuneInString(rest)
				kept = rest[:w]
			}
		}
		after := rest[len(kept):]
		switch {
		case at == n:
			p := Page{Text: kept, Number: n, More: after != ""}
			if p.More {
				p.RestLines = strings.Count(strings.TrimSuffix(after, "\n"), "\n") + 1
			}
			return p, nil
		case after == "":
			return Page{}, wrong("page", "there are %d pages of %d tokens", at, size)
		}
		rest = after
	}
}
