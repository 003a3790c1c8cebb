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

// decode decodes the arguments of an own tool strictly. Names must be spelled as
// in its schema, which encoding/json alone does not ask for.
func decode(c *interceptor.Call, into any) error {
	raw := c.Target.Arguments
	if len(raw) == 0 {
		raw = json.RawMessage(`{}`)
	}
	invalid := func(err error, format string, args ...any) error {
		return &interceptor.Refusal{Reason: "invalid", Code: "invalid_input", Status: 400, Err: err, Message: fmt.Sprintf(format, args...)}
	}
	schema, _ := rawjson.Get(definition(c.Target.Name), "inputSchema")
	if u := unknownKey(c.Target.Name, schema, raw); u != nil {
		return invalid(nil, "%s takes no %q; its arguments are %s", u.object, clip(u.key, 64), strings.Join(u.keys, ", "))
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

// unknown is a key that a schema does not have, in the object of that name.
type unknown struct {
	object, key string
	keys        []string // that the object may have
}

// unknownKey returns the first key in value, an object of that name, for which
// the schema has no property. It returns nil if there is none.
func unknownKey(object string, schema, value []byte) (found *unknown) {
	if items, ok := rawjson.Get(schema, "items"); ok {
		i := 0
		rawjson.Elements(value, func(v []byte) bool {
			found = unknownKey(fmt.Sprintf("%s[%d]", object, i), items, v)
			i++
			return found == nil
		})
		return found
	}
	properties, ok := rawjson.Get(schema, "properties")
	if !ok {
		return nil
	}
	var keys []string
	rawjson.Members(properties, func(m rawjson.Member) bool {
		keys = append(keys, m.Name())
		return true
	})
	rawjson.Members(value, func(m rawjson.Member) bool {
		name := m.Name()
		if inner, ok := rawjson.Get(properties, name); ok {
			found = unknownKey(name, inner, m.Value)
		} else {
			found = &unknown{object, name, keys}
		}
		return found == nil
	})
	return found
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
