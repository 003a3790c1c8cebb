package scrub

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// pairs returns the names and values that stand apart in the scanned text, rewritten to
// NAME": "VALUE", which all rules know. Of a rule with Before, the value stands first. hits are known.
func (x *examination) pairs(text string, hits []hit) ([]decoded, error) {
	if x.paired {
		return nil, nil
	}
	var all []decoded
	var known []mark
	apart := 0
	for _, i := range x.scratch.Candidates() {
		if !x.s.rules.active[i].Apart {
			continue
		}
		if apart++; apart == 1 {
			var err error
			if all, err = x.appendJSONTable(all, text); err != nil {
				return nil, err
			}
		}
		r := x.s.rules.active[i]
		next := nameEnd // the value may be the name of the next one
		if r.Before || r.Header || r.SecretGroup > 0 {
			next = matchEnd
		}
		matches, err := x.scratch.FindFrom(i, next)
		if err != nil {
			return nil, err
		}
		if len(matches) == 0 {
			continue
		}
		if r.Header {
			if all, err = x.appendTables(all, text, matches); err != nil {
				return nil, err
			}
			continue
		}
		var first []cell
		lines, overlapping, blocks := rewriting{text: text}, rewriting{text: text}, rewriting{text: text}
		dense := crowd{}
		for _, m := range matches {
			if !dense.admits(m) {
				continue
			}
			if err := x.limit.spend(m.End - m.Start); err != nil {
				return nil, err
			}
			groups, err := x.scratch.Submatches(i, m)
			if err != nil {
				return nil, err
			}
			if (r.Before || r.SecretGroup > 0) && groups != nil {
				name, value := span{m.Start + groups[4], m.Start + groups[5]}, span{m.Start + groups[2], m.Start + groups[3]}
				if r.SecretGroup > 0 {
					name, value = value, name
				}
				if value = valueIn(text, value); !r.Random || isRandom(text, value) {
					first = append(first, cell{text[name.Start:name.End], value})
				}
				continue
			}
			for n := 2; n < len(groups); n += 2 {
				if groups[n] < 0 {
					continue
				}
				match := span{m.Start + groups[n], m.Start + groups[n+1]}
				dense.value = match.End
				value := valueIn(text, match)
				whole := value
				if r.Random {
					whole.End = value.Start + len(strings.TrimRight(text[value.Start:value.End], ".:!?"))
					if first := firstPart(text, m.Start, value); first != value {
						whole.Start, value = first.Start, first
					} else if !looksRandom(text[whole.Start:whole.End]) {
						continue
					} else if more := longer(text, value); more != value {
						value, whole = whole, more
					} else {
						value = whole
					}
					if !endsValue(text, whole.End) {
						continue
					}
					if known == nil {
						known = merge(appendMarks([]mark{}, text, hits))
					}
					if covered(known, whole) {
						continue
					}
				}
				if isPublic(text[value.Start:value.End]) {
					continue
				}
				if !r.Row || isRow(text, m.Start, match) {
					if m.Start < lines.part.End {
						overlapping.pair(m.Start, value, whole.End)
					} else {
						lines.pair(m.Start, value, whole.End)
					}
					blocks.block(m.Start, value)
				}
			}
		}
		if len(first) > 0 {
			all = append(all, fromCells(text, first))
		}
		for _, r := range []*rewriting{&lines, &overlapping, &blocks} {
			r.end()
			all = append(all, r.ready...)
		}
	}
	return all, nil
}

// A crowd is matches that each begin in the value of the one before, as those of names in a row do. Of many, those
// that begin near another one, far before the end of its value, add nothing but time.
type crowd struct {
	last, value int // the start of the last match, and the end of its value
	matches     int
}

func (c *crowd) admits(m regexset.Span) bool {
	const few, near, far = 8, 64, 128
	if m.Start >= c.value {
		c.matches = 0
	} else if c.matches++; c.matches > few && m.Start < c.last+near && m.Start+far <= c.value {
		return false
	}
	c.last = m.Start
	return true
}

// A rewriting is pairs of one rule, in their order, as lines of one text. So a text full of pairs is
// scanned once more, not once for each.
type rewriting struct {
	text  string
	part  span
	edits []edit
	ready []decoded
}

