package workflow

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ohler55/ojg/jp"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Bounds of a path. The documents are foreign and up to 16 MB, and evaluation can't be stopped.
// So a path is refused at start unless its time is linear in the document.
const (
	maxPath   = 1000    // bytes
	maxFactor = 64      // product of the sizes of its unions
	maxIndex  = 1 << 30 // of indexes and slices: the library overflows on larger ones
)

// Path is a compiled JSONPath (RFC 9535). The zero value selects nothing.
type Path struct{ expr jp.Expr }

// Select returns what p selects of a document, as encoding/json decodes it, and at most limit values.
func (p Path) Select(doc any, limit int) (found []any) {
	defer func() {
		if recover() != nil { // a fault of the library must not stop the call
			found = nil
		}
	}()
	if doc == nil || p.expr == nil {
		return nil
	}
	found = p.expr.Get(doc)
	return found[:min(len(found), limit)]
}

// ParsePath compiles a JSONPath that takes no long on large documents. The error says how to write it.
func ParsePath(s string) (p Path, err error) {
	defer func() { // the library panics on some faults
		if f := recover(); f != nil {
			p, err = Path{}, fmt.Errorf("%q is not a JSONPath: %v", s, f)
		}
	}()
	switch {
	case !strings.HasPrefix(s, "$"):
		return p, fmt.Errorf("%q is not a JSONPath: it begins with $", s)
	case len(s) > maxPath:
		return p, fmt.Errorf("the path has %d bytes, more than %d", len(s), maxPath)
	}
	x, err := jp.ParseString(s)
	if err != nil {
		return p, fmt.Errorf("%q is not a JSONPath: %w", s, err)
	}
	if err := checkPath(x); err != nil {
		return p, fmt.Errorf("%q %w", s, err)
	}
	return Path{x}, nil
}

// checkPath refuses paths that take too long on large documents.
func checkPath(x jp.Expr) error {
	descents, factor, far := 0, 1, false
	index := func(n int64) { far = far || n > maxIndex || n < -maxIndex }
	for _, part := range x {
		switch part := part.(type) {
		case jp.Descent:
			descents++
		case jp.Union:
			factor *= len(part)
			for _, v := range part {
				if n, ok := v.(int64); ok {
					index(n)
				}
			}
		case jp.Nth:
			index(int64(part))
		case jp.Slice:
			for _, n := range part {
				if n != jp.SliceNotSet {
					index(int64(n))
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
			return errors.New("has a script, which there is none for here; use a filter, [?(…)]")
		}
	}
	switch {
	case far:
		return fmt.Errorf("has an index of more than %d", maxIndex)
	case descents > 1:
		return errors.New(`has more than one "..", which takes too long on deep documents; name the members between`)
	case factor > maxFactor:
		return fmt.Errorf("has unions that multiply to %d, more than %d; name fewer members at once", factor, maxFactor)
	}
	return nil
}

// inspect returns the form of a filter. The library has none for a filter that only tests for a
// member: for that it returns the path.
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

// checkFilter refuses a filter that looks at more than a few values of each element.
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
func namedValues(paths map[string]Path, doc any) map[string][]string {
	out := map[string][]string{}
	for name, p := range paths {
		if v := p.values(doc); len(v) > 0 {
			out[name] = v
		}
	}
	return out
}

// key returns a hash of all values of the paths, or "" without paths.
func key(paths []Path, doc any) string {
	if len(paths) == 0 {
		return ""
	}
	parts := make([]string, len(paths))
	for i, p := range paths {
		parts[i] = strings.Join(p.values(doc), ",")
	}
	return hash(strings.Join(parts, ";"))
}

// values returns the hashes of the scalars that p selects, sorted and distinct. It leaves out
// null and the empty string.
func (p Path) values(doc any) (out []string) {
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
