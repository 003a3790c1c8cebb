package scrub

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// Pairs are names and values that stand apart in a text, to be rewritten to NAME": "VALUE", which all rules know.
type pairs struct {
	cells    [][]cell  // by rule
	stripped []decoded // lines without their prefixes, in which there may be more
}

// pairs returns the pairs in the scanned text. Of a rule with Before, the value stands first. hits are known.
func (x *examination) pairs(text string, hits []hit) (all pairs, err error) {
	if x.paired {
		return all, nil
	}
	var known []mark
	apart := false
	for _, i := range x.scratch.Candidates() {
		r := x.s.rules.active[i]
		if !r.Apart {
			continue
		}
		first := len(x.cells)
		if !apart {
			apart = true
			if err := x.addJSON(text); err != nil {
				return all, err
			}
		}
		next := nameEnd // the value may be the name of the next one
		if r.Before || r.Header || r.Statement || r.SecretGroup > 0 {
			next = matchEnd
		}
		matches, err := x.scratch.FindFrom(i, next)
		switch {
		case err != nil || len(matches) == 0:
		case r.Header:
			all.stripped, err = x.appendTables(all.stripped, text, matches)
		case r.Statement:
			err = x.addStatements(text, matches)
		case r.Before || r.SecretGroup > 0:
			err = x.addNamed(text, r, matches)
		default:
			if r.Random && known == nil {
				known = merge(appendMarks([]mark{}, text, hits))
			}
			err = x.addPairs(text, r, matches, known)
		}
		if err != nil {
			return all, err
		}
		if len(x.cells) > first {
			all.cells = append(all.cells, x.cells[first:])
		}
	}
	return all, nil
}

// addNamed adds the pairs of a rule that has groups for both the name and the value.
func (x *examination) addNamed(text string, r *rule, matches []regexset.Span) error {
	for _, m := range matches {
		groups, err := x.scratch.Submatches(r.index, m)
		if err == nil {
			err = x.limit.Spend(perMatch + perByte*(m.End-m.Start))
		}
		if err != nil {
			return err
		}
		if groups == nil {
			continue
		}
		name, value := span{m.Start + groups[4], m.Start + groups[5]}, span{m.Start + groups[2], m.Start + groups[3]}
		if r.SecretGroup > 0 {
			name, value = value, name
		}
		if value = valueIn(text, value); !r.Random || isRandom(text, value) {
			x.cells = append(x.cells, cell{name: text[name.Start:name.End], value: value})
		}
	}
	return nil
}

// addPairs adds the pairs of a rule whose matches begin with the name and have the value in a group.
func (x *examination) addPairs(text string, r *rule, matches []regexset.Span, known []mark) error {
	dense := crowd{}
	var rows rowTest
	uncut := 0 // the first cell whose value may end at the next name
	for i, m := range matches {
		admitted := dense.admits(m)
		if dense.matches == 0 {
			uncut = len(x.cells) + wholeMatches
		}
		// The values before that do not begin near this name end at it, unless it begins within a word.
		for ; uncut < len(x.cells) && x.cells[uncut].value.Start+nearMatch <= m.Start; uncut++ {
			if v, c := &x.cells[uncut].value, text[m.Start-1]; !inBase64(c) && c != '.' {
				v.End = min(v.End, m.Start)
			}
		}
		if !admitted {
			continue
		}
		match, err := x.valueOf(r, m)
		if err != nil {
			return err
		}
		dense.value = match.End
		value := valueIn(text, match)
		end := value.End
		if r.Random {
			whole, ok := span{}, false
			if value, whole, ok = randomIn(text, m.Start, value); !ok || covered(known, whole) {
				continue
			}
			end = whole.End
		}
		if isPublic(text[value.Start:value.End]) || r.Row && !rows.holds(text, m.Start, match) {
			continue
		}
		name := text[m.Start:nameEnd(text, regexset.Span{Start: m.Start, End: value.Start})]
		if len(x.cells) == cap(x.cells) {
			x.cells = slices.Grow(x.cells, len(matches)-i)
		}
		if x.cells = append(x.cells, cell{name, value, true}); end > value.End {
			x.cells = append(x.cells, cell{value: span{end, end}}) // what is behind the value is redacted with it
		}
		x.addBlock(text, name, m.Start, value)
	}
	return nil
}

// valueOf returns the value in a match of a rule: its group or, of a rule with Begun, what begins with the last few
// characters of the match. That takes no run for the groups.
func (x *examination) valueOf(r *rule, m regexset.Span) (span, error) {
	const few, most = 6, 500
	text := x.text
	if err := x.limit.Spend(perCell + perByte*(m.End-m.Start)); err != nil {
		return span{}, err
	}
	if !r.Begun {
		return x.secretOf(r, span(m))
	}
	value := span{m.End, min(m.End+most-few, len(text))}
	for range few {
		_, size := utf8.DecodeLastRuneInString(text[:value.Start])
		value.Start -= size
	}
	ends := &endsOfValues
	if r.Row {
		ends = &endsOfCells
	}
	value.End = m.End + ends.index(text[m.End:value.End])
	for value.End < len(text) && !utf8.RuneStart(text[value.End]) {
		value.End--
	}
	return value, nil
}

