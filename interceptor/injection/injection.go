// Package injection looks in texts that a model reads as data for instructions to it.
package injection

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Find returns what in a text looks like an instruction to a model, also between characters that nobody sees.
// It knows some phrases: a text can ask a model for anything in other words.
func Find(text string) (found []string) {
	if !plain(text) {
		text = flags.ReplaceAllString(text, "")
	}
	visible, hidden := Invisible(text)
	if hidden != "" && strings.ContainsFunc(text, isTag) {
		found = append(found, hidden)
	}
	lower := strings.ToLower(visible)
	if !plain(text) {
		lower = strings.Map(func(c rune) rune {
			if c > unicode.MaxASCII && unicode.IsSpace(c) {
				return ' ' // the expressions know the blanks of ASCII
			}
			return c
		}, lower)
	}
	flat := strings.Join(strings.Fields(lower), " ")
	for _, o := range orders {
		if !slices.ContainsFunc(o.need, func(word string) bool { return strings.Contains(flat, word) }) {
			continue
		}
		if words := o.text.FindString(lower); words != "" {
			found = append(found, strings.Join(strings.Fields(words), " "))
		}
	}
	return found
}

// isTag reports whether c is one of the characters that spell ASCII and that nobody sees. They also spell
// the regions of flags.
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
// or to send something away, in small letters. A text with none of need, with one blank between words, is
// not searched. docs/pins.md has how many tools of real servers they name.
var orders = []struct {
	need []string
	text *regexp.Regexp
}{
	{[]string{"ignore", "disregard", "forget", "override", "bypass"}, regexp.MustCompile(
		`\b(ignore|disregard|forget|override|bypass)\s+((all|any|the|your|of|these)\s+)*(previous|prior|above|earlier|preceding|other|system|original)\s+(\w+\s+)?(instruction|prompt|rule|message|direction|guideline|polic)`)},
	{[]string{"user", "human", "operator"}, regexp.MustCompile(
		`\b(do\s+not|don't|don’t|never|must\s+not|without|avoid)\s+(ever\s+)?(tell|inform|mention|reveal|notif|disclos|alert)\w*\s+([\w']+\s+){0,6}?(user|human|operator)`)},
	{[]string{"from the"}, regexp.MustCompile(`\b(hide|conceal|keep)\s+(this|it|that)\s+(\w+\s+)?from\s+the\s+(user|human|operator)`)},
	{[]string{"<"}, regexp.MustCompile(`</?\s*(important|system|secret|hidden|critical|admin|instructions?|system[-_ ]?prompt)\s*>`)},
	{[]string{"before"}, regexp.MustCompile(`\bbefore\s+(using|calling|invoking|running|you\s+(use|call|run))\s+(any|every|all|another)\s+(other\s+)?tools?\b`)},
	{[]string{"this tool"}, regexp.MustCompile(`\b(must|always|should)\s+(first\s+)?(use|call|invoke|run)\s+this\s+tool\s+(first|before\s+(any|every|all|answering|responding|doing))`)},
	{[]string{"~/.", ".ssh", "id_rsa", "id_ed25519", "/etc/passwd", "/etc/shadow", ".aws/", ".env", "mcp.json"}, regexp.MustCompile(
		`\b(read|open|cat|include|send|pass|get|print)\b.{0,60}(~/\.\w|\.ssh\b|id_rsa|id_ed25519|/etc/(passwd|shadow)|\.aws/|[\s/'"]\.env\b|mcp\.json)`)},
	{[]string{"to http", "@"}, regexp.MustCompile(`\b(send|forward|post|upload|exfiltrate|bcc|copy|append)\b.{0,60}\bto\s+(https?://|[\w.+-]+@[\w-]+\.\w)`)},
	{[]string{"you are now", "new system", "your new", "your real"}, regexp.MustCompile(`\b(you\s+are\s+now|new\s+system\s+prompt|your\s+(new|real)\s+(instructions|task|goal))\b`)},
}
