// Package injection looks in texts that a model reads as data for instructions to it.
package injection

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// Find returns what in a text looks like an instruction to a model. It ignores invisible characters.
// It knows some phrases: a text can ask a model for anything in other words.
func Find(text string) (found []string) {
	if !plain(text) {
		text = flags.ReplaceAllString(text, "")
	}
	visible, hidden := Invisible(text)
	if hidden != "" && strings.ContainsFunc(text, isTag) {
		found = append(found, hidden)
	}
	if !plain(text) {
		visible = strings.Map(func(c rune) rune {
			if c > unicode.MaxASCII && unicode.IsSpace(c) {
				return ' ' // the expressions know the blanks of ASCII
			}
			if c == 'İ' {
				return 'i' // (?i) knows no other case of it
			}
			return c
		}, visible)
	}
	scratch := scratches.Get().(*regexset.Scratch)
	if err := scratch.Scan(visible, unlimited{}); err != nil {
		return append(found, err.Error())
	}
	for _, order := range scratch.Candidates() {
		words, err := scratch.FindAll(order)
		if err != nil {
			return append(found, err.Error())
		}
		if len(words) > 0 {
			found = append(found, strings.ToLower(strings.Join(strings.Fields(visible[words[0].Start:words[0].End]), " ")))
		}
	}
	scratch.Reset()
	scratches.Put(scratch)
	return found
}

// isTag reports whether c is a tag character: they spell ASCII and are invisible. They also spell the
// regions of flags.
func isTag(c rune) bool { return c >= 0xe0000 && c <= 0xe007f }

var flags = regexp.MustCompile(`\x{1F3F4}[\x{E0030}-\x{E0039}\x{E0061}-\x{E007A}]{3,6}\x{E007F}`)

// plain reports whether a text has only printable characters of ASCII, line breaks and tabs.
func plain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c >= 0x7f || c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return false
		}
	}
	return true
}

// Invisible returns the part of a text that a reader sees, and names of the characters that it leaves out.
func Invisible(text string) (visible, names string) {
	if plain(text) {
		return text, ""
	}
	found := map[string]int{}
	var before rune // of the characters that are seen
	visible = strings.Map(func(c rune) rune {
		name := ""
		switch {
		case c == '\n', c == '\r', c == '\t':
		case c == 0x1b, c == 0x9b:
			name = "terminal escape"
		case isTag(c):
			name = "tag"
		case c >= 0x202a && c <= 0x202e, c >= 0x2066 && c <= 0x2069, c == 0x200e, c == 0x200f, c == 0x61c:
			name = "direction mark"
		case c == 0x200c, c == 0x200d: // scripts and emoji need joiners
			if before < 0x80 {
				name = "joiner"
			}
			before = 0
			if name == "" {
				return c
			}
		case c == 0x34f, c == 0x115f, c == 0x1160, c == 0x3164, c == 0xffa0, // fillers
			c >= 0xfe00 && c <= 0xfe0d, c >= 0xe0100 && c <= 0xe01ef, // variants, but for those of emoji
			unicode.In(c, unicode.Cc, unicode.Cf) && !unicode.In(c, unicode.Prepended_Concatenation_Mark):
			name = fmt.Sprintf("U+%04X", c)
		}
		if name == "" {
			before = c
			return c
		}
		found[name]++
		return -1
	}, text)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, fmt.Sprintf("%d × %s", found[name], name))
	}
	return visible, strings.Join(all[:min(len(all), 5)], ", ")
}

// orders are instructions that tell a model to hide something, to leave its own, to prefer a tool to others
// or to send something away. docs/pins.md has how many tools of real servers they name.
var orders = []string{
	`(?i)\b(ignore|disregard|forget|override|bypass)\s+((all|any|the|your|of|these)\s+)*(previous|prior|above|earlier|preceding|other|system|original)\s+(\w+\s+)?(instruction|prompt|rule|message|direction|guideline|polic)`,
	`(?i)\b(do\s+not|don't|don’t|never|must\s+not|without|avoid)\s+(ever\s+)?(tell|inform|mention|reveal|notif|disclos|alert)\w*\s+([\w']+\s+){0,6}?(user|human|operator)`,
	`(?i)\b(hide|conceal|keep)\s+(this|it|that)\s+(\w+\s+)?from\s+the\s+(user|human|operator)`,
	`(?i)</?\s*(important|system|secret|hidden|critical|admin|instructions?|system[-_ ]?prompt)\s*>`,
	`(?i)\bbefore\s+(using|calling|invoking|running|you\s+(use|call|run))\s+(any|every|all|another)\s+(other\s+)?tools?\b`,
	`(?i)\b(must|always|should)\s+(first\s+)?(use|call|invoke|run)\s+this\s+tool\s+(first|before\s+(any|every|all|answering|responding|doing))`,
	`(?i)\b(read|open|cat|include|send|pass|get|print)\b.{0,60}(~/\.\w|\.ssh\b|id_rsa|id_ed25519|/etc/(passwd|shadow)|\.aws/|[\s/'"]\.env\b|mcp\.json)`,
	`(?i)\b(send|forward|post|upload|exfiltrate|bcc|copy|append)\b.{0,60}\bto\s+(https?://|[\w.+-]+@[\w-]+\.\w)`,
	`(?i)\b(you\s+are\s+now|new\s+system\s+prompt|your\s+(new|real)\s+(instructions|task|goal))\b`,
}

// allOrders is the set of all orders. It is made when it is first needed: a start need not wait for it.
var allOrders = sync.OnceValue(func() *regexset.Set {
	var patterns []regexset.Pattern
	for _, order := range orders {
		expr, err := regexset.Parse(order)
		if err != nil {
			panic(err)
		}
		patterns = append(patterns, regexset.Pattern{Expr: expr})
	}
	set, err := regexset.New(patterns)
	if err != nil {
		panic(err)
	}
	return set
})

var scratches = sync.Pool{New: func() any { return allOrders().NewScratch() }}

// unlimited is the limit of a scan: it takes linear time.
type unlimited struct{}

func (unlimited) Spend(int) error { return nil }
