package preview

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// entries are the parts of a text that are alike, such as rows, items or commits. Their fields are
// columns.
type entries struct {
	noun  string
	shown []string                                // the fields in brief
	many  string                                  // the field of which an entry may have several values
	lead  string                                  // the field of which the first entry of each value is shown
	show  func(i int, note string, worth float64) // shows entry i, with a note; nil shows its line, or its brief
	named bool                                    // rare values come with the names of their entries, because no line shows both

	lines []int32  // the index of each entry's first line
	brief []string // each entry in some of its fields, for entries of several lines
	cols  []*column
	by    map[string]*column

	around, value string // a field that the next entries have, such as their directory
}

// column has the values of one field.
type column struct {
	name       string
	id         bool // by its name
	rows, last int  // entries with a value; the last one
	further    int  // values of entries with several, but for the first of each
	tally      tally
	values     []string // of each entry, "" for none; kept while they may be titles
	long       int      // bytes of all values
	from, to   string
	when       timeSpan

	numbers  int
	odd      bool // a value begins as a number and is none that can be compared with the others
	sum      float64
	decimals int    // of the number that has most
	unit     string // of the first number
	scaled   bool   // not all have this unit, or it is a large one
	rising   bool   // each number is larger than the one before
	low      extreme
	tops     []extreme // the largest two
}

// extreme is the least or a large number of a column.
type extreme struct {
	number float64
	value  string // as written
	at     int    // its entry
}

// less compares integers of many digits exactly.
func (x extreme) less(y extreme) bool {
	if x.number != y.number || max(len(x.value), len(y.value)) < 16 || strings.Trim(x.value+y.value, "0123456789") != "" {
		return x.number < y.number
	}
	a, b := strings.TrimLeft(x.value, "0"), strings.TrimLeft(y.value, "0")
	return cmp.Or(len(a)-len(b), strings.Compare(a, b)) < 0
}

func (e *entries) begin(line int) {
	e.lines = append(e.lines, int32(line)) // #nosec G115: a text has less than 2 GiB
	if e.shown != nil {
		e.brief = append(e.brief, "")
	}
	e.set(e.around, e.value)
}

// alike reports whether there are some entries, and most have the same fields.
func (e *entries) alike() bool {
	rows := 0
	for _, c := range e.cols {
		rows += c.rows
	}
	return len(e.lines) >= 4 && len(e.cols) > 0 && rows*4 >= len(e.lines)*len(e.cols)*3
}

const maxColumns = 60

// set gives the last entry a field. The first value of a field counts, or if an entry may have many, all of them.
func (e *entries) set(name, value string) {
	value = strings.TrimSpace(value)
	at := len(e.lines) - 1
	if at < 0 || value == "" {
		return
	}
	c := e.by[name]
	if c == nil {
		if len(e.cols) >= maxColumns {
			return
		}
		if e.by == nil {
			e.by = map[string]*column{}
		}
		c = &column{name: name, id: isID.MatchString(name), last: -1, rising: true}
		e.by[name], e.cols = c, append(e.cols, c)
	}
	if c.last == at {
		if name == e.many {
			c.addFurther(at, value)
		}
		return
	}
	c.add(at, value)
	if slices.Contains(e.shown, name) {
		if name == "commit" {
			value = value[:min(len(value), 10)]
		}
		e.brief[at] = strings.TrimSpace(e.brief[at] + " " + clip(value, 100))
	}
}

// add gives entry at, the last one, its value.
func (c *column) add(at int, value string) {
	c.rows, c.last, c.to = c.rows+1, at, value
	if c.rows == 1 {
		c.from = value
	}
	c.long += len(value)
	c.tally.add(value, at)
	switch keeps := c.id || c.numbers*2 <= c.rows && len(c.tally.n)*6 >= min(c.rows, 600); {
	case c.rows > 1 && c.values == nil:
	case !keeps:
		c.values = nil
	default:
		for len(c.values) < at {
			c.values = append(c.values, "")
		}
		c.values = append(c.values, value)
	}
	n, unit, ok := number(value)
	if isTime(value) {
		c.when.add(value)
	}
	switch {
	case ok:
		c.addNumber(n, unit, value, at)
	case isDigit(value[0]) || len(value) > 1 && strings.IndexByte("-+.", value[0]) >= 0 && isDigit(value[1]):
		c.odd = true
	}
}

