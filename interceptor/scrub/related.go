package scrub

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"unicode/utf8"
)

// A listed is a string below an array. With private keys it is also one of an object, which stands for the path.
type listed struct {
	span
	path   uint64 // a hash, the same for all members of an array, such as of $.lines[*].text
	array  int32  // the innermost array, in document.arrays
	column int32  // the element of that array; -1 for a member of an object that is no cell of a table
}

// An array is what tables need to know of one.
type array struct {
	outer int32 // the next array around it, -1 for none
	owner int32 // the start of the object around it
	first bool  // it is the first element of outer
}

// maxPair is the length up to which a value is examined together with its name. A longer value is
// no secret that only its name reveals.
const maxPair = 4096

// relate notes what a string of f is to be examined together with: the key before it, the key of the array or
// object that it is in, the option before it in an array, and the strings with the same path in other members.
func (d *document) relate(f *frame, at span) error {
	switch {
	case isValue(f.name):
		f.labeled = at
	case isLabel(f.name) && d.isHot(at):
		f.label = at
	}
	d.list(f, at)
	if f.array {
		err := d.pair(f.label, at)
		if f.label = (span{}); d.raw[at.Start+1] == '-' {
			f.label = at
		}
		if err != nil {
			return err
		}
	}
	if n := len(d.stack); n > 1 && !d.stack[n-2].array && (f.array || isValue(f.name)) {
		up := &d.stack[n-2]
		if isValue(up.name) && !f.array {
			up.labeled = at // an attribute of OpenTelemetry
		}
		if err := d.pair(up.key, at); err != nil {
			return err
		}
	}
	if d.inText {
		return nil // the rules know names and values that stand side by side
	}
	return d.pair(f.key, at)
}

// pair notes a value to be examined together with its name.
func (d *document) pair(name, value span) error {
	if value.End-value.Start > maxPair || name.End == 0 || !d.isHot(name) {
		return nil
	}
	if d.inText {
		if name = inside(name); isSecretName(view(d.raw), name) {
			d.cells = append(d.cells, cell{name: view(d.raw[name.Start:name.End]), value: inside(value)})
		}
		return nil
	}
	n, v := d.unquote(name), d.unquote(value)
	d.named = append(d.named, piece{name, "\"\n\x00\n\"", n, 0, len(n)}, piece{value, `": "`, v, 0, len(v)})
	if d.namedBytes += len(n) + len(v); d.namedBytes < 8*maxPair {
		return nil
	}
	return d.examinePairs()
}

// inside returns what a string literal has between its quotation marks.
func inside(literal span) span { return span{literal.Start + 1, literal.End - 1} }

// examinePairs examines the pairs noted so far, as lines of one text.
func (d *document) examinePairs() error {
	named := d.named
	if d.named, d.namedBytes = d.named[:0], 0; len(named) == 0 {
		return nil
	}
	return d.joined(named, "\"\n")
}

