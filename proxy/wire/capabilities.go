package wire

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Capabilities are the host capabilities that change what a server requests or lists. Others, such as
// experimental ones, are not in the set.
type Capabilities uint8

// capabilities are the members of Capabilities, in the order of their bits.
var capabilities = [...]string{"elicitation.form", "elicitation.url", "sampling", "sampling.context", "sampling.tools", "roots", "roots.listChanged"}

// AllCapabilities has every capability.
const AllCapabilities Capabilities = 1<<len(capabilities) - 1

// ReadCapabilities reads the capabilities that a host declares.
func ReadCapabilities(declared json.RawMessage) (c Capabilities) {
	for f := range rawjson.Members(declared) {
		for bit, known := range capabilities {
			if name, member, _ := strings.Cut(known, "."); f.Is(name) && declares(f.Value, member) {
				c |= 1 << bit
			}
		}
	}
	return c
}

// declares reports whether the value of a capability declares a member, or "" for itself.
func declares(value []byte, member string) bool {
	if _, url := rawjson.Get(value, "url"); member == "form" && !url { // {} means form
		member = ""
	}
	ok := true
	if member != "" {
		value, ok = rawjson.Get(value, member)
	}
	return ok && string(value) != "null" && string(value) != "false"
}

// JSON returns c as a client declares it. Equal sets have equal bytes.
func (c Capabilities) JSON() json.RawMessage {
	out := []byte("{}")
	for _, name := range c.names() {
		path, value := strings.Split(name, "."), "{}"
		switch {
		case name == "roots.listChanged":
			value = "true"
		case name == "elicitation.form" && !slices.Contains(c.names(), "elicitation.url"): // older revisions have no members
			path = path[:1]
		}
		out = rawjson.Set(out, []byte(value), path...)
	}
	return out
}

// String returns the names of c, separated by commas, or "none".
func (c Capabilities) String() string {
	if c == 0 {
		return "none"
	}
	return strings.Join(c.names(), ",")
}

func (c Capabilities) names() (names []string) {
	for bit, name := range capabilities {
		if c>>bit&1 != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Answers reports whether a host with c can answer a request of a server.
func (c Capabilities) Answers(m Message) bool {
	need := map[string]string{"elicitation/create": "elicitation.form", "sampling/createMessage": "sampling", "roots/list": "roots"}[m.Method]
	if mode, _ := rawjson.GetString(m.Params, "mode"); mode == "url" && need == "elicitation.form" {
		need = "elicitation.url"
	}
	return slices.Contains(c.names(), need)
}
