// Package preview makes the short text that replaces a result which is too large for its place.
//
// The kind of the text decides what a preview shows: the shape and the first items of JSON; the
// head, the tail and the distinct error lines of a log; the outline of source code and Markdown;
// the columns and some rows of a table; the text of HTML; the head and the tail of other text.
//
// The first line of a preview gives the size of the result, the part that is shown, and the way to
// read the rest. Lines have their numbers in the original. A preview is never larger than its
// budget, and always smaller than the result.
//
// The same input gives the same preview. The time is linear in the text. The package keeps no state.
package preview

import (
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Source is a result to be previewed.
type Source struct {
	Text   string // the result; bytes that are not UTF-8 are shown as U+FFFD
	Tokens int    // the size of the whole result
	Handle string // of the stored result, for branch_read
	Whole  int    // the max_tokens of one branch_read that delivers all of it; 0 if none does
}

// Preview replaces a result.
type Preview struct {
	Text string
	Kind Kind
}

// Kind is the kind of a text.
type Kind string

// The kinds of text. Plain is the kind of a text that fits no other.
const (
	JSON     Kind = "JSON"
	NDJSON   Kind = "NDJSON" // one JSON object a line
	HTML     Kind = "HTML"
	Diff     Kind = "diff"
	Matches  Kind = "matches" // path:line:text, as grep prints
	Table    Kind = "table"   // values separated by commas, tabs, semicolons or bars
	Log      Kind = "log"
	Markdown Kind = "Markdown"
	Code     Kind = "source"
	Plain    Kind = "text"
)

// Make returns the preview of s in at most budget tokens, as count counts them, and fewer than
// s.Tokens. ok is false if not even the handle fits.
func Make(s Source, budget int, count func(string) int) (p Preview, ok bool) {
	budget = min(budget, s.Tokens-1)
	d := newDoc(s.Text)
	p = Preview{Kind: d.kind()}
	p.Text = fmt.Sprintf("[Folded: %s tokens; read with branch_read handle %s]", group(s.Tokens), s.Handle)
	least := count(p.Text)
	if least > budget {
		return Preview{}, false
	}
	// The counts of the parts can add up to less than the count of the whole. So the whole is
	// counted, and in this rare case made again with less.
	for room := budget; room > least; room -= max(room/8, 8) {
		text := d.render(p.Kind, s, room, count)
		if text == "" {
			break
		}
		if count(text) <= budget {
			p.Text = text
			break
		}
	}
	return p, true
}

const maxJSONDepth = 2000 // deeper JSON counts as plain text

// kind returns the kind of the text. The tests are in the order of their certainty.
func (d *doc) kind() Kind {
	trimmed := strings.TrimSpace(d.text)
	if trimmed == "" {
		return Plain
	}
	sample := d.sample()
	switch {
	case (trimmed[0] == '{' || trimmed[0] == '[') && rawjson.Valid([]byte(trimmed), maxJSONDepth):
		return JSON
	case trimmed[0] == '{' && isNDJSON(d.lines):
		return NDJSON
	case trimmed[0] == '<' && containsAny(strings.ToLower(trimmed[:min(len(trimmed), 2000)]), htmlSigns):
		return HTML
	case share(sample, isHunk) > 0 && (strings.HasPrefix(trimmed, "diff --git ") || strings.HasPrefix(trimmed, "--- ") || strings.Contains(d.text, "\ndiff --git ")):
		return Diff
	case share(sample, isMatch) > 0.8:
		return Matches
	case delimiter(sample) != 0:
		return Table
	case share(sample, isStamped) > 0.3:
		return Log
	}
	heads, decls, code := count(sample, isHeading), count(sample, isDeclaration), share(sample, looksCode)
	switch {
	case decls >= 2 && code > 0.35 && heads <= decls:
		return Code
	case heads >= 2 && code < 0.35:
		return Markdown
	case count(sample, isCommit) >= 2:
		return Code
	case count(d.lines, func(l string) bool { return severity(l) > 0 }) >= 2:
		return Log
	case decls >= 3 && code > 0.2:
		return Code
	}
	return Plain
}

// render returns the head line and a body in about room tokens, "" if no body fits.
func (d *doc) render(k Kind, s Source, room int, count func(string) int) string {
	whole := ""
	if s.Whole > 0 {
		whole = fmt.Sprintf(`; all of it: "lines":"1-","max_tokens":%d`, s.Whole)
	}
	head := func(shown string) string {
		return fmt.Sprintf("[Folded %s: %s tokens, %s; %s. Read more: branch_read {\"handle\":\"%s\"} with lines, grep, jq, search or page%s]",
			k, group(s.Tokens), plural(len(d.lines), "line"), shown, s.Handle, whole)
	}
	// The placeholder is as long as the text that replaces it.
	b := &body{count: count, left: room - count(head("line numbers at left, 999 lines shown, 999,999 left out")+"\n")}
	if b.left <= 0 {
		return ""
	}
	shown := shows[k](d, b)
	if len(b.parts) == 0 {
		return ""
	}
	return head(shown) + "\n" + strings.Join(b.parts, "\n")
}

// shows has the functions that fill the body and return what the head line says about it.
var shows = map[Kind]func(*doc, *body) string{
	JSON:   func(d *doc, b *body) string { return showJSON([]byte(strings.TrimSpace(d.text)), b) },
	NDJSON: func(d *doc, b *body) string { return showJSON(jsonArray(d.lines), b) },
	HTML:   showHTML, Diff: showDiff, Matches: showMatches, Table: showTable, Log: showLog,
	Markdown: showOutline, Code: showOutline, Plain: showPlain,
}

// showPlain shows the head and the tail, or parts of lines if these are long.
func showPlain(d *doc, b *body) string {
	if len(d.lines) <= 4 || len(d.text)/len(d.lines) > 4*wide {
		return showGiant(d.text, b)
	}
	e := newExcerpt(d.lines, wide, b)
	e.head(len(d.lines), b.left*3/5)
	e.tail(len(d.lines), b.left)
	return e.done()
}

// showGiant shows the first and the last characters of a text with giant lines.
func showGiant(text string, b *body) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "\uFFFD")
	start := []rune(text[:min(len(text), 64<<10)])
	end := []rune(text[max(0, len(text)-32<<10):])
	// Few texts have more than 5 characters a token.
	for size := min(len(start), b.left*5); size >= 8; size = size * 3 / 4 {
		last := min(len(end), size/3)
		if b.add(string(start[:size]) + " … " + string(end[len(end)-last:])) {
			return fmt.Sprintf("its first %d and last %d characters shown", size, last)
		}
	}
	return ""
}
