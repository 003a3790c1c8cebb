package preview

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// read finds the kind of a text and what can be told about it. The readers are tried in the order of
// their certainty. One that does not know the text changes nothing and returns false.
func read(text string) *findings {
	text, marked := strings.CutPrefix(text, "\uFEFF")
	lines, from := unnumbered(plainLines(text))
	totals := []string{plural(len(lines), "line")}
	if from >= 0 {
		text = strings.Join(lines, "\n")
	}
	if from >= 0 && from != 1 {
		totals[0] += fmt.Sprintf(", numbered from %d", from)
	}
	f := &findings{text: text, lines: lines, sample: sample(lines), kind: Plain, totals: totals, at: map[int]*piece{}}
	for _, knows := range []func(*findings) bool{
		readBinary, readJSON, readMarkup, readGiant, readDiff, readTests, readTable, readForms, readAligned, readLog, readRecords, readYAML, readConfig, readManual, readMarkdown, readCode, readColumns,
	} {
		if knows(f) {
			f.jq = f.jq && from < 0 && (!marked || f.kind == XML || f.kind == Table) // of JSON a byte order mark is no part
			return f
		}
	}
	readPlain(f)
	return f
}

// numbered matches what programs put before lines that they number.
var numbered = regexp.MustCompile(`^ *(\d+)(?:→|: ?)|^ +(\d+)\t`)

// unnumbered returns lines without the numbers that stand before all of them, and the first number; -1 if they have none.
// A table that begins with such a column keeps it.
func unnumbered(lines []string) (bare []string, first int) {
	from := slices.IndexFunc(lines[:min(len(lines), maxAround+1)], numbered.MatchString)
	if from < 0 {
		return lines, -1
	}
	bare = slices.Clone(lines)
	to := from
	for ; to < len(lines); to++ {
		m := numbered.FindStringSubmatch(lines[to])
		if m == nil {
			break
		}
		n, _ := strconv.Atoi(m[1] + m[2])
		if to == from {
			first = n
		}
		if n != first+to-from {
			break
		}
		bare[to] = lines[to][len(m[0]):]
	}
	if to-from < 6 || len(lines)-to > maxAround {
		return lines, -1
	}
	if t := rowsOf(lines[from:to], ':', 0); t != nil && t.n > 2 {
		return lines, -1
	}
	return bare, first
}

// readPlain tells the head and the tail, the parts and the bad lines. A text of which the lines are much alike, and some
// are bad, is a log; so is one of which most lines begin with the same word, such as the name of a program.
func readPlain(f *findings) {
	var alike tally
	for _, l := range f.sample {
		alike.add(pattern(l), 0)
	}
	prefixed := program(f.sample) != ""
	if len(f.lines) >= 20 && (len(alike.n)*3 < len(f.sample) || prefixed) {
		bad := len(f.pieces)
		if f.faults(make([]string, len(f.lines))); prefixed || len(f.pieces) > bad {
			f.kind = Log
		}
	}
	f.parts(6)
	f.ends(1)
	f.starts(8)
	f.rare(9)
}

// program returns the word that most lines begin with, if it is in lower case or in capitals, as programs are named.
func program(lines []string) string {
	var words tally
	for _, l := range lines {
		word, _, _ := strings.Cut(l, " ")
		if low := strings.ToLower(word); low != strings.ToUpper(word) && (word == low || word == strings.ToUpper(word)) {
			words.add(word, 0)
		}
	}
	if word, n := words.most(); n*10 > 6*len(lines) {
		return word
	}
	return ""
}

// starts tells how many lines begin with each word, if most begin with a word that others begin with, too.
func (f *findings) starts(worth float64) {
	var words tally
	repeated := 0
	for i, l := range f.lines {
		if w := startOf(l); w != "" {
			words.add(w, i)
		}
	}
	var parts []string
	top := words.top()
	for rank, s := range top {
		if s.n < 3 {
			break
		}
		repeated += s.n
		parts = append(parts, fmt.Sprintf("%s ×%s", s.value, group(s.n)))
		f.line(s.first, "", wide, worth/(1+float64(rank)/6))
		if f.kind == Log && rank < 4 {
			f.line(s.last, "", wide, 10)
		}
	}
	for _, p := range f.pieces {
		if p.line < 0 || p.line >= len(f.lines) {
			continue
		}
		if n := words.count(startOf(f.lines[p.line])); n > 2 && n*2 < len(f.lines) {
			p.alike = startOf(f.lines[p.line])
		}
	}
	if repeated*3 < len(f.lines) {
		return
	}
	f.fact(worth, "lines begin with ", parts, func(i int) float64 { return math.Sqrt(float64(top[i].n) / float64(top[0].n)) })
}

