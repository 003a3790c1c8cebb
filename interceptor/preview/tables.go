package preview

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// readTable reads values with a delimiter under a header.
func readTable(f *findings) bool {
	t := delimited(f.lines)
	if t == nil {
		return false
	}
	e := &entries{noun: "row"}
	first := cells(t.rows[0], t.comma)
	header := names(first)
	for i, l := range t.rows[1:] {
		row := cells(l, t.comma)
		if len(row) < 2 || t.comma >= '|' && isRuler(strings.Join(row, "")) || slices.Equal(row, first) { // the header again, as in files that were joined
			continue
		}
		e.begin(t.at[i+1])
		for j, v := range row[:min(len(row), len(header))] {
			e.set(header[j], v)
		}
	}
	columns := t.rows[0]
	if t.comma >= '|' { // a border
		columns = strings.Trim(columns, string(t.comma)+" ")
	}
	f.jq = f.jqReadsCSV(t.at[0], t.to, t.comma)
	f.table(e, len(cells(columns, t.comma)))
	f.around(t.at[0], t.to)
	return true
}

// names returns the names of columns. Those that are empty or there before get their number.
func names(header []string) []string {
	out := make([]string, len(header))
	for i, name := range header {
		out[i] = strings.TrimSpace(name)
		if out[i] == "" || slices.Contains(out[:i], out[i]) {
			out[i] = strings.TrimSpace(fmt.Sprint(out[i], " column ", i+1))
		}
	}
	return out
}

// readAligned reads columns that are aligned under a header.
func readAligned(f *findings) bool {
	at, split := aligned(f.lines)
	if len(f.sample) < 4 || split == nil {
		return false
	}
	e := &entries{noun: "row"}
	header := names(split(f.lines[at]))
	for i, l := range f.lines[at+1:] {
		if v := split(l); len(v) >= min(len(header), 2) && !rule(l) {
			e.begin(at + 1 + i)
			for j, v := range v[:min(len(v), len(header))] {
				e.set(header[j], v)
			}
		}
	}
	f.line(at, "", wide, 10)
	for i := range at {
		f.line(i, "", wide, 1.5*lineWorth)
	}
	f.table(e, len(header))
	return true
}

func (f *findings) table(rows *entries, columns int) {
	f.kind = Table
	f.totals = append(f.totals, plural(columns, "column"))
	rows.tell(f)
	f.ends(0.5)
}

// rule reports whether a line only separates.
func rule(l string) bool {
	return strings.Trim(l, "-+=| \t:─│┌┬┐├┼┤└┴┘") == "" && strings.TrimSpace(l) != ""
}

// isRuler reports whether a row separates, and does not merely have dashes for values.
func isRuler(l string) bool { return rule(l) && containsAny(l, []string{"--", "──", "==", "+"}) }

// A delimitedTable is a header and rows with the same number of fields.
type delimitedTable struct {
	comma rune
	rows  []string // the header is the first one; a row with a line end in quotes has several lines
	at    []int    // the line that each begins with
	to    int      // the line behind the last one
}

// delimited finds a header, the character that splits it and the lines below into the same number of fields,
// and their end. It returns nil if there is none.
func delimited(lines []string) *delimitedTable {
	for from, skipped := 0, 0; from < len(lines) && skipped <= maxAround; from++ {
		if strings.TrimSpace(lines[from]) == "" || rule(lines[from]) {
			continue
		}
		for _, comma := range []rune{'\t', ',', ';', '|', '│'} {
			n, _ := fields(lines[from], comma, false)
			if n < 2 {
				continue
			}
			if comma < '|' && !strings.ContainsRune(strings.Trim(lines[from], string(comma)), comma) {
				continue // a statement
			}
			row := func(l string) bool { got, open := fields(l, comma, false); return got == n && !open }
			fits := func(l string) bool { return row(l) || comma >= '|' && rule(l) }
			t := delimitedTable{comma: comma}
			t.rows, t.at = rowsOf(lines[from:], comma, n)
			to := untilLast(t.rows, fits)
			if to <= 0 || count(lines[:from], row) > 0 {
				continue
			}
			s := sample(t.rows[:to])
			if len(s) < 4 || count(s, fits)*20 < len(s)*19 {
				continue
			}
			short := isHeader(lines[from], comma)
			var below [][]string
			again := -1
			for _, l := range s {
				if l == lines[from] {
					again++
				} else if row(l) {
					below = append(below, cells(l, comma))
				}
			}
			if sure, recurs := heads(cells(lines[from], comma), below); !sure && (!short || again*20 > len(s) || recurs || n == 2 && comma == ',' && strings.Contains(lines[from], " ")) {
				continue
			}
			if t.to = len(lines); to < len(t.rows) {
				t.to = from + t.at[to]
			}
			t.rows, t.at = t.rows[:to], t.at[:to]
			for i := range t.at {
				t.at[i] += from
			}
			return &t
		}
		skipped++
	}
	return nil
}

