package catalog

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// shape is what the protocol says about a value in an item of a list.
type shape struct {
	kind    rawjson.Kind
	members map[string]*shape     // of an object: those that it says something about
	needs   []string              // of these, those that must be there
	each    *shape                // of all members of an object, or elements of an array; nil if they can be anything
	allows  func(raw []byte) bool // nil if it allows all of the kind

	annotations *shape // of an item
}

// boolean stands for both booleans.
const boolean = rawjson.True

var (
	textShape    = &shape{kind: rawjson.String}
	textsShape   = &shape{kind: rawjson.Array, each: textShape}
	numberShape  = &shape{kind: rawjson.Number}
	flagShape    = &shape{kind: boolean}
	objectShape  = &shape{kind: rawjson.Object}
	schemaShape  = &shape{kind: rawjson.Object} // of an argument
	schemasShape = &shape{kind: rawjson.Object, each: schemaShape}

	toolAnnotations = &shape{kind: rawjson.Object, members: map[string]*shape{
		"title": textShape, "readOnlyHint": flagShape, "destructiveHint": flagShape, "idempotentHint": flagShape, "openWorldHint": flagShape,
	}}
	resourceAnnotations = &shape{kind: rawjson.Object, members: map[string]*shape{
		"audience": {kind: rawjson.Array, each: oneOf("user", "assistant")}, "lastModified": textShape,
		"priority": {kind: rawjson.Number, allows: func(raw []byte) bool {
			f, err := strconv.ParseFloat(string(raw), 64)
			return err == nil && f >= 0 && f <= 1
		}},
	}}
	annotations = [Kinds]*shape{Tools: toolAnnotations, Prompts: objectShape, Resources: resourceAnnotations, Templates: resourceAnnotations}

	// itemMembers are the members of the items of all lists but for the annotations. An output schema has any type in the revision 2026-07-28.
	itemMembers = map[string]*shape{
		"name": textShape, "title": textShape, "description": textShape, "uri": textShape, "uriTemplate": textShape, "mimeType": textShape, "size": numberShape, "_meta": objectShape,
		"inputSchema":  {kind: rawjson.Object, needs: []string{"type"}, members: map[string]*shape{"type": oneOf("object"), "properties": schemasShape, "required": textsShape}},
		"outputSchema": {kind: rawjson.Object, members: map[string]*shape{"properties": schemasShape, "required": textsShape}},
		"execution":    {kind: rawjson.Object, members: map[string]*shape{"taskSupport": oneOf("forbidden", "optional", "required")}},
		"arguments": {kind: rawjson.Array, each: &shape{
			kind: rawjson.Object, needs: []string{"name"},
			members: map[string]*shape{"name": textShape, "title": textShape, "description": textShape, "required": flagShape},
		}},
		"icons": {kind: rawjson.Array, each: &shape{
			kind: rawjson.Object, needs: []string{"src"},
			members: map[string]*shape{"src": textShape, "mimeType": textShape, "sizes": textsShape, "theme": oneOf("light", "dark")},
		}},
	}
)

// otherValue is the fault of a value of the right type that the protocol does not know.
const otherValue = " has another value"

func oneOf(words ...string) *shape {
	return &shape{kind: rawjson.String, allows: func(raw []byte) bool { return slices.Contains(words, rawjson.Unquote(raw)) }}
}

// fit returns an item as typed hosts can read it, and why they can't, "" if they can. Some servers write
// what such hosts refuse, though it has a meaning: an optional member that is null is left out, an input schema
// without a type gets the type object, and the schemas true and false of a property become {} and {"not":{}}.
func fit(k Kind, item []byte) (out []byte, fault string) {
	if s, _ := rawjson.Get(item, "inputSchema"); rawjson.KindOf(s) == rawjson.Object {
		if kind, _ := rawjson.Get(s, "type"); cmp.Or(rawjson.KindOf(kind), rawjson.Null) == rawjson.Null {
			item = rawjson.Set(item, []byte(`"object"`), "inputSchema", "type")
		}
	}
	s := shape{kind: rawjson.Object, members: itemMembers, needs: []string{kinds[k].id}, annotations: annotations[k]}
	if needs := kinds[k].needs; needs != "" {
		s.needs = append(s.needs, needs)
	}
	out, fault = s.fit(item)
	if strings.HasPrefix(fault, " ") {
		return out, "the item" + fault
	}
	return out, strings.TrimPrefix(fault, ".")
}

// fit is [fit] for a part of an item. A fault begins with the path in that part.
func (s *shape) fit(v []byte) (out []byte, fault string) {
	kind := rawjson.KindOf(v)
	if kind == rawjson.False {
		kind = boolean
	}
	switch {
	case s == schemaShape && string(v) == "true":
		return []byte("{}"), ""
	case s == schemaShape && string(v) == "false":
		return []byte(`{"not":{}}`), ""
	case kind != s.kind:
		return v, " is of another type"
	case s.allows != nil && !s.allows(v):
		return v, otherValue
	case s.members != nil || s.each != nil && kind == rawjson.Object:
		return s.fitMembers(v)
	case s.each != nil:
		return s.fitElements(v)
	}
	return v, ""
}

func (s *shape) fitMembers(v []byte) (out []byte, fault string) {
	for _, name := range s.needs {
		if _, ok := rawjson.Get(v, name); !ok {
			return v, "." + name + " is missing"
		}
	}
	var parts [][]byte
	changed := false
	for m := range rawjson.Members(v) {
		name, part := "*", s.each
		if part == nil {
			name = m.Name()
			part = s.members[name]
		}
		if name == "annotations" && s.annotations != nil {
			part = s.annotations
		}
		if part != nil {
			if string(m.Value) == "null" && s.each == nil && !slices.Contains(s.needs, name) {
				changed = true
				continue
			}
			now, fault := part.fit(m.Value)
			if strings.HasSuffix(fault, otherValue) && !slices.Contains(s.needs, name) {
				changed = true
				continue
			}
			if fault != "" {
				return v, "." + name + fault
			}
			if !same(now, m.Value) {
				parts, changed = append(parts, slices.Concat(m.Key, []byte{':'}, now)), true
				continue
			}
		}
		parts = append(parts, v[m.Start:m.End])
	}
	if !changed {
		return v, ""
	}
	return slices.Concat([]byte{'{'}, bytes.Join(parts, []byte{','}), []byte{'}'}), ""
}

func (s *shape) fitElements(v []byte) (out []byte, fault string) {
	var parts [][]byte
	changed := false
	for element := range rawjson.Elements(v) {
		now, fault := s.each.fit(element)
		if fault != "" {
			return v, "[" + strconv.Itoa(len(parts)) + "]" + fault
		}
		parts, changed = append(parts, now), changed || !same(now, element)
	}
	if !changed {
		return v, ""
	}
	return slices.Concat([]byte{'['}, bytes.Join(parts, []byte{','}), []byte{']'}), ""
}

// same reports whether fit returned what it got.
func same(a, b []byte) bool { return len(a) == len(b) && &a[0] == &b[0] }
