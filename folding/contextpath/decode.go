package contextpath

import (
	"encoding/json"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// DeprecatedObject is reported by [Decode] for the object form of a context.
const DeprecatedObject = "context_object"

// Decode reads the JSON value of a foreign message's context field. Absent
// (nil), null and "" are main; a string is a path. The object form of an
// earlier draft, {"id", "parent"}, is read as parent/id and reported in
// deprecated. Push, pop and resume objects are refused, as are other types;
// the error is an [*Error].
func Decode(value json.RawMessage) (p Path, deprecated []string, err error) {
	switch rawjson.KindOf(value) {
	case rawjson.Null:
		return Main, nil, nil
	case rawjson.String:
		p, err = Parse(rawjson.Unquote(rawjson.Trim(value)))
		return p, nil, err
	case rawjson.Object:
		p, err = decodeObject(value)
		if err != nil {
			return Main, nil, err
		}
		return p, []string{DeprecatedObject}, nil
	}
	if len(rawjson.Trim(value)) == 0 {
		return Main, nil, nil
	}
	return Main, nil, fault(CodeType, string(value), "send a string such as \"analysis/step-1\"")
}

func decodeObject(value json.RawMessage) (Path, error) {
	if _, ok := rawjson.Get(value, "operation"); ok {
		return Main, fault(CodeOperationUnsupported, string(value),
			"context operations are not supported; use branch_create and branch_return")
	}
	id, ok := rawjson.GetString(value, "id")
	if !ok || id == "" {
		return Main, fault(CodeType, string(value), "a context object needs a string \"id\"; better send a path as a string")
	}
	var parent string
	if raw, ok := rawjson.Get(value, "parent"); ok && rawjson.KindOf(raw) != rawjson.Null {
		if rawjson.KindOf(raw) != rawjson.String {
			return Main, fault(CodeType, string(value), "a context object's \"parent\" must be a string")
		}
		parent = rawjson.Unquote(raw)
	}
	up, err := Parse(parent)
	if err != nil {
		return Main, err
	}
	return up.Join(id)
}
