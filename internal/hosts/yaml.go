package hosts

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// yamlSyntax is YAML whose servers are a block mapping at the top. An entry is whole lines.
type yamlSyntax struct{}

func (yamlSyntax) decode(data []byte) (m map[string]any, err error) {
	defer malformed(&err)
	m = map[string]any{}
	if err := yaml.Unmarshal(unixLines(data), &m); err != nil {
		return nil, yamlError(err)
	}
	if m == nil { // the file is empty
		m = map[string]any{}
	}
	return m, nil
}

// malformed is deferred: the library panics on some malformed files.
func malformed(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("malformed YAML: %v", p)
	}
}

// unixLines returns data without carriage returns and byte order mark. The library counts a line that ends
// with \r\n twice, and takes the mark for a part of the first key. The numbers of lines stay.
func unixLines(data []byte) []byte {
	return bytes.ReplaceAll(bytes.TrimPrefix(data, bom), []byte("\r\n"), []byte("\n"))
}

// yamlError returns the message and the line of an error of the library, whose text quotes the file.
func yamlError(err error) error {
	if e, ok := err.(yaml.Error); ok && e.GetToken() != nil {
		return fmt.Errorf("line %d: %s", e.GetToken().Position.Line, e.GetMessage())
	}
	return err
}

// outline is where the entries of a mapping stand.
type outline struct {
	found      bool
	start, end int      // the lines of the mapping's entries; both are after its key
	key        int      // the line of its key
	inline     ast.Node // the value, if it is not a block of lines
	indent     string
	entries    []block
	unit       string // the indentation that the file uses
}

