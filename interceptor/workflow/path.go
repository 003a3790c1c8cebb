package workflow

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ohler55/ojg/jp"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// path is a compiled JSONPath (RFC 9535).
type path struct{ expr jp.Expr }

// Bounds of a path. The documents are foreign and up to 16 MB, and evaluation
// can't be stopped. So a path is refused at start unless its time is linear in
// the document.
const (
	maxPath   = 1000    // bytes
	maxFactor = 64      // product of the sizes of its unions
	maxIndex  = 1 << 30 // of indexes and slices: the library overflows on larger ones
)

// compilePath parses and checks a path. The error says how to write it.
func compilePath(s string) (p path, err error) {
	defer func() { // the library panics on some faults
		if f := recover(); f != nil {
			p, err = path{}, fmt.Errorf("%q is not a JSONPath: %v", s, f)
		}
	}()
	switch {
	case !strings.HasPrefix(s, "$"):
		return path{}, fmt.Errorf("%q is not a JSONPath: it begins with $", s)
	case len(s) > maxPath:
		return path{}, fmt.Errorf("the path has %d bytes, more than %d", len(s), maxPath)
	}
	x, err := jp.ParseString(s)
	if err != nil {
		return path{}, fmt.Errorf("%q is not a JSONPath: %w", s, err)
	}
	if err := checkPath(x); err != nil {
		return path{}, fmt.Errorf("%q %w", s, err)
	}
	return path{x}, nil
}

// checkPath refuses paths that take too long on large documents.
func checkPath(x jp.Expr) error {
	descents, factor := 0, 1
	for _, part := range x {
		switch part := part.(type) {
		case jp.Descent:
			descents++
		case jp.Union:
			factor *= len(part)
			for _, v := range part {
				if n, ok := v.(int64); ok && (n > maxIndex || n < -maxIndex) {
					return errIndex
				}
			}
		case jp.Nth:
			if part > maxIndex || part < -maxIndex {
				return errIndex
			}
		case jp.Slice:
			for _, n := range part {
				if n != jp.SliceNotSet && (n > maxIndex || n < -maxIndex) {
					return errIndex
				}
			}
		case *jp.Filter:
			form, err := inspect(part)
			if err == nil {
				err = checkFilter(form)
			}
			if err != nil {
				return err
			}
		case *jp.Proc:
			return fmt.Errorf("has a script, which there is none for here; use a filter, [?(…)]")
		}
	}
	switch {
	case descents > 1:
		return fmt.Errorf(`has more than one "..", which takes too long on deep documents; name the members between`)
	case factor > maxFactor:
		return fmt.Errorf("has unions that multiply to %d, more than %d; name fewer members at once", factor, maxFactor)
	}
	return nil
}

var errIndex = fmt.Errorf("has an index of more than %d", maxIndex)

// inspect returns the form of a filter. The library has none for a filter that
// only tests for a member: for that it returns the path.
func inspect(f *jp.Filter) (form any, err error) {
	defer func() {
		if recover() != nil {
			text := strings.TrimSuffix(strings.TrimPrefix(f.String(), "[?"), "]")
			if form, err = jp.ParseString(strings.TrimSuffix(strings.TrimPrefix(text, "("), ")")); err != nil {
				err = fmt.Errorf("has a filter that is neither a comparison nor a path: %w", err)
			}
		}
	}()
	return f.Inspect(), nil
}

// checkFilter refuses a filter that looks at more than a few values of each
// element.
func checkFilter(side any) error {
	switch side := side.(type) {
	case *jp.Form:
		if slices.Contains([]string{"=~", "~=", "match", "search"}, side.Op) {
			if _, ok := side.Right.(*regexp.Regexp); !ok {
				return fmt.Errorf("has a filter whose expression is compiled for each element, which takes too long on large documents; write =~ /expression/")
			}
		}
		for _, s := range []any{side.Left, side.Right} {
			if err := checkFilter(s); err != nil {
				return err
			}
		}
	case jp.Expr:
		for _, part := range side {
			switch part.(type) {
			case jp.At, jp.Child, jp.Nth, jp.Bracket:
			default:
				return fmt.Errorf("has a filter with %q, which takes too long on large documents; in a filter name members of the element, such as @.id", side.String())
			}
		}
	}
	return nil
}

