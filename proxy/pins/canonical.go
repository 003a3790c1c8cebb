package pins

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxDepth is how deep canonical JSON is sorted. What lies deeper stays as it is written: each level
// reads all that is below it again.
const maxDepth = 64

// canonical returns a spelling of JSON that does not depend on white space, on the order of members and on
// the escapes of strings, much like RFC 8785. Unlike there a number keeps its spelling, because two large
// numbers can be one float64; of duplicate members all stay, because readers differ in which they take;
// and so does a string with a lone surrogate.
func canonical(v []byte) []byte { return appendCanonical(nil, rawjson.Trim(v), 0) }

func appendCanonical(out, v []byte, depth int) []byte {
	switch kind := rawjson.KindOf(v); {
	case depth >= maxDepth:
		return append(out, rawjson.Compact(v)...)
	case kind == rawjson.Object:
		type member struct {
			key   []byte // canonical
			value []byte
		}
		var all []member
		for m := range rawjson.Members(v) {
			all = append(all, member{appendText(nil, m.Key), m.Value})
		}
		slices.SortStableFunc(all, func(a, b member) int { return slices.Compare(a.key, b.key) })
		out = append(out, '{')
		for i, m := range all {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendCanonical(append(append(out, m.key...), ':'), m.value, depth+1)
		}
		return append(out, '}')
	case kind == rawjson.Array:
		out = append(out, '[')
		first := true
		for e := range rawjson.Elements(v) {
			if !first {
				out = append(out, ',')
			}
			first = false
			out = appendCanonical(out, e, depth+1)
		}
		return append(out, ']')
	case kind == rawjson.String:
		return appendText(out, v)
	}
	return append(out, v...)
}

func appendText(out, lit []byte) []byte {
	if text := rawjson.Unquote(lit); !strings.ContainsRune(text, utf8.RuneError) {
		return rawjson.AppendQuote(out, text)
	}
	return append(out, lit...)
}