// read finds the mapping at path, and its entries.
func (yamlSyntax) read(data []byte, path []string) (o outline, err error) {
	defer malformed(&err)
	o.unit = "  "
	file, err := parser.ParseBytes(unixLines(data), 0)
	if err != nil {
		return o, yamlError(err)
	}
	bodies := slices.DeleteFunc(slices.Clone(file.Docs), func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(bodies) > 1 {
		return o, fmt.Errorf("line %d: a second document starts; the file must hold one", bodies[1].Body.GetToken().Position.Line)
	}
	if len(bodies) == 0 {
		return o, nil
	}
	top, ok := bodies[0].Body.(*ast.MappingNode)
	if !ok || top.IsFlowStyle {
		if bodies[0].Body.Type() == ast.NullType || bodies[0].Body.Type() == ast.CommentType {
			return o, nil
		}
		return o, fmt.Errorf("line %d: the file must hold keys, one a line", bodies[0].Body.GetToken().Position.Line)
	}
	lines := lineOffsets(data)
	for i, entry := range top.Values {
		inner, nested := entry.Value.(*ast.MappingNode)
		nested = nested && !inner.IsFlowStyle
		if nested && len(inner.Values) > 0 && o.unit == "  " {
			o.unit = strings.Repeat(" ", max(inner.Values[0].Key.GetToken().Position.Column-1, 1))
		}
		if keyText(entry.Key) != path[0] {
			continue
		}
		o.found, o.key = true, entry.Key.GetToken().Position.Line
		o.start, o.end = lines[o.key], len(data)
		if i+1 < len(top.Values) {
			o.end = lines[top.Values[i+1].Key.GetToken().Position.Line-1]
		}
		if !nested {
			o.inline = entry.Value
			continue
		}
		o.indent = strings.Repeat(" ", inner.Values[0].Key.GetToken().Position.Column-1)
		for k, e := range inner.Values {
			b := block{[]string{keyText(e.Key)}, lines[e.Key.GetToken().Position.Line-1], o.end}
			if k+1 < len(inner.Values) {
				b.end = lines[inner.Values[k+1].Key.GetToken().Position.Line-1]
			}
			b.end = b.start + len(o.contents(data[b.start:b.end]))
			o.entries = append(o.entries, b)
		}
		o.end = o.entries[len(o.entries)-1].end
	}
	return o, nil
}

// contents returns the lines of an entry without the empty lines at their end, and without the
// comments there that are not further in than its key. Such as are may belong to a text.
func (o outline) contents(lines []byte) []byte {
	for len(lines) > 0 {
		at := lineStart(lines, len(lines)-1)
		line := lines[at:]
		text := bytes.TrimLeft(line, " ")
		if len(bytes.TrimSpace(text)) > 0 && (text[0] != '#' || len(line)-len(text) > len(o.indent)) {
			break
		}
		lines = lines[:at]
	}
	return lines
}

// entry returns the number of the entry of that name, or -1.
func (o outline) entry(name string) int {
	return slices.IndexFunc(o.entries, func(b block) bool { return b.key[0] == name })
}

// keyText returns a key without its quotes.
func keyText(key ast.Node) string {
	if s, ok := key.(*ast.StringNode); ok {
		return s.Value
	}
	return strings.TrimSpace(key.GetToken().Value)
}

// lineOffsets returns the offset of each line, and the length of data.
func lineOffsets(data []byte) []int {
	at := []int{0}
	for line := range bytes.Lines(data) {
		at = append(at, at[len(at)-1]+len(line))
	}
	return at
}

func (y yamlSyntax) names(data []byte, path []string) (names []string, err error) {
	o, err := y.read(data, path)
	for _, e := range o.entries {
		names = append(names, e.key[0])
	}
	return names, err
}

func (y yamlSyntax) set(data []byte, at entry, e object) ([]byte, error) {
	o, err := y.read(data, at.table())
	if err != nil {
		return nil, err
	}
	return y.put(data, at, o, renderYAML(cmp.Or(o.indent, o.unit), o.unit, field{at.name(), e}))
}

// put adds the lines of an entry after the others, or in the place of the old ones.
func (yamlSyntax) put(data []byte, at entry, o outline, source string) ([]byte, error) {
	nl := newline(data)
	source = strings.ReplaceAll(source, "\n", nl)
	if i := o.entry(at.name()); i >= 0 {
		return replace(data, o.entries[i].start, o.entries[i].end, source), nil
	}
	open := func(offset int) string { // ends the line before
		if offset > 0 && data[offset-1] != '\n' {
			return nl
		}
		return ""
	}
	switch {
	case !o.found:
		return slices.Concat(data, []byte(open(len(data))+at[0]+":"+nl+source)), nil
	case len(o.entries) > 0:
		return replace(data, o.end, o.end, open(o.end)+source), nil
	}
	from := lineOffsets(data)[o.key-1]
	line := data[from:o.start]
	switch rest := inlineEmpty.FindSubmatchIndex(line); {
	case rest == nil:
		first := "name"
		if m, ok := o.inline.(*ast.MappingNode); ok && len(m.Values) > 0 {
			first = keyText(m.Values[0].Key)
		}
		return nil, fmt.Errorf("line %d: the entries of %q must stand on lines of their own, so that one can be added. Write:\n%[2]s:\n  %s: {...}", o.key, at[0], first)
	case rest[2] >= 0: // {} or null
		data = replace(data, from+rest[2], from+rest[3], "")
		o.start -= rest[3] - rest[2]
	}
	return replace(data, o.start, o.start, open(o.start)+source), nil
}

// inlineEmpty matches a line with a key and no value, and the text between the colon and a comment.
var inlineEmpty = regexp.MustCompile(`^[^#{]*:([ \t]*(?:\{[ \t]*\}|null|~))?[ \t]*(?:#.*)?\r?\n?$`)

func (y yamlSyntax) text(data []byte, at entry) ([]byte, error) {
	o, err := y.read(data, at.table())
	if i := o.entry(at.name()); i >= 0 {
		return data[o.entries[i].start:o.entries[i].end], nil
	}
	return nil, err
}

func (y yamlSyntax) paste(data []byte, at entry, source []byte) ([]byte, error) {
	o, err := y.read(data, at.table())
	if err != nil {
		return nil, err
	}
	text := strings.ReplaceAll(string(source), "\r\n", "\n")
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return y.put(data, at, o, text)
}

func (y yamlSyntax) remove(data []byte, at entry, empty bool) ([]byte, error) {
	o, err := y.read(data, at.table())
	i := o.entry(at.name())
	if err != nil || i < 0 {
		return data, err
	}
	text := replace(data, o.entries[i].start, o.entries[i].end, "")
	from := lineOffsets(data)[o.key-1]
	switch {
	case len(o.entries) > 1:
		return text, nil
	case empty:
		return replace(text, from, o.start, ""), nil
	}
	colon := bytes.LastIndexByte(data[:o.start], ':') + 1
	if m := inlineEmpty.FindSubmatchIndex(data[from:o.start]); m != nil {
		colon = from + bytes.IndexByte(data[from:o.start], ':') + 1
	}
	return replace(text, colon, colon, " {}"), nil
}

// renderYAML returns the lines of a field. Texts are quoted as in JSON, which is YAML.
func renderYAML(indent, unit string, f field) string {
	o, ok := f.value.(object)
	if !ok {
		return indent + yamlKey(f.key) + ": " + quote(f.value) + "\n"
	}
	var b strings.Builder
	b.WriteString(indent + yamlKey(f.key) + ":\n")
	for _, inner := range o {
		b.WriteString(renderYAML(indent+unit, unit, inner))
	}
	return b.String()
}

// plainKey matches the keys that mean themselves without quotes.
var plainKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

func yamlKey(key string) string {
	switch strings.ToLower(key) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null":
		return quote(key)
	}
	if plainKey.MatchString(key) {
		return key
	}
	return quote(key)
}