// values returns the hashes of the scalars that p selects, sorted and distinct.
// It leaves out null and the empty string.
func (p path) values(d document) (out []string) {
	if d == nil || p.expr == nil {
		return nil
	}
	defer func() {
		if recover() != nil { // a fault of the library must not stop the call
			out = nil
		}
	}()
	for i, v := range p.expr.Get(d) {
		if i == maxValues {
			break
		}
		if s := scalar(v); s != "" && len(s) <= maxValue {
			out = append(out, hash(s))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Bounds of a foreign document.
const (
	maxValues   = 4096     // of one path; more are left out
	maxDocument = 16 << 20 // bytes; a larger document has no values
	maxValue    = 64 << 10 // bytes; a larger value is left out
	maxDepth    = 512      // of JSON in a text block
	hashSize    = 2 * 16   // characters of a stored hash
)

// document is the JSON that paths look into; nil has no values.
type document any

// requestDocument is {"arguments": ...}.
func requestDocument(arguments json.RawMessage) document {
	return decode(appendMember([]byte{'{'}, "arguments", arguments))
}

// resultDocument is {"arguments", "structuredContent", "content", "isError"}.
// If a server returns JSON as text only, that is the structured content.
func resultDocument(arguments, result json.RawMessage) document {
	out := appendMember([]byte{'{'}, "arguments", arguments)
	structured, _ := rawjson.Get(result, "structuredContent")
	content, _ := rawjson.Get(result, "content")
	if structured == nil {
		rawjson.Elements(content, func(block []byte) bool {
			text, _ := rawjson.GetString(block, "text")
			if k := rawjson.KindOf([]byte(text)); (k == rawjson.Object || k == rawjson.Array) && rawjson.Valid([]byte(text), maxDepth) {
				structured = []byte(text)
			}
			return structured == nil
		})
	}
	out = appendMember(out, "structuredContent", structured)
	out = appendMember(out, "content", content)
	failed, _ := rawjson.Get(result, "isError")
	return decode(appendMember(out, "isError", failed))
}

func appendMember(obj []byte, name string, value []byte) []byte {
	if value == nil {
		return obj
	}
	if len(obj) > 1 {
		obj = append(obj, ',')
	}
	return append(append(rawjson.AppendQuote(obj, name), ':'), value...)
}

// decode closes an object and decodes it. It keeps the digits of numbers.
func decode(obj []byte) document {
	if len(obj) > maxDocument {
		return nil
	}
	dec := json.NewDecoder(strings.NewReader(string(append(obj, '}'))))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	return numbers(v)
}

// numbers replaces each json.Number by a number that filters can compare, if
// that has the same digits.
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

// key returns a hash of all values of the paths; "" without paths.
func key(paths []path, d document) string {
	if len(paths) == 0 {
		return ""
	}
	parts := make([]string, len(paths))
	for i, p := range paths {
		parts[i] = strings.Join(p.values(d), ",")
	}
	return hash(strings.Join(parts, ";"))
}

// scalar returns the text of a scalar, "" for other values. A number and the string of its digits
// are the same, because models confuse them.
func scalar(v any) string {
	switch v := v.(type) {
	case nil, map[string]any, []any:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// hash returns the form in which a value is stored: it can be recognised, but
// not read.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:hashSize]
}

// namedValues returns the values of each path that has any, by name.
func namedValues(paths map[string]path, d document) map[string][]string {
	out := map[string][]string{}
	for name, p := range paths {
		if v := p.values(d); len(v) > 0 {
			out[name] = v
		}
	}
	return out
}
