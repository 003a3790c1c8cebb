package preview

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const maxJSONDepth = 2000 // deeper JSON counts as plain text

// readJSON reads a JSON text, one value after another, JSON with other lines before and after it, and values behind
// other text in each line. Values of other languages are read like those of JSON.
func readJSON(f *findings) bool {
	from, to, values, cut := jsonPart(f.text)
	if len(values) == 0 {
		switch embeds := extract.Embeds(f.text); len(embeds) {
		case 0:
			return false
		case 1:
			from, to, values = embeds[0].From, embeds[0].To, [][]byte{embeds[0].JSON}
			f.jq = len(f.text) <= extract.MaxConvert
		default:
			f.embedded(embeds)
			return true
		}
	} else {
		ends := to - len(strings.TrimRight(f.text[:to], " \t\r\n"))
		f.jq = !cut && len(f.text) <= extract.MaxJQInput && (to == len(f.text) || strings.Contains(f.text[to-ends:to], "\n"))
	}
	f.kind = JSON
	value := values[0]
	if len(values) > 1 {
		f.kind = NDJSON
		value = slices.Concat([]byte("["), bytes.Join(values, []byte(",")), []byte("]"))
		if lines, ok := testEvents(f, values); ok {
			tests := *f
			if tests.lines, tests.sample = lines, sample(lines); readTests(&tests) {
				*f = tests
				return true
			}
		}
	}
	f.aroundJSON(from, to)
	if _, ok := rawjson.Get(value, "nbformat"); ok && f.kind == JSON {
		f.kind = Notebook
	}
	path, items, named := largest(value)
	e := &entries{noun: "item", named: true}
	all, n := []span(nil), 0 // slices would take 12 times the memory of the smallest items
	var names []string       // of members
	each := func(v []byte) {
		from := cap(items) - cap(v)
		all = append(all, span{uint32(from), uint32(from + len(v))}) // #nosec G115: a text has less than 2 GiB
		e.begin(len(all))
		e.members("", v, 4)
	}
	if named {
		for m := range rawjson.Members(items) {
			names = append(names, path+"."+clip(m.Name(), 60))
			each(m.Value)
		}
	} else if items != nil {
		for range rawjson.Elements(items) {
			n++
		}
		all, e.lines = slices.Grow(all, n), slices.Grow(e.lines, n)
		for v := range rawjson.Elements(items) {
			each(v)
		}
	}
	row := func(i int) string {
		if named {
			return names[i]
		}
		return fmt.Sprintf("%s[%d]", path, i)
	}
	show := func(i int, _ string, worth float64) {
		f.own(i, row(i)+": "+brief(items[all[i].from:all[i].to], i), worth)
	}
	n = len(all)
	if named && n < 20 && !slices.ContainsFunc(e.cols, func(c *column) bool { return c.rows*3 > n }) { // the parts of one record
		path, items, n = "", nil, 0
	}
	if n > 0 {
		at := len(f.totals)
		e.show = show
		e.tell(f)
		if path != "" {
			f.totals[at] += " in " + path
		}
		if named {
			short := slices.IndexFunc(e.cols, func(c *column) bool { return c.rows*4 >= 3*n && c.long < 20*c.rows && len(c.tally.n) > 1 })
			listed := make([]string, min(n, 60))
			for i, r := range names[:len(listed)] {
				names[i] = cmp.Or(strings.TrimPrefix(r, path+"."), r)
				if listed[i] = names[i]; short >= 0 && i < len(e.cols[short].values) {
					listed[i] += " " + e.cols[short].values[i]
				}
			}
			f.fact(3, "", listed, nil)
		}
		for i := range min(n, 12) {
			show(i, "", 30/(1+2*float64(i)))
		}
	}
	if path != "" || items == nil {
		f.besideItems(value, path)
	}
	return true
}

// embedded reads values that stand in lines, behind other text or as another language prints them.
func (f *findings) embedded(values []extract.Embedded) {
	f.kind, f.jq = NDJSON, len(f.text) <= extract.MaxConvert
	e := &entries{noun: "item"}
	line, at := 0, 0
	for _, v := range values {
		line += strings.Count(f.text[at:v.Line], "\n")
		at = v.Line
		e.begin(line)
		time, before := stamp(f.text[v.Line:v.From])
		e.set("time", time)
		e.set("before", before)
		e.members("", v.JSON, 4)
	}
	e.show = func(i int, note string, worth float64) {
		v, line := values[i], int(e.lines[i])
		f.own(line, fmt.Sprintf("%d:%s %s%s", line+1, note, clip(f.text[v.Line:v.From], 60), brief(v.JSON, i)), worth)
	}
	e.tell(f)
	e.show(0, "", 30)
	f.ends(0.3)
}