// pair adds a value and the name that begins at byte at. What is behind the value, up to byte end, is redacted with it.
func (r *rewriting) pair(at int, value span, end int) {
	name := nameEnd(r.text, regexset.Span{Start: at, End: value.Start})
	if at < r.part.End {
		r.end() // it overlaps the last one
	}
	if len(r.edits) == 0 {
		r.part.Start = at
	} else {
		r.edits = append(r.edits, edit{span{r.part.End, at}, "\"\n\x00\n"}) // no match goes on behind it
	}
	r.edits = append(r.edits, edit{span{name, value.Start}, `": "`})
	if end > value.End {
		r.edits = append(r.edits, edit{span{value.End, end}, ""})
	}
	r.part.End = end
}

// block adds a pair whose value is the first line of a block in YAML, with the lines of the block as one
// word.
func (r *rewriting) block(at int, value span) {
	text := r.text
	line := text[strings.LastIndexByte(text[at:value.Start], '\n')+1+at : value.Start]
	if line == "" || len(line) == value.Start-at || strings.Trim(line, " ") != "" || !strings.ContainsAny(text[at:value.Start], "|>") {
		return
	}
	began := false
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
		if !began {
			began = true
			r.pair(at, value, value.End)
		}
		r.edits = append(r.edits, edit{span{value.End, next.Start + len(line)}, ""})
		value.End = next.Start + len(line) + len(word)
		r.part.End = value.End
	}
}

