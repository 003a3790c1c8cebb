package workflow

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/faults"
	"github.com/foldgate/foldgate/internal/jsonpath"
)

func TestCompileFaults(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Spec)
		want   string
	}{
		"no name":        {func(s *Spec) { s.Name = "" }, "name"},
		"path as name":   {func(s *Spec) { s.Name = "a/b" }, "name"},
		"ttl":            {func(s *Spec) { s.TTL = time.Second }, "ttl"},
		"evidence":       {func(s *Spec) { s.Evidence = []Evidence{"luck"} }, "fallback"},
		"evidence twice": {func(s *Spec) { s.Evidence = []Evidence{Join, Join} }, "fallback"},
		"no open":        {func(s *Spec) { s.Tools = s.Tools[4:] }, "open"},
		"tool twice":     {func(s *Spec) { s.Tools[4].Tool = "find" }, "close[0].tool"},
		"no path":        {func(s *Spec) { s.Tools[1].StepKey[0] = "id" }, "link[0].step_key[0]"},
		"broken path":    {func(s *Spec) { s.Tools[0].Capture = map[string]string{"ids": "$.[?("} }, "open[0].capture.ids"},
		"two descents":   {func(s *Spec) { s.Tools[1].StepKey[0] = "$..a..b" }, "link[0].step_key[0]"},
		"no capture":     {func(s *Spec) { s.Tools[1].Join = map[string]string{"names": "$.arguments.id"} }, "link[0].join.names"},
		"capture late":   {func(s *Spec) { s.Tools[3].Capture = map[string]string{"ids": "$.a"} }, "status[0].capture"},
		"join early":     {func(s *Spec) { s.Tools[0].Join = map[string]string{"ids": "$.a"} }, "open[0].join"},
		"key of status":  {func(s *Spec) { s.Tools[3].StepKey = []string{"$.a"} }, "status[0].step_key"},
		"too many steps": {func(s *Spec) {
			for _, tool := range []string{"a", "b", "c"} {
				s.Tools = append(s.Tools, ToolSpec{Role: RoleLink, Server: "up", Tool: tool})
			}
		}, "link"},
	} {
		_, wrong := Compile([]Spec{spec(tc.change)})
		if !slices.ContainsFunc(wrong, func(f faults.Fault) bool { return f.Key == "[0]."+tc.want && f.Msg != "" }) {
			t.Errorf("%s: faults %v, want one at %s", name, wrong, tc.want)
		}
	}
	if _, faults := Compile([]Spec{spec(nil), spec(nil)}); len(faults) != 6 {
		t.Errorf("the same workflow twice: %v, want its name and five tools", faults)
	}
	if _, faults := Compile([]Spec{spec(nil)}); len(faults) > 0 {
		t.Errorf("a good workflow: %v", faults)
	}
}

func TestIDs(t *testing.T) {
	now := time.Unix(1_735_650_000, 0)
	seen := map[string]bool{}
	counts := map[byte]int{}
	const n = 10_000
	for range n {
		id := NewID(now)
		if !ValidID(id) || len(id) != 41 || !strings.HasPrefix(id, "ctx_1735650000_") || seen[id] {
			t.Fatalf("NewID = %q, new %t", id, !seen[id])
		}
		seen[id] = true
		for _, c := range []byte(id[15:]) {
			counts[c]++
		}
	}
	for c, got := range counts { // 260,000 draws of 32 characters: five deviations are 450
		if want := n * 26 / 32; got < want-450 || got > want+450 {
			t.Errorf("%c was drawn %d times, want about %d", c, got, want)
		}
	}
	for id, want := range map[string]bool{
		"ctx_1735650000_a1b2c3d4":                   true, // seed form
		"ctx_1735650000_a1b2c3":                     true,
		"ctx_1735650000_" + strings.Repeat("Z", 64): true,
		"ctx_1735650000_" + strings.Repeat("a", 65): false,
		"ctx_1735650000_a1b2c":                      false,
		"ctx_173565000_a1b2c3d4":                    false,
		"ctx_123456789012345678_a1b2c3d4":           false,
		"ctx_1735650000_a1b2-c3d4":                  false,
		"ctx_1735650000_a1b2c3d4\n":                 false,
		"ctx_1735650000_A@b2c3d4":                   false,
		"CTX_1735650000_a1b2c3d4":                   false,
		"ctx_1735650000":                            false, "ctx_": false, "": false,
	} {
		if got := ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %t, want %t", id, got, want)
		}
	}
}

