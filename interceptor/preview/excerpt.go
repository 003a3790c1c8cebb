package preview

import (
	"fmt"
	"slices"
	"strings"
)

// excerpt is a choice of lines, shown in the order of the text with their
// numbers. A gap in the numbers is a gap in the text.
type excerpt struct {
	d      *doc
	b      *body
	shown  map[int]string // line index to what is shown of it
	width  int
	misses int
}

func newExcerpt(d *doc, b *body) *excerpt {
	return &excerpt{d: d, b: b, shown: map[int]string{}, width: wide}
}

// maxMisses ends a choice: after so many lines that did not fit there is no
// use in trying more.
const maxMisses = 8

// full reports whether more lines are worth trying.
func (e *excerpt) full() bool { return e.misses >= maxMisses || e.b.left < 4 }

// take chooses line i, with note (may be "") before its text. It reports
// whether the line is shown.
func (e *excerpt) take(i int, note string) bool {
	if _, has := e.shown[i]; has || i < 0 || i >= len(e.d.lines) {
		return has
	}
	if strings.TrimSpace(e.d.lines[i]) == "" {
		return true // says nothing; the numbers show it is there
	}
	text := fmt.Sprintf("%d:%s %s", i+1, note, clip(strings.TrimRight(e.d.lines[i], " \t"), e.width))
	n := e.b.count(text + "\n")
	if n > e.b.left {
		e.misses++
		return false
	}
	e.b.left -= n
	e.shown[i] = text
	return true
}

// head and tail choose up to n lines from the ends while they cost no more
// than room tokens.
func (e *excerpt) head(n, room int) {
	floor := e.b.left - room
	for i := 0; i < n && i < len(e.d.lines) && e.b.left > floor && !e.full(); i++ {
		e.take(i, "")
	}
}

func (e *excerpt) tail(n, room int) {
	floor := e.b.left - room
	for i := len(e.d.lines) - 1; i >= 0 && i >= len(e.d.lines)-n && e.b.left > floor && !e.full(); i-- {
		e.take(i, "")
	}
}

// done hands the chosen lines to the body and says what they are.
func (e *excerpt) done() string {
	order := make([]int, 0, len(e.shown))
	for i := range e.shown {
		order = append(order, i)
	}
	slices.Sort(order)
	for _, i := range order {
		e.b.parts = append(e.b.parts, e.shown[i])
	}
	return fmt.Sprintf("line numbers at left, %s shown, %s left out", plural(len(order), "line"), group(len(e.d.lines)-len(order)))
}

// makePlain shows head and tail. A text of few giant lines is cut in the lines.
func makePlain(d *doc, b *body) string {
	if len(d.lines) <= 4 || len(d.text)/len(d.lines) > 4*wide {
		return makeGiant(d, b)
	}
	e := newExcerpt(d, b)
	e.head(len(d.lines), b.left*3/5)
	e.misses = 0
	e.tail(len(d.lines), b.left)
	return e.done()
}

// makeGiant shows the first and the last characters of a text whose lines are
// too long to show.
func makeGiant(d *doc, b *body) string {
	text := strings.ToValidUTF8(strings.TrimSpace(d.text), "\uFFFD")
	runes := []rune(text[:min(len(text), 64<<10)])
	end := []rune(text[max(0, len(text)-32<<10):])
	room := b.left
	size := min(len(runes), room*5) // few texts have more than 5 characters a token
	for ; size >= 8; size = size * 3 / 4 {
		first := string(runes[:size])
		last := string(end[max(0, len(end)-size/3):])
		if b.add(first + " … " + last) {
			return fmt.Sprintf("its first %d and last %d characters shown", size, min(len(end), size/3))
		}
	}
	return ""
}
