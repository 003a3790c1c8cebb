package preview

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
)

// tableForm is how a table is written; comma is 0 for a text that is none.
type tableForm struct {
	comma   rune
	columns int
}

// findTable looks for a delimiter that splits all lines alike.
func findTable(sample []string) tableForm {
	if len(sample) < 4 {
		return tableForm{}
	}
	for _, comma := range []rune{'\t', ',', ';', '|'} {
		n := fields(sample[0], comma)
		if n < 2 || (comma == ',' && n < 3) || !isHeader(sample[0], comma) {
			continue
		}
		alike := 0
		for _, l := range sample {
			if fields(l, comma) == n {
				alike++
			}
		}
		if alike*20 >= len(sample)*19 {
			return tableForm{comma, n}
		}
	}
	return tableForm{}
}

// fields counts the fields of a line, minding quotes.
func fields(l string, comma rune) int {
	n, quoted := 1, false
	for _, r := range l {
		switch r {
		case '"':
			quoted = !quoted
		case comma:
			if !quoted {
				n++
			}
		}
	}
	return n
}

// isHeader reports whether all fields are short words.
func isHeader(l string, comma rune) bool {
	for _, f := range strings.Split(l, string(comma)) {
		f = strings.Trim(strings.TrimSpace(f), `"`)
		if f == "" || len(f) > 40 || strings.Count(f, " ") > 3 || isDigit(f[0]) || strings.ContainsAny(f, "{}()=<>") {
			return false
		}
	}
	return true
}

// column is what is known of one column.
type column struct {
	name             string
	numbers, empties int
	rows             int
	low, high        float64
	values           map[string]int // while there are few
	many             bool
}

// fewValues is up to how many different values a column's values are counted.
const fewValues = 12

func (c *column) see(v string) {
	c.rows++
	if v = strings.TrimSpace(v); v == "" {
		c.empties++
		return
	}
	if f, err := strconv.ParseFloat(v, 64); err == nil && f == f {
		if c.numbers == 0 || f < c.low {
			c.low = f
		}
		if c.numbers == 0 || f > c.high {
			c.high = f
		}
		c.numbers++
	}
	if c.many {
		return
	}
	if c.values[v]++; len(c.values) > fewValues || len(v) > 60 {
		c.values, c.many = nil, true
	}
}

func (c *column) String() string {
	out := clip(c.name, 40) + ": "
	switch {
	case c.numbers > 0 && c.numbers+c.empties == c.rows:
		out += "number " + short(c.low) + " to " + short(c.high)
	case !c.many && len(c.values) > 0:
		var parts []string
		for _, v := range sortedKeys(c.values) {
			parts = append(parts, fmt.Sprintf("%s ×%d", v, c.values[v]))
		}
		out += strings.Join(parts, ", ")
	default:
		out += "text"
	}
	if c.empties > 0 {
		out += fmt.Sprintf(" (%d empty)", c.empties)
	}
	return out
}

func short(f float64) string { return strconv.FormatFloat(f, 'g', 10, 64) }

// makeTable shows the columns with their types, ranges and few values, then
// the first rows and the last.
func makeTable(d *doc, b *body) string {
	r := csv.NewReader(strings.NewReader(d.text))
	r.Comma, r.LazyQuotes, r.FieldsPerRecord, r.ReuseRecord = d.table.comma, true, -1, true
	var columns []*column
	rows := 0
	for {
		rec, err := r.Read()
		if err != nil {
			break
		}
		if columns == nil {
			for _, name := range rec {
				columns = append(columns, &column{name: strings.Clone(strings.TrimSpace(name)), values: map[string]int{}})
			}
			continue
		}
		rows++
		for i, v := range rec {
			if i < len(columns) {
				columns[i].see(strings.Clone(v))
			}
		}
	}
	room := b.left
	for i, c := range columns {
		if b.left < room/3 || !b.add(c.String()) {
			b.add(fmt.Sprintf("… %d more columns", len(columns)-i))
			break
		}
	}
	e := newExcerpt(d, b)
	e.head(3, b.left)
	e.tail(1, b.left)
	e.head(8, b.left/2)
	return fmt.Sprintf("%s and %s; ", plural(rows, "row"), plural(len(columns), "column")) + e.done()
}
