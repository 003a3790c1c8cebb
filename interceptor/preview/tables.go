package preview

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
)

// readTable reads values with a delimiter under a header.
func readTable(f *findings) bool {
	from, t := delimited(f.lines)
	if t == nil {
		return false
	}
	e := &entries{noun: "row"}
	first := t.rows[0]
	header := names(first)
	for i, row := range t.rows[1:] {
		if len(row) < 2 || t.comma >= '|' && isRuler(strings.Join(row, "")) || slices.Equal(row, first) { // the header again, as in files that were joined
			continue
		}
		e.row(from+t.at[i+1], header, row)
	}
	columns := len(first)
	for _, border := range []string{first[0], first[len(first)-1]} {
		if t.comma >= '|' && strings.TrimSpace(border) == "" {
			columns--
		}
	}
	f.jq = f.jqReadsCSV(t, from)
	f.table(e, columns)
	f.around(from, from+t.to)
	return true
}

// row adds a row with the names of its columns.
func (e *entries) row(line int, header, values []string) {
	e.begin(line)
	for i, v := range values[:min(len(values), len(header))] {
		e.set(header[i], v)
	}
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
			e.row(at+1+i, header, v)
		}
	}
	f.line(at, "", wide, 10)
	f.around(at, len(f.lines))
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

// A delimitedTable is lines of which most have the same number of fields.
type delimitedTable struct {
	comma  rune       // ' ' stands for any blanks
	n      int        // fields of a row
	rows   [][]string // a row with line ends in quotes has several lines
	at     []int      // the line that each begins with
	to     int        // the line behind the last one
	csv    bool       // all rows have n fields by the rules of CSV
	others int        // rows that have not
}

// delimited finds a header and the character that splits it and the lines below into the same number of fields. It
// returns nil if there is none. from is the line of the header.
func delimited(lines []string) (from int, t *delimitedTable) {
	for skipped := 0; from < len(lines) && skipped <= maxAround; from++ {
		l := lines[from]
		if strings.TrimSpace(l) == "" || rule(l) {
			continue
		}
		for _, comma := range []rune{'\t', ',', ';', '|', '│'} {
			if !strings.ContainsRune(l, comma) || comma < '|' && !strings.ContainsRune(strings.Trim(l, string(comma)), comma) {
				continue // a statement
			}
			t := rowsOf(lines[from:], comma, 0)
			if t == nil {
				continue
			}
			first := t.rows[0]
			n := len(first)
			if count(lines[:from], func(l string) bool { return 1+strings.Count(l, string(comma)) == n }) > 0 {
				continue
			}
			again := 0
			var below [][]string
			for _, row := range t.rows[1:min(len(t.rows), sampled)] {
				if slices.Equal(row, first) {
					again++
				} else if len(row) == n {
					below = append(below, row)
				}
			}
			if sure, recurs := heads(first, below); sure || isHeader(first) && again*20 <= len(below) && !recurs && (n > 2 || comma != ',' || !strings.Contains(l, " ")) {
				return from, t
			}
		}
		skipped++
	}
	return 0, nil
}

// rowsOf splits lines into n fields each, or as many as the first one has if n is 0. It returns nil if the lines differ
// in their number of fields. Up to maxAround lines at the end may be other text.
func rowsOf(lines []string, comma rune, n int) *delimitedTable {
	quotes := slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, `"`) })
	if quotes && strings.ContainsRune(",\t;", comma) {
		t := &delimitedTable{comma: comma, n: n, csv: true}
		r := csv.NewReader(strings.NewReader(strings.Join(lines, "\n")))
		r.Comma, r.FieldsPerRecord = comma, -1
		row, err := r.Read()
		for ; err == nil && t.fits(); row, err = r.Read() {
			at, _ := r.FieldPos(0)
			t.add(at-1, row)
		}
		if fault, ok := errors.AsType[*csv.ParseError](err); ok && fault.StartLine > len(lines)-maxAround { // the end is cut off, or other text
			t.csv, err = false, io.EOF
		}
		if errors.Is(err, io.EOF) && t.end(len(lines)) {
			return t
		}
	}
	t := &delimitedTable{comma: comma, n: n, csv: !quotes} // quotes are mere characters
	for i := 0; i < len(lines) && t.fits(); i++ {
		if comma == ' ' {
			t.add(i, strings.Fields(lines[i]))
		} else {
			t.add(i, strings.Split(lines[i], string(comma)))
		}
	}
	if t.end(len(lines)) {
		return t
	}
	return nil
}