// maxQuoted is how many lines a field in quotes may have.
const maxQuoted = 200

// rowsOf joins the lines of each row with line ends in quotes, and returns where each row begins. If the quotes are
// mere characters, each line is a row: one is not closed, or most lines in quotes have n fields themselves.
func rowsOf(lines []string, comma rune, n int) (rows []string, at []int) {
	for i := 0; i < len(lines); {
		_, open := fields(lines[i], comma, false)
		to, like := i+1, 0
		for ; open && to < min(i+maxQuoted, len(lines)); to++ {
			if got, quoted := fields(lines[to], comma, false); got == n && !quoted {
				like++
			}
			_, open = fields(lines[to], comma, true)
		}
		if open || like*2 > to-i-1 {
			rows, at = slices.Clone(lines), make([]int, len(lines))
			for i := range at {
				at[i] = i
			}
			return rows, at
		}
		row := lines[i]
		if to > i+1 {
			row = strings.Join(lines[i:to], "\n")
		}
		rows, at = append(rows, row), append(at, i)
		i = to
	}
	return rows, at
}

// heads reports whether the first row of a table has the names of its columns. It is sure if more columns that have
// numbers or times below have none in this row than have one, and it is no header if a value of it recurs in
// its column. Years may be names.
func heads(first []string, below [][]string) (sure, recurs bool) {
	with, without := 0, 0
	for i, name := range first {
		name = strings.TrimSpace(name)
		values, measured := 0, 0
		for _, row := range below {
			if i >= len(row) || strings.TrimSpace(row[i]) == "" {
				continue
			}
			values++
			if isMeasure(strings.TrimSpace(row[i])) {
				measured++
			} else if strings.TrimSpace(row[i]) == name {
				recurs = true
			}
		}
		switch {
		case values < 3 || measured*20 < values*19 || len(name) == 4 && isYear.MatchString(name):
		case name == "" || isMeasure(name):
			with++
		case strings.ContainsFunc(name, unicode.IsLetter) && !noValue.MatchString(name):
			without++
		}
	}
	return without > with, recurs
}

// isMeasure reports whether a value is a number or a time.
func isMeasure(v string) bool {
	_, _, ok := number(v)
	return ok || isTime(v)
}

var (
	isYear  = regexp.MustCompile(`^(?:19|20)\d\d$`)
	noValue = regexp.MustCompile(`(?i)^(?:n/?a|nan|nil|null|none|inf|infinity|unknown|missing|true|false)$`)
)

// cells returns the fields of a row. A delimiter in quotes splits nothing.
func cells(row string, comma rune) (out []string) {
	for {
		value, rest := row, ""
		more := false
		if end := quotedEnd(row, comma); end > 0 {
			value = strings.ReplaceAll(row[1:end], `""`, `"`)
			rest = row[end+1:]
			if more = rest != ""; more {
				rest = rest[utf8.RuneLen(comma):]
			}
		} else if i := strings.IndexRune(row, comma); i >= 0 {
			value, rest, more = row[:i], row[i+utf8.RuneLen(comma):], true
		}
		if out = append(out, value); !more {
			return out
		}
		row = rest
	}
}

// quotedEnd returns the index of the quote that ends the quoted field which a row begins with; 0 if it begins with
// none, and -1 if the quotes are open.
func quotedEnd(row string, comma rune) int {
	if row == "" || row[0] != '"' {
		return 0
	}
	for i := 1; i < len(row); i++ {
		if row[i] != '"' {
			continue
		}
		if rest := row[i+1:]; rest == "" || strings.HasPrefix(rest, string(comma)) {
			return i
		}
		if row[i+1] == '"' {
			i++
		}
	}
	return -1
}

