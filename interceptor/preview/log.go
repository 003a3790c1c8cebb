package preview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// words that make a line worth showing, by how bad they are. They are looked
// for in lower case.
var faultWords = [...][]string{
	1: {"warn", "deprecated", "retry", "timeout", "timed out", "skipped"},
	2: {"error", "fail", "exception", "refused", "denied", "not ok", "traceback", "undefined", "unable to", "cannot ", "could not", "✗", "✘"},
	3: {"fatal", "panic", "critical", "segfault", "out of memory", "assert"},
}

// faultNegations take a word's harm away.
var faultNegations = []string{"0 error", "no error", "0 fail", "0 warning", "without error", "error=nil", "errors: 0", "failed: 0", "failures: 0", "errors=0", "failed=0"}

// severity says how bad a line is: 0 not at all, 3 fatal. Of access logs it
// reads the status.
func severity(line string) int {
	if len(line) > 4<<10 {
		line = line[:4<<10]
	}
	if i := strings.Index(line, `" `); i > 0 && len(line) > i+5 && isDigit(line[i+3]) && isDigit(line[i+4]) {
		switch {
		case line[i+2] == '5':
			return 2
		case line[i+2] == '4':
			return 1
		case line[i+2] == '2' || line[i+2] == '3':
			return 0
		}
	}
	low := strings.ToLower(line)
	for s := len(faultWords) - 1; s > 0; s-- {
		for _, w := range faultWords[s] {
			if strings.Contains(low, w) {
				for _, no := range faultNegations {
					if strings.Contains(low, no) {
						return 0
					}
				}
				return s
			}
		}
	}
	return 0
}

// fault is a class of lines that differ in numbers only.
type fault struct {
	line, times, severity int
}

// maxFaults bounds how many classes are told apart.
const maxFaults = 2000

// faults returns the classes of bad lines, worst and most frequent first.
func (d *doc) faults() []fault {
	at := map[string]int{}
	var out []fault
	for i, l := range d.lines {
		s := severity(l)
		if s == 0 {
			continue
		}
		key := pattern(l)
		if n, ok := at[key]; ok {
			out[n].times++
		} else if len(out) < maxFaults {
			at[key] = len(out)
			out = append(out, fault{line: i, times: 1, severity: s})
		}
	}
	slices.SortStableFunc(out, func(a, b fault) int {
		return cmp.Or(cmp.Compare(b.severity, a.severity), cmp.Compare(b.times, a.times), cmp.Compare(a.line, b.line))
	})
	return out
}

// pattern is a line with its numbers, ids and times taken out.
func pattern(l string) string {
	if len(l) > 400 {
		l = l[:400]
	}
	out := make([]byte, 0, len(l))
	for i := 0; i < len(l); i++ {
		c := l[i]
		if !isDigit(c) {
			out = append(out, c)
			continue
		}
		for len(out) > 0 && isHex(out[len(out)-1]) { // the letters of a hexadecimal id
			out = out[:len(out)-1]
		}
		for i+1 < len(l) && (isHex(l[i+1]) || l[i+1] == '.' || l[i+1] == ':' || l[i+1] == '-') {
			i++
		}
		if len(out) == 0 || out[len(out)-1] != '#' {
			out = append(out, '#')
		}
	}
	return string(out)
}

func isHex(c byte) bool { return isDigit(c) || (c >= 'a' && c <= 'f') }

// makeLog shows how it begins, what went wrong, and how it ends: where
// something fails the reason is mostly in the last lines or in one of few
// kinds of error.
func makeLog(d *doc, b *body) string {
	e := newExcerpt(d, b)
	faults := d.faults()
	room := b.left
	e.head(2, room/8)
	e.tail(4, room/4)
	kinds := 0
	for _, f := range faults {
		if e.full() {
			break
		}
		note := ""
		if f.times > 1 {
			note = fmt.Sprintf(" (×%d)", f.times)
		}
		if _, has := e.shown[f.line]; has && note != "" { // shown without its count
			delete(e.shown, f.line)
		}
		if e.take(f.line, note) {
			kinds++
		}
	}
	for _, f := range faults[:kinds] { // what follows tends to say why
		if f.severity > 1 && f.times == 1 && !e.full() && b.left > room/8 {
			e.take(f.line+1, "")
		}
	}
	e.misses = 0
	e.head(40, b.left/2)
	e.misses = 0
	e.tail(40, b.left)
	shown := e.done()
	if len(faults) > 0 {
		total := 0
		for _, f := range faults {
			total += f.times
		}
		shown += fmt.Sprintf("; %s of %s, %d shown (×n: n alike)", plural(len(faults), "kind"), plural(total, "warning or error line"), kinds)
	}
	return shown
}
