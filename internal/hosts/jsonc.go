package hosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// jsonc is JSON, with or without comments and trailing commas.
type jsonc struct{}

var bom = []byte("\ufeff")

// parse returns the value in data and a newline, with spaces in the place of a byte order mark. The value of an
// empty file has a negative StartOffset.
func (jsonc) parse(data []byte) (v hujson.Value, err error) {
	text := append(data[:len(data):len(data)], '\n') // a copy; hujson takes no line comment without an end
	if bytes.HasPrefix(text, bom) {
		copy(text, "   ")
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return hujson.Value{Value: &hujson.Object{}, StartOffset: -1}, nil
	}
	v, err = hujson.Parse(text)
	if err != nil {
		return v, errors.New(strings.TrimPrefix(err.Error(), "hujson: "))
	}
	if _, ok := v.Value.(*hujson.Object); !ok {
		return v, fmt.Errorf("line %d: the file must hold an object: { ... }", lineOf(data, v.StartOffset))
	}
	return v, nil
}

func (j jsonc) decode(data []byte) (map[string]any, error) {
	v, err := j.parse(data)
	if err != nil {
		return nil, err
	}
	v.Standardize()
	m := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(v.Pack()))
	d.UseNumber()
	return m, d.Decode(&m)
}

// find returns the member of an object, or -1. Two members of that name are an error.
func find(data []byte, o *hujson.Object, name string) (at int, err error) {
	at = -1
	for i, m := range o.Members {
		if lit, _ := m.Name.Value.(hujson.Literal); lit.String() != name {
			continue
		}
		if at >= 0 {
			return at, fmt.Errorf("line %d: %q is there twice; remove one", lineOf(data, m.Name.StartOffset), name)
		}
		at = i
	}
	return at, nil
}

// descend returns the object at path and the names below it that don't exist.
func descend(data []byte, v hujson.Value, path []string) (hujson.Value, []string, error) {
	for i, key := range path {
		o := v.Value.(*hujson.Object)
		at, err := find(data, o, key)
		if err != nil || at < 0 {
			return v, path[i:], err
		}
		v = o.Members[at].Value
		if _, ok := v.Value.(*hujson.Object); !ok {
			return v, nil, fmt.Errorf("line %d: %q must hold an object: { ... }", lineOf(data, v.StartOffset), key)
		}
	}
	return v, nil, nil
}

// at is [jsonc.parse] and [descend].
func (j jsonc) at(data []byte, path []string) (v hujson.Value, missing []string, err error) {
	if v, err = j.parse(data); err != nil {
		return v, nil, err
	}
	return descend(data, v, path)
}

func (j jsonc) names(data []byte, path []string) ([]string, error) {
	v, missing, err := j.at(data, path)
	if err != nil || missing != nil {
		return nil, err
	}
	var names []string
	for _, m := range v.Value.(*hujson.Object).Members {
		names = append(names, m.Name.Value.(hujson.Literal).String())
	}
	return names, nil
}

func (j jsonc) set(data []byte, at entry, e object) ([]byte, error) {
	return j.put(data, at, func(l layout, depth int) string { return l.object(e, depth) })
}

func (j jsonc) text(data []byte, at entry) ([]byte, error) {
	v, missing, err := j.at(data, at)
	if err != nil || missing != nil {
		return nil, err
	}
	return data[v.StartOffset:v.EndOffset], nil
}

func (j jsonc) paste(data []byte, at entry, source []byte) ([]byte, error) {
	return j.put(data, at, func(layout, int) string { return string(source) })
}

// put sets the value of an entry to the text that render returns for its depth.
func (j jsonc) put(data []byte, at entry, render func(layout, int) string) ([]byte, error) {
	v, err := j.parse(data)
	if err != nil {
		return nil, err
	}
	if v.StartOffset < 0 {
		mark := data[:len(data)-len(bytes.TrimPrefix(data, bom))]
		data = slices.Concat(mark, []byte("{}"+newline(data)))
		if v, err = j.parse(data); err != nil {
			return nil, err
		}
	}
	l := layout{newline: newline(data), unit: "  ", colon: ": "}
	l.follow(data, v)
	v, missing, err := descend(data, v, at.table())
	if err != nil {
		return nil, err
	}
	l.follow(data, v)
	o := v.Value.(*hujson.Object)
	i, err := find(data, o, at.name())
	if err != nil {
		return nil, err
	}
	if missing == nil && i >= 0 {
		old := o.Members[i]
		l.base = indentAt(data, old.Name.StartOffset)
		return replace(data, old.Value.StartOffset, old.Value.EndOffset, render(l, 0)), nil
	}
	// The text of the new member, inside the mappings that don't exist.
	member := ""
	for i, key := range missing {
		member += quote(key) + l.colon + "{" + l.line(i+2)
	}
	member += quote(at.name()) + l.colon + render(l, len(missing)+1)
	for i := range missing {
		member += l.line(len(missing)-i) + "}"
	}
	return l.insert(data, v, member), nil
}