// What the groups of rules with Begun leave out, and those of rules with Row.
var (
	endsOfValues = setOf(signsOfValues)
	endsOfCells  = setOf(signsOfValues + "()")
	decimals     = setOf("0123456789")
)

const signsOfValues = "\"'`\\<>{}[],| \t\n\f\r"

// A byteSet is a set of bytes. Looking for them in short texts takes less time than by strings.IndexAny.
type byteSet [256]bool

func setOf(all string) (set byteSet) {
	for i := range len(all) {
		set[all[i]] = true
	}
	return set
}

// index returns the place of the first byte of s that is in the set, or len(s).
func (set *byteSet) index(s string) int {
	for i := range len(s) {
		if set[s[i]] {
			return i
		}
	}
	return len(s)
}

// randomIn returns the first part of a random value whose name begins at byte at, and the whole of it. ok is
// false if it does not look random.
func randomIn(text string, at int, value span) (first, whole span, ok bool) {
	whole = value
	for whole.End > whole.Start && strings.IndexByte(".:!?", text[whole.End-1]) >= 0 {
		whole.End--
	}
	if first = firstPart(text, at, value); first != value {
		whole.Start = first.Start
	} else if !looksRandom(text[whole.Start:whole.End]) {
		return value, whole, false
	} else if more := longer(text, value); more != value {
		first, whole = whole, more
	} else {
		first = whole
	}
	return first, whole, endsValue(text, whole.End)
}

// A crowd is matches that each begin in the value of the one before, as those of names in a row do. Of many, those
// that begin near another one, far before the end of its value, add nothing but time. Behind the first ones a value
// ends at the first name that is not near its start.
type crowd struct {
	last, value int // the start of the last match, and the end of its value
	matches     int
}

const (
	wholeMatches = 2  // in a crowd, whose values are not cut
	nearMatch    = 64 // bytes
)

func (c *crowd) admits(m regexset.Span) bool {
	const few, far = 8, 128
	if m.Start >= c.value {
		c.matches = 0
	} else if c.matches++; c.matches > few && m.Start < c.last+nearMatch && m.Start+far <= c.value {
		return false
	}
	c.last = m.Start
	return true
}

// addBlock adds a pair whose value is the first line of a block in YAML, with the lines of the block as one
// word. The name begins at byte at.
func (x *examination) addBlock(text, name string, at int, value span) {
	line := text[strings.LastIndexByte(text[at:value.Start], '\n')+1+at : value.Start]
	if line == "" || len(line) == value.Start-at || strings.Trim(line, " ") != "" || !strings.ContainsAny(text[at:value.Start], "|>") {
		return
	}
	first := len(x.cells)
	for {
		end := lineAt(text, value.End)
		rest := strings.TrimLeft(text[end.Start:end.End], "\r")
		if rest != "" || end.End == len(text) {
			break
		}
		next := lineAt(text, end.End+1)
		word, indented := strings.CutPrefix(strings.TrimSuffix(text[next.Start:next.End], "\r"), line)
		if !indented || word == "" || strings.ContainsAny(word, " \t\"'`:,") {
			break
		}
		if len(x.cells) == first {
			x.cells = append(x.cells, cell{name, value, true})
		}
		value = span{next.Start + len(line), next.Start + len(line) + len(word)}
		x.cells = append(x.cells, cell{value: value})
	}
}

func matchEnd(_ string, m regexset.Span) int { return m.End }

// nameEnd returns the end of the name at the beginning of a range.
func nameEnd(text string, in regexset.Span) int {
	end := in.Start + 1
	for end < in.End && (inBase64(text[end]) || text[end] == '.') && text[end] != '/' && text[end] != '+' {
		end++
	}
	return end
}

// firstPart returns the part of a random value that the expression takes for a type before the sign = in it, or the
// value. The name begins at byte at.
func firstPart(text string, at int, value span) span {
	if text[value.Start-1] != '=' {
		return value
	}
	before := strings.TrimRight(text[nameEnd(text, regexset.Span{Start: at, End: value.Start}):value.Start], "=")
	end := len(strings.TrimRight(text[:value.Start], "="))
	part := before[strings.LastIndexAny(before, notInValues)+1:]
	if part == "" || !looksRandom(part) {
		return value
	}
	return span{end - len(part), end}
}

// longer returns a value with what follows it behind a sign that its expression takes for its end, as long as that
// looks like a part of a random value, too, and holds no name: there another pair begins.
func longer(text string, value span) span {
	const most = 500 // bytes
	for value.End-value.Start < most {
		signs := value.End
		for signs < len(text) && signs < value.End+2 && strings.IndexByte("=:?", text[signs]) >= 0 {
			signs++
		}
		rest := text[signs:min(signs+most, len(text))]
		if n := strings.IndexAny(rest, notInValues); n >= 0 {
			rest = rest[:n]
		}
		rest = strings.TrimRight(rest, ".!")
		if signs == value.End && text[signs-1] != '=' || !isPart(rest) {
			break
		}
		value.End = signs + len(rest)
	}
	return value
}