// addFurther gives entry at one more value, if it does not have it.
func (c *column) addFurther(at int, value string) {
	if s := c.tally.n[value]; s == nil || s.last != at {
		c.tally.add(value, at)
		c.further++
	}
}

func (c *column) addNumber(n float64, unit, value string, at int) {
	first, this, x := units[c.unit], units[unit], extreme{n * units[unit].factor, value, at}
	// 4.0K is rounded, so it is no part of a sum.
	c.scaled = c.scaled || c.sum != 0 && n != 0 && unit != c.unit || len(unit) == 1 && this.factor > 1
	switch c.numbers++; {
	case c.numbers == 1 || first.of == "":
		c.unit = unit
	case this.of != "" && this.of != first.of:
		c.odd = true
	}
	if c.numbers == 1 || x.less(c.low) {
		c.low = x
	}
	if c.numbers == 1 || c.tops[0].less(x) {
		c.tops = slices.Insert(c.tops, 0, x)
	} else {
		c.rising = false
		if len(c.tops) == 1 || c.tops[1].less(x) {
			c.tops = slices.Insert(c.tops, 1, x)
		}
	}
	c.tops = c.tops[:min(2, len(c.tops))]
	c.sum += n
	if i := strings.LastIndexByte(value, '.'); i >= 0 {
		c.decimals = max(c.decimals, len(value)-i-1-len(unit))
	}
	if strings.ContainsAny(value, "eE") {
		c.decimals = math.MaxInt16 // a sum could lose what is small
	}
}

// units are the factors of what stands behind a number, and what they are of.
var units = map[string]struct {
	of     string
	factor float64
}{
	"": {"", 1}, "%": {"%", 1}, "s": {"s", 1}, "ms": {"s", 1e-3}, " kB": {"B", 1 << 10}, "kB": {"B", 1 << 10}, "B": {"B", 1},
	"K": {"B", 1 << 10}, "M": {"B", 1 << 20}, "G": {"B", 1 << 30}, "T": {"B", 1 << 40},
}

// number reads a number with an optional unit. It may have commas between thousands.
func number(v string) (n float64, unit string, ok bool) {
	if len(v) > 24 || v[0] != '-' && v[0] != '.' && !isDigit(v[0]) {
		return 0, "", false
	}
	bare := strings.TrimRight(v, "%msBkKMGT ")
	unit = v[len(bare):]
	if strings.IndexByte(bare, ',') > 0 && grouped.MatchString(bare) {
		bare = strings.ReplaceAll(bare, ",", "")
	}
	_, ok = units[unit]
	n, err := strconv.ParseFloat(bare, 64)
	return n, unit, ok && err == nil && n-n == 0
}

var grouped = regexp.MustCompile(`^-?\d{1,3}(?:,\d{3})+(?:\.\d+)?$`)

// isTime reports whether a value has a date or a time of day.
func isTime(v string) bool {
	if len(v) < 8 || len(v) > 40 {
		return false
	}
	digits := 0
	for i := range len(v) {
		switch c := v[i]; {
		case isDigit(c):
			digits++
		case c == ':' && digits >= 2 && i >= 2 && isDigit(v[i-1]) && i+2 < len(v) && isDigit(v[i+1]) && isDigit(v[i+2]) && (i+3 == len(v) || !isDigit(v[i+3])):
			return true
		case c == '-' && digits == 4 && len(v) >= 10 && v[min(i+3, len(v)-1)] == '-':
			return true
		}
	}
	return false
}

const (
	fewValues = 12 // the most values of a field that need not repeat to be listed
	rareRows  = 6  // rows with rare values that a field offers
)

// hide is an entries.show that shows nothing, for entries that something else shows.
func hide(int, string, float64) {}