// insert adds a member at the end of the object v.
func (l layout) insert(data []byte, v hujson.Value, member string) []byte {
	o, end := v.Value.(*hujson.Object), v.EndOffset-1
	if len(o.Members) == 0 {
		keep := v.StartOffset + 1 + trimmed(data[v.StartOffset+1:end])
		return replace(data, keep, end, l.line(1)+member+l.line(0))
	}
	last := o.Members[len(o.Members)-1]
	comma, trailing := ",", ""
	from := last.Value.EndOffset
	if last.Value.AfterExtra != nil {
		comma, trailing = "", ","
		from += len(last.Value.AfterExtra) + 1
	}
	keep := trimmed(data[from:end]) // comments
	space := l.space()
	first := o.Members[0].Name.StartOffset
	switch {
	case bytes.ContainsRune(data[v.StartOffset+1:first], '\n'):
		space = newline(data) + indentAt(data, first)
	case toLineEnd(data[from : from+keep]):
		space = newline(data) + l.base + l.unit
	}
	text := replace(data, from+keep, from+keep, space+member+trailing)
	return replace(text, from, from, comma)
}

func (j jsonc) remove(data []byte, at entry, empty bool) ([]byte, error) {
	v, missing, err := j.at(data, at.table())
	if err != nil {
		return nil, err
	}
	o := v.Value.(*hujson.Object)
	i, err := find(data, o, at.name())
	if err != nil {
		return nil, err
	}
	if missing != nil || i < 0 {
		return data, nil
	}
	m := o.Members[i]
	start := m.Name.StartOffset - len(m.Name.BeforeExtra)
	start += trimmed(data[start:m.Name.StartOffset]) // comments before the entry stay
	end, last := m.Value.EndOffset, i == len(o.Members)-1
	switch {
	case !last || m.Value.AfterExtra != nil:
		end += len(m.Value.AfterExtra) + 1 // with its comma
	case i == 0 && trimmed(data[v.StartOffset+1:start]) == 0 && trimmed(data[end:v.EndOffset-1]) == 0:
		start, end = v.StartOffset+1, v.EndOffset-1
	}
	by := ""
	if rest := data[end:]; toLineEnd(data[m.Name.StartOffset-len(m.Name.BeforeExtra):start]) && !bytes.ContainsRune(rest[:len(rest)-len(bytes.TrimLeft(rest, " \t\r\n"))], '\n') {
		by = newline(data) // ends a comment
	}
	text := replace(data, start, end, by)
	if last && i > 0 && m.Value.AfterExtra == nil { // the comma before it
		before := o.Members[i-1].Value
		comma := before.EndOffset + len(before.AfterExtra)
		text = replace(text, comma, comma+1, "")
	}
	if empty && len(o.Members) == 1 && len(at) > 1 {
		return j.remove(text, at.table(), false)
	}
	return text, nil
}

// toLineEnd reports whether the last of some comments may end with its line.
func toLineEnd(comments []byte) bool {
	line := comments[lineStart(comments, len(comments)):]
	return trimmed(line) > 0 && (bytes.Contains(line, []byte("//")) || !bytes.HasSuffix(bytes.TrimSpace(line), []byte("*/")))
}

// layout is how a file is indented.
type layout struct {
	newline string // "" if the whole file is one line
	unit    string // one step of indentation
	base    string // the indentation of the object that is changed
	colon   string
}

// follow takes over what the object v shows of it.
func (l *layout) follow(data []byte, v hujson.Value) {
	o := v.Value.(*hujson.Object)
	l.base = indentAt(data, v.StartOffset)
	if len(o.Members) == 0 {
		return
	}
	first := o.Members[0]
	if !bytes.Contains(data[v.StartOffset:v.EndOffset], []byte("\n")) {
		l.newline = ""
		if len(first.Value.BeforeExtra) == 0 {
			l.colon = ":"
		}
	} else if unit, ok := strings.CutPrefix(indentAt(data, first.Name.StartOffset), l.base); ok && unit != "" {
		l.unit = unit
	}
}

// space returns the white space between two members on one line.
func (l layout) space() string { return strings.TrimPrefix(l.colon, ":") }

// line returns the start of a line at a depth below the object.
func (l layout) line(depth int) string {
	if l.newline == "" {
		return ""
	}
	return l.newline + l.base + strings.Repeat(l.unit, depth)
}

// object returns e as the value of a member at that depth.
func (l layout) object(e object, depth int) string {
	var b strings.Builder
	b.WriteString("{")
	for i, f := range e {
		if i > 0 {
			b.WriteString(",")
			if l.newline == "" {
				b.WriteString(l.space())
			}
		}
		b.WriteString(l.line(depth+1) + quote(f.key) + l.colon)
		if inner, ok := f.value.(object); ok {
			b.WriteString(l.object(inner, depth+1))
		} else {
			b.WriteString(quote(f.value))
		}
	}
	b.WriteString(l.line(depth) + "}")
	return b.String()
}

// quote returns v as JSON. Lists of texts have a space after each comma.
func quote(v any) string {
	if list, ok := v.([]string); ok {
		texts := make([]string, len(list))
		for i, s := range list {
			texts[i] = quote(s)
		}
		return "[" + strings.Join(texts, ", ") + "]"
	}
	return string(rawjson.Marshal(v)) // texts, booleans and numbers
}