// end ends the text of the pairs so far.
func (r *rewriting) end() {
	if len(r.edits) > 0 {
		d := apply(r.text, r.part, append(r.edits, edit{span{r.part.End, r.part.End}, "\"\n"}))
		d.paired = true
		r.ready = append(r.ready, d)
		r.edits = nil
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
	if len(v) < 10 || !strings.ContainsAny(v, "0123456789") || strings.Contains(v, "://") || strings.Contains(v, "12345678") ||
		len(v) < 40 && strings.Contains(v, ".") || nameAnchor.MatchString(v) {
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
	for _, w := range nameWord.FindAllString(s, -1) {
		if last := kindOf(w[len(w)-1]); last == 'A' || last == 'a' {
			if letters += len(w); len(w) > 3 && 5*len(vowel.FindAllString(w, -1)) >= len(w) && !consonants.MatchString(w) {
				spoken += len(w)
			}
		}
	}
	return 2*spoken >= letters
}

var (
	vowel      = regexp.MustCompile(`[aeiouyAEIOUY]`)
	consonants = regexp.MustCompile(`(?i)[b-df-hj-np-tv-xz]{4}`)
)

// A public value is a version, a date or a URL without a password.
var publicValue = regexp.MustCompile(`^(?:v?[0-9]+(?:\.[0-9]+)+(?:[+-][\w.+-]*)?|[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T_][0-9:.,]+(?:Z|[+-][0-9:]+)?)?|https?://[^@]*)$`)

func isPublic(value string) bool {
	return value != "" && strings.IndexByte("0123456789vh", value[0]) >= 0 && publicValue.MatchString(value)
}

// isRow reports whether a name at byte at and a value are whole cells of one row, such as sqlite prints
// without a header. Of a long line it looks at the part around them.
func isRow(text string, at int, value span) bool {
	before := text[max(0, at-maxName*4):at]
	before = before[strings.LastIndexByte(before, '\n')+1:]
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
	const noCell = notInNames + "\"'`\\*^"
	begins := func(before string) bool {
		return (strings.Trim(before, " ") == "" || strings.HasSuffix(before, separator)) && !strings.ContainsAny(before, noCell)
	}
	return (strings.Trim(after, " \r") == "" || strings.HasPrefix(after, separator)) && !strings.ContainsAny(after, noCell) &&
		(begins(before) || begins(before[len(prefixOf(before)):]))
}

// appendTables appends the columns with secrets of the tables in whose headers names match.
func (x *examination) appendTables(all []decoded, text string, names []regexset.Span) ([]decoded, error) {
	tried, table, columns := -1, -1, -1 // the ends of the last line that appendTable tried, and of the last tables, or of a line that begins none
	stripped := -1                      // the end of the last lines with a prefix
	below := -1                         // the end of the first row of the table: the line above may be a title, and this its header
	var runs [len(separators)]run       // by separator
	for _, n := range names {
		if n.Start <= tried || n.Start > below && n.Start <= min(table, columns) {
			continue
		}
		header := lineAt(text, strings.LastIndexByte(text[:n.Start], '\n')+1)
		if header.Start >= stripped {
			var err error
			if all, stripped, err = x.appendStripped(all, text, header); err != nil {
				return nil, err
			}
		}
		err := x.limit.spend(header.End - header.Start)
		if err == nil && (n.Start > table || n.Start <= below) {
			first, end := n.Start > table, 0
			tried = header.End
			all, end, err = x.appendTable(all, text, header, &runs)
			table = max(table, end)
			if below = -1; first && table > header.End && !belowRule(text, header) {
				below = firstRow(text, header).End
			}
		}
		if err == nil && n.Start > columns {
			all, columns, err = x.appendColumns(all, text, header)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// linePrefix matches what stands before the lines of a text in a diff, a quotation, a log or the output
// of grep, cat -n or docker compose.
var linePrefix = regexp.MustCompile(`^(?:\++|-|>+|\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]+(?:Z|[+-][0-9:]{4,5})?\]?[ \t]+(?:\[?[A-Z]{3,8}\]?:?[ \t]+)?|` +
	`(?:[\w./-]{1,80}[:-])?[0-9]+[:-]|[ \t]{0,9}[0-9]+(?:\t| \| |\x{2192}|->)|[\w.-]{1,40}[ \t]+\| )`)

// prefixOf returns the prefix of a line, or "". Most lines have none, and that is cheap to see.
func prefixOf(line string) string {
	line = line[:min(len(line), 200)]
	letters := 0
	for letters < len(line) && (line[letters]|0x20 >= 'a' && line[letters]|0x20 <= 'z' || line[letters] == '_') {
		letters++
	}
	rest := letters
	for rest < len(line) && (line[rest] == ' ' || line[rest] == '\t') {
		rest++
	}
	if rest == len(line) || letters > 0 && rest > letters && line[rest] != '|' || letters == 0 && rest > 0 && kindOf(line[rest]) != '0' {
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
	var edits []edit
	end := first.End
	for line := first; ; line = lineAt(text, line.End+1) {
		n := samePrefix(prefix, text[line.Start:line.End])
		if n < 0 {
			break
		}
		edits = append(edits, edit{span{line.Start, line.Start + n}, ""})
		if end = line.End; end == len(text) {
			break
		}
	}
	if err := x.limit.spend(end - first.Start); err != nil || len(edits) < 2 || !holdsRandom(text[:end], first.End) {
		return all, end, err
	}
	d := apply(text, span{first.Start, end}, edits)
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

// appendColumns appends the columns with secrets of the table with a header, if two or more blanks
// separate the columns, and returns the end of the table, or of the line if there is none.
// The cells of a column begin below its name. Names are in capitals, as kubectl prints them, or ruled.
func (x *examination) appendColumns(all []decoded, text string, header span) ([]decoded, int, error) {
	ruled := lineAt(text, min(header.End+1, len(text)))
	if first := text[header.Start:header.End]; len(first) > maxHeader || !strings.Contains(first, "  ") || strings.ContainsAny(first, notInNames+"|,;\t\"'`*") ||
		strings.ToUpper(first) != first && strings.Trim(text[ruled.Start:ruled.End], "- \r") != "" {
		return all, header.End, nil
	}
	var names []span
	filled := 0
	for i := header.Start; i < header.End; {
		n := span{i, header.End}
		if blanks := strings.Index(text[i:header.End], "  "); blanks >= 0 {
			n.End = i + blanks
		}
		for i = n.End; i < header.End && text[i] == ' '; i++ {
		}
		if n.End = n.Start + len(strings.TrimRight(text[n.Start:n.End], " \r")); n.Start == n.End {
			continue
		}
		if filled++; isSecretName(text, n) && !strings.Contains(text[n.Start:n.End], " ") {
			names = append(names, n)
		}
	}
	if filled < 2 || len(names) == 0 {
		return all, header.End, nil
	}
	found := x.cells[:0]
	line := header
rows:
	for line.End < len(text) {
		next := lineAt(text, line.End+1)
		if err := x.limit.spend(next.End - next.Start); err != nil {
			return nil, 0, err
		}
		row := text[next.Start:next.End]
		if row == "" {
			break
		}
		if line = next; strings.Trim(row, "- \r") == "" {
			continue // a ruled line
		}
		for _, n := range names {
			i := n.Start - header.Start
			if i >= len(row) || row[i] == ' ' || i > 0 && row[i-1] != ' ' {
				break rows
			}
			value, rest, _ := strings.Cut(row[i:], " ")
			if value = strings.TrimRight(value, "\r"); rest == "" || rest[0] == ' ' {
				found = append(found, cell{text[n.Start:n.End], span{next.Start + i, next.Start + i + len(value)}})
			}
		}
	}
	if x.cells = found; len(found) == 0 {
		return all, header.End, nil
	}
	end := found[len(found)-1].value.End
	return append(all, fromCells(text, found)), end, nil
}

// maxName is the length of the longest name of a column, maxHeader that of a header of columns that
// blanks separate, notInNames what no name contains.
const (
	maxName    = 40
	maxHeader  = 400
	notInNames = "()[]{}<>=:$"
)

// The first line of a table can be a row with the name of a package such as passwd or base-passwd. It is
// one if it has a path, number, version or date, or if its cells recur below: in leastRepeated rows, and in
// that part of all. Other names of secrets name a column, but in a line with signs that few names of columns
// have: it is a row, as of an index, if its cells recur as often (a path recurs in any path), and maybe code.
const leastRepeated = 4

// firstRow returns the line below a header that is not ruled.
func firstRow(text string, header span) span {
	row := lineAt(text, min(header.End+1, len(text)))
	if isRuled(text[row.Start:row.End]) {
		row = lineAt(text, min(row.End+1, len(text)))
	}
	return row
}

// belowRule reports whether the line above one is ruled: then it is no title.
func belowRule(text string, line span) bool {
	above := text[:max(line.Start-1, 0)]
	above = above[strings.LastIndexByte(above, '\n')+1:]
	return above != "" && isRuled(above)
}

func isRuled(line string) bool { return strings.Trim(line, "-+=:| \r") == "" }

// appendTable appends the columns with secrets of the table with a header, and returns the end of the
// table, or of the line if there is none.
func (x *examination) appendTable(all []decoded, text string, header span, runs *[len(separators)]run) ([]decoded, int, error) {
	if !namesSecret(text[header.Start:header.End]) {
		return all, header.End, nil
	}
	below := lineAt(text, min(header.End+1, len(text)))
	for i := range separators {
		separator, r := separators[i], &runs[i]
		if header.Start >= r.end {
			r.headers = 0
		}
		in := func(line span) bool { return strings.IndexByte(text[line.Start:line.End], separator) >= 0 }
		if !in(header) || !in(below) && (separator != '|' || strings.IndexByte(text[below.Start:below.End], '+') < 0) {
			continue // psql rules with +
		}
		if r.headers == maxHeaders {
			continue
		}
		more, end, err := x.appendCellsBelow(all, text, header, separator, r)
		if err != nil || len(more) > len(all) {
			return more, end, err
		}
	}
	return all, header.End, nil
}

// namesSecret reports whether the name of a secret may be a cell of a line, whatever separates its cells: a
// part between separators has such a word and only bytes of names. Most code ends here.
func namesSecret(line string) bool {
	for i := 0; i < len(line); i++ {
		from := i
		for i < len(line) && inHeader[line[i]] == nameByte {
			i++
		}
		if (i == len(line) || inHeader[line[i]] == separatorByte) && secretWords.Contains(line[from:i]) {
			return true
		}
		for i < len(line) && inHeader[line[i]] != separatorByte {
			i++
		}
	}
	return false
}

const (
	nameByte = iota
	otherByte
	separatorByte
)

// inHeader says what each byte is in a line of names: a part of one, a separator, or what no name contains.
var inHeader = func() (kinds [256]uint8) {
	for _, c := range []byte(notInNames) {
		kinds[c] = otherByte
	}
	for _, c := range []byte(separators) {
		kinds[c] = separatorByte
	}
	return kinds
}()

// separators are those of cells. A line is cut at the first one that makes it a header.
const separators = "|\t;,"

// A run is lines with as many cells. Each of them with the name of a secret may be a header, with all lines
// below as its rows. So that the time is linear, only maxHeaders of them are.
type run struct {
	end     int // of the last run: the start of the line that ended it
	headers int // that were tried
}

const maxHeaders = 8

// appendCellsBelow is appendTable for one header and separator. The rows have as many cells as the header.
func (x *examination) appendCellsBelow(all []decoded, text string, header span, separator byte, r *run) ([]decoded, int, error) {
	line := text[header.Start:header.End]
	signs := strings.ContainsAny(line, notInNames+"/@#%&?!~^+\\")
	if (separator == ',' || separator == ';') && (line[0] == '\t' || signs && isCode(text, header, separator)) {
		return all, header.End, nil
	}
	x.spans = appendCells(x.spans[:0], text, header, separator)
	names := x.spans
	filled, secret, row := 0, false, true
	for _, n := range names {
		if n.Start < n.End {
			filled++
		}
		if isSecretName(text, n) {
			secret, row = true, row && strings.HasSuffix(text[n.Start:n.End], "passwd")
		}
	}
	for _, n := range names {
		if row && n.Start < n.End && text[n.Start] == '/' || row && n.End-n.Start > 1 && '0' <= text[n.Start] && text[n.Start] <= '9' && strings.IndexByte("0123456789.:-", text[n.Start+1]) >= 0 {
			return all, header.End, nil // a path, number, version or date names no column
		}
	}
	if filled < 2 || !secret {
		return all, header.End, nil
	}
	found := x.cells[:0]
	prefix := ""
	if isSecretName(text, names[0]) {
		prefix = prefixOf(line)
	}
	rows := 0
	repeated := slices.Grow(x.repeated[:0], len(names))[:len(names)] // by cell: rows with the same one as the first line
	clear(repeated)
	x.repeated = repeated
	r.headers++
	r.end = len(text)
	for line := header; line.End < len(text); {
		line = lineAt(text, line.End+1)
		if err := x.limit.spend(line.End - line.Start); err != nil {
			return nil, 0, err
		}
		if text[line.Start:line.End] == text[header.Start:header.End] {
			rows++
			continue // tables that were put together
		}
		x.spans = appendCells(x.spans[:len(names)], text, line, separator)
		cells := x.spans[len(names):]
		if len(cells) != len(names) {
			if isRuled(text[line.Start:line.End]) {
				continue
			}
			r.end = line.Start
			break
		}
		rows++
		for i, c := range cells {
			name := text[names[i].Start:names[i].End]
			if c.Start == c.End {
				continue
			}
			if text[c.Start:c.End] == name || name != "" && name[0] == '/' && text[c.Start] == '/' {
				repeated[i]++
			}
			if isSecretName(text, names[i]) {
				if i == 0 && prefix != "" {
					c = withoutPrefix(text, line, prefix, c)
				}
				found = append(found, cell{name, c})
			}
		}
	}
	x.cells = found
	if len(found) == 0 || (row || signs) && slices.Max(repeated) >= max(rows/leastRepeated, leastRepeated) {
		clear(found) // as fromCells does
		return all, header.End, nil
	}
	end := found[len(found)-1].value.End
	return append(all, fromCells(text, found)), end, nil
}

// isCode reports whether a line with signs is indented, or has a sign of code at its end, and the line below
// is not alike, as the rows of an indented table or of one with open cells at the end are.
func isCode(text string, line span, separator byte) bool {
	ends := func(line span) (indent, end string) {
		rest := strings.TrimLeft(text[line.Start:line.End], " ")
		indent = text[line.Start : line.End-len(rest)]
		rest = strings.TrimRight(rest, " \t\r")
		return indent, rest[len(strings.TrimRight(rest, ",;([{")):]
	}
	indent, end := ends(line)
	below, endBelow := ends(lineAt(text, min(line.End+1, len(text))))
	return indent+end != "" && (indent != below || (end == "") != (endBelow == "") || strings.Trim(end, string(separator)) != "")
}

// A cell is a value of a table, and the name of its column.
type cell struct {
	name  string
	value span
}

// fromCells rewrites cells, in their order in text, to lines with names and values.
func fromCells(text string, cells []cell) decoded {
	start := valueIn(text, cells[0].value).Start
	part := span{start, start}
	edits := make([]edit, 0, len(cells)+1)
	before := ""
	for i, c := range cells {
		c.value = valueIn(text, c.value)
		if i == 0 || c.name != cells[i-1].name {
			before = "\"\n\"" + c.name + `": "`
		}
		edits = append(edits, edit{span{part.End, c.value.Start}, before})
		part.End = c.value.End
	}
	clear(cells) // they refer to the text, and their memory is used again
	d := apply(text, part, append(edits, edit{span{part.End, part.End}, "\"\n"}))
	d.paired = true
	return d
}

// appendJSONTable appends the cells of tables in a text that is JSON.
func (x *examination) appendJSONTable(all []decoded, text string) ([]decoded, error) {
	begin := strings.TrimLeft(text, " \t\r\n")
	if begin == "" || begin[0] != '[' && begin[0] != '{' || strings.Count(begin, "[") < 2 {
		return all, nil
	}
	d := &document{examination: &examination{s: x.s, cells: x.cells[:0]}, raw: []byte(text), all: true, tabular: true}
	if d.walk() != nil {
		return all, nil // it is no JSON
	}
	err := d.tables()
	if x.cells = d.cells; err != nil || len(d.cells) == 0 {
		return all, err
	}
	return append(all, fromCells(text, d.cells)), x.limit.spend(len(text))
}

// secretWords has the words in the names of columns with secrets.
var secretWords = regexset.NewLiterals([]string{"passw", "passphrase", "pwd", "secret", "token", "key", "credential"})

func isSecretName(text string, s span) bool {
	name := text[s.Start:s.End]
	return len(name) <= maxName && secretWords.Contains(name) && !strings.ContainsAny(name, notInNames) && !isScrambled(name)
}

// isScrambled reports whether the name of a column looks like a value with the word of a secret in it by chance: it
// has a digit, and most of its letters are in runs of one case that can't be pronounced or are short.
func isScrambled(name string) bool {
	const least = 12 // bytes
	parts := strings.ContainsAny(name, "_-. ")
	if len(name) < least || !strings.ContainsAny(name, "0123456789") || parts && (strings.ToLower(name) == name || strings.ToUpper(name) == name) {
		return false
	}
	letters, spoken := 0, 0
	for i := 0; i < len(name); {
		kind, from, vowels := kindOf(name[i]), i, 0
		for i < len(name) && (kindOf(name[i]) == kind || i == from+1 && kind == 'A' && kindOf(name[i]) == 'a') {
			if strings.IndexByte("aeiouyAEIOUY", name[i]) >= 0 {
				vowels++
			}
			kind = kindOf(name[i])
			i++
		}
		if kind != 'A' && kind != 'a' {
			continue
		}
		letters += i - from
		if word := name[from:i]; len(word) > 3 && 5*vowels >= len(word) || len(word) == 3 && (parts && vowels > 0 || secretWords.Contains(word)) {
			spoken += len(word)
		}
	}
	return 2*spoken < letters
}

func lineAt(text string, at int) span {
	if n := strings.IndexByte(text[at:], '\n'); n >= 0 {
		return span{at, at + n}
	}
	return span{at, len(text)}
}

// appendCells appends the cells of a line without the blanks and quotation marks around them.
func appendCells(dst []span, text string, line span, separator byte) []span {
	quoted := false
	from := line.Start
	for i := line.Start; i <= line.End; i++ {
		if i < line.End && text[i] == '"' && separator != '|' {
			quoted = !quoted
		}
		if i < line.End && (text[i] != separator || quoted) {
			continue
		}
		const around = " \t\r\"'`*"
		cell := text[from:i]
		c := span{i - len(strings.TrimLeft(cell, around)), from + len(strings.TrimRight(cell, around))}
		dst = append(dst, span{min(c.Start, c.End), c.End})
		from = i + 1
	}
	return dst
}