// fields returns the number of fields of a line, and whether it ends within quotes. quoted tells whether it begins
// within them.
func fields(l string, comma rune, quoted bool) (n int, open bool) {
	if !strings.Contains(l, `"`) {
		return 1 + strings.Count(l, string(comma)), quoted
	}
	if quoted {
		l = `"` + l
	}
	for n = 1; ; n++ {
		end := quotedEnd(l, comma)
		if end < 0 {
			return n, true
		}
		if end > 0 {
			l = l[end+1:]
		}
		i := strings.IndexRune(l, comma)
		if i < 0 {
			return n, false
		}
		l = l[i+utf8.RuneLen(comma):]
	}
}

// isHeader reports whether all fields are short words.
func isHeader(l string, comma rune) bool {
	for f := range strings.SplitSeq(strings.Trim(l, string(comma)), string(comma)) {
		f = strings.Trim(strings.TrimSpace(f), `"`)
		if f == "" || isMeasure(f) || len(f) > 40 || strings.Count(f, " ") > 3 || isDigit(f[0]) || strings.ContainsAny(f, "{}()=<>") {
			return false
		}
	}
	return true
}

var (
	gap      = regexp.MustCompile(`\s{2,}|\t`)
	titles   = regexp.MustCompile(`^(?:\s*[\pL%#_/().+:-]{1,39}(?:\s|$))+$`) // words that may stand in a header
	lowTitle = regexp.MustCompile(`(?:^|\s)[^A-Z%#\s]`)                      // one of them does not begin as names do
)

// readColumns reads lines that have the same number of fields, without a header.
func readColumns(f *findings) bool {
	if word, n := firstWords(f.sample).most(); len(f.sample) < 6 || n*10 > 6*len(f.sample) && strings.ContainsAny(word, "abcdefghijklmnopqrstuvwxyz") {
		return false
	}
	for by, split := range []func(string) []string{ // the first and the third are CSV
		func(l string) []string { return strings.Split(l, "\t") }, func(l string) []string { return strings.Split(l, ":") },
		func(l string) []string { return strings.Split(l, ",") }, strings.Fields,
	} {
		n := len(split(f.sample[len(f.sample)/2]))
		if n < 2 || n > 20 || share(f.sample, func(l string) bool { return indent(l) < 4 }) < 0.9 || share(f.sample, func(l string) bool { return len(l) < maxForm && len(split(l)) == n }) < 0.9 {
			continue
		}
		if by == 3 && (share(f.sample, func(l string) bool { return len(split(l)) == n }) < 0.99 || !strings.ContainsAny(f.sample[len(f.sample)/2], "0123456789")) {
			continue // words of prose
		}
		f.kind = Table
		f.jq = by%2 == 0 && f.jqReadsCSV(0, len(f.lines), rune("\t:,"[by]))
		e := &entries{noun: "row"}
		var below [][]string
		for _, l := range f.sample[1:] {
			below = append(below, split(l))
		}
		header := make([]string, n)
		sure := false
		if first := split(f.sample[0]); len(first) == n {
			if sure, _ = heads(first, below); sure {
				header = first
			}
		}
		header = names(header)
		for i, l := range f.lines {
			if sure && l == f.sample[0] {
				continue
			}
			if v := split(l); len(v) == n {
				e.begin(i)
				for j, v := range v {
					e.set(header[j], v)
				}
			}
		}
		e.tell(f)
		f.ends(1)
		return true
	}
	return false
}

