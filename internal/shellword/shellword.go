// Package shellword writes the words of commands that people copy out of messages into a shell.
package shellword

import (
	"runtime"
	"strings"
)

// plain are the characters that a shell takes as they are, wherever they stand in a word.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@:/+,-"

// Quote returns text as one word: in quotation marks if a shell would read it otherwise.
func Quote(text string) string {
	isPlain := func(r rune) bool { return strings.ContainsRune(plain, r) || r == '\\' && runtime.GOOS == "windows" }
	switch {
	case text != "" && strings.IndexFunc(text, func(r rune) bool { return !isPlain(r) }) < 0:
		return text
	case runtime.GOOS == "windows":
		return `"` + text + `"` // no name of a file has a quotation mark
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