// tell adds the entries to the findings: their number, the totals of their fields, and the entries
// that stand out.
func (e *entries) tell(f *findings) {
	n := len(e.lines)
	if n == 0 {
		return
	}
	f.totals = append(f.totals, plural(n, e.noun))
	e.tellSome(f)
	if n == 1 {
		return // its lines say it all
	}
	var always []string
	timed := false
	scale := 1.0
	for _, c := range e.cols {
		head := clip(c.name, 40)
		if c.rows < n {
			head += fmt.Sprintf(" (in %s)", group(c.rows))
		}
		switch values := len(c.tally.n); {
		case values == 1 && c.rows == n && (timed || c.when.times == 0):
			always = append(always, head+" "+clip(c.from, 60))
		case c.when.times*20 >= c.rows*19 && e.tellTimes(f, c, head, scale, !timed):
			timed = true
		case c.name != e.lead && c.numbers*20 >= c.rows*19 && c.numbers > 1 && !c.odd && (values > 6 || values > 2 && c.tally.count(c.tops[0].value) == 1):
			e.tellNumbers(f, c, head, scale)
			scale *= 0.95
		default:
			if c.name == "path" || c.name == "file" {
				c.paths(f)
			}
			if e.tellValues(f, c, head, scale) {
				scale *= 0.88
			}
		}
	}
	f.fact(3, fmt.Sprintf("all %s have ", group(n)), always, nil)
}

// tellSome tells the first and the last entry, and some between if entries have a brief form.
func (e *entries) tellSome(f *findings) {
	n := len(e.lines)
	switch {
	case e.show != nil:
	case e.shown == nil:
		e.show = func(i int, note string, worth float64) { f.line(int(e.lines[i]), note, narrow, worth) }
	default:
		e.show = func(i int, note string, worth float64) {
			line := int(e.lines[i])
			f.own(line, fmt.Sprintf("%d:%s %s", line+1, note, clip(e.brief[i], narrow)), worth)
			if p := f.at[line]; p != nil {
				p.alike = pattern(e.brief[i])
			}
		}
	}
	e.show(0, "", 10)
	e.show(n-1, "", 8)
	if e.shown != nil {
		for i := range min(n, 8) {
			e.show(i, "", 7*math.Pow(0.85, float64(i)))
		}
		spread(n, func(i, rank int) {
			if i >= 8 {
				e.show(i, "", 4/(1+float64(rank)/8))
			}
		})
	}
}

// tellNumbers tells a column of numbers: its extremes and whose they are, its sum, and frequent values.
func (e *entries) tellNumbers(f *findings, c *column, head string, scale float64) {
	n := len(e.lines)
	text := fmt.Sprintf("%s: min %s max %s", head, c.low.value, c.tops[0].value)
	if c.rising || c.id { // ids have no sum
		f.fact(2*scale, "", []string{text}, firstFull)
		return
	}
	e.show(c.low.at, " (min "+clip(c.name, 20)+")", (4+4*math.Sqrt(float64(c.tally.count(c.low.value))/float64(n)))*scale)
	for i, t := range c.tops {
		switch name := e.title(t.at); {
		case name == "" && i == 0:
			e.show(t.at, " (max "+clip(c.name, 20)+")", 16*scale)
		case i == 0:
			text += " (" + name + ")"
		case name != "" && t.number < c.tops[0].number && c.tops[0].number*5 >= c.sum*units[c.unit].factor*2: // that may be a sum
			text += fmt.Sprintf(" then %s (%s)", t.value, name)
		}
	}
	if !c.scaled && math.Abs(c.sum)*math.Pow10(c.decimals) < 1<<53 {
		text += " sum " + strconv.FormatFloat(c.sum, 'f', c.decimals, 64)
	}
	parts := []string{text}
	if _, most := c.tally.most(); n >= 20 && most*8 > n { // some values are frequent
		top := c.tally.top()
		for _, s := range top[:min(len(top), 4)] {
			if s.n*20 < n {
				break
			}
			parts = append(parts, fmt.Sprintf("%s ×%s", clip(s.value, 20), group(s.n)))
		}
	}
	f.fact(11*scale, "", parts, firstFull)
}

// firstFull gives the first part of a fact its worth, and each other half.
func firstFull(i int) float64 { return 1 / (1 + float64(min(i, 1))) }