// aligned finds a header of columns among the first lines. split returns the fields of a line.
func aligned(lines []string) (header int, split func(string) []string) {
	for at := range lines[:min(len(lines), 12)] {
		least := 3
		if at+1 < len(lines) && rule(lines[at+1]) { // a line under the header says where columns are, if it has gaps
			least = 2
			split := columnsUnder(lines[at+1])
			if split != nil && len(split(lines[at])) > 1 && share(sample(lines[at+1:]), func(l string) bool { return len(split(l)) > 1 || rule(l) }) > 0.8 {
				return at, split
			}
		}
		names := strings.Fields(lines[at])
		below := sample(lines[at+1:])
		if len(names) < least || !titles.MatchString(lines[at]) || lowTitle.MatchString(lines[at]) && !numeric(below, len(names)) {
			continue
		}
		// By gaps, if names or values have spaces; else by words, the last column has the rest.
		parts := gap.Split(strings.TrimSpace(lines[at]), -1)
		if len(parts) == 1 {
			continue
		}
		whole := share(below, func(l string) bool { return len(gap.Split(strings.TrimSpace(l), -1)) == len(parts) })
		if whole > 0.6 || whole > 0.2 && share(below, func(l string) bool { _, ok := placed(lines[at], l, part); return ok }) > 0.9 {
			return at, func(l string) []string {
				if v := gap.Split(strings.TrimSpace(l), -1); len(v) == len(parts) {
					return v
				}
				v, _ := placed(lines[at], l, part)
				return v
			}
		}
		if share(below, func(l string) bool { return len(strings.Fields(l)) >= len(names)-1 }) > 0.8 && len(below) >= 3 {
			return at, func(l string) []string {
				v := strings.Fields(l)
				if len(v) < len(names) {
					v, _ = placed(lines[at], l, word)
					return v
				}
				if len(v) > len(names) {
					v = append(v[:len(names)-1:len(names)-1], strings.Join(v[len(names)-1:], " "))
				}
				return v
			}
		}
	}
	return 0, nil
}

// part and word match the fields of aligned lines.
var part, word = regexp.MustCompile(`[^\s]+(?: [^\s]+)*`), regexp.MustCompile(`\S+`)

// placed returns the fields of a line that lacks some. Each has the name that begins or ends where it does; what
// stands behind the last name belongs to it. If a field has no name, ok is false, and only the first one is returned.
// A line with one field is no row.
func placed(header, l string, field *regexp.Regexp) (v []string, ok bool) {
	column := func(l string, i int) int { return utf8.RuneCountInString(l[:i]) }
	names, fields := field.FindAllStringIndex(header, -1), field.FindAllStringIndex(l, -1)
	if len(fields) < 2 {
		return nil, false
	}
	v = make([]string, len(names))
	for _, f := range fields {
		at := slices.IndexFunc(names, func(n []int) bool {
			return column(header, n[0]) == column(l, f[0]) || column(header, n[1]) == column(l, f[1])
		})
		if last := len(names) - 1; at < 0 && column(l, f[0]) >= column(header, names[last][0]) {
			at = last
		}
		if at < 0 {
			clear(v)
			v[0] = l[fields[0][0]:fields[0][1]]
			return v, false
		}
		v[at] = strings.TrimSpace(v[at] + " " + l[f[0]:f[1]])
	}
	return v, true
}

// columnsUnder returns what splits a line into the columns that a ruler such as "---- ------" has. It returns
// nil for lines that have text where the ruler has a gap.
func columnsUnder(ruler string) func(l string) []string {
	var starts []int
	for i := range len(ruler) {
		if strings.IndexByte("-=", ruler[i]) >= 0 && (i == 0 || strings.IndexByte("-=", ruler[i-1]) < 0) {
			starts = append(starts, i)
		}
	}
	if len(starts) < 2 {
		return nil
	}
	return func(l string) (v []string) {
		for i, from := range starts {
			if from >= len(l) {
				break
			}
			if from > 0 && strings.IndexByte(" |+\t", l[from-1]) < 0 {
				return nil
			}
			to := len(l)
			if i+1 < len(starts) && starts[i+1] < len(l) {
				to = starts[i+1] - 1
			}
			v = append(v, strings.Trim(l[from:to], " |"))
		}
		return v
	}
}

// numeric reports whether lines have numbers where a header with n names has columns: in most of the fields.
func numeric(lines []string, n int) bool {
	return len(lines) >= 4 && share(lines, func(l string) bool {
		v := strings.Fields(l)
		return len(v) >= n-1 && 2*count(v[:min(len(v), n)], func(w string) bool { _, _, ok := number(w); return ok }) >= n
	}) > 0.7
}
