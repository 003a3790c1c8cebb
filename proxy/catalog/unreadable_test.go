package catalog

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
)

// One item with a member of a type that the protocol does not give it hides neither the other items nor
// those of other servers: it is not shown, and has no entry. For each list, each member and each type.
func TestUnreadableItems(t *testing.T) {
	cfg := config.Default()
	cfg.Upstreams = map[string]*config.Upstream{"good": {Prefix: new("")}, "bad": {Prefix: new("")}}
	r := NewRules(cfg, nil)
	needed := map[Kind][]string{Tools: {"name", "inputSchema"}, Prompts: {"name"}, Resources: {"uri", "name"}, Templates: {"uriTemplate", "name"}}
	values := []string{`{}`, `[]`, `"x"`, `1`, `true`, `null`, ""} // "": without the member
	for k := range Kinds {
		good := `{"name":"good","uri":"good","uriTemplate":"good","inputSchema":{}}`
		for member, want := range memberTypes {
			for _, value := range values {
				item := rawjson.Delete([]byte(`{"name":"b","uri":"b","uriTemplate":"b","inputSchema":{},"x":1}`), member)
				if value != "" {
					item = rawjson.Set(item, []byte(value), member)
				}
				needs := slices.Contains(needed[k], member)
				fits := value != "" && rawjson.KindOf([]byte(value)) == want || !needs && (value == "" || value == "null")
				lists := make([]*List, 2)
				lists[slices.Index(r.keys, "bad")] = &List{Items: []json.RawMessage{[]byte(`5`), item, []byte(strings.ReplaceAll(good, "good", "also"))}}
				lists[slices.Index(r.keys, "good")] = &List{Items: []json.RawMessage{[]byte(good)}}
				c := r.Merge(k, lists)
				faults := 1 // the number
				if !fits {
					faults++
				}
				_, also := c.Lookup("also")
				if _, there := c.Lookup("good"); !there || !also || len(c.Order) != 4-faults || len(c.Unreadable) != faults {
					t.Errorf("%s with %s %q: hosts see %q, unreadable %+v; want %d of them", k.Method(), member, value, c.Order, c.Unreadable, faults)
				}
			}
		}
	}
}