// tellValues tells the values of a column by their number, if they repeat or are few, and entries with rare
// ones; of the leading column entries of each value. It reports whether the values are told.
func (e *entries) tellValues(f *findings, c *column, head string, scale float64) bool {
	n, values := len(e.lines), len(c.tally.n)
	top := c.tally.top()
	switch repeats := values <= fewValues || values*10 <= (c.rows+c.further)*7; {
	case c.name == e.lead:
		for i, s := range top[:min(len(top), 40)] {
			note := s.note()
			if s.n > 1 && c.name != "path" && c.name != "message" { // other fields of the entry may differ
				note = fmt.Sprintf(" (%s ×%d)", clip(c.name, 20), s.n)
			}
			e.show(s.first, note, scale*(5+8*math.Sqrt(float64(s.n)/float64(n)))/(1+float64(i)/6))
		}
		if c.long/c.rows > 40 || c.name == "message" {
			return false
		}
	case !repeats || values >= maxTally || c.long/c.rows > 80 || top[0].n == 1 && slices.Contains(e.shown, c.name):
		return false
	}
	rare := 0
	if n >= 20 && top[0].n*10 >= n {
		for _, s := range slices.Backward(top) {
			if s.n > 1 && s.n*100 > n || rare == rareRows {
				break
			}
			if rare++; !e.named {
				e.show(s.first, "", 9*scale/(1+float64(rare-1)/3))
			}
		}
	}
	parts := make([]string, 0, len(top))
	for i, s := range top {
		part := clip(s.value, 60)
		if top[0].n > 1 {
			part += fmt.Sprintf(" ×%s", group(s.n))
		}
		if title := e.title(s.first); title != "" && e.named && s.n == 1 && i >= len(top)-rare {
			part += " (" + title + ")"
		}
		parts = append(parts, part)
	}
	if values > 3 {
		head += fmt.Sprintf(" (%s values)", group(values))
	}
	// A value counts by its share of the entries. What all entries have different may be their names.
	f.fact(10*scale, head+": ", parts, func(i int) float64 {
		share := math.Sqrt(float64(top[i].n) / float64(n))
		if top[0].n == 1 || values <= 6 {
			share = max(share, 0.3/float64(values/fewValues+1))
		}
		if e.named && i >= len(top)-rare {
			share = 0.9 / scale
		}
		return share
	})
	return true
}

// title returns what entry at is called: its ids, and its value of the text that differs most.
func (e *entries) title(at int) string {
	var parts []string
	best, most := "", 0
	for _, c := range e.cols {
		switch {
		case at >= len(c.values) || c.values[at] == "":
		case c.id && !strings.Contains(c.name, "."):
			parts = append(parts, c.name+" "+c.values[at])
		case c.numbers*2 < c.rows && !isTime(c.from) && len(c.tally.n) > most && len(c.tally.n)*4 > c.rows:
			best, most = c.values[at], len(c.tally.n)
		}
	}
	if best != "" {
		parts = append(parts, clip(best, 40/(1+len(parts))))
	}
	return strings.Join(parts, " ")
}

var isID = regexp.MustCompile(`(?i)(?:^|[_.-])p*id$|^number$`)

// paths tells how many of the paths have each extension, and how many are in each directory.
func (c *column) paths(f *findings) {
	names := c.tally.top()
	common := ""
	if len(names) > 0 {
		common = names[0].value
	}
	var exts, dirs tally
	for _, s := range names {
		ext := path.Ext(s.value)
		if strings.ContainsAny(ext, "/ ") || len(ext) > 12 {
			ext = ""
		}
		exts.more(ext, s)
		for !strings.HasPrefix(s.value, common) {
			common = common[:len(common)-1]
		}
	}
	common = common[:strings.LastIndexByte(common, '/')+1]
	for depth := 1; depth < 5 && len(dirs.n) < 4; depth++ { // deep enough to tell directories apart
		dirs = tally{}
		for _, s := range names {
			parts := strings.SplitAfter(s.value[len(common):], "/")
			dirs.more(common+strings.Join(parts[:min(depth, len(parts)-1)], ""), s)
		}
	}
	for _, t := range []struct {
		name string
		*tally
	}{{"extensions", &exts}, {"directories", &dirs}} {
		var parts []string
		shown := t.top()
		for _, s := range shown {
			parts = append(parts, fmt.Sprintf("%s ×%s", clip(cmp.Or(s.value, "none"), 60), group(s.n)))
		}
		if len(parts) > 1 {
			f.fact(10, fmt.Sprintf("%s (%s): ", t.name, group(len(parts))), parts, func(i int) float64 {
				return math.Sqrt(float64(shown[i].n) / float64(max(c.rows+c.further, 1)))
			})
		}
	}
	if c.rows+c.further > len(names) && f.kind != Listing && len(names) < maxTally { // a listing has a row for each
		f.totals = append(f.totals, "in "+plural(len(names), "file"))
	}
}

// more counts all of s under value.
func (t *tally) more(value string, s *seen) {
	if got := t.add(value, s.first); got != nil {
		got.n += s.n - 1
	}
}
