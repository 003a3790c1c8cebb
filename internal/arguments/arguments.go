// Package arguments decodes the arguments of foldgate's own tools, strictly by the input schemas
// that the tools are listed with.
package arguments

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Decode decodes value, the arguments of a tool, into a struct. properties are those of the tool's
// input schema. The error lists the faults: unknown keys (case counts), wrong types, and numbers out of
// range. Of a list it has only the faults of the first wrong element. A null counts as absent. All numbers are
// whole; their fields are float64, since models also write 8192.0. Decode does not check which
// arguments are required, nor objects that have no properties in the schema.
func Decode(tool string, properties, value []byte, into any) error {
	if value = rawjson.Trim(value); len(value) == 0 || string(value) == "null" {
		return nil
	}
	faults, ok := checkObject(tool, "", properties, value)
	switch {
	case !ok:
		return errors.New("arguments must be a JSON object")
	case len(faults) > 0:
		return errors.New(strings.Join(faults, "; "))
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("the arguments of %s are not as its schema says: %w", tool, err)
	}
	return nil
}

// checkObject returns the faults of the object called name; prefix goes before the names of its
// members. ok is false if value is no object.
func checkObject(name, prefix string, properties, value []byte) (faults []string, ok bool) {
	var unknown []string
	ok = rawjson.EachMember(value, func(m rawjson.Member) bool {
		key := m.Name()
		if inner, known := rawjson.Get(properties, key); known {
			faults = append(faults, check(prefix+key, inner, m.Value)...)
		} else if len(unknown) < maxUnknown {
			unknown = append(unknown, fmt.Sprintf("%.64q", key))
		}
		return true
	})
	if unknown != nil {
		var known []string
		for m := range rawjson.Members(properties) {
			known = append(known, m.Name())
		}
		faults = append(faults, fmt.Sprintf("%s takes no %s; its arguments are %s", name, strings.Join(unknown, ", "), strings.Join(known, ", ")))
	}
	return faults, ok
}

// maxUnknown is the number of unknown keys of one object that an error names.
const maxUnknown = 5

func check(name string, schema, value []byte) (faults []string) {
	kind := rawjson.KindOf(value)
	if kind == rawjson.Null {
		return nil
	}
	must := func(format string, args ...any) {
		faults = append(faults, name+" must be "+fmt.Sprintf(format, args...))
	}
	switch typ, _ := rawjson.Get(schema, "type"); string(typ) {
	case `"string"`:
		if kind != rawjson.String {
			must("a string, not %s", kinds[kind])
		}
	case `"boolean"`:
		if kind != rawjson.True && kind != rawjson.False {
			must("true or false, not %s", kinds[kind])
		}
	case `"integer"`, `"number"`:
		n, err := strconv.ParseFloat(string(value), 64)
		low, bounded := number(schema, "minimum")
		high, limited := number(schema, "maximum")
		switch {
		case kind != rawjson.Number || err != nil || n != math.Trunc(n) || math.Abs(n) > 1<<40:
			must("a whole number, not %.64s", value)
		case bounded && n < low:
			must("at least %v", low)
		case limited && n > high:
			must("at most %v", high)
		}
	case `"array"`:
		items, _ := rawjson.Get(schema, "items")
		i := 0
		for v := range rawjson.Elements(value) {
			if faults = check(fmt.Sprintf("%s[%d]", name, i), items, v); faults != nil {
				break // the same fault in each of many elements is one
			}
			i++
		}
		if kind != rawjson.Array {
			must("a list, not %s", kinds[kind])
		}
	case `"object"`:
		properties, ok := rawjson.Get(schema, "properties")
		if !ok {
			return nil
		}
		if faults, ok = checkObject(name, name+".", properties, value); !ok {
			must("an object, not %s", kinds[kind])
		}
	}
	return faults
}

func number(schema []byte, key string) (n float64, ok bool) {
	raw, ok := rawjson.Get(schema, key)
	if ok {
		n, _ = strconv.ParseFloat(string(raw), 64)
	}
	return n, ok
}

var kinds = map[rawjson.Kind]string{
	rawjson.String: "string", rawjson.True: "bool", rawjson.False: "bool",
	rawjson.Number: "number", rawjson.Array: "array", rawjson.Object: "object",
}
