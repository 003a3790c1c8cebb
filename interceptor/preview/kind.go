package preview

import (
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Kind is what sort of text a result is.
type Kind string

// The kinds. A text that fits none of the others is Plain.
const (
	JSON     Kind = "JSON"
	NDJSON   Kind = "NDJSON" // one JSON value a line
	HTML     Kind = "HTML"
	Diff     Kind = "diff"
	Matches  Kind = "matches" // path:line:text, as grep prints
	Table    Kind = "table"   // CSV and its relatives
	Log      Kind = "log"
	Markdown Kind = "Markdown"
	Code     Kind = "source"
	Plain    Kind = "text"
)

// makers write the body of a preview and say what of the text is shown.
var makers = map[Kind]func(*doc, *body) string{
	JSON: makeJSON, NDJSON: makeJSON, HTML: makeHTML, Diff: makeDiff, Matches: makeMatches, Table: makeTable,
	Log: makeLog, Markdown: makeOutline, Code: makeOutline, Plain: makePlain,
}

// doc is a text and what was found out about it.
type doc struct {
	text  string
	lines []string // without their line ends; an empty last line is none
	table tableForm
	lined bool // each line is a JSON value
}

func newDoc(text string) *doc {
	d := &doc{text: text}
	d.lines = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, l := range d.lines {
		d.lines[i] = strings.TrimSuffix(l, "\r")
	}
	return d
}

// sampled is how many lines decide about the kind.
const sampled = 400

// maxJSONDepth bounds what is taken for JSON.
const maxJSONDepth = 2000

// kind decides by the surest sign first.
func (d *doc) kind() Kind {
	trimmed := strings.TrimSpace(d.text)
	if trimmed == "" {
		return Plain
	}
	sample := d.sample()
	switch {
	case (trimmed[0] == '{' || trimmed[0] == '[') && rawjson.Valid([]byte(trimmed), maxJSONDepth):
		return JSON
	case trimmed[0] == '{' && d.isNDJSON():
		d.lined = true
		return NDJSON
	case looksHTML(trimmed):
		return HTML
	case share(sample, isDiffLine) > 0 && (strings.HasPrefix(trimmed, "diff --git ") || strings.HasPrefix(trimmed, "--- ") || strings.Contains(d.text, "\ndiff --git ")):
		return Diff
	case share(sample, isMatchLine) > 0.8:
		return Matches
	}
	if d.table = findTable(sample); d.table.comma != 0 {
		return Table
	}
	stamped, faults := share(sample, isStamped), count(d.lines, func(l string) bool { return severity(l) > 0 })
	heads, decls := count(sample, isHeading), count(sample, isDeclaration)
	punct := share(sample, looksCode)
	switch {
	case stamped > 0.3:
		return Log
	case decls >= 2 && punct > 0.35 && heads <= decls:
		return Code
	case heads >= 2 && punct < 0.35:
		return Markdown
	case count(sample, isCommit) >= 2:
		return Code
	case faults >= 2:
		return Log
	case decls >= 3 && punct > 0.2:
		return Code
	}
	return Plain
}

// sample returns lines from the whole of the text, the first ones all.
func (d *doc) sample() []string {
	if len(d.lines) <= sampled {
		return d.lines
	}
	out := append([]string(nil), d.lines[:sampled/2]...)
	step := (len(d.lines) - sampled/2) / (sampled / 2)
	for i := sampled / 2; i < len(d.lines) && len(out) < sampled; i += max(step, 1) {
		out = append(out, d.lines[i])
	}
	return out
}

// isNDJSON reports whether every line is a JSON object.
func (d *doc) isNDJSON() bool {
	n := 0
	for _, l := range d.lines {
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		if n++; l[0] != '{' || !rawjson.Valid([]byte(l), maxJSONDepth) {
			return false
		}
	}
	return n > 1
}

// count returns how many lines fit, not counting blank ones.
func count(lines []string, fits func(string) bool) (n int) {
	for _, l := range lines {
		if fits(l) {
			n++
		}
	}
	return n
}

// share is the part of the lines that fit, of those that are not blank.
func share(lines []string, fits func(string) bool) float64 {
	all, n := 0, 0
	for _, l := range lines {
		if strings.TrimSpace(l) == "" {
			continue
		}
		all++
		if fits(l) {
			n++
		}
	}
	if all == 0 {
		return 0
	}
	return float64(n) / float64(all)
}

// isStamped reports whether a line starts like a log line: with a date, a time
// or a level, or holds one in brackets, as access logs do.
func isStamped(l string) bool {
	l = strings.TrimLeft(l, " [(<")
	if len(l) < 5 {
		return false
	}
	if i := strings.IndexByte(l, '['); i > 0 && i < 60 && len(l) > i+20 && isDigit(l[i+1]) && l[i+3] == '/' {
		return true // 127.0.0.1 - - [10/Oct/2000:13:55:36
	}
	digits, seps := 0, 0
	for i := 0; i < len(l) && i < 19; i++ {
		switch c := l[i]; {
		case isDigit(c):
			digits++
		case c == ':' || c == '-' || c == '/' || c == 'T' || c == '.' || c == ' ':
			seps++
		default:
			i = len(l)
		}
	}
	if digits >= 6 && seps >= 2 {
		return true
	}
	for _, level := range levels {
		if strings.HasPrefix(l, level) {
			return true
		}
	}
	for _, m := range months { // Oct 11 22:14:15, as syslog writes
		if strings.HasPrefix(l, m) && len(l) > 15 && l[3] == ' ' && strings.IndexByte(l[:15], ':') > 0 {
			return true
		}
	}
	return strings.HasPrefix(l, "time=") || strings.HasPrefix(l, "ts=") || strings.HasPrefix(l, "level=")
}

var (
	levels = []string{"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "ERROR", "FATAL", "CRITICAL", "debug:", "info:", "warn:", "error:"}
	months = []string{"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"}
)

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
