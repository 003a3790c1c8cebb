// Package preview makes the short text that stands in for a result too large
// for its place.
//
// A preview is made for the kind of text: JSON shows its shape and its first
// items, logs their head, tail and distinct error lines with counts, source
// and Markdown their outline, tables their columns and a sample, HTML its
// text, all other text its head and tail:
//
//	p, ok := preview.Make(preview.Source{Text: text, Tokens: n, Handle: "res_…"}, 400, counter.Count)
//
// The first line of a preview says what was folded, how much of it is shown
// and how the rest is read. Excerpts carry the line numbers of the original.
// No preview is larger than its budget, nor as large as what it stands for.
//
// The same input gives the same preview. The time is linear in the text. The
// package keeps no state and knows nothing of tokenizers: the counter is given.
package preview

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Source is a result to be previewed.
type Source struct {
	// Text is the result. Bytes that are not UTF-8 are shown as U+FFFD.
	Text string
	// Tokens is what the whole result counts.
	Tokens int
	// Handle is what branch_read knows the stored result by.
	Handle string
}

// Preview is what is delivered in place of a result.
type Preview struct {
	Text string
	Kind Kind
	// Lines is how many lines the whole text has; Tokens what Text counts.
	Lines, Tokens int
}

// Make returns the preview of s in at most budget tokens, as count counts
// them, and fewer than s.Tokens. ok is false where not even the handle fits.
func Make(s Source, budget int, count func(string) int) (p Preview, ok bool) {
	budget = min(budget, s.Tokens-1)
	d := newDoc(s.Text)
	p = Preview{Kind: d.kind(), Lines: len(d.lines)}
	short := fmt.Sprintf("[Folded: %s tokens; read with branch_read handle %s]", group(s.Tokens), s.Handle)
	p.Text, p.Tokens = short, count(short)
	if p.Tokens > budget {
		return Preview{}, false
	}
	// Counts of parts may add up to less than the count of the whole, so what
	// came out is counted and, in the rare case, made again with less.
	for room := budget; room > p.Tokens; room -= max(room/8, 8) {
		text := d.render(p.Kind, s, room, count)
		if text == "" {
			break
		}
		if n := count(text); n <= budget {
			p.Text, p.Tokens = text, n
			break
		}
	}
	return p, true
}

// render returns head line and body in about room tokens; "" if the head line
// leaves no room for a body.
func (d *doc) render(k Kind, s Source, room int, count func(string) int) string {
	head := func(shown string) string {
		return fmt.Sprintf("[Folded %s: %s tokens, %s; %s. Read more: branch_read {\"handle\":\"%s\"} with lines, grep, jq, search or page]",
			k, group(s.Tokens), plural(len(d.lines), "line"), shown, s.Handle)
	}
	// The placeholder is as long as what will take its place.
	b := &body{count: count, left: room - count(head("line numbers at left, 999 lines shown, 999,999 left out")+"\n")}
	if b.left <= 0 {
		return ""
	}
	shown := makers[k](d, b)
	if len(b.parts) == 0 {
		return ""
	}
	return head(shown) + "\n" + strings.Join(b.parts, "\n")
}

// body collects the lines of a preview while there is room.
type body struct {
	count func(string) int
	left  int
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

// addCut appends a line, or as much of it as fits.
func (b *body) addCut(line string) bool {
	for width := utf8.RuneCountInString(line); width >= 16; width = width * 2 / 3 {
		if b.add(clip(line, width)) {
			return true
		}
	}
	return false
}

// Longest lines shown, in characters.
const (
	wide   = 240
	narrow = 120
)

// clip cuts s to at most max characters and says how many are left out.
func clip(s string, max int) string {
	if len(s) <= max {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	at, n := len(s), 0
	for i := range s {
		if n == max {
			at = i
			break
		}
		n++
	}
	if at == len(s) {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:at], "\uFFFD") + fmt.Sprintf("…(+%s)", group(utf8.RuneCountInString(s[at:])))
}

// plural returns a number with its noun.
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
