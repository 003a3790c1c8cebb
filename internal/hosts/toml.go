package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// tomlSyntax is TOML. An entry is one or more blocks of whole lines: tables such as [path.name] and
// [path.name.env], or keys of [path].
type tomlSyntax struct{}

func (tomlSyntax) decode(data []byte) (m map[string]any, err error) {
	m = map[string]any{}
	err = toml.Unmarshal(data, &m)
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := e.Position()
		err = fmt.Errorf("line %d, column %d: %s", row, column, strings.TrimPrefix(e.Error(), "toml: "))
	}
	return m, err
}

// block is an expression of a file with the lines up to the next one, without comments and empty
// lines at the end.
type block struct {
	key        []string // the whole path
	start, end int
}

// blocks returns the expressions of a file. The keys after a table's header have its path.
func (t tomlSyntax) blocks(data []byte) (all []block, err error) {
	if _, err := t.decode(data); err != nil {
		return nil, err
	}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	for p.NextExpression() {
		n := p.Expression()
		var key []string
		start := -1
		for it := n.Key(); it.Next(); {
			if start < 0 {
				start = lineStart(data, int(it.Node().Raw.Offset))
			}
			key = append(key, string(it.Node().Data))
		}
		if n.Kind == unstable.KeyValue {
			key = slices.Concat(table, key)
		} else {
			table = key
		}
		all = append(all, block{key: key, start: start})
	}
	for i := range all {
		end := len(data)
		if i+1 < len(all) {
			end = all[i+1].start
		}
		all[i].end = all[i].start + len(contents(data[all[i].start:end]))
	}
	return all, p.Error()
}

// blank matches the empty lines and comment lines at the end of a text.
var blank = regexp.MustCompile(`(^|\n)(?:[ \t]*(?:#[^\n]*)?(?:\r?\n|$))+$`)

// contents returns lines without the comments and empty lines at their end.
func contents(lines []byte) []byte {
	if at := blank.FindSubmatchIndex(lines); at != nil {
		return lines[:at[3]]
	}
	return lines
}

// under reports whether key is path, or below it.
func under(key, path []string) bool {
	return len(key) >= len(path) && slices.Equal(key[:len(path)], path)
}

func (t tomlSyntax) names(data []byte, path []string) (names []string, err error) {
	all, err := t.blocks(data)
	for _, b := range all {
		if under(b.key, path) && len(b.key) > len(path) && !slices.Contains(names, b.key[len(path)]) {
			names = append(names, b.key[len(path)])
		}
	}
	return names, err
}

func (t tomlSyntax) set(data []byte, at entry, e object) ([]byte, error) {
	source := strings.ReplaceAll(renderTOML(at, e), "\n", newline(data))
	all, err := t.blocks(data)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(b block) bool { return under(b.key, at) })
	inPlace := i >= 0 && len(all[i].key) == len(at) && bytes.HasPrefix(bytes.TrimLeft(data[all[i].start:], " \t"), []byte("[")) // a table
	text, err := t.cut(data, at, !inPlace)
	if err != nil || !inPlace {
		return t.append(text, source), err
	}
	return replace(text, all[i].start, all[i].start, source), nil
}

// append adds blocks at the end of a file, after an empty line.
func (tomlSyntax) append(data []byte, source string) []byte {
	nl := newline(data)
	switch {
	case len(data) == 0:
	case !bytes.HasSuffix(data, []byte("\n")):
		source = nl + nl + source
	case !bytes.HasSuffix(data, []byte("\n"+nl)):
		source = nl + source
	}
	return slices.Concat(data, []byte(source))
}

func (t tomlSyntax) text(data []byte, at entry) ([]byte, error) {
	all, err := t.blocks(data)
	var source []byte
	for _, b := range all {
		if under(b.key, at) {
			source = append(source, data[b.start:b.end]...)
		}
	}
	if source != nil && !bytes.HasSuffix(source, []byte("\n")) {
		source = append(source, newline(data)...)
	}
	return source, err
}

func (t tomlSyntax) paste(data []byte, _ entry, source []byte) ([]byte, error) {
	return t.append(data, string(source)), nil
}

func (t tomlSyntax) remove(data []byte, at entry, _ bool) ([]byte, error) {
	return t.cut(data, at, true)
}

// cut takes out every block of the entry. With gap set, it also takes out the empty line before a
// run of blocks.
func (t tomlSyntax) cut(data []byte, at entry, gap bool) ([]byte, error) {
	all, err := t.blocks(data)
	if err != nil {
		return nil, err
	}
	var text []byte
	from := 0
	for _, b := range all {
		if !under(b.key, at) {
			continue
		}
		keep := data[from:b.start]
		if len(bytes.TrimSpace(keep)) == 0 && from > 0 { // only empty lines since the block before
			keep = nil
		}
		if nl := newline(data); gap && bytes.HasSuffix(keep, []byte("\n"+nl)) {
			keep = keep[:len(keep)-len(nl)]
		}
		text = append(text, keep...)
		from = b.end
	}
	return append(text, data[from:]...), nil
}

// renderTOML returns a table. Objects inside it are inline tables.
func renderTOML(path []string, e object) string {
	keys := make([]string, len(path))
	for i, key := range path {
		keys[i] = tomlKey(key)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[%s]\n", strings.Join(keys, "."))
	for _, f := range e {
		fmt.Fprintf(&b, "%s = %s\n", tomlKey(f.key), tomlValue(f.value))
	}
	return b.String()
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return tomlValue(key)
}

// tomlValue returns v as TOML. A JSON string is a basic string of TOML, but for DEL.
func tomlValue(v any) string {
	if o, ok := v.(object); ok {
		var parts []string
		for _, f := range o {
			parts = append(parts, tomlKey(f.key)+" = "+tomlValue(f.value))
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	return strings.ReplaceAll(quote(v), "\x7f", `\u007f`)
}
