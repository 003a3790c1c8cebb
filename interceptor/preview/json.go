package preview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// isNDJSON reports whether there are several lines and each is a JSON object.
func isNDJSON(lines []string) bool {
	n := 0
	for _, l := range lines {
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		if n++; l[0] != '{' || !rawjson.Valid([]byte(l), maxJSONDepth) {
			return false
		}
	}
	return n > 1
}

// jsonArray returns lines of JSON as one array. The jq of branch_read sees the same array.
func jsonArray(lines []string) []byte {
	values := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.TrimSpace(l) == "" })
	return []byte("[" + strings.Join(values, ",") + "]")
}

// showJSON shows the shape of a value, then the first items and the last item of its largest array.
// If it has no large array, it shows the start of the value.
func showJSON(value []byte, b *body) string {
	room := b.left
	for depth := 5; depth > 0; depth-- {
		shape := shapeOf([][]byte{value}, depth)
		if b.count(shape+"\n") <= room*3/5 || depth == 1 {
			b.addCut("shape: " + shape)
			break
		}
	}
	path, items := largest(value)
	if items == nil {
		b.addCut("start: " + abridge(value, 8, 80, 3))
		return "its shape and start shown"
	}
	total, last := 0, []byte(nil)
	for v := range rawjson.Elements(items) {
		total++
		last = v
	}
	width := 100
	if total > 3 {
		width = 60
	}
	shown := 0
	for v := range rawjson.Elements(items) {
		if b.left <= room/8 || !b.add(fmt.Sprintf("%s[%d]: %s", path, shown, abridge(v, 12, width, 3))) {
			break
		}
		shown++
	}
	if shown < total && b.add(fmt.Sprintf("%s[%d]: %s", path, total-1, abridge(last, 12, 40, 3))) {
		shown++
	}
	return fmt.Sprintf("shape and %d of %s of %s shown", shown, plural(total, "item"), cmp.Or(path, "the array"))
}

const (
	shapeKeys  = 40  // keys shown of one object
	shapeItems = 200 // items of an array that are read
)

// shapeOf returns the common shape of values: types instead of values, one shape for all items of
// an array, and "?" after keys that some items lack.
func shapeOf(values [][]byte, depth int) string {
	var kinds []string
	byKind := map[string][][]byte{}
	for _, v := range values {
		k := kindNames[rawjson.KindOf(v)]
		if byKind[k] == nil {
			kinds = append(kinds, k)
		}
		byKind[k] = append(byKind[k], v)
	}
	for i, k := range kinds {
		switch k {
		case "object":
			kinds[i] = shapeOfObjects(byKind[k], depth)
		case "array":
			kinds[i] = shapeOfArrays(byKind[k], depth)
		}
	}
	return strings.Join(kinds, "|")
}

var kindNames = map[rawjson.Kind]string{
	rawjson.Object: "object", rawjson.Array: "array", rawjson.String: "string", rawjson.Number: "number",
	rawjson.True: "bool", rawjson.False: "bool", rawjson.Null: "null", rawjson.Invalid: "null",
}

func shapeOfObjects(values [][]byte, depth int) string {
	if depth == 0 {
		return "{…}"
	}
	var keys []string
	members := map[string][][]byte{}
	for _, v := range values {
		for m := range rawjson.Members(v) {
			name := m.Name()
			if members[name] == nil {
				if len(keys) >= 4*shapeKeys {
					continue
				}
				keys = append(keys, name)
			}
			members[name] = append(members[name], m.Value)
		}
	}
	var out []string
	for _, k := range keys[:min(len(keys), shapeKeys)] {
		optional := ""
		if len(members[k]) < len(values) {
			optional = "?"
		}
		out = append(out, clip(k, 60)+optional+":"+shapeOf(members[k], depth-1))
	}
	if n := len(keys) - shapeKeys; n > 0 {
		out = append(out, fmt.Sprintf("… %d more keys", n))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func shapeOfArrays(values [][]byte, depth int) string {
	var items [][]byte
	n, longest := 0, 0
	for _, v := range values {
		here := 0
		for e := range rawjson.Elements(v) {
			if here++; len(items) < shapeItems {
				items = append(items, e)
			}
		}
		n, longest = n+here, max(longest, here)
	}
	size := fmt.Sprint(n)
	if len(values) > 1 {
		size = fmt.Sprintf("≤%d", longest)
	}
	switch {
	case n == 0:
		return "[]"
	case depth == 0:
		return "[" + size + "]"
	}
	return "[" + size + " × " + shapeOf(items, depth-1) + "]"
}

// largest returns the array with the most bytes, and its path for jq. It looks at the value itself,
// its members and their members. items is nil if no array has a third of the bytes.
func largest(v []byte) (path string, items []byte) {
	if rawjson.KindOf(v) == rawjson.Array {
		return "", v
	}
	look := func(at string, obj []byte) {
		for m := range rawjson.Members(obj) {
			if rawjson.KindOf(m.Value) == rawjson.Array && len(m.Value) > len(items) {
				path, items = at+"."+clip(m.Name(), 60), m.Value
			}
		}
	}
	look("", v)
	for m := range rawjson.Members(v) {
		look("."+clip(m.Name(), 60), m.Value)
	}
	if len(items)*3 < len(v) {
		return "", nil
	}
	return path, items
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
