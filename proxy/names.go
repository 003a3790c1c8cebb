package proxy

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxName is the longest tool name that every known host accepts.
const maxName = 64

// shownName returns the name under which an upstream's tool or prompt is
// listed. One that would be too long is shortened to its beginning and a hash
// of the whole, so that it is the same every time and still tells what it is.
func shownName(prefix, own string) string {
	name := fullName(prefix, own)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:maxName-9] + "_" + hex.EncodeToString(sum[:4])
}

// fullName is the name before it is shortened.
func fullName(prefix, own string) string {
	if prefix == "" {
		return own
	}
	return prefix + "__" + own
}

// branchArgument is the property that foldgate adds to the schema of every
// proxied tool. Its text is paid for on every tool, so it is short.
const branchArgument = "branch_id"

var branchProperty = []byte(`{"type":"string","description":"Branch to charge; from branch_create"}`)

// injectBranch adds the optional branch_id to a tool's input schema. It leaves
// alone what has a property of that name, and schemas to which a property
// can't be added without a chance of changing their meaning.
func injectBranch(tool []byte) (out []byte, injected bool) {
	schema, ok := rawjson.Get(tool, "inputSchema")
	if !ok || rawjson.KindOf(schema) != rawjson.Object {
		return tool, false
	}
	fits := true
	rawjson.Members(schema, func(m rawjson.Member) bool {
		switch m.Name() {
		case "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "propertyNames", "maxProperties", "const", "enum":
			fits = false
		case "properties":
			fits = fits && rawjson.KindOf(m.Value) == rawjson.Object
			if _, has := rawjson.Get(m.Value, branchArgument); has {
				fits = false
			}
		}
		return fits
	})
	if !fits {
		return tool, false
	}
	return rawjson.Set(tool, branchProperty, "inputSchema", "properties", branchArgument), true
}