// tables notes the cells of tables whose columns have names of secrets. The names are in the first
// of several rows, or in an array beside that of the rows.
func (d *document) tables() error {
	type column [3]int32 // whether its name is beside the rows, their array or the start of the object around it, and its number
	var names map[column]span
	name := func(c column, l *listed) {
		if names == nil {
			names = map[column]span{}
		}
		names[c] = l.span
	}
	if !slices.ContainsFunc(d.arrays, func(a array) bool { return a.outer >= 0 }) {
		return nil // there are no rows
	}
	for i := range d.listed {
		l := &d.listed[i]
		if l.array < 0 || l.column < 0 || !d.lists[l.path] || !d.isHot(l.span) || !isSecretName(view(d.raw), inside(l.span)) {
			continue
		}
		a := &d.arrays[l.array]
		if a.outer < 0 || d.arrays[a.outer].owner != a.owner {
			name(column{1, a.owner, l.column}, l)
		} else if a.first {
			name(column{0, a.outer, l.column}, l)
		}
	}
	for i := range d.listed {
		l := &d.listed[i]
		if names == nil || l.array < 0 || l.column < 0 || d.arrays[l.array].outer < 0 {
			continue
		}
		outer := d.arrays[l.array].outer
		for _, c := range []column{{1, d.arrays[outer].owner, l.column}, {0, outer, l.column}} {
			if n, ok := names[c]; ok && n != l.span {
				if err := d.pair(n, l.span); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// isLabel and isValue report whether a member of an object has the name or the value of a pair.
func isLabel(key string) bool {
	switch key {
	case "variable", "field", "label", "property", "header", "id":
		return true
	}
	return strings.HasSuffix(key, "ame") || strings.HasSuffix(key, "ey")
}

func isValue(key string) bool {
	switch key {
	case "val", "text", "default", "content", "data", "string", "S", "B": // the last two of DynamoDB
		return true
	}
	return strings.HasSuffix(key, "alue")
}

// list notes a string that has to be examined together with others.
func (d *document) list(f *frame, at span) {
	column := f.column
	if !f.array && !isLabel(f.name) && !isValue(f.name) && f.name != "v" {
		column = -1
	}
	note := func(path uint64) {
		d.listed = append(d.listed, listed{at, path, f.inside, column})
		if d.isHot(at) {
			if d.lists == nil {
				d.lists = map[uint64]bool{}
			}
			d.lists[path] = true
		}
	}
	if f.inside >= 0 {
		note(f.memberPath())
	}
	if d.armored && !f.array {
		note(uint64(f.start) | 1<<63)
	}
}

var seed = maphash.MakeSeed()

// memberPath returns the path of the member of f that is being read.
func (f *frame) memberPath() uint64 {
	if f.array {
		return (f.path*31 + 1) &^ (1 << 63)
	}
	return (f.path*31 ^ maphash.String(seed, f.name)) &^ (1 << 63)
}

// together examines the strings with one path as the lines of a text.
func (d *document) together() error {
	if len(d.lists) == 0 {
		return nil
	}
	all := slices.DeleteFunc(d.listed, func(l listed) bool { return !d.lists[l.path] })
	slices.SortStableFunc(all, func(a, b listed) int { return cmp.Compare(a.path, b.path) })
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].path == all[0].path {
			n++
		}
		for _, between := range []string{"\n", "", `", "`} {
			if n < 2 || between == "" && !d.armored || between == `", "` && !d.areArguments(all[:n]) {
				continue
			}
			pieces := make([]piece, 0, n)
			for _, l := range all[:n] {
				pieces = appendPieces(pieces, l.span, separated(pieces, between), d.unquote(l.span))
			}
			if err := d.joined(pieces, "\n"); err != nil {
				return err
			}
		}
		all = all[n:]
	}
	return nil
}

// areArguments reports whether strings have an option of a command among them, or the name of a header whose value
// stands beside it.
func (d *document) areArguments(all []listed) bool {
	return slices.ContainsFunc(all, func(l listed) bool {
		text := view(d.raw[l.Start+1 : l.End-1])
		return len(text) > 1 && text[0] == '-' && !strings.Contains(text, " ") ||
			strings.EqualFold(text, "cookie") || strings.EqualFold(text, "set-cookie") || strings.EqualFold(text, "authorization")
	})
}

// A piece is a string or an end of a long one, in a concatenation.
type piece struct {
	span            // of the string
	before   string // stands before the text
	text     string // from byte from of the value on
	from, to int    // to is where the next piece of the string begins, or its end
}

// reach is the length of the ends of a long string that are examined together with other strings.
const reach = 8192

// appendPieces appends the pieces of the string at at with a value.
func appendPieces(pieces []piece, at span, before, value string) []piece {
	if len(value) <= 3*reach {
		return append(pieces, piece{at, before, value, 0, len(value)})
	}
	head, tail := reach, len(value)-reach
	for !utf8.RuneStart(value[head]) && head < tail {
		head++
	}
	for !utf8.RuneStart(value[tail]) && head < tail {
		tail--
	}
	return append(pieces, piece{at, before, value[:head], 0, tail}, piece{at, "\n\x00\n", value[tail:], tail, len(value)})
}

// separated returns what stands before the piece behind pieces: between, or if the last one ends with padding what no
// match goes over. The sign = of padding is not that of a name before its value.
func separated(pieces []piece, between string) string {
	if len(pieces) > 0 && isPadded(pieces[len(pieces)-1].text) {
		return "\n\x00\n"
	}
	return between
}

// isPadded reports whether text ends with digits of base64 and its padding.
func isPadded(text string) bool {
	const least = 10 // digits
	padding := len(text) - len(strings.TrimRight(text, "="))
	if padding == 0 || padding > 2 {
		return false
	}
	text = text[:len(text)-padding]
	digits := text[len(strings.TrimRight(text, base64Digits+"-_")):]
	return len(digits) >= least && strings.ContainsAny(digits, "0123456789") && !secretWords.Contains(digits)
}

// joined examines the concatenation of pieces and end. It does not report known secrets again.
func (d *document) joined(pieces []piece, end string) error {
	b := d.pieces[:0]
	for i := range pieces {
		b = append(append(b, pieces[i].before...), pieces[i].text...)
	}
	b = append(b, end...)
	d.pieces = b
	marks, _, err := d.examine(view(b))
	if err != nil || len(marks) == 0 {
		return err
	}
	known := make([][]mark, len(pieces))
	for i, p := range pieces {
		if t := d.dirty[p.Start]; t != nil {
			known[i] = merge(slices.Clone(t.marks))
		}
	}
	marks = merge(marks)
	reported := -1 // index of a mark
	at, first := 0, 0
	for i, p := range pieces {
		at += len(p.before)
		for first < len(marks) && marks[first].End <= at {
			first++
		}
		for n := first; n < len(marks) && marks[n].Start < at+len(p.text); n++ {
			m := marks[n]
			in := span{p.from + max(m.Start-at, 0), p.from + m.End - at}
			if m.End > at+len(p.text) {
				in.End = p.to
			}
			if in.Start >= in.End || covered(known[i], in) {
				continue
			}
			var found []Finding
			if reported != n {
				reported = n
				found = []Finding{{Rule: m.rule.ID, Line: 1 + strings.Count(p.text[:in.Start-p.from], "\n")}}
			}
			d.note(p.span, []mark{{in, m.rule}}, found)
		}
		at += len(p.text)
	}
	return nil
}
