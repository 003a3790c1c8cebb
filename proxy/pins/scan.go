package pins

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/injection"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxWarnings bounds the warnings of one definition.
const maxWarnings = 10

// Scan returns what looks wrong in a definition: invisible characters, instructions to the model,
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
		visible, names := injection.Invisible(text)
		if names != "" {
			warn("invisible characters: %s", names)
		}
		for _, words := range injection.Find(text) {
			if words != names {
				warn("an instruction to the model: %q", words)
			}
		}
		if owner != nil {
			for _, word := range toolName.FindAllString(visible, 1000) {
				if server := owner(word); server != "" && telling(word) {
					warn("the name of another server's tool: %s of %s", word, server)
				}
			}
		}
		return true
	})
	return warnings
}

var toolName = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*`)

// telling reports whether a word is surely the name of a tool, and no word of a language.
func telling(word string) bool {
	return len(word) >= 6 && (strings.ContainsAny(word, "_") || strings.Count(word, "-") > 1 || strings.ToLower(word[1:]) != word[1:] && strings.ToUpper(word) != word)
}
