package catalog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
)

// A tool whose schema names a branch_id in any way keeps the argument for itself.
func TestBranchIDOfATool(t *testing.T) {
	for schema, added := range map[string]bool{
		`{"type":"object"}`: true,
		`{"type":"object","properties":{"a":{}},"required":["a"]}`:                      true,
		`{"properties":{"a":{"properties":{"branch_id":{}},"required":["branch_id"]}}}`: true,
		`{"patternProperties":{"^x-":{}},"dependentRequired":{"a":["b"]}}`:              true,
		`{"properties":{"branch_id":{}}}`:                                               false,
		`{"required":["branch_id"]}`:                                                    false,
		`{"required":["br\u0061nch_id"]}`:                                               false,
		`{"dependentRequired":{"branch_id":["a"]}}`:                                     false,
		`{"dependentRequired":{"a":["branch_id"]}}`:                                     false,
		`{"dependentSchemas":{"a":{"required":["branch_id"]}}}`:                         false,
		`{"dependencies":{"branch_id":{"type":"object"}}}`:                              false,
		`{"patternProperties":{"^branch":{"type":"string"}}}`:                           false,
		`{"patternProperties":{".*":{"type":"string"}}}`:                                false,
		`{"patternProperties":{"(?<=x)y":{}}}`:                                          false,
		`{"propertyNames":{"maxLength":3}}`:                                             false,
		`{"allOf":[{"required":["branch_id"]}]}`:                                        false,
	} {
		tool := []byte(`{"name":"t","inputSchema":` + schema + `}`)
		shown, got := addBranchID(tool)
		if got != added || !added && string(shown) != string(tool) {
			t.Errorf("%s: branch_id added: %v, want %v: %s", schema, got, added, shown)
		}
		arguments := json.RawMessage(`{"branch_id":"x"}`)
		if rest, _, taken, _ := (Entry{TakesBranchID: got}).TakeBranchID(arguments); taken != added || !added && string(rest) != string(arguments) {
			t.Errorf("%s: the tool gets %s", schema, rest)
		}
	}
}

// A host finds a long name in the list and calls it, also if its cut falls into a character.
func TestShownNamesAreFound(t *testing.T) {
	rules := NewRules(config.Config{Upstreams: map[string]*config.Upstream{"up": {}}}, nil)
	for _, own := range []string{strings.Repeat("a", 70), strings.Repeat("a", 50) + strings.Repeat("é", 20), "a" + strings.Repeat("日", 30)} {
		item, _ := json.Marshal(map[string]string{"name": own})
		c := rules.Merge(Prompts, []*List{{Items: []json.RawMessage{item}}})
		var listed struct{ Prompts []struct{ Name string } }
		if err := json.Unmarshal(c.Result(false), &listed); err != nil {
			t.Fatal(err)
		}
		shown := listed.Prompts[0].Name
		if e, ok := c.Lookup(shown); !ok || e.Name != own || len(shown) > 64 {
			t.Errorf("%q is shown as %q, which is %q", own, shown, e.Name)
		}
	}
}