// rare tells lines that begin as few others do, if most begin as many do.
func (f *findings) rare(worth float64) {
	var starts tally
	often := 0
	for i, l := range f.lines {
		if l = strings.TrimSpace(l); l != "" {
			l, _, _ = strings.Cut(l, " ")
			starts.add(pattern(l), i)
		}
	}
	top := starts.top()
	for _, s := range top {
		if s.n >= 10 {
			often += s.n
		}
	}
	for rank, s := range slices.Backward(top) {
		if rank = len(top) - 1 - rank; s.n > 2 || rank == rareRows || often*4 < len(f.lines)*3 {
			break
		}
		for _, i := range []int{s.first, s.last} {
			f.line(i, "", wide, worth/(1+float64(rank)/3))
		}
	}
}

// startOf returns the word that a line begins with, "" if it begins with something else.
func startOf(l string) string {
	l = strings.TrimLeft(l, " \t-|#")
	end := strings.IndexFunc(l, func(r rune) bool {
		return !unicode.IsLetter(r) && (r < '0' || r > '9') && !strings.ContainsRune("_.-@", r)
	})
	if end < 0 {
		end = len(l)
	}
	if end < 2 || end > 40 || isDigit(l[0]) {
		return ""
	}
	return l[:end]
}

// parts tells the lines that others stand below.
func (f *findings) parts(worth float64) {
	var heads []int
	for i, l := range f.lines[:len(f.lines)-1] {
		if t := strings.TrimSpace(l); t != "" && len(l) < wide && (indent(f.lines[i+1]) > indent(l) && strings.TrimSpace(f.lines[i+1]) != "" && indent(l) < 4 || t[len(t)-1] == ':') {
			heads = append(heads, i)
		}
	}
	if len(heads)*2 < len(f.lines) {
		spread(len(heads), func(i, rank int) { f.line(heads[i], "", narrow, worth/(1+float64(rank)/12)) })
	}
}

// readGiant tells the first and the last characters of a text of long lines.
func readGiant(f *findings) bool {
	if len(f.text)/len(f.lines) < 4*wide && (len(f.lines) > 4 || len(f.text) < 2000) {
		return false
	}
	text := strings.ToValidUTF8(strings.TrimSpace(f.text), "\uFFFD")
	if strings.Count(text[:min(len(text), 64<<10)], " ")*8 < min(len(text), 64<<10) {
		f.kind = Minified
	}
	f.totals = append(f.totals, plural(utf8.RuneCountInString(text), "character"))
	start, end := []rune(text[:min(len(text), 64<<10)]), []rune(text[max(0, len(text)-64<<10):])
	var parts []string
	for i := 0; i < len(start) && i < 4000; i += 40 {
		parts = append(parts, string(start[i:min(i+40, len(start))]))
	}
	f.fact(7, "", parts, nil)
	for _, p := range f.pieces {
		p.glue = ""
	}
	f.own(0, "… "+string(end[max(0, len(end)-min(len(start)/3, 200)):]), 30)
	return true
}

// signs are the first bytes of binary files.
var signs = map[string]string{"\x7fELF": "ELF", "\x89PNG": "PNG", "PK\x03\x04": "zip", "\x1f\x8b": "gzip", "%PDF": "PDF", "\xff\xd8\xff": "JPEG", "GIF8": "GIF", "SQLite format 3": "SQLite"}

// readBinary finds the readable strings of a text with many bytes that are not printable.
func readBinary(f *findings) bool {
	start := f.text[:min(len(f.text), 16<<10)]
	bad := 0
	for i, r := range start {
		if r == utf8.RuneError && i+utf8.UTFMax < len(f.text) || r < ' ' && r != '\n' && r != '\r' && r != '\t' && r != 0x1b && r != '\b' && r != '\f' {
			bad++
		}
	}
	if bad*10 < utf8.RuneCountInString(start) || bad < 3 {
		return false
	}
	f.kind = Binary
	f.totals = []string{plural(len(f.text), "byte")}
	for sign, name := range signs {
		if strings.HasPrefix(f.text, sign) {
			f.totals = append(f.totals, name)
		}
	}
	n := 0
	for s := range strings.FieldsFuncSeq(f.text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		if len(s) >= 6 && n < 200 {
			f.own(n, clip(s, narrow), 3/(1+float64(n)/30))
			n++
		}
	}
	f.own(-1, "its readable strings:", 8)
	return true
}
