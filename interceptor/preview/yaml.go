package preview

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
)

// readYAML reads documents of YAML: their fields, and the keys of the upper levels with their numbers
// of children.
func readYAML(f *findings) bool {
	from, to := 0, untilLast(f.lines, mayBeYAML)
	for skipped := 0; from < to && skipped < maxAround && !mayBeYAML(f.lines[from]); from++ {
		if strings.TrimSpace(f.lines[from]) != "" {
			skipped++
		}
	}
	if !isYAML(sample(f.lines[from:to])) {
		return false
	}
	end := to // behind it a "---" begins no document
	for end > from && slices.Contains([]string{"", "---", "..."}, strings.TrimSpace(f.lines[end-1])) {
		end--
	}
	alone := from == 0 && strings.TrimSpace(strings.Join(f.lines[to:], "")) == ""
	f.kind, f.jq = YAML, len(f.text) <= extract.LargeYAML && (alone || len(f.text) <= extract.MaxAmong)
	y := &yamlText{
		docs:  entries{noun: "document", shown: []string{"kind", "name"}, lead: "kind"},
		items: entries{noun: "item"}, tops: entries{noun: "entry", show: hide},
		deep: 3, keys: map[string]bool{},
	}
	if slices.ContainsFunc(f.lines[from+1:max(end, from+1)], func(l string) bool { return strings.HasPrefix(l, "---") }) {
		y.deep = 2
	}
	for l := range yamlLines(f.lines[:end], from) {
		if l.document && f.lines[l.i] != "---" {
			y.outline.put(0, l.i)
		}
		f.jq = y.add(l) && f.jq
	}
	y.tell(f)
	f.around(from, to)
	f.ends(0.9)
	return true
}

// yamlText has what is told of YAML.
type yamlText struct {
	docs, items, tops entries
	outline           outline
	children          tally           // of the keys of the upper levels, by path
	keys              map[string]bool // of the document, by path
	deep              int             // keys around a list whose items are told
	top               int             // the line of the top key
}

// add adds a line. It returns false for one that YAML does not allow.
func (y *yamlText) add(l yamlLine) bool {
	if l.document {
		clear(y.keys)
		y.docs.begin(l.i)
	}
	if l.lists > 0 {
		y.addItem(l)
		return !l.broken
	}
	if l.key == "" {
		return !l.broken
	}
	depth := len(l.path)
	path := strings.Join(append(l.path[:depth:depth], l.key), "\n")
	fresh := !y.keys[path] // a mapping has each key once
	y.keys[path] = true
	if depth < 3 {
		y.children.add(strings.Join(l.path, "."), l.i)
		switch depth {
		case 0:
			y.top = l.i
			y.tops.begin(l.i)
		case 1:
			y.tops.set(l.key, cmp.Or(l.value, "…"))
		}
		if l.i != y.top || l.value == "" || len(y.docs.lines) < 3 {
			y.outline.put(depth, l.i)
		}
	}
	if depth == 0 || depth == 1 && l.path[0] == "metadata" && (l.key == "name" || l.key == "namespace") {
		y.docs.set(l.key, l.value)
	}
	return fresh && !l.broken
}

// addItem adds a line of an item of a list.
func (y *yamlText) addItem(l yamlLine) {
	if l.list >= y.deep {
		return
	}
	if l.begins {
		y.items.begin(l.i)
		y.items.set("list", strings.Join(l.path[:l.list], "."))
	}
	if depth := len(l.path); l.lists == 1 && depth <= l.list+2 {
		below := strings.Join(slices.Concat(l.path[l.list:], []string{l.key}), ".")
		y.items.set(cmp.Or(below, "value"), l.value)
		y.outline.put(depth-l.list+1, l.i)
	}
}

func (y *yamlText) tell(f *findings) {
	switch n := y.children.count(""); {
	case len(y.docs.lines) > 2:
		y.docs.tell(f)
	case len(y.docs.lines) == 2:
		f.totals = append(f.totals, "2 documents")
	case y.tops.alike(): // a map of entries
		y.tops.tell(f)
	case n > 0:
		f.totals = append(f.totals, plural(n, "top key"))
	}
	var parts []string
	for _, c := range slices.SortedFunc(maps.Values(y.children.n), func(a, b *seen) int { return a.first - b.first }) {
		if c.value != "" && c.n > 1 && len(parts) < 24 {
			parts = append(parts, fmt.Sprintf("%s %d", clip(c.value, 60), c.n))
		}
	}
	if len(y.docs.lines) < 2 {
		f.fact(9, "keys in ", parts, nil)
	}
	if n := len(y.items.lines); n > 2 {
		in := ""
		if lists := y.items.by["list"]; lists != nil && lists.rows == n && len(lists.tally.n) == 1 {
			in = " in " + clip(lists.from, 60)
			y.items.cols = slices.DeleteFunc(y.items.cols, func(c *column) bool { return c == lists })
		}
		at := len(f.totals)
		y.items.tell(f)
		f.totals[at] += in
	}
	y.outline.tell(f, 5)
}