// add adds the row that begins with line at.
func (t *delimitedTable) add(at int, row []string) {
	if len(row) < 2 && strings.TrimSpace(strings.Join(row, "")) == "" {
		return
	}
	if t.n == 0 {
		t.n = len(row)
	}
	if t.rows, t.at = append(t.rows, row), append(t.at, at); !t.isRow(row) {
		t.others++
	}
}

// isRow reports whether a row has n fields, or is a ruler between others.
func (t *delimitedTable) isRow(row []string) bool {
	return len(row) == t.n || t.comma >= '|' && rule(strings.Join(row, ""))
}

// fits is false if so many rows have other numbers of fields that it is hardly a table.
func (t *delimitedTable) fits() bool { return t.others <= 20+len(t.rows)/20 }

// end leaves out the other text at the end of so many lines, and reports whether the rest is a table.
func (t *delimitedTable) end(lines int) bool {
	to := len(t.rows)
	for to > 0 && !t.isRow(t.rows[to-1]) {
		to--
	}
	if t.to = lines; to < len(t.rows) && len(t.rows)-to <= maxAround {
		t.others -= len(t.rows) - to
		t.to = t.at[to]
		t.rows, t.at = t.rows[:to], t.at[:to]
	}
	t.csv = t.csv && !slices.ContainsFunc(t.rows, func(row []string) bool { return len(row) != t.n })
	return len(t.rows) >= 4 && t.others*20 <= len(t.rows)
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

// jqReadsCSV reports whether jq can read a table that begins with line from. The lines around it must not have the
// delimiter.
func (f *findings) jqReadsCSV(t *delimitedTable, from int) bool {
	if !t.csv || len(f.text) > extract.MaxConvert || !strings.ContainsRune(",\t;|", t.comma) {
		return false
	}
	around := slices.Concat(f.lines[:from], f.lines[from+t.to:])
	others := count(around, func(l string) bool { return l != "" })
	return others == 0 || len(f.text) <= extract.MaxAmong && others <= extract.MaxAround &&
		strings.IndexAny(f.lines[from], ",;\t|") == strings.IndexRune(f.lines[from], t.comma) && !strings.ContainsRune(strings.Join(around, ""), t.comma)
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

// isHeader reports whether all fields of a row are short words. The first and the last one may be empty.
func isHeader(row []string) bool {
	for i, f := range row {
		f = strings.TrimSpace(f)
		if f == "" && (i == 0 || i == len(row)-1) {
			continue
		}
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
	if len(f.sample) < 6 || strings.ContainsAny(program(f.sample), "abcdefghijklmnopqrstuvwxyz") || share(f.sample, func(l string) bool { return indent(l) < 4 && len(l) < maxForm }) < 0.9 {
		return false
	}
	for _, comma := range []rune{'\t', '|', ':', ',', ' '} {
		some := f.sample[len(f.sample)/2]
		n := 1 + strings.Count(some, string(comma))
		if comma == ' ' {
			n = len(strings.Fields(some))
		}
		if n > 20 || n < 2 && (comma != ' ' || !isMeasure(strings.TrimSpace(some))) {
			continue
		}
		t := rowsOf(f.lines, comma, n)
		if t == nil || comma == ' ' && (t.others > 1+len(t.rows)/100 || !strings.ContainsAny(some, "0123456789")) || comma == ',' && share(f.sample, prose.MatchString) > 0.5 || comma == ':' && n < 4 && share(f.sample, func(l string) bool { return strings.Count(l, " ") > 5 }) > 0.5 {
			continue // words of prose
		}
		e := &entries{noun: "row"}
		header := make([]string, n)
		sure := false
		if len(t.rows[0]) == n {
			if sure, _ = heads(t.rows[0], t.rows[1:min(len(t.rows), sampled)]); sure {
				header = t.rows[0]
			}
		}
		header = names(header)
		for i, row := range t.rows {
			if (i > 0 || !sure) && len(row) == n && (i < len(t.rows)-1 || !isTotal(row)) {
				e.row(t.at[i], header, row)
			}
		}
		if comma == ' ' && n > 3 && !e.regular() {
			continue
		}
		f.kind = Table
		f.jq = f.jqReadsCSV(t, 0)
		e.tell(f)
		f.ends(1)
		return true
	}
	return false
}

// regular reports whether at least half of the columns are no words of prose: their values are numbers or times,
// recur, or have one length.
func (e *entries) regular() bool {
	n := 0
	for _, c := range e.cols {
		if max(c.numbers, c.when.times)*20 >= c.rows*19 || len(c.tally.n) <= max(fewValues, c.rows/8) || c.long == c.rows*len(c.from) {
			n++
		}
	}
	return n*2 >= len(e.cols)
}

// prose matches lines with a word behind a comma and a blank.
var prose = regexp.MustCompile(`, \pL`)

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
