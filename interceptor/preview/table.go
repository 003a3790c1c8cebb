package preview

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// delimiter returns the character that splits the lines into the same number of fields, or 0.
func delimiter(sample []string) rune {
	if len(sample) < 4 {
		return 0
	}
	for _, comma := range []rune{'\t', ',', ';', '|'} {
		n := fields(sample[0], comma)
		if n < 2 || (comma == ',' && n < 3) || !isHeader(sample[0], comma) {
			continue
		}
		alike := count(sample, func(l string) bool { return fields(l, comma) == n })
		if alike*20 >= len(sample)*19 {
			return comma
		}
	}
	return 0
}

// fields returns the number of fields of a line. A delimiter in quotes splits nothing.
func fields(l string, comma rune) int {
	n, quoted := 1, false
	for _, r := range l {
		if r == '"' {
			quoted = !quoted
		} else if r == comma && !quoted {
			n++
		}
	}
	return n
}

// isHeader reports whether all fields are short words.
func isHeader(l string, comma rune) bool {
	for f := range strings.SplitSeq(l, string(comma)) {
		f = strings.Trim(strings.TrimSpace(f), `"`)
		if f == "" || len(f) > 40 || strings.Count(f, " ") > 3 || isDigit(f[0]) || strings.ContainsAny(f, "{}()=<>") {
			return false
		}
	}
	return true
}

// showTable shows the columns, then the first rows and the last row.
func showTable(d *doc, b *body) string {
	r := csv.NewReader(strings.NewReader(d.text))
	r.Comma, r.LazyQuotes, r.FieldsPerRecord, r.ReuseRecord = delimiter(d.sample()), true, -1, true
	header, _ := r.Read()
	columns := make([]column, len(header))
	for i, name := range header {
		columns[i] = column{name: strings.Clone(strings.TrimSpace(name)), values: map[string]int{}}
	}
	rows := 0
	for rec, err := r.Read(); err == nil; rec, err = r.Read() {
		rows++
		for i, v := range rec[:min(len(rec), len(columns))] {
			columns[i].add(strings.Clone(v))
		}
	}
	room := b.left
	for i, c := range columns {
		if b.left < room/3 || !b.add(c.String()) {
			b.add(fmt.Sprintf("… %d more columns", len(columns)-i))
			break
		}
	}
	e := newExcerpt(d.lines, wide, b)
	e.head(3, b.left)
	e.tail(1, b.left)
	e.head(8, b.left/2)
	return fmt.Sprintf("%s and %s; ", plural(rows, "row"), plural(len(columns), "column")) + e.done()
}

type column struct {
	name                   string
	rows, numbers, empties int
	low, high              float64
	values                 map[string]int // the rows of each value; nil if there are many values
}

const fewValues = 12 // the most values that a column lists

func (c *column) add(v string) {
	c.rows++
	if v = strings.TrimSpace(v); v == "" {
		c.empties++
		return
	}
	if f, err := strconv.ParseFloat(v, 64); err == nil && f == f {
		if c.numbers++; c.numbers == 1 {
			c.low, c.high = f, f
		}
		c.low, c.high = min(c.low, f), max(c.high, f)
	}
	if c.values != nil {
		if c.values[v]++; len(c.values) > fewValues || len(v) > 60 {
			c.values = nil
		}
	}
}

// String returns the type or the values of the column.
func (c *column) String() string {
	out := clip(c.name, 40) + ": "
	switch {
	case c.numbers > 0 && c.numbers+c.empties == c.rows:
		out += fmt.Sprintf("number %.10g to %.10g", c.low, c.high)
	case len(c.values) > 0:
		order := slices.SortedFunc(maps.Keys(c.values), func(a, b string) int {
			return cmp.Or(c.values[b]-c.values[a], strings.Compare(a, b))
		})
		for i, v := range order {
			order[i] = fmt.Sprintf("%s ×%d", v, c.values[v])
		}
		out += strings.Join(order, ", ")
	default:
		out += "text"
	}
	if c.empties > 0 {
		out += fmt.Sprintf(" (%d empty)", c.empties)
	}
	return out
}