// isYAML reports whether a sample of lines has the shape of YAML: keys, and blocks and items below them.
func isYAML(sample []string) bool {
	in, keys := 0, 0 // the lines of a block of text are no keys
	for _, l := range sample {
		t := strings.TrimLeft(strings.TrimSpace(l), "- ")
		name, value, ok := key(t)
		switch {
		case strings.HasPrefix(l, "\t"), strings.HasPrefix(l, "## "):
			return false
		case ok && value == "" && (indent(l) > 0 || !strings.Contains(name, " ")) || ok && strings.HasPrefix(strings.TrimSpace(l), "- "):
			in++
			keys++
		case ok && !strings.Contains(t, " ") && indent(l) == 0, ok && strings.IndexByte(t, ' ') > strings.IndexByte(t, ':'):
			keys++
		case strings.HasPrefix(strings.TrimSpace(l), "#"), strings.HasPrefix(l, "---"), strings.HasPrefix(strings.TrimSpace(l)+" ", "- "), indent(l) >= 4:
			in++
		}
	}
	return in > 0 && keys*3 >= len(sample) && (keys+in)*10 >= len(sample)*9 &&
		count(sample, func(l string) bool { return strings.HasSuffix(l, ";") || strings.HasSuffix(l, "{") })*8 <= len(sample)
}

// yamlLine is a line of YAML: the begin of a document, an item, a key, or several of them.
type yamlLine struct {
	i          int
	document   bool
	broken     bool     // by the rules of YAML
	begins     bool     // an item that is in no other
	lists      int      // the lists around it
	list       int      // the number of keys in path that are around the outermost list
	path       []string // the keys around it, until the next line is read
	key, value string   // the key is "" without one
}

// yamlLines reads YAML from a line on. Blank lines, comments, blocks of text and further lines of values are left out.
func yamlLines(lines []string, from int) iter.Seq[yamlLine] {
	return func(yield func(yamlLine) bool) {
		var indents []int // of path
		var path []string
		var items []int // the indentation of what is in the open items
		outer := 0      // the length of path around the first of them
		plain := false
		text, first := -1, true // the indentation around a value of several lines
		for i, l := range lines[from:] {
			t, at := strings.TrimSpace(l), indent(l)
			if t == "" || t[0] == '#' || first && t[0] == '%' {
				continue
			}
			if text >= 0 && at > text {
				if plain && (strings.Contains(t, ": ") || t[len(t)-1] == ':') && !yield(yamlLine{i: from + i, broken: true}) {
					return
				}
				continue
			}
			text = -1
			line := yamlLine{i: from + i, document: first || strings.HasPrefix(l, "---")}
			if first = false; line.document {
				indents, path, items = indents[:0], path[:0], items[:0]
			}
			if !strings.HasPrefix(l, "---") {
				for len(items) > 0 && items[len(items)-1] > at {
					items = items[:len(items)-1]
				}
				dash := at
				for t == "-" || strings.HasPrefix(t, "- ") {
					for len(path) > 0 && indents[len(path)-1] > at { // the key of a list may have the indentation of its items
						indents, path = indents[:len(path)-1], path[:len(path)-1]
					}
					dash, t = at, strings.TrimLeft(t[1:], " ")
					at = max(len(l)-len(t), dash+1)
					if len(items) == 0 {
						line.begins, outer = true, len(path)
					}
					items = append(items, at)
				}
				for len(path) > 0 && indents[len(path)-1] >= at {
					indents, path = indents[:len(path)-1], path[:len(path)-1]
				}
				if name, value, ok := key(t); ok {
					line.key, line.value, dash = name, value, at
				} else {
					line.value = t
				}
				line.value = yamlValue(line.value)
				plain = line.value != "" && strings.IndexByte("\"'|>{[", line.value[0]) < 0
				line.broken = line.key == "" && dash == at && strings.IndexByte("]}.?", t[0]) < 0 || strings.HasPrefix(l, "\t") ||
					plain && (strings.IndexByte("%@`", line.value[0]) >= 0 || strings.Contains(line.value, ": ") || line.key != "" && strings.HasSuffix(line.value, ":"))
				if line.value != "" && line.value[0] != '&' && line.value[0] != '!' {
					text = dash
				}
				line.path, line.lists, line.list = path, len(items), min(outer, len(path))
			}
			if !yield(line) {
				return
			}
			if line.key != "" {
				indents, path = append(indents, at), append(path, line.key)
			}
		}
	}
}

// yamlValue returns a value without the comment behind it.
func yamlValue(v string) string {
	if v != "" && (v[0] == '"' || v[0] == '\'') {
		return v
	}
	if strings.HasPrefix(v, "#") {
		return ""
	}
	v, _, _ = strings.Cut(v, " #")
	return strings.TrimSpace(v)
}

// mayBeYAML reports whether a line may begin or end YAML: a key, an item, a comment or a part of a block.
func mayBeYAML(l string) bool {
	name, _, ok := key(l)
	return ok && !strings.Contains(name, " ") || startsWith(l+" ", []string{"---", "- ", " ", "#", "..."}) && strings.TrimSpace(l) != ""
}
