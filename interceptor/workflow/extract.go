package workflow

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Bounds on what a foreign document can cost.
const (
	maxValues   = 4096     // that one path selects; more are left out
	maxDocument = 16 << 20 // bytes of a document that is looked into
	maxValue    = 64 << 10 // bytes of a value that can be a key
	hashSize    = 2 * 16   // characters of a stored hash
)

// document is a call's JSON as paths see it; nil selects nothing.
type document any

// requestDocument is {"arguments": ...}.
func requestDocument(arguments json.RawMessage) document {
	return decode(appendMember([]byte{'{'}, "arguments", arguments))
}

// resultDocument is {"arguments", "structuredContent", "content", "isError"}.
// A server that answers JSON only as text is read as if it had structured it.
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

const maxDepth = 512

func appendMember(obj []byte, name string, value []byte) []byte {
	if value == nil {
		return obj
	}
	if len(obj) > 1 {
		obj = append(obj, ',')
	}
	return append(append(rawjson.AppendQuote(obj, name), ':'), value...)
}

// decode closes the object and decodes it. The digits of numbers are kept.
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

// numbers replaces numbers by what filters can compare, where that is written
// with the same digits.
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

// key returns a hash of everything that the paths select; "" without paths.
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

var errNotScalar = errors.New("not a scalar")

// scalar is the text of a value that calls can be joined on. A number and the
// string of its digits are the same: models mix them up.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case map[string]any, []any:
		return "", errNotScalar
	}
	return fmt.Sprint(v), nil
}

// hash is what is kept of a value: enough to recognise it, not to read it.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:hashSize]
}

// namedValues evaluates paths by name, leaving out those without a value.
func namedValues(paths map[string]path, d document) map[string][]string {
	out := map[string][]string{}
	for name, p := range paths {
		if v := p.values(d); len(v) > 0 {
			out[name] = v
		}
	}
	return out
}
