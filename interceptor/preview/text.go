package preview

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// plainLines returns the lines of a text without line ends, colours and overstruck characters.
func plainLines(text string) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, l := range lines {
		lines[i] = plainLine(strings.TrimSuffix(l, "\r"))
	}
	return lines
}

// plainLine returns a line without colours, and without the characters that a terminal overstrikes.
func plainLine(l string) string {
	if !strings.ContainsAny(l, "\x1b\b") {
		return l
	}
	var out []byte
	for i := 0; i < len(l); i++ {
		switch {
		case l[i] == '\b':
			_, n := utf8.DecodeLastRune(out)
			out = out[:len(out)-n]
		case l[i] == 0x1b && i+1 < len(l) && l[i+1] == '[':
			for i += 2; i < len(l) && (l[i] < '@' || l[i] > '~'); i++ {
			}
		default:
			out = append(out, l[i])
		}
	}
	return string(out)
}

const sampled = 400 // lines that decide about the kind

// sample returns lines that are not blank: the first ones, and further ones from all of the text.
func sample(lines []string) []string {
	var out []string
	step := max(2*len(lines)/sampled, 1)
	for i := 0; i < len(lines) && len(out) < sampled; i++ {
		if len(out) >= sampled/2 {
			i += step - 1
		}
		if i < len(lines) && strings.TrimSpace(lines[i]) != "" {
			out = append(out, lines[i])
		}
	}
	return out
}

// maxAround is how many lines of other text may stand before and after a table or YAML.
const maxAround = 3

// untilLast returns the end of the lines without the last ones, at most maxAround, that do not fit. Blank lines
// between them do not count.
func untilLast(lines []string, fits func(string) bool) int {
	to := len(lines)
	for other := 0; to > 0 && !fits(lines[to-1]); to-- {
		if strings.TrimSpace(lines[to-1]) == "" {
			continue
		}
		if other++; other > maxAround {
			return len(lines)
		}
	}
	return to
}

// share returns the part of the lines that fit.
func share(lines []string, fits func(string) bool) float64 {
	return float64(count(lines, fits)) / float64(max(len(lines), 1))
}

func count(lines []string, fits func(string) bool) (n int) {
	for _, l := range lines {
		if fits(l) {
			n++
		}
	}
	return n
}

// The longest lines shown, in characters.
const (
	wide   = 240
	narrow = 120
)

// clip cuts s to at most max characters, on one line, and appends the number of those left out.
func clip(s string, max int) string {
	at, n := len(s), 0
	for i := range s {
		if n == max {
			at = i
			break
		}
		n++
	}
	kept := lineEnds.Replace(strings.ToValidUTF8(s[:at], "\uFFFD"))
	if rest := utf8.RuneCountInString(s[at:]); rest > 0 {
		kept += fmt.Sprintf("…(+%s)", group(rest))
	}
	return kept
}

// lineEnds are shown escaped, so that no value looks like lines of a preview.
var lineEnds = strings.NewReplacer("\n", `\n`, "\r", `\r`)

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

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok && !strings.HasSuffix(stem, "e") {
		noun = stem + "ie"
	} else if strings.HasSuffix(noun, "ch") {
		noun += "e"
	}
	return group(n) + " " + noun + "s"
}

// group writes n with commas between thousands.
func group(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// indent returns the indentation of a line. A tab counts as four.
func indent(l string) int {
	space := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
	return len(space) + 3*strings.Count(space, "\t")
}

func startsWith(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

func containsAny(s string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || (c >= 'a' && c <= 'f') }
