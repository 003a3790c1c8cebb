package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// decode decodes the arguments of an own tool strictly. Names must be spelled as in its schema,
// which encoding/json alone does not ask for.
func decode(c *interceptor.Call, into any) error {
	raw := c.Target.Arguments
	if len(raw) == 0 {
		raw = json.RawMessage(`{}`)
	}
	invalid := func(err error, format string, args ...any) error {
		return &interceptor.Refusal{Reason: "invalid", Code: "invalid_input", Status: 400, Err: err, Message: fmt.Sprintf(format, args...)}
	}
	schema, _ := rawjson.Get(definition(c.Target.Name), "inputSchema")
	if object, key, keys := unknownKey(c.Target.Name, schema, raw); keys != nil {
		return invalid(nil, "%s takes no %q; its arguments are %s", object, clip(key, 64), strings.Join(keys, ", "))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, extra := dec.Token(); !errors.Is(extra, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong) && wrong.Field != "":
		return invalid(err, "%s must be %s, not %s", wrong.Field, jsonType(wrong.Type), wrong.Value)
	}
	return invalid(err, "the arguments of %s are not as its schema says: %v", c.Target.Name, err)
}

// unknownKey finds the first key in value, an object of that name, for which the schema has no
// property. It returns the object with the key, the key, and the keys that the object may have; nil
// if all keys are known.
func unknownKey(name string, schema, value []byte) (object, key string, keys []string) {
	if items, ok := rawjson.Get(schema, "items"); ok {
		i := -1
		rawjson.Elements(value, func(v []byte) bool {
			i++
			object, key, keys = unknownKey(fmt.Sprintf("%s[%d]", name, i), items, v)
			return keys == nil
		})
		return object, key, keys
	}
	properties, ok := rawjson.Get(schema, "properties")
	if !ok {
		return "", "", nil
	}
	rawjson.Members(value, func(m rawjson.Member) bool {
		if inner, ok := rawjson.Get(properties, m.Name()); ok {
			object, key, keys = unknownKey(m.Name(), inner, m.Value)
			return keys == nil
		}
		object, key = name, m.Name()
		rawjson.Members(properties, func(m rawjson.Member) bool { keys = append(keys, m.Name()); return true })
		return false
	})
	return object, key, keys
}

// jsonType returns the JSON type that decodes into t.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Int:
		return "a whole number"
	}
	return "an object"
}

// whole is a JSON number that must be an integer. Models also write 8192.0.
type whole int

// UnmarshalJSON implements json.Unmarshaler.
func (w *whole) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<40 {
		return &json.UnmarshalTypeError{Value: clip(string(b), 64), Type: reflect.TypeFor[whole]()} // the decoder adds the field
	}
	*w = whole(f)
	return nil
}

// clip shortens a text to max characters.
func clip(text string, max int) string {
	if r := []rune(text); len(r) > max {
		return string(r[:max]) + "…"
	}
	return text
}