func TestValues(t *testing.T) {
	doc := resultDocument(json.RawMessage(`{"q":"x"}`), json.RawMessage(
		`{"content":[{"type":"text","text":"hello"},{"type":"text","text":"{\"n\":9007199254740993,\"list\":[\"b\",\"a\",\"b\",null,\"\",{\"o\":1}],\"yes\":true}"}]}`))
	for expr, want := range map[string][]string{
		"$.arguments.q":                 {"x"},
		"$.structuredContent.n":         {"9007199254740993"},
		"$.structuredContent.list[*]":   {"a", "b"},
		"$.structuredContent.yes":       {"true"},
		"$.structuredContent.list":      nil,
		"$.content[0].text":             {"hello"},
		"$.nothing":                     nil,
		"$.structuredContent.list[5].o": {"1"},
		"$..o":                          {"1"},
	} {
		p, err := jsonpath.Parse(expr)
		if err != nil {
			t.Fatal(err)
		}
		hashes := []string{}
		for _, v := range want {
			hashes = append(hashes, hash(v))
		}
		slices.Sort(hashes)
		if got := values(p, doc); !slices.Equal(got, hashes) {
			t.Errorf("%s selects %d values, want %q", expr, len(got), want)
		}
	}
	if got := decode(map[string][]byte{"arguments": []byte(`{`)}); got != nil {
		t.Errorf("a broken document = %v", got)
	}
}

// FuzzValidID: a valid id can be a segment of a path.
func FuzzValidID(f *testing.F) {
	for _, s := range []string{"ctx_1735650000_a1b2c3d4", "ctx_", "ctx_1_a", "native-0001", "ctx_1735650000_é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ValidID(s) && (strings.ContainsAny(s, "/ \n%'\"") || len(s) > 86) {
			t.Errorf("ValidID(%q)", s)
		}
		if foreignForm().MatchString(s) && (strings.ContainsAny(s, "/ \n%'\"") || len(s) > 128) {
			t.Errorf("foreignForm matches %q", s)
		}
	})
}

// A path that could take more than linear time is refused, and the fault says
// how to write it.
func TestPathTooDear(t *testing.T) {
	for _, tt := range []struct{ path, says string }{
		{"$..a..b", `more than one ".."`},
		{"$.a[?(@.id == $.b[*].id)]", "name members of the element"},
		{"$.a[?($..id == @.id)]", "name members of the element"},
		{"$..[?(@..a == 1)]", "name members of the element"},
		{"$.a[?(@.b[?(@ == 1)])]", "name members of the element"},
		{"$.a[?(count(@.*) > 2)]", "name members of the element"},
		{"$.a[?(@.x == 1 && !(@.y == 2 || @..z))]", "name members of the element"},
		{"$.a[?match(@.a, @.b)]", "=~ /expression/"},
		{"$.a[?match(@.a, 'x.*')]", "=~ /expression/"},
		{"$.a[?(@.a =~ 'x.*')]", "=~ /expression/"},
		{"$['a','a','a','a']['b','b','b','b']['c','c','c','c']['d','d']", "multiply to 128"},
		{"$.a[1::9223372036854775807]", "an index"},
		{"$.a[-9223372036854775807:]", "an index"},
		{"$.a[9223372036854775807]", "an index"},
		{"$." + strings.Repeat("a.", 600) + "a", "more than 1000"},
		{"a", "begins with $"},
		{"$[", "not a JSONPath"},
	} {
		if _, err := jsonpath.Parse(tt.path); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("Parse(%.60q) = %v, want it to say %s", tt.path, err, tt.says)
		}
	}
}

// Common forms of paths select the expected values.
func TestPathSelects(t *testing.T) {
	doc := resultDocument(json.RawMessage(`{"a":[{"id":1,"k":"x1"},{"id":"two","k":"y"},{"id":3}],"b":{"id":4}}`), nil)
	for p, want := range map[string][]string{
		"$.arguments.a[*].id": {"1", "two", "3"}, "$..id": {"1", "two", "3", "4"}, "$.arguments.a[0,2].id": {"1", "3"}, "$.arguments.a[-1:].id": {"3"},
		"$.arguments.a[0:2].id": {"1", "two"}, "$.arguments['a','b'].id": {"4"}, "$.arguments.a[?(@.k =~ /^x/)].id": {"1"}, "$.arguments.a[?@.k].id": {"1", "two"},
		"$.arguments.a[?(@.id == 'two' || @.id == 3)].id": {"two", "3"}, "$..[?(@.k == 'y')].id": {"two"}, "$.none": nil,
	} {
		x, err := jsonpath.Parse(p)
		if err != nil {
			t.Errorf("Parse(%q) = %v", p, err)
			continue
		}
		var hashes []string
		for _, v := range want {
			hashes = append(hashes, hash(v))
		}
		slices.Sort(hashes)
		if got := values(x, doc); !slices.Equal(got, hashes) {
			t.Errorf("values(%q) = %v, want those of %v", p, got, want)
		}
	}
}

// FuzzPath: a path is compiled or refused. A compiled path selects hashes of
// scalars in any document, without a panic.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"$.structuredContent.signals[*].id", "$..a", "$[?(@.a == 1)].b", "$['a']", "$", "$[", "$.a[-1:2]"} {
		f.Add(s, `{"a":[{"id":1},{"id":"x"}],"structuredContent":{"signals":[{"id":"y"}]}}`)
	}
	f.Fuzz(func(t *testing.T, expr, doc string) {
		p, err := jsonpath.Parse(expr)
		if err != nil || !json.Valid([]byte(doc)) {
			return
		}
		for _, v := range values(p, resultDocument(json.RawMessage(doc), json.RawMessage(doc))) {
			if len(v) != hashSize {
				t.Errorf("value %q", v)
			}
		}
	})
}
