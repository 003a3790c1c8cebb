package catalog

import (
	"encoding/json"
	"fmt"
	"testing"
)

// Whatever type a server gives to a capability, or to a part of one, hosts get objects, and the capabilities of
// the other server.
func TestCapabilitiesAreObjects(t *testing.T) {
	for _, name := range append(objectCapabilities, ownCapabilities...) {
		for _, value := range []string{`5`, `[]`, `null`, `"x"`, `true`, `{}`, `{"a":1,"b":{"c":1}}`, `{"a":null}`, `{"a":[],"a":"x"}`} {
			bad, good := fmt.Sprintf(`{%q:%s}`, name, value), `{"experimental":{"e":{}},"extensions":{"e":{}},"tasks":{"e":{}}}`
			for _, servers := range [][]string{{bad, good}, {good, bad}} {
				out := Capabilities([][]byte{[]byte(servers[0]), []byte(servers[1])})
				var got map[string]map[string]any
				if err := json.Unmarshal(out, &got); err != nil {
					t.Errorf("%v: %s, %v", servers, out, err)
				}
				for _, n := range objectCapabilities {
					for part, v := range got[n] {
						if _, ok := v.(map[string]any); !ok {
							t.Errorf("%v: %s.%s is %v", servers, n, part, v)
						}
					}
					if got[n]["e"] == nil {
						t.Errorf("%v: %s of the other server is lost: %s", servers, n, out)
					}
				}
			}
		}
	}
}
