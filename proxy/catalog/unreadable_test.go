package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
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
				if _, there := c.Lookup("good"); !there || !also || len(c.Order) != 4-faults || len(c.Omitted) != faults {
					t.Errorf("%s with %s %q: hosts see %q, unreadable %+v; want %d of them", k.Method(), member, value, c.Order, c.Omitted, faults)
				}
			}
		}
	}
}

// TestForbiddenHeaders: a tool of a modern server on HTTP whose schema binds a header as the protocol forbids is
// not shown. On stdio and in the legacy era nothing is bound, so the tool stays.
func TestForbiddenHeaders(t *testing.T) {
	cfg := config.Default()
	cfg.Upstreams = map[string]*config.Upstream{"http": {URL: "http://127.0.0.1/", Prefix: new("")}, "stdio": {Command: []string{"x"}, Prefix: new("")}}
	r := NewRules(cfg, nil)
	bind := func(kind, name string) string { return fmt.Sprintf(`{"type":%s,"x-mcp-header":%s}`, kind, name) }
	properties := map[string]bool{ // to whether the tool is shown
		`"a":{"type":"number"}`: true,
		`"a":` + bind(`"string"`, `"Region"`) + `,"b":` + bind(`"string"`, `"Other"`):                            true,
		`"a":` + bind(`"string"`, `"Region"`) + `,"b":` + bind(`"string"`, `"Region"`):                           false,
		`"a":` + bind(`"string"`, `"Region"`) + `,"b":` + bind(`"string"`, `"rEGION"`):                           false,
		`"a":` + bind(`"string"`, `"Region"`) + `,"b":{"properties":{"c":` + bind(`"string"`, `"Region"`) + `}}`: false,
	}
	for kind, fits := range map[string]bool{"string": true, "integer": true, "boolean": true, "number": false, "null": false, "array": false, "object": false} {
		properties[`"a":`+bind(strconv.Quote(kind), `"Region"`)] = fits
	}
	for name, fits := range map[string]bool{`"A-1"`: true, `""`: false, `"a b"`: false, `"a:b"`: false, `"ä"`: false, `"a\nb"`: false, `"\u0000"`: false, `5`: false, `null`: false, `{}`: false} {
		properties[`"a":`+bind(`"string"`, name)] = fits
	}
	for text, shown := range properties {
		legacy := `{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{` + text + `}}}]}`
		modern := strings.Replace(legacy, "{", `{"resultType":"complete",`, 1)
		for on, want := range map[[2]string]bool{{"http", modern}: shown, {"http", legacy}: true, {"stdio", modern}: true} {
			lists, l := make([]*List, 2), &List{}
			l.AddPage([]byte(on[1]), Tools)
			lists[slices.Index(r.keys, on[0])] = l
			c := r.Merge(Tools, lists)
			if _, got := c.Lookup("t"); got != want || (len(c.Omitted) == 0) != want {
				t.Errorf("%s: %s: shown %v, faults %+v, want shown %v", on[0], on[1], got, c.Omitted, want)
			}
		}
	}
}
