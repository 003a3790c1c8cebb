package scrub

import (
	"slices"
	"strings"
	"unicode"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// addStatements adds the values of columns with secrets in SQL: of INSERT, REPLACE and COPY, which name their columns
// or whose table is created above. matches are the beginnings of such statements and of CREATE TABLE, as far as the
// parenthesis of a list or VALUES.
func (x *examination) addStatements(text string, matches []regexset.Span) error {
	created := map[string][]column{} // by table, if they can hold a secret
	r := sqlReader{text: text, statements: matches}
	for len(r.statements) > 0 {
		x.addStatement(&r, created)
		if err := x.limit.Spend(r.read); err != nil {
			return err
		}
		r.read = 0
	}
	return nil
}

func (x *examination) addStatement(r *sqlReader, created map[string][]column) {
	m := r.statements[0]
	r.statements, r.at = r.statements[1:], m.End
	verb, table, listed := sqlBeginning(r.text[m.Start:m.End])
	columns := created[table]
	if listed {
		list, ok := r.list()
		if !ok {
			return
		}
		columns = columnsOf(r.text, list)
	}
	switch {
	case !slices.ContainsFunc(columns, column.holdsSecrets):
	case verb == "create":
		created[table] = columns
	case verb == "copy":
		x.addCopied(r, columns)
	case !listed || r.word("values") || r.word("value"):
		x.addTuples(r, columns)
	}
}

// A column of a table in SQL.
type column struct {
	name   string
	secret bool // the name is that of a secret
}

func (c column) holdsSecrets() bool { return c.secret || c.isValue() }

// isValue reports whether a column before it may name what it holds.
func (c column) isValue() bool { return strings.EqualFold(c.name, "value") }

// sqlBeginning returns the first word of a statement in lower case, the table without its schema, and whether a list
// begins behind it, not VALUES.
func sqlBeginning(s string) (verb, table string, listed bool) {
	s = strings.ToLower(s)
	verb = strings.Fields(s)[0]
	s, listed = strings.CutSuffix(s, "(")
	s = strings.TrimSpace(s)
	if !listed {
		s = strings.TrimSpace(strings.TrimSuffix(s, "values"))
	}
	table = s[strings.LastIndexAny(s, " \t\r\n.")+1:]
	return verb, strings.Trim(table, "\"`[]"), listed
}

// columnsOf returns the columns that a list of names or of definitions has.
func columnsOf(text string, list []span) []column {
	columns := make([]column, 0, len(list))
	for _, item := range list {
		name := text[item.Start:item.End]
		if i := strings.IndexAny(name, " \t\r\n"); i >= 0 {
			name = name[:i]
		}
		switch strings.ToLower(name) {
		case "constraint", "primary", "foreign", "unique", "check", "index", "fulltext", "exclude":
			continue
		case "key":
			if item.End-item.Start > len(name) && text[item.End-1] == ')' && !unicode.IsDigit(rune(text[item.End-2])) {
				continue // KEY name (columns), not key varchar(40)
			}
		}
		name = strings.Trim(name, "\"`[]")
		columns = append(columns, column{name, isSecretName(name, span{0, len(name)})})
	}
	return columns
}

// addTuples adds cells of the tuples behind VALUES.
func (x *examination) addTuples(r *sqlReader, columns []column) {
	for r.sign('(') {
		values, ok := r.list()
		if !ok {
			return
		}
		x.addTuple(r.text, columns, values)
		if !r.sign(',') {
			return
		}
	}
}

// addCopied adds cells of the lines below COPY.
func (x *examination) addCopied(r *sqlReader, columns []column) {
	const longest = 200 // bytes of options
	options, _, ok := strings.Cut(r.text[r.at:min(r.at+longest, len(r.text))], "\n")
	if !ok {
		return
	}
	separator := byte('\t')
	if strings.Contains(strings.ToLower(options), "csv") {
		separator = ','
	}
	line := span{r.at, r.at + len(options)}
	for line.End < len(r.text) {
		line = lineAt(r.text, line.End+1)
		x.spans = appendCells(x.spans[:0], r.text, line, separator)
		if len(x.spans) != len(columns) {
			break
		}
		x.addTuple(r.text, columns, x.spans)
		r.read += line.End - line.Start
		r.statements = from(r.statements, line.End)
	}
}

// addTuple adds the cells of a row. If its columns are Key and Value, or Name and Value, the value of the first is the
// name of the second.
func (x *examination) addTuple(text string, columns []column, values []span) {
	if len(values) != len(columns) {
		return
	}
	name := ""
	for i, v := range values {
		if v = stringIn(text, v); v.Start == v.End {
			continue
		}
		c := columns[i]
		switch {
		case (strings.EqualFold(c.name, "key") || strings.EqualFold(c.name, "name")) && isSecretName(text, v):
			name = text[v.Start:v.End]
		case c.isValue() && name != "":
			x.cells = append(x.cells, cell{name: name, value: v})
		case c.secret:
			x.cells = append(x.cells, cell{name: c.name, value: v})
		}
	}
}

// stringIn returns what is between the quotation marks of the first string in a value, such as the argument of a
// function, or a value without a string.
func stringIn(text string, value span) span {
	i := strings.IndexAny(text[value.Start:value.End], `'"`)
	if i < 0 {
		return value
	}
	start := value.Start + i + 1
	end, _ := stringEnd(text, start-1)
	return span{start, min(end-1, value.End)}
}

// A sqlReader reads statements of SQL.
type sqlReader struct {
	text       string
	at         int
	statements []regexset.Span // that begin behind at
	read       int             // bytes of lists
}

// sign skips a sign behind white space, and reports whether it is there.
func (r *sqlReader) sign(c byte) bool {
	r.at = len(r.text) - len(strings.TrimLeft(r.text[r.at:], " \t\r\n"))
	if r.at == len(r.text) || r.text[r.at] != c {
		return false
	}
	r.at++
	return true
}

// word skips a word behind white space, and reports whether it is there.
func (r *sqlReader) word(w string) bool {
	r.at = len(r.text) - len(strings.TrimLeft(r.text[r.at:], " \t\r\n"))
	if end := r.at + len(w); end > len(r.text) || !strings.EqualFold(r.text[r.at:end], w) || end < len(r.text) && inBase64(r.text[end]) {
		return false
	}
	r.at += len(w)
	return true
}

// list reads the items of a list behind its parenthesis, without the white space around them. ok is false if it does
// not end before another statement begins, and then r is as before. A statement that begins in a string is none.
func (r *sqlReader) list() (items []span, ok bool) {
	text, statements, at := r.text, r.statements, r.at
	defer func() { r.read += at - r.at }()
	next := func() int { // where the next statement begins
		if len(statements) > 0 {
			return statements[0].Start
		}
		return len(text)
	}
	for depth, start := 0, at; at < next(); at++ {
		switch c := text[at]; {
		case c == '\'' || c == '"' || c == '`':
			end, closed := stringEnd(text, at)
			if at = end - 1; !closed {
				return nil, false
			}
			statements = from(statements, end)
		case c == '\\':
			at++ // as in strings, so that no text is read again and again
		case c == '-' && strings.HasPrefix(text[at:], comment):
			line := strings.IndexByte(text[at:next()], '\n')
			if line < 0 {
				return nil, false
			}
			at += line
		case c == '(':
			depth++
		case depth > 0 && c == ')':
			depth--
		case depth == 0 && (c == ',' || c == ')'):
			items = append(items, item(text, span{start, at}))
			if start = at + 1; c == ')' {
				r.at, r.statements = start, statements
				return items, true
			}
		}
	}
	return nil, false
}

// from returns the statements that begin at a place or behind it.
func from(statements []regexset.Span, at int) []regexset.Span {
	for len(statements) > 0 && statements[0].Start < at {
		statements = statements[1:]
	}
	return statements
}

const comment = "--"

// item returns a part of a list without white space and comments around it.
func item(text string, s span) span {
	const blanks = " \t\r\n"
	s.End = s.Start + len(strings.TrimRight(text[s.Start:s.End], blanks))
	for {
		s.Start = s.End - len(strings.TrimLeft(text[s.Start:s.End], blanks))
		if !strings.HasPrefix(text[s.Start:s.End], comment) {
			return s
		}
		s.Start = min(lineAt(text, s.Start).End, s.End)
	}
}

// stringEnd returns the end of the string or name whose quotation mark is at byte at, and whether it is closed. The
// mark stands in it twice, or behind a backslash.
func stringEnd(text string, at int) (end int, closed bool) {
	quote := text[at]
	for i := at + 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote != '`':
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1, true
		}
	}
	return len(text), false
}
