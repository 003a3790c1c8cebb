// Package preview makes the short text that replaces a result which is too large for its place.
//
// A text is read as entries with fields: the rows of a table, the items of JSON, the commits of a
// log, the failures of tests, the declarations of a program. What decides is its structure: it
// parses, or enough of its lines have a form. A new sort of text is a line in the table of forms.
//
// All that could be told is a [piece] with a worth and a cost: totals of the fields, entries that
// stand out, headings, the first and the last lines. The pieces with the most worth for their
// tokens are shown. A text without structure shows its head, its tail and its counts.
//
// The first line of a preview gives the kind, the size and the totals, and the way to read the
// rest. Lines have their numbers in the original. A preview is never larger than its budget, and
// always smaller than the result.
//
// The same input gives the same preview. The time is linear in the text. The package keeps no state.
package preview

import (
	"fmt"
	"runtime"
	"strings"
)

// Source is a result to be previewed.
type Source struct {
	Text   string // the result; bytes that are not UTF-8 are shown as U+FFFD
	Tokens int    // the size of the whole result
	Handle string // of the stored result, for branch_read
	Data   bool   // jq reads other content of the result, whatever the text is
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
	NDJSON   Kind = "NDJSON" // several values
	Notebook Kind = "notebook"
	YAML     Kind = "YAML"
	XML      Kind = "XML"
	HTML     Kind = "HTML"
	Config   Kind = "configuration" // sections with keys, such as INI and TOML
	Lock     Kind = "lock file"
	Diff     Kind = "diff"
	GitLog   Kind = "git log" // also with statistics or patches
	Blame    Kind = "blame"
	Matches  Kind = "matches" // path:line:text, as grep prints
	Listing  Kind = "listing" // files, packages
	Table    Kind = "table"   // columns with a delimiter or aligned
	Records  Kind = "records" // paragraphs of key: value
	Log      Kind = "log"
	Tests    Kind = "test results"
	Compiler Kind = "diagnostics" // of compilers and linters
	Stacks   Kind = "stacks"      // of goroutines or threads
	Manual   Kind = "manual"      // pages of manuals and help
	Markdown Kind = "Markdown"
	Code     Kind = "source"
	Minified Kind = "minified"
	Binary   Kind = "binary"
	Plain    Kind = "text"
)

// standIn returns what a handle is counted as. Each of its characters is a token, and a handle of the same
// length has at most as many tokens. Handles are random, so their true count must not decide what a
// preview shows: the same text has the same preview.
func standIn(handle string) string {
	return ("res_" + strings.Repeat("7q", len(handle)/2+1))[:len(handle)]
}

// large is the length of texts that are read only as many at once as there are processors: reading takes up to 14
// times their memory. reading has an element for each.
const large = 1 << 20

var reading = make(chan struct{}, runtime.GOMAXPROCS(0))

// Make returns the preview of s in at most budget tokens, as count counts them, and fewer than
// s.Tokens. ok is false if not even the handle fits.
func Make(s Source, budget int, count func(string) int) (p Preview, ok bool) {
	budget = min(budget, s.Tokens-1)
	same := func(text string) int { // the same for every handle
		return count(strings.Replace(text, s.Handle, standIn(s.Handle), 1))
	}
	short := fmt.Sprintf("[Folded: %s tokens; read with branch_read handle %s]", group(s.Tokens), s.Handle)
	least := same(short)
	if least > budget {
		return Preview{}, false
	}
	if len(s.Text) >= large {
		reading <- struct{}{}
		defer func() { <-reading }()
	}
	f := read(s.Text)
	p = Preview{Kind: f.kind, Text: short}
	whole := ""
	if s.Whole > 0 {
		whole = fmt.Sprintf(`; all of it: "lines":"1-","max_tokens":%d`, s.Whole)
	}
	jq := ""
	if s.Data || f.jq {
		jq = "jq, "
	}
	head := fmt.Sprintf("[Folded %s: %s tokens, %s. Read more: branch_read {\"handle\":\"%s\"} (lines, grep, %ssearch)%s]",
		f.kind, group(s.Tokens), strings.Join(f.totals, ", "), s.Handle, jq, whole)
	// The counts of the parts can add up to less than the count of the whole. So the whole is
	// counted, and in this rare case made again with less.
	for room := budget; room > least; room -= max(room/8, 8) {
		body := choose(f.pieces, room-same(head+"\n"), count)
		if len(body) == 0 {
			break
		}
		if text := strings.ToValidUTF8(head+"\n"+strings.Join(body, "\n"), "\uFFFD"); same(text) <= budget {
			p.Text = text
			break
		}
	}
	return p, true
}
