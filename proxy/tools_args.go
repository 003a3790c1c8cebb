package proxy

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

// arguments decodes the arguments of an own tool strictly: names are spelled as
// in its schema, which the decoder alone would not ask for. Who pays is found by
// the names before that.
func arguments(c *interceptor.Call, into any) error {
	raw := c.Target.Arguments
	if len(raw) == 0 {
		raw = json.RawMessage(`{}`)
	}
	schema, _ := rawjson.Get(ownTool(c.Target.Name).definition, "inputSchema")
	if u := unknownKey(c.Target.Name, schema, raw); u != nil {
		return &interceptor.Refusal{Reason: "invalid", Code: "invalid_input", Status: 400,
			Message: fmt.Sprintf("%s takes no %q; its arguments are %s", u.of, clipText(u.key, 64), strings.Join(u.takes, ", "))}
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, extra := dec.Token(); !errors.Is(extra, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		return &interceptor.Refusal{Reason: "invalid", Code: "invalid_input", Status: 400, Err: err, Message: badArguments(c.Target.Name, err)}
	}
	return nil
}

// badArguments says which argument of an own tool is wrong, and what it takes.
func badArguments(tool string, err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Sprintf("%s must be %s, not %s", wrong.Field, jsonType(wrong.Type), wrong.Value)
	}
	return fmt.Sprintf("the arguments of %s are not as its schema says: %v", tool, err)
}

// unknown is a key that a schema does not have, in the object named of.
type unknown struct {
	of, key string
	takes   []string
}

// unknownKey returns the first key in value, which is named of, that schema has
// no property for; nil where there is none.
func unknownKey(of string, schema, value []byte) (found *unknown) {
	if items, ok := rawjson.Get(schema, "items"); ok {
		i := 0
		rawjson.Elements(value, func(v []byte) bool {
			found = unknownKey(fmt.Sprintf("%s[%d]", of, i), items, v)
			i++
			return found == nil
		})
		return found
	}
	properties, ok := rawjson.Get(schema, "properties")
	if !ok {
		return nil
	}
	var takes []string
	rawjson.Members(properties, func(m rawjson.Member) bool {
		takes = append(takes, m.Name())
		return true
	})
	rawjson.Members(value, func(m rawjson.Member) bool {
		name := m.Name()
		if inner, ok := rawjson.Get(properties, name); ok {
			found = unknownKey(name, inner, m.Value)
		} else {
			found = &unknown{of, name, takes}
		}
		return found == nil
	})
	return found
}

// jsonType names what of JSON a value of type t is made of.
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

// whole is a JSON number that must be an integer: models write 8192.0 too.
type whole int

func (w *whole) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<40 {
		return &json.UnmarshalTypeError{Value: clipText(string(b), 64), Type: reflect.TypeFor[whole]()} // the decoder adds whose value it is
	}
	*w = whole(f)
	return nil
}
