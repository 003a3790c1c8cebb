package scrub

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// appendTables adds the columns with secrets of the tables in whose headers names match, and appends the texts of
// lines without their prefixes.
func (x *examination) appendTables(all []decoded, text string, names []regexset.Span) ([]decoded, error) {
	tried, table, columns := -1, -1, -1 // the ends of the last line that addTable tried, and of the last tables, or of a line that begins none
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
		err := x.limit.Spend(perByte * (header.End - header.Start))
		if err == nil && (n.Start > table || n.Start <= below) {
			first, end := n.Start > table, 0
			tried = header.End
			end, err = x.addTable(text, header, &runs)
			table = max(table, end)
			if below = -1; first && table > header.End && !belowRule(text, header) {
				below = firstRow(text, header).End
			}
		}
		if err == nil && n.Start > columns {
			columns, err = x.addColumns(text, header)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// addColumns adds the columns with secrets of the table with a header, if two or more blanks
// separate the columns, and returns the end of the table, or of the line if there is none.
// The cells of a column begin below its name. Names are in capitals, as kubectl prints them, or ruled. If the columns
// are Key and Value, as vault prints them, a row is a name and its value.
func (x *examination) addColumns(text string, header span) (int, error) {
	ruled := lineAt(text, min(header.End+1, len(text)))
	if top := text[header.Start:header.End]; len(top) > maxHeader || !strings.Contains(top, "  ") || strings.ContainsAny(top, notInNames+"|,;\t\"'`*") ||
		strings.ToUpper(top) != top && strings.Trim(text[ruled.Start:ruled.End], "- \r") != "" {
		return header.End, nil
	}
	var names []span
	filled := 0
	rowsArePairs := isKeyAndValue(text[header.Start:header.End])
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
		return header.End, nil
	}
	first := len(x.cells)
	line := header
rows:
	for line.End < len(text) {
		next := lineAt(text, line.End+1)
		if err := x.limit.Spend(perByte * (next.End - next.Start)); err != nil {
			return 0, err
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
			value = strings.TrimRight(value, "\r")
			at := span{next.Start + i, next.Start + i + len(value)}
			switch second := strings.TrimLeft(strings.TrimRight(row[i+len(value):], " \r"), " "); {
			case rest != "" && rest[0] != ' ':
			case !rowsArePairs:
				x.cells = append(x.cells, cell{name: text[n.Start:n.End], value: at})
			case isSecretName(text, at) && second != "":
				end := next.Start + len(strings.TrimRight(row, " \r"))
				x.cells = append(x.cells, cell{name: value, value: span{end - len(second), end}})
			}
		}
	}
	found := x.cells[first:]
	if len(found) == 0 {
		return header.End, nil
	}
	return found[len(found)-1].value.End, nil
}

// isKeyAndValue reports whether these are the names of the only two columns of a table.
func isKeyAndValue(header string) bool {
	names := strings.Fields(header)
	return len(names) == 2 && strings.EqualFold(names[0], "key") && strings.EqualFold(names[1], "value")
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

// addTable adds the columns with secrets of the table with a header, and returns the end of the
// table, or of the line if there is none.
func (x *examination) addTable(text string, header span, runs *[len(separators)]run) (int, error) {
	if header = inString(text, header); !namesSecret(text[header.Start:header.End]) {
		return header.End, nil
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
		first := len(x.cells)
		end, err := x.addCellsBelow(text, header, separator, r)
		if err != nil || len(x.cells) > first {
			return end, err
		}
	}
	return header.End, nil
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

// inString returns the part of a line in the string of JSON that begins in it and goes on, or the whole line:
// the escapes for the line breaks of the string were decoded.
func inString(text string, line span) span {
	s := strings.TrimLeft(text[line.Start:line.End], " \t")
	if s != "" && strings.IndexByte(`{["`, s[0]) >= 0 && strings.Count(s, `"`)%2 == 1 {
		line.Start = line.End - len(s) + strings.LastIndexByte(s, '"') + 1
	}
	return line
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

// addCellsBelow is addTable for one header and separator. The rows have as many cells as the header.
func (x *examination) addCellsBelow(text string, header span, separator byte, r *run) (int, error) {
	line := text[header.Start:header.End]
	signs := strings.ContainsAny(line, notInNames+"/@#%&?!~^+\\")
	if (separator == ',' || separator == ';') && (line[0] == '\t' || signs && isCode(text, header, separator)) {
		return header.End, nil
	}
	x.spans = appendCells(x.spans[:0], text, header, separator)
	names := x.spans
	filled, secret, row := 0, false, true
	var buf [16]bool
	secretive := buf[:0] // by column
	for _, n := range names {
		if n.Start < n.End {
			filled++
		}
		secretive = append(secretive, isSecretName(text, n))
		if secretive[len(secretive)-1] {
			secret, row = true, row && strings.HasSuffix(text[n.Start:n.End], "passwd")
		}
	}
	for _, n := range names {
		if row && n.Start < n.End && text[n.Start] == '/' || row && n.End-n.Start > 1 && '0' <= text[n.Start] && text[n.Start] <= '9' && strings.IndexByte("0123456789.:-", text[n.Start+1]) >= 0 {
			return header.End, nil // a path, number, version or date names no column
		}
	}
	if filled < 2 || !secret {
		return header.End, nil
	}
	first := len(x.cells)
	prefix := ""
	if secretive[0] {
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
		if err := x.limit.Spend(perByte * (line.End - line.Start)); err != nil {
			return 0, err
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
			if secretive[i] {
				if i == 0 && prefix != "" {
					c = withoutPrefix(text, line, prefix, c)
				}
				x.cells = append(x.cells, cell{name: name, value: c})
			}
		}
	}
	found := x.cells[first:]
	if len(found) == 0 || (row || signs) && slices.Max(repeated) >= max(rows/leastRepeated, leastRepeated) {
		clear(found)
		x.cells = x.cells[:first]
		return header.End, nil
	}
	return found[len(found)-1].value.End, nil
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

// A cell is a name and its value, as in a column of a table. One without a name goes on the value of the cell before.
type cell struct {
	name  string
	value span
	bare  bool // the name stands without quotation marks: rules for members of JSON do not know it
}

// A pairing rewrites cells to lines with names and values, without those whose values are known. It leaves cells whose
// values overlap with others.
type pairing struct {
	text        string
	cells, left []cell
	known       []mark
	end         int // of the last value
}

// mostCells bounds the cells of one text, whose matches take many times their memory.
const mostCells = 1 << 13

// next returns the text of the next cells. ok is false if there are none.
func (p *pairing) next() (d decoded, ok bool) {
	var l edits
	var part span
	var last cell
	var before edit // of the last name
	for n := 0; len(p.cells) > 0 && len(l.all) < mostCells; p.cells = p.cells[n:] {
		cells := p.cells
		for n = 1; n < len(cells) && cells[n].name == ""; n++ {
		}
		first := valueIn(p.text, cells[0].value)
		switch {
		case covered(p.known, span{first.Start, max(first.End, cells[n-1].value.End)}):
			continue
		case first.Start < p.end:
			p.left = append(p.left, cells[:n]...)
			continue
		case len(l.all) == 0:
			l.all = make([]edit, 0, min(len(cells), mostCells)+1)
			part = span{first.Start, first.Start}
		}
		if c := cells[0]; c.name != last.name || c.bare != last.bare {
			last = c
			before.at = int32(len(l.with))
			l.with = append(l.with, "\"\n\x00\n"...) // no match goes on from the value before
			if !c.bare {
				l.with = append(l.with, '"')
			}
			l.with = append(append(l.with, c.name...), `": "`...)
			before.until = int32(len(l.with))
		}
		l.all = append(l.all, edit{int32(part.End), int32(first.Start), before.at, before.until})
		part.End = first.End
		for _, c := range cells[1:n] {
			l.add(span{part.End, c.value.Start}, "")
			part.End = c.value.End
		}
		p.end = part.End
	}
	if len(l.all) == 0 {
		return d, false
	}
	l.add(span{part.End, part.End}, "\"\n")
	d = apply(p.text, part, l.all, l.with)
	d.paired = true
	return d, true
}

// maxNesting is the most objects and arrays around a pair in JSON that is in a text.
const maxNesting = 64

// addJSON adds the pairs and the cells of tables in the JSON of a text, such as all of it, its lines or a block.
// Of JSON that is cut or wrong it adds those before the fault.
func (x *examination) addJSON(text string) error {
	var d *document
	object, array := -1, -1 // the next ones
	for at := 0; ; {
		object, array = indexFrom(text, '{', at, object), indexFrom(text, '[', at, array)
		if at = min(object, array); at == len(text) {
			break
		}
		rest := strings.TrimLeft(text[at+1:], " \t\r\n")
		if rest == "" || rest[0] != '"' && (at == object || rest[0] != '{' && rest[0] != '[') {
			at++ // it has no string in it
			continue
		}
		if d == nil {
			d = &document{examination: &examination{s: x.s, cells: x.cells, limit: x.limit}, raw: unsafe.Slice(unsafe.StringData(text), len(text)), all: true, inText: true}
		}
		_, _ = rawjson.WalkFirst(d.raw, at, func(t rawjson.Token) bool {
			at = t.End
			return len(d.stack) < maxNesting && d.token(t) == nil
		})
		for len(d.stack) > 0 { // after a fault
			if err := d.token(rawjson.Token{Event: rawjson.ObjectEnd}); err != nil {
				return err
			}
		}
		if err := d.tables(); err != nil {
			return err
		}
		clear(d.lists)
		d.listed, d.arrays = d.listed[:0], d.arrays[:0]
	}
	if d == nil {
		return nil
	}
	x.cells, x.limit = d.cells, d.limit
	return x.limit.Spend(len(text))
}

// indexFrom returns the first place of c in text from byte at on, or the length of text. last is what it returned for
// an earlier place.
func indexFrom(text string, c byte, at, last int) int {
	if last >= at {
		return last
	}
	if i := strings.IndexByte(text[at:], c); i >= 0 {
		return at + i
	}
	return len(text)
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
	for word := ""; name != ""; {
		word, name = cutWord(name)
		if kind := kindOf(word[0]); kind != 'A' && kind != 'a' {
			continue
		}
		letters += len(word)
		if n, _ := vowels(word); len(word) > 3 && 5*n >= len(word) || len(word) == 3 && (parts && n > 0 || secretWords.Contains(word)) {
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