// span is a part of a text.
type span struct{ from, to uint32 }

// aroundJSON tells the lines before and after the JSON, which is text[from:to].
func (f *findings) aroundJSON(from, to int) {
	for _, part := range []struct {
		name, text string
		line       int // the number of its first line
		at         int // its place in the preview
	}{{"before", f.text[:from], 1, -5000}, {"after", f.text[to:], 1 + strings.Count(f.text[:to], "\n"), math.MaxInt32 - 50}} {
		if strings.TrimSpace(part.text) == "" {
			continue
		}
		lines := strings.Split(strings.Trim(part.text, "\n"), "\n")
		f.totals = append(f.totals, plural(len(lines), "other line")+" "+part.name)
		if len(lines) > 20 && part.line == 1 { // a text of its own
			g := read(part.text)
			for _, p := range g.pieces {
				if p.line >= 0 {
					p.line += part.at
				}
			}
			f.pieces, f.facts = g.pieces, g.facts
			continue
		}
		for i, l := range lines[:min(len(lines), 40)] {
			f.own(part.at+i, fmt.Sprintf("%d: %s", part.line+i, clip(l, wide)), lineWorth/(1+float64(i)/3))
		}
	}
}

// besideItems tells the members of a value, but for the one at path, and how many members or items each has.
func (f *findings) besideItems(value []byte, path string) {
	at := 0
	var sizes []string
	for m := range rawjson.Members(value) {
		if at++; at > 60 {
			break
		}
		if short := abridge(m.Value, 0, 0, 0); short[0] == '{' || short[0] == '[' {
			sizes = append(sizes, clip(m.Name(), 60)+" "+strings.Replace(short, "…", "", 1))
		}
		if "."+m.Name() != path {
			text := clip(abridge(m.Value, 10, 80, 2), wide)
			f.own(at-1000, "."+clip(m.Name(), 60)+": "+text, 5*max(1, math.Sqrt(float64(min(len(text), 120))/40))/(1+float64(at)/8))
		}
	}
	f.fact(8, "", sizes, nil)
}

// jsonPart finds the JSON in a text: all of it, or what begins a line and is most of the text. cut tells that its end is missing.
func jsonPart(text string) (from, to int, values [][]byte, cut bool) {
	for range 8 {
		for from < len(text) && text[from] != '{' && text[from] != '[' {
			from = nextLine(text, from)
		}
		to, values = from, nil
		for n := valueEnd(text[to:]); n > 0; n = valueEnd(text[to:]) {
			values = append(values, rawjson.Trim([]byte(text[to:to+n])))
			to += n
			if len(values) > 1000 && to-from <= 8*len(values) {
				return 0, 0, nil, false // no items, such as {}{}{}
			}
		}
		if len(values) > 0 && (to-from)*2 > len(text) && (len(values) == 1 || to-from > 8*len(values)) {
			return from, to, values, false
		}
		if whole := mend(text[from:]); whole != nil && len(whole)*10 > len(text)*9 {
			return from, len(text), [][]byte{whole}, true
		}
		from = nextLine(text, from)
	}
	return 0, 0, nil, false
}

// nextLine returns the place of the line behind the one at a place.
func nextLine(text string, at int) int {
	if end := strings.IndexByte(text[at:], '\n'); end >= 0 {
		return at + end + 1
	}
	return len(text)
}

// valueEnd returns the length of the object or array that a text starts with, and of the white space
// around it, or 0.
func valueEnd(text string) int {
	start := len(text) - len(strings.TrimLeft(text, " \t\r\n"))
	if start == len(text) || text[start] != '{' && text[start] != '[' {
		return 0
	}
	depth, i := 0, start
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = stringEnd(text, i)
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth == 0 {
			break
		}
	}
	if i >= len(text) || !rawjson.Valid([]byte(text[start:i+1]), maxJSONDepth) {
		return 0
	}
	rest := text[i+1:]
	return len(text) - len(strings.TrimLeft(rest, " \t\r\n"))
}

// stringEnd returns the index of the quote that ends the string which starts at i.
func stringEnd(text string, i int) int {
	for i++; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i
}

