package scrub

import (
	"regexp"
	"strings"
)

// linePrefix matches what stands before the lines of a text in a diff, a quotation, a log or the output
// of grep, cat -n or docker compose.
var linePrefix = regexp.MustCompile(`^(?:\++|-|>+|\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]+(?:Z|[+-][0-9:]{4,5})?\]?[ \t]+(?:\[?[A-Z]{3,8}\]?:?[ \t]+)?|` +
	`(?:[\w./-]{1,80}[:-])?[0-9]+[:-]|[ \t]{0,9}[0-9]+(?:\t| \| |\x{2192}|->)|[\w.-]{1,40}[ \t]+\| )`)

// prefixOf returns the prefix of a line, or "". Most lines have none, and that is cheap to see.
func prefixOf(line string) string {
	line = line[:min(len(line), 200)]
	i := 0
	if line != "" && (kindOf(line[0]|0x20) == 'a' || line[0] == '_') {
		for ; i < len(line) && (inBase64(line[i]) && line[i] != '+' || line[i] == '.' || line[i] == ':'); i++ {
			if kindOf(line[i]) == '0' && (line[i-1] == ':' || line[i-1] == '-') {
				return linePrefix.FindString(line) // a path and a number
			}
		}
	}
	word := i
	for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
		i++
	}
	if i == len(line) || word > 0 && (i == word || line[i] != '|') || word == 0 && i > 0 && kindOf(line[i]) != '0' {
		return ""
	}
	return linePrefix.FindString(line)
}

// appendStripped appends the lines from first on that have the same prefix, without it, and returns their end.
// One of them holds a value that looks random.
func (x *examination) appendStripped(all []decoded, text string, first span) ([]decoded, int, error) {
	prefix := prefixOf(text[first.Start:first.End])
	if prefix == "" {
		return all, first.End, nil
	}
	var prefixes edits
	end := first.End
	for line := first; ; line = lineAt(text, line.End+1) {
		n := samePrefix(prefix, text[line.Start:line.End])
		if n < 0 {
			break
		}
		prefixes.add(span{line.Start, line.Start + n}, "")
		if end = line.End; end == len(text) {
			break
		}
	}
	if err := x.limit.Spend(end - first.Start); err != nil || len(prefixes.all) < 2 || !holdsRandom(text[:end], first.End) {
		return all, end, err
	}
	d := apply(text, span{first.Start, end}, prefixes.all, nil)
	d.whole = true
	return append(all, d), end, nil
}

// holdsRandom reports whether text has a value that looks random, from byte i on.
func holdsRandom(text string, i int) bool {
	for ; i < len(text); i++ {
		end := i
		for end < len(text) && (inBase64(text[end]) || text[end] == '=') {
			end++
		}
		if end-i >= 10 && isRandom(text, span{i, end}) {
			return true
		}
		i = end
	}
	return false
}

// samePrefix returns the length of the prefix of a line if it is like another one but for digits and the blanks
// before them, or -1.
func samePrefix(prefix, line string) int {
	const number = " 0123456789"
	at := 0
	for i := 0; i < len(prefix); {
		rest := strings.TrimLeft(prefix[i:], number)
		run := prefix[i : len(prefix)-len(rest)]
		if strings.Trim(run, " ") == "" {
			rest = prefix[i+1:]
			if at == len(line) || line[at] != prefix[i] {
				return -1
			}
			at++
		} else if n := len(line) - at - len(strings.TrimLeft(line[at:], number)); n > 0 {
			at += n
		} else {
			return -1
		}
		i = len(prefix) - len(rest)
	}
	return at
}

// withoutPrefix returns the first cell of a line without the prefix that the line has in common with its header.
func withoutPrefix(text string, line span, prefix string, c span) span {
	if n := samePrefix(prefix, text[line.Start:line.End]); n > 0 {
		c.Start = max(c.Start, min(line.Start+n, c.End))
	}
	return c
}
