package workflow

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/jsonpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Limits of a foreign document.
const (
	maxValues   = 4096     // values of one path; more are left out
	maxDocument = 16 << 20 // bytes; a larger document has no values
	maxValue    = 64 << 10 // bytes; a larger value is left out
	maxDepth    = 512      // depth of JSON in a text block
	hashSize    = 2 * 16   // characters of a stored hash
)

// resultDocument returns {"arguments", "structuredContent", "content", "isError"}. If a server
// returns JSON as text only, that is the structured content.
func resultDocument(arguments, result json.RawMessage) any {
	structured, _ := rawjson.Get(result, "structuredContent")
	content, _ := rawjson.Get(result, "content")
	failed, _ := rawjson.Get(result, "isError")
	if structured == nil {
		for block := range rawjson.Elements(content) {
			text, _ := rawjson.GetString(block, "text")
			if k := rawjson.KindOf([]byte(text)); (k == rawjson.Object || k == rawjson.Array) && rawjson.Valid([]byte(text), maxDepth) {
				structured = []byte(text)
				break
			}
		}
	}
	return decode(map[string][]byte{"arguments": arguments, "structuredContent": structured, "content": content, "isError": failed})
}

// decode returns an object of the members that are not nil. It returns nil if a member is not
// valid or all are too large.
func decode(members map[string][]byte) any {
	doc, size := map[string]any{}, 0
	for name, raw := range members {
		if raw == nil {
			continue
		}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		var v any
		if size += len(raw); size > maxDocument || dec.Decode(&v) != nil {
			return nil
		}
		doc[name] = numbers(v)
	}
	return doc
}

// numbers replaces each json.Number by a number that filters can compare, if that has the same
// digits.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = numbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = numbers(e)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil && strconv.FormatInt(n, 10) == v.String() {
			return n
		}
		if f, err := v.Float64(); err == nil && strconv.FormatFloat(f, 'f', -1, 64) == v.String() {
			return f
		}
	}
	return v
}

// namedValues returns the values of each path that has any, by name.
func namedValues(paths map[string]jsonpath.Path, doc any) map[string][]string {
	out := map[string][]string{}
	for name, p := range paths {
		if v := values(p, doc); len(v) > 0 {
			out[name] = v
		}
	}
	return out
}

// key returns a hash of all values of the paths, or "" without paths.
func key(paths []jsonpath.Path, doc any) string {
	if len(paths) == 0 {
		return ""
	}
	parts := make([]string, len(paths))
	for i, p := range paths {
		parts[i] = strings.Join(values(p, doc), ",")
	}
	return hash(strings.Join(parts, ";"))
}

// values returns the hashes of the scalars that p selects, sorted and distinct. It leaves out
// null and the empty string.
func values(p jsonpath.Path, doc any) (out []string) {
	for _, v := range p.Select(doc, maxValues) {
		if s := scalar(v); s != "" && len(s) <= maxValue {
			out = append(out, hash(s))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// scalar returns the text of a scalar, or "" for other values. A number and the string of its
// digits are the same, because models confuse them.
func scalar(v any) string {
	switch v := v.(type) {
	case nil, map[string]any, []any:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// hash returns the stored form of a value: it can be recognised, but not read.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:hashSize]
}
