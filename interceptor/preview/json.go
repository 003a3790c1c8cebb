package preview

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// makeJSON shows the shape, then the first items of the largest array, or the
// values of the object.
func makeJSON(d *doc, b *body) string {
	value := d.json()
	room := b.left
	for depth := 5; depth > 0; depth-- {
		shape := describe(value, depth)
		if b.count(shape+"\n") <= room*3/5 || depth == 1 {
			b.addCut("shape: " + shape)
			break
		}
	}
	where, items := largest(value)
	shown, total := 0, 0
	if items == nil {
		b.addCut("start: " + abridge(value, 8, 80))
		return "its shape and start shown"
	}
	rawjson.Elements(items, func([]byte) bool { total++; return true })
	width := 100
	if total > 3 {
		width = 60
	}
	index := 0
	var last []byte
	rawjson.Elements(items, func(v []byte) bool {
		if shown == index && b.left > room/8 && b.add(fmt.Sprintf("%s[%d]: %s", where, index, abridge(v, 12, width))) {
			shown++
		}
		last = v
		index++
		return true
	})
	if shown < total && last != nil {
		if b.add(fmt.Sprintf("%s[%d]: %s", where, total-1, abridge(last, 12, 40))) {
			shown++
		}
	}
	return fmt.Sprintf("shape and %d of %s of %s shown", shown, plural(total, "item"), orRoot(where))
}

func orRoot(where string) string {
	if where == "" {
		return "the array"
	}
	return where
}

// json returns the text as one value: lines of JSON become an array, as jq in
// branch_read sees them.
func (d *doc) json() []byte {
	if !d.lined {
		return []byte(strings.TrimSpace(d.text))
	}
	out := []byte("[")
	for _, l := range d.lines {
		if l = strings.TrimSpace(l); l != "" {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, l...)
		}
	}
	return append(out, ']')
}

// largest returns the array with the most bytes at the root, in a member of
// the root or one level deeper, and its path in jq's form.
func largest(v []byte) (where string, items []byte) {
	if rawjson.KindOf(v) == rawjson.Array {
		return "", v
	}
	look := func(at string, obj []byte) {
		rawjson.Members(obj, func(m rawjson.Member) bool {
			if rawjson.KindOf(m.Value) == rawjson.Array && len(m.Value) > len(items) {
				where, items = at+"."+clip(m.Name(), 60), m.Value
			}
			return true
		})
	}
	look("", v)
	rawjson.Members(v, func(m rawjson.Member) bool {
		if rawjson.KindOf(m.Value) == rawjson.Object {
			look("."+clip(m.Name(), 60), m.Value)
		}
		return true
	})
	if len(items)*3 < len(v) {
		return "", nil
	}
	return where, items
}

// Limits of a shape.
const (
	shapeKeys  = 40  // of one object
	shapeItems = 200 // of an array that are looked at
)

// describe returns the shape of a value: types in place of values, one shape
// for all items of an array, "?" after keys that not all items have.
func describe(v []byte, depth int) string {
	return shapeOf([][]byte{v}, depth)
}

// shapeOf returns the common shape of several values.
func shapeOf(values [][]byte, depth int) string {
	var kinds []string
	byKind := map[string][][]byte{}
	for _, v := range values {
		k := kindName(v)
		if byKind[k] == nil {
			kinds = append(kinds, k)
		}
		byKind[k] = append(byKind[k], v)
	}
	for i, k := range kinds {
		switch k {
		case "object":
			kinds[i] = shapeObject(byKind[k], depth)
		case "array":
			kinds[i] = shapeArray(byKind[k], depth)
		}
	}
	return strings.Join(kinds, "|")
}

func shapeObject(values [][]byte, depth int) string {
	if depth == 0 {
		return "{…}"
	}
	var keys []string
	members := map[string][][]byte{}
	for _, v := range values {
		rawjson.Members(v, func(m rawjson.Member) bool {
			name := m.Name()
			if members[name] == nil {
				if len(keys) >= 4*shapeKeys {
					return true
				}
				keys = append(keys, name)
			}
			members[name] = append(members[name], m.Value)
			return true
		})
	}
	var out []string
	for _, k := range keys[:min(len(keys), shapeKeys)] {
		opt := ""
		if len(members[k]) < len(values) {
			opt = "?"
		}
		out = append(out, clip(k, 60)+opt+":"+shapeOf(members[k], depth-1))
	}
	if n := len(keys) - shapeKeys; n > 0 {
		out = append(out, fmt.Sprintf("… %d more keys", n))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func shapeArray(values [][]byte, depth int) string {
	var items [][]byte
	n, most := 0, 0
	for _, v := range values {
		here := 0
		rawjson.Elements(v, func(e []byte) bool {
			if here++; len(items) < shapeItems {
				items = append(items, e)
			}
			return true
		})
		n, most = n+here, max(most, here)
	}
	size := fmt.Sprint(n)
	if len(values) > 1 {
		size = fmt.Sprintf("≤%d", most)
	}
	switch {
	case n == 0:
		return "[]"
	case depth == 0:
		return "[" + size + "]"
	}
	return "[" + size + " × " + shapeOf(items, depth-1) + "]"
}

func kindName(v []byte) string {
	switch rawjson.KindOf(v) {
	case rawjson.Object:
		return "object"
	case rawjson.Array:
		return "array"
	case rawjson.String:
		return "string"
	case rawjson.Number:
		return "number"
	case rawjson.True, rawjson.False:
		return "bool"
	}
	return "null"
}

// abridge returns v compactly with long strings cut and only the first n
// members or items of what is inside, three levels deep.
func abridge(v []byte, n, width int) string {
	var out strings.Builder
	writeAbridged(&out, v, n, width, 3)
	return out.String()
}

func writeAbridged(out *strings.Builder, v []byte, n, width, depth int) {
	switch rawjson.KindOf(v) {
	case rawjson.Object:
		writeSome(out, "{}", n, depth, func(yield func(key string, value []byte) bool) {
			rawjson.Members(v, func(m rawjson.Member) bool { return yield(clip(m.Name(), 60)+":", m.Value) })
		}, func(e []byte) { writeAbridged(out, e, n, width, depth-1) })
	case rawjson.Array:
		writeSome(out, "[]", min(n, 3), depth, func(yield func(key string, value []byte) bool) {
			rawjson.Elements(v, func(e []byte) bool { return yield("", e) })
		}, func(e []byte) { writeAbridged(out, e, n, width, depth-1) })
	case rawjson.String:
		if utf8.RuneCount(v) <= width+2 {
			out.Write(v)
			return
		}
		out.Write(rawjson.Quote(clip(rawjson.Unquote(v), width)))
	default:
		out.WriteString(clip(string(v), 60))
	}
}

// writeSome writes the first n entries of a collection and how many more
// there are.
func writeSome(out *strings.Builder, brackets string, n, depth int, each func(func(string, []byte) bool), write func([]byte)) {
	out.WriteByte(brackets[0])
	i := 0
	each(func(key string, v []byte) bool {
		if i < n && depth > 0 {
			if i > 0 {
				out.WriteByte(',')
			}
			out.WriteString(key)
			write(v)
		}
		i++
		return true
	})
	if more := i - n; depth == 0 && i > 0 {
		fmt.Fprintf(out, "…%d", i)
	} else if more > 0 {
		fmt.Fprintf(out, ",…+%d", more)
	}
	out.WriteByte(brackets[1])
}

// sortedKeys returns the keys of m, most frequent first, then by name.
func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	return keys
}