// notInValues is what ends a value of a rule with Random.
const notInValues = " \t\r\n\"'`\\<>{}[](),;|&*=:?"

// isPart reports whether s looks like a part of a random value.
func isPart(s string) bool {
	const least, leastLetters = 4, 6 // bytes, and if there is no digit
	lower := strings.ToLower(s)
	mixed := strings.ContainsAny(s, "0123456789") && len(s) >= least || lower != s && strings.ToUpper(s) != s && len(s) >= leastLetters
	return mixed && strings.Trim(s, "0123456789.-/") != "" && !secretWords.Contains(s) && !strings.Contains(lower, "auth") && !isSpoken(s)
}

// isRandom reports whether a value looks random and ends where values do.
func isRandom(text string, value span) bool {
	return endsValue(text, value.End) && looksRandom(text[value.Start:value.End])
}

// endsValue reports whether a value may end at byte i.
func endsValue(text string, i int) bool {
	next, _ := utf8.DecodeRuneInString(text[i:])
	return i == len(text) || !plausible(next) || strings.ContainsRune(" \t\r\n\"'`\\<>{}]),;|&*.:!?", next)
}

// looksRandom reports whether a value looks like a key or a password that was made at random: no name, number,
// call or member in code, version, host or URL, and no row of digits.
func looksRandom(v string) bool {
	if len(v) < 10 || decimals.index(v) == len(v) || strings.Contains(v, "://") || strings.Contains(v, "12345678") ||
		len(v) < 40 && strings.Contains(v, ".") || isAnchored(v) {
		return false
	}
	return !isSpoken(v)
}

// isSpoken reports whether s consists of words that can be pronounced, for the most part, and few numbers.
func isSpoken(s string) bool {
	if !hasWords(s) {
		return false
	}
	letters, spoken := 0, 0
	for w := ""; s != ""; {
		if w, s = cutWord(s); kindOf(w[0]) != 'A' && kindOf(w[0]) != 'a' {
			continue
		}
		letters += len(w)
		if n, others := vowels(w); len(w) > 3 && 5*n >= len(w) && others < 4 {
			spoken += len(w)
		}
	}
	return 2*spoken >= letters
}

// A public value is a version, a date or a URL without a password.
var publicValue = regexp.MustCompile(`^(?:v?[0-9]+(?:\.[0-9]+)+(?:[+-][\w.+-]*)?|[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T_][0-9:.,]+(?:Z|[+-][0-9:]+)?)?|https?://[^@]*)$`)

func isPublic(value string) bool {
	return value != "" && strings.IndexByte("0123456789vh", value[0]) >= 0 && publicValue.MatchString(value)
}

// A rowTest tells cells of rows apart. Names in a long line look at the same bytes, so it knows what it saw.
type rowTest struct {
	line          span // from the start of the line of the last name to that name
	before, after span // the ranges around the last cells in which is nothing that no cell has
}

// holds reports whether a name at byte at and a value are whole cells of one row, such as sqlite prints
// without a header. Of a long line it looks at the part around them. Names come in ascending order.
func (r *rowTest) holds(text string, at int, value span) bool {
	if n := strings.LastIndexByte(text[r.line.End:at], '\n'); n >= 0 {
		r.line.Start = r.line.End + n + 1
	}
	r.line.End = at
	before := text[max(r.line.Start, at-maxName*4):at]
	after, _, _ := strings.Cut(text[value.End:min(value.End+maxHeader, len(text))], "\n")
	separator := string(text[value.Start-1])
	if separator == " " {
		separator = "  "
	}
	if strings.IndexByte(text[at:value.Start], '\t') >= 0 {
		separator = "\t"
	}
	if isScrambled(text[at:nameEnd(text, regexset.Span{Start: at, End: value.Start})]) {
		return false
	}
	if rest := text[at+1 : value.Start]; separator != "|" && (text[at] == '-' || !strings.ContainsAny(rest, "_.ABCDEFGHIJKLMNOPQRSTUVWXYZ")) {
		return false // a word, an option or a package and what it is
	}
	for i := 1; separator == "  " && i+1 < len(after); i++ {
		if after[i] == ' ' && after[i-1] != ' ' && after[i+1] != ' ' {
			return false // a sentence
		}
	}
	begins := func(before string) bool {
		return (strings.Trim(before, " ") == "" || strings.HasSuffix(before, separator)) && inCells(text, span{at - len(before), at}, &r.before)
	}
	return (strings.Trim(after, " \r") == "" || strings.HasPrefix(after, separator)) &&
		inCells(text, span{value.End, value.End + len(after)}, &r.after) &&
		(begins(before) || begins(before[len(prefixOf(before)):]))
}

var notInCells = setOf(notInNames + "\"'`\\*^")

// inCells reports whether all bytes of s may be in cells. Those of known are, and it grows.
func inCells(text string, s span, known *span) bool {
	if s.Start < known.Start || s.Start > known.End {
		*known = span{s.Start, s.Start}
	}
	if s.End > known.End {
		known.End += notInCells.index(text[known.End:s.End])
	}
	return s.End <= known.End
}
