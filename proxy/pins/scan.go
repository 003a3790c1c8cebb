package pins

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxWarnings bounds the warnings of one definition.
const maxWarnings = 10

// Scan returns what looks wrong in a definition: characters that nobody sees, instructions to the model,
// and names of other servers' tools. It is a help for who reads definitions, no proof: a text can ask a
// model for anything in other words. owner returns the other server that has a tool, "" for none; it may
// be nil.
func Scan(definition []byte, owner func(tool string) string) (warnings []string) {
	warn := func(format string, args ...any) {
		if w := fmt.Sprintf(format, args...); len(warnings) < maxWarnings && !slices.Contains(warnings, w) {
			warnings = append(warnings, w)
		}
	}
	_ = rawjson.Walk(definition, func(t rawjson.Token) bool { // it is valid
		if t.Event != rawjson.StringToken && t.Event != rawjson.KeyToken {
			return true
		}
		text := rawjson.Unquote(definition[t.Start:t.End])
		visible, names := split(text)
		if names != "" {
			warn("invisible characters: %s", names)
		}
		lower := strings.ToLower(visible)
		for _, o := range orders {
			if !slices.ContainsFunc(o.need, func(word string) bool { return strings.Contains(lower, word) }) {
				continue
			}
			if found := o.text.FindString(lower); found != "" {
				warn("an instruction to the model: %q", strings.Join(strings.Fields(found), " "))
			}
		}
		if owner != nil {
			for _, word := range toolName.FindAllString(visible, 1000) {
				if server := owner(word); server != "" && telling(word) {
					warn("the tool %s of %s", word, server)
				}
			}
		}
		return true
	})
	return warnings
}

// split returns the part of a text that a reader sees, and names of the characters that it leaves out.
func split(text string) (visible, names string) {
	found := map[string]int{}
	var before rune // of the characters that are seen
	visible = strings.Map(func(c rune) rune {
		name := ""
		switch {
		case c == '\n', c == '\r', c == '\t':
		case c == 0x1b, c == 0x9b:
			name = "terminal escape"
		case c >= 0xe0000 && c <= 0xe007f:
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
// or to send something away, in small letters. A text with none of need is not searched. docs/pins.md has how
// many tools of real servers they name.
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
	{[]string{"/", "id_", ".env", ".aws", ".ssh", "mcp.json"}, regexp.MustCompile(
		`\b(read|open|cat|include|send|pass|get|print)\b.{0,60}(~/\.\w|\.ssh\b|id_rsa|id_ed25519|/etc/(passwd|shadow)|\.aws/|[\s/'"]\.env\b|mcp\.json)`)},
	{[]string{"http", "@"}, regexp.MustCompile(`\b(send|forward|post|upload|exfiltrate|bcc|copy|append)\b.{0,60}\b(to|at)\s+(https?://|[\w.+-]+@[\w-]+\.\w)`)},
	{[]string{"you are now", "new ", "real "}, regexp.MustCompile(`\b(you\s+are\s+now|new\s+system\s+prompt|your\s+(new|real)\s+(instructions|task|goal))\b`)},
}

var toolName = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*`)

// telling reports whether a word is surely the name of a tool, and no word of a language.
func telling(word string) bool {
	return len(word) >= 6 && (strings.ContainsAny(word, "_") || strings.Count(word, "-") > 1 || strings.ToLower(word[1:]) != word[1:] && strings.ToUpper(word) != word)
}
