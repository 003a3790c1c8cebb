package catalog

import (
	"slices"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// ownCapabilities are the capabilities that foldgate states itself.
var ownCapabilities = []string{"tools", "prompts", "resources", "logging", "completions"}

// anyCapability is what a server may have before anything is known of it.
const anyCapability = `{"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{}}`

// objectCapabilities are the other capabilities that the protocol knows: objects with objects.
var objectCapabilities = []string{"experimental", "extensions", "tasks"}

// Capabilities returns the union of the capabilities of all servers. servers are their capabilities
// objects, nil if unknown. Lists can always change, because a server may come and go. What is no object where
// the protocol wants one is left out: a typed host would refuse the answer to initialize.
func Capabilities(servers [][]byte) []byte {
	out := []byte(`{"tools":{"listChanged":true}}`)
	for i, capabilities := range servers {
		if capabilities == nil {
			servers[i] = []byte(anyCapability)
		}
	}
	has := func(name string) bool {
		return slices.ContainsFunc(servers, func(capabilities []byte) bool {
			v, ok := rawjson.Get(capabilities, name)
			return ok && rawjson.KindOf(v) != rawjson.Null
		})
	}
	subscribe := slices.ContainsFunc(servers, func(capabilities []byte) bool {
		v, _ := rawjson.Get(capabilities, "resources", "subscribe")
		return string(v) == "true"
	})
	resources := `{"listChanged":true}`
	if subscribe {
		resources = `{"subscribe":true,"listChanged":true}`
	}
	for _, own := range [...]struct{ name, value string }{{"prompts", `{"listChanged":true}`}, {"resources", resources}, {"logging", `{}`}, {"completions", `{}`}} {
		if has(own.name) {
			out = rawjson.Set(out, []byte(own.value), own.name)
		}
	}
	for _, capabilities := range servers {
		for m := range rawjson.Members(capabilities) {
			name, value := m.Name(), m.Value
			if slices.Contains(ownCapabilities, name) {
				continue
			}
			if slices.Contains(objectCapabilities, name) {
				if rawjson.KindOf(value) != rawjson.Object {
					continue
				}
				value = rawjson.DeleteFunc(value, func(part rawjson.Member) bool { return rawjson.KindOf(part.Value) != rawjson.Object })
			}
			out = mergeMember(out, name, value)
		}
	}
	return out
}

// mergeMember adds a member to an object. Of two objects it keeps the members of both, and the
// first's value if both have one.
func mergeMember(obj []byte, name string, value []byte) []byte {
	have, ok := rawjson.Get(obj, name)
	if !ok {
		return rawjson.Set(obj, value, name)
	}
	if rawjson.KindOf(have) == rawjson.Object {
		for m := range rawjson.Members(value) { // none if value is no object
			if _, taken := rawjson.Get(obj, name, m.Name()); !taken {
				obj = rawjson.Set(obj, m.Value, name, m.Name())
			}
		}
	}
	return obj
}
