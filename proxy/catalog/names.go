package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// branchIDArgument is the argument that foldgate adds to every tool.
const branchIDArgument = "branch_id"

// branchIDProperty is short, because each tool's definition pays for it.
var branchIDProperty = []byte(`{"type":"string","description":"Branch to charge; from branch_create"}`)

// addBranchID adds the optional branch_id to a tool's input schema. It leaves a schema alone that
// has such a property, or that can't be extended safely.
func addBranchID(tool []byte) (out []byte, added bool) {
	schema, _ := rawjson.Get(tool, "inputSchema")
	if _, has := rawjson.Get(schema, "properties", branchIDArgument); has || !extensible(schema) {
		return tool, false
	}
	return rawjson.Set(tool, branchIDProperty, "inputSchema", "properties", branchIDArgument), true
}

// extensible reports whether an optional property can be added to a schema without a chance of
// changing its meaning.
func extensible(schema []byte) bool {
	for m := range rawjson.Members(schema) {
		switch m.Name() {
		case "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "propertyNames", "maxProperties", "const", "enum":
			return false
		case "required", "dependentRequired", "dependentSchemas", "dependencies": // the tool means its own branch_id
			if text := string(m.Value); strings.Contains(text, branchIDArgument) || strings.Contains(text, `\u`) {
				return false
			}
		case "patternProperties":
			for p := range rawjson.Members(m.Value) {
				if re, err := regexp.Compile(p.Name()); err != nil || re.MatchString(branchIDArgument) {
					return false
				}
			}
		case "properties":
			if rawjson.KindOf(m.Value) != rawjson.Object {
				return false
			}
		}
	}
	return rawjson.KindOf(schema) == rawjson.Object
}

// TakeBranchID removes branch_id from the arguments of a tool to which foldgate added it. given is
// false if there was none. It fails if branch_id is not a string.
func (e Entry) TakeBranchID(arguments json.RawMessage) (rest json.RawMessage, id string, given bool, err error) {
	raw, has := rawjson.Get(arguments, branchIDArgument)
	if !has || !e.TakesBranchID {
		return arguments, "", false, nil
	}
	id = rawjson.Unquote(raw)
	if k := rawjson.KindOf(raw); id == "" && k != rawjson.String && k != rawjson.Null {
		return arguments, "", true, fmt.Errorf("arguments.branch_id is %.200s; it must be a string from branch_create", raw)
	}
	return rawjson.Delete(arguments, branchIDArgument), id, true, nil
}

// ReadOnly reports whether a tool says that it only reads.
func (e Entry) ReadOnly() bool {
	hint, _ := rawjson.Get(e.Raw, "annotations", "readOnlyHint")
	return string(hint) == "true"
}

// BatchParams returns the arguments of a call in a batch without a branch_id, since the branch of the batch pays, and
// the params of the call. called is its tool; e is zero if there is no such tool.
func (e Entry) BatchParams(called string, arguments json.RawMessage) (rest, params json.RawMessage) {
	if rest = arguments; e.TakesBranchID {
		rest = rawjson.Delete(rest, branchIDArgument)
	}
	params = append(append([]byte(`{"name":`), rawjson.Quote(cmp.Or(e.Name, called))...), `,"arguments":`...)
	return rest, append(append(params, rest...), '}')
}
