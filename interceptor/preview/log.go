package preview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// isStamped reports whether a line looks like a line of a log: it starts with a date, a time or a
// level, or it has the date in brackets of an access log.
func isStamped(l string) bool {
	l = strings.TrimLeft(l, " [(<")
	if len(l) < 5 {
		return false
	}
	if i := strings.IndexByte(l, '['); i > 0 && i < 60 && len(l) > i+20 && isDigit(l[i+1]) && l[i+3] == '/' {
		return true // 127.0.0.1 - - [10/Oct/2000:13:55:36
	}
	digits, separators := 0, 0
	for _, c := range []byte(l[:min(len(l), 19)]) {
		if isDigit(c) {
			digits++
		} else if strings.IndexByte(":-/T. ", c) >= 0 {
			separators++
		} else {
			break
		}
	}
	if digits >= 6 && separators >= 2 {
		return true
	}
	if len(l) > 15 && l[3] == ' ' && strings.IndexByte(l[:15], ':') > 0 && startsWith(l, months) {
		return true // Oct 11 22:14:15, as syslog writes
	}
	return startsWith(l, levels)
}

var (
	levels = []string{"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "ERROR", "FATAL", "CRITICAL", "debug:", "info:", "warn:", "error:", "time=", "ts=", "level="}
	months = []string{"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"}
)

// showLog shows the start, the kinds of errors, and the end. If something fails, the reason is
// mostly in the last lines or in one of few kinds of error.
func showLog(d *doc, b *body) string {
	e := newExcerpt(d.lines, wide, b)
	faults := findFaults(d.lines)
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
			delete(e.shown, f.line) // it may be shown without its count
		}
		if e.take(f.line, note) {
			kinds++
		}
	}
	for _, f := range faults[:kinds] { // the next line often gives the reason
		if f.severity > 1 && f.times == 1 && !e.full() && b.left > room/8 {
			e.take(f.line+1, "")
		}
	}
	e.head(40, b.left/2)
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

// fault is a kind of bad lines: they differ in numbers only.
type fault struct {
	line, times, severity int // line is the index of the first
}

const maxFaults = 2000 // kinds

// findFaults returns the kinds of bad lines, the most severe and most frequent first.
func findFaults(lines []string) []fault {
	at := map[string]int{}
	var out []fault
	for i, l := range lines {
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
	slices.SortFunc(out, func(a, b fault) int {
		return cmp.Or(b.severity-a.severity, b.times-a.times, a.line-b.line)
	})
	return out
}

// faultWords are the words of bad lines by severity, in lower case.
var faultWords = [...][]string{
	1: {"warn", "deprecated", "retry", "timeout", "timed out", "skipped"},
	2: {"error", "fail", "exception", "refused", "denied", "not ok", "traceback", "undefined", "unable to", "cannot ", "could not", "✗", "✘"},
	3: {"fatal", "panic", "critical", "segfault", "out of memory", "assert"},
}

// faultNegations turn a line with a fault word into a good one.
var faultNegations = []string{"0 error", "no error", "0 fail", "0 warning", "without error", "error=nil", "errors: 0", "failed: 0", "failures: 0", "errors=0", "failed=0"}

// severity returns how bad a line is, from 0 (good) to 3 (fatal). In a line of an access log the
// HTTP status decides.
func severity(line string) int {
	line = line[:min(len(line), 4<<10)]
	if i := strings.Index(line, `" `); i > 0 && len(line) > i+5 && isDigit(line[i+3]) && isDigit(line[i+4]) {
		switch line[i+2] {
		case '5':
			return 2
		case '4':
			return 1
		case '2', '3':
			return 0
		}
	}
	low := strings.ToLower(line)
	for s := len(faultWords) - 1; s > 0; s-- {
		if containsAny(low, faultWords[s]) && !containsAny(low, faultNegations) {
			return s
		}
	}
	return 0
}

// pattern returns a line with # instead of its numbers, ids and times.
func pattern(l string) string {
	l = l[:min(len(l), 400)]
	out := make([]byte, 0, len(l))
	for i := 0; i < len(l); i++ {
		if !isDigit(l[i]) {
			out = append(out, l[i])
			continue
		}
		for len(out) > 0 && isHex(out[len(out)-1]) { // the first letters of a hexadecimal id
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
