package catalog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
)

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