// mend returns a JSON text that was cut off with what its last values lack, or nil.
func mend(text string) []byte {
	var open, at []byte // what is open, at the end and at the last comma
	comma := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			i = stringEnd(text, i)
		case '{', '[':
			open = append(open, c+2)
		case '}', ']':
			if len(open) == 0 {
				return nil
			}
			open = open[:len(open)-1]
		case ',':
			comma, at = i, append(at[:0], open...)
		}
		if len(open) == 0 || len(open) > 64 {
			return nil
		}
	}
	slices.Reverse(at)
	whole := append([]byte(text[:comma]), at...)
	if comma == 0 || !rawjson.Valid(whole, maxJSONDepth) {
		return nil
	}
	return whole
}

// members sets the fields of an entry: the scalars of an object and of what is in it, of an array in it the first item.
func (e *entries) members(name string, v []byte, depth int) {
	switch rawjson.KindOf(v) {
	case rawjson.Object:
		if name != "" {
			name += "."
		}
		for m := range rawjson.Members(v) {
			if depth > 0 {
				e.members(name+m.Name(), m.Value, depth-1)
			}
		}
	case rawjson.Array:
		i := 0
		for v := range rawjson.Elements(v) {
			e.members(fmt.Sprintf("%s[%d]", name, i), v, depth)
			if i++; name != "" || rawjson.KindOf(v) == rawjson.Object || i == maxColumns {
				return
			}
		}
	case rawjson.String:
		e.set(cmp.Or(name, "value"), rawjson.Unquote(v))
	case rawjson.Number, rawjson.True, rawjson.False:
		e.set(cmp.Or(name, "value"), string(rawjson.Trim(v)))
	}
}

// testEvents returns the output of go test that its events have, a line for each.
func testEvents(f *findings, values [][]byte) (lines []string, ok bool) {
	if len(values) != len(f.lines) {
		return nil, false
	}
	for _, v := range values {
		if _, ok := rawjson.GetString(v, "Action"); !ok {
			return nil, false
		}
		output, _ := rawjson.GetString(v, "Output")
		lines = append(lines, strings.TrimSuffix(output, "\n"))
	}
	return lines, true
}

// largest returns the array with the most bytes, or the object with many members that are objects, and
// its path for jq. It looks at the value itself, its members and their members. items is nil if none has
// a third of the bytes.
func largest(v []byte) (path string, items []byte, named bool) {
	if rawjson.KindOf(v) == rawjson.Array {
		return "", v, false
	}
	look := func(at string, v []byte) {
		array, object := rawjson.KindOf(v) == rawjson.Array, rawjson.KindOf(v) == rawjson.Object
		if n := len(v); n > len(items) && (array || object && isMap(v)) {
			path, items, named = at, v, object
		}
	}
	for m := range rawjson.Members(v) {
		at := "." + clip(m.Name(), 60)
		look(at, m.Value)
		for m := range rawjson.Members(m.Value) {
			if !named || len(items) < len(v)/3 {
				look(at+"."+clip(m.Name(), 60), m.Value)
			}
		}
	}
	if len(items)*3 < len(v) {
		if isMap(v) {
			return "", v, true
		}
		return "", nil, false
	}
	return path, items, named
}

// isMap reports whether an object has many members that are objects.
func isMap(v []byte) bool {
	n, nested := 0, 0
	for m := range rawjson.Members(v) {
		n++
		if rawjson.KindOf(m.Value) == rawjson.Object {
			nested++
		}
	}
	return n >= 6 && nested*10 >= n*9
}

// brief returns item i abridged, the first one in more detail.
func brief(v []byte, i int) string {
	if i == 0 {
		return clip(abridge(v, 24, 80, 3), 480)
	}
	return clip(abridge(v, 8, 40, 2), 240)
}

// abridge returns v compactly. It keeps n members of an object, 3 items of an array, width
// characters of a string, and depth levels.
func abridge(v []byte, n, width, depth int) string {
	var parts []string
	total := 0
	keep := func(key string, value []byte, most int) {
		if total++; total <= most && depth > 0 {
			parts = append(parts, key+abridge(value, n, width, depth-1))
		}
	}
	form := "{%s}"
	switch rawjson.KindOf(v) {
	case rawjson.Object:
		for m := range rawjson.Members(v) {
			keep(clip(m.Name(), 60)+":", m.Value, n)
		}
	case rawjson.Array:
		form = "[%s]"
		for e := range rawjson.Elements(v) {
			keep("", e, 3)
		}
	case rawjson.String:
		if utf8.RuneCount(v) <= width+2 {
			return string(v)
		}
		return string(rawjson.Quote(clip(rawjson.Unquote(v), width)))
	default:
		return clip(string(v), 60)
	}
	if depth == 0 && total > 0 {
		parts = []string{fmt.Sprintf("…%d", total)}
	} else if more := total - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("…+%d", more))
	}
	return fmt.Sprintf(form, strings.Join(parts, ","))
}
