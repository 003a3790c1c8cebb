package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/policy"
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
		for member, shape := range itemMembers {
			for _, value := range values {
				item := rawjson.Delete([]byte(`{"name":"b","uri":"b","uriTemplate":"b","inputSchema":{},"x":1}`), member)
				if value != "" {
					item = rawjson.Set(item, []byte(value), member)
				}
				needs := slices.Contains(needed[k], member)
				fits := value != "" && rawjson.KindOf([]byte(value)) == shape.kind || !needs && (value == "" || value == "null")
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

// Typed hosts get each item in a form that they can read, or not at all.
func TestFit(t *testing.T) {
	for _, c := range []struct {
		kind               Kind
		item, want, faults string // want "" for what the server wrote
	}{
		{Tools, `{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":5}},"required":["a"]},"annotations":{"title":"T","readOnlyHint":false,"x":5},"x":null}`, "", ""},
		{Tools, `{"name":"t","inputSchema":{}}`, `{"name":"t","inputSchema":{"type":"object"}}`, ""},
		{Tools, `{"title":null,"name":"t","inputSchema":{"type":null,"properties":null}}`, `{"name":"t","inputSchema":{"type":"object"}}`, ""},
		{Tools, `{"name":"t","inputSchema":{"type":"object","properties":{"a":true,"b":{}}}}`, `{"name":"t","inputSchema":{"type":"object","properties":{"a":{},"b":{}}}}`, ""},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"annotations":{"title":null,"readOnlyHint":true},"icons":null,"_meta":null}`, `{"name":"t","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`, ""},
		{Tools, `{"name":"t","inputSchema":{"type":"object","properties":{"a":false}}}`, `{"name":"t","inputSchema":{"type":"object","properties":{"a":{"not":{}}}}}`, ""},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"annotations":{"priority":5,"audience":["developer"]}}`, "", ""},
		{Prompts, `{"name":"p","annotations":{"priority":5,"title":5}}`, "", ""},
		{Resources, `{"uri":"r","name":"r","annotations":{"title":5}}`, "", ""},
		{Tools, `{"name":"t","inputSchema":{"type":"array"}}`, "", "inputSchema.type has another value"},
		{Tools, `{"name":"t","inputSchema":{"type":["object"]}}`, "", "inputSchema.type is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object","properties":[]}}`, "", "inputSchema.properties is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object","properties":{"a":5}}}`, "", "inputSchema.properties.* is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object","required":["a",5]}}`, "", "inputSchema.required[1] is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"annotations":{"title":5}}`, "", "annotations.title is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"annotations":{"openWorldHint":"no"}}`, "", "annotations.openWorldHint is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"execution":{"taskSupport":"maybe"}}`, `{"name":"t","inputSchema":{"type":"object"},"execution":{}}`, ""},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"icons":[{"theme":"sepia","src":"x"}]}`, `{"name":"t","inputSchema":{"type":"object"},"icons":[{"src":"x"}]}`, ""},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"execution":{"taskSupport":5}}`, "", "execution.taskSupport is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"icons":[{"src":"x","sizes":"48x48"}]}`, "", "icons[0].sizes is of another type"},
		{Tools, `{"name":"t","inputSchema":{"type":"object"},"icons":[{}]}`, "", "icons[0].src is missing"},
		{Tools, `{"name":"t","inputSchema":null}`, "", "inputSchema is of another type"},
		{Tools, `[]`, "", "the item is of another type"},
		{Prompts, `{"name":"p","arguments":[{"name":"a","description":null,"required":true},{"name":"b"}]}`, `{"name":"p","arguments":[{"name":"a","required":true},{"name":"b"}]}`, ""},
		{Prompts, `{"name":"p","arguments":[{"name":"a"},{"name":null}]}`, "", "arguments[1].name is of another type"},
		{Prompts, `{"name":"p","arguments":[{"name":"a","required":"yes"}]}`, "", "arguments[0].required is of another type"},
		{Prompts, `{"name":"p","arguments":["a"]}`, "", "arguments[0] is of another type"},
		{Resources, `{"uri":"r","name":"r","annotations":{"audience":["user"],"priority":0.5,"lastModified":"today"}}`, "", ""},
		{Resources, `{"uri":"r","name":"r","annotations":{"audience":["user","all"],"priority":1}}`, `{"uri":"r","name":"r","annotations":{"priority":1}}`, ""},
		{Resources, `{"uri":"r","name":"r","annotations":{"priority":5}}`, `{"uri":"r","name":"r","annotations":{}}`, ""},
		{Templates, `{"uriTemplate":"r","name":"r","size":null,"mimeType":"x"}`, `{"uriTemplate":"r","name":"r","mimeType":"x"}`, ""},
		{Templates, `{"uriTemplate":"r"}`, "", "name is missing"},
	} {
		got, fault := fit(c.kind, []byte(c.item))
		if want := cmp.Or(c.want, c.item); fault != c.faults || fault == "" && string(got) != want {
			t.Errorf("%s: %s, %q; want %s, %q", c.item, got, fault, want, c.faults)
		}
	}
}

// An item that the configuration hides is not named as one that the protocol does not allow.
func TestHiddenAndNotAllowed(t *testing.T) {
	cfg := config.Default()
	cfg.Upstreams = map[string]*config.Upstream{"a": {Prefix: new(""), Tools: policy.Globs{Deny: []string{"hidden"}}}}
	c := NewRules(cfg, nil).Merge(Tools, []*List{{Items: []json.RawMessage{[]byte(`{"name":"hidden","inputSchema":5}`), []byte(`{"name":"shown","inputSchema":5}`)}}})
	if len(c.Order) != 0 || len(c.Omitted) != 1 || c.Omitted[0].Name != "shown" {
		t.Errorf("hosts see %q, omitted %+v", c.Order, c.Omitted)
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
