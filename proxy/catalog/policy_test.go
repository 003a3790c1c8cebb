package catalog

import (
	"encoding/json"
	"strconv"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/policy"
)

func rulesOf(p policy.Config) *Rules {
	return NewRules(config.Config{Upstreams: map[string]*config.Upstream{"up": {}}, Policy: p}, nil)
}

// A request is decided by what its server will do.
func TestPermit(t *testing.T) {
	r := rulesOf(policy.Config{Default: "deny", Rules: []policy.Rule{{Name: "some", Allow: []string{"up__t"},
		Prompts: policy.Globs{Allow: []string{"up__p"}}, Resources: policy.Globs{Allow: []string{"mem://r"}}}}})
	for _, tt := range []struct {
		method, params, tool string
		want                 bool
	}{
		{"tools/call", `{"name":"t"}`, "t", true},
		{"tools/call", `{"name":"u"}`, "u", false},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"p"}}`, "p", true},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"q"}}`, "q", false},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"mem://r"}}`, "", true},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"mem://s"}}`, "", false},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"q","uri":"mem://r"}}`, "", false},
		{"completion/complete", `{"ref":{"type":"ref/resource","name":"p","uri":"mem://s"}}`, "", false},
		{"tasks/get", `{"taskId":"1"}`, "", true},
		{"tasks/get", `{"taskId":"1"}`, "t", true},
		{"tasks/get", `{"taskId":"1"}`, "u", false},
		{"tasks/result", `{"taskId":"1"}`, "", true},
		{"tasks/update", `{"taskId":"1"}`, "", true},
		{"tasks/cancel", `{"taskId":"1"}`, "", true},
		{"tasks/list", `{}`, "", true},
		{"tasks/create", `{}`, "", false},
		{"tasks/run", `{"taskId":"1"}`, "t", false},
		{"tasks/", `{}`, "", false},
		{"tasks/get/", `{}`, "", false},
		{"Tasks/get", `{}`, "", false},
		{"x/other", `{}`, "", false},
	} {
		c := &interceptor.Call{Target: interceptor.Target{Server: "up", Method: tt.method, Name: tt.tool, Forward: json.RawMessage(tt.params)}}
		if d, _ := r.Permit(c, Entry{}); d.Allowed != tt.want {
			t.Errorf("%s %s: %+v, want %v", tt.method, tt.params, d, tt.want)
		}
	}
}

// What belongs to an upstream that a reload removed is neither allowed nor hidden.
func TestPermitOfARemovedUpstream(t *testing.T) {
	for _, unlisted := range []string{"forbidden", "unknown"} {
		r := rulesOf(policy.Config{Default: "deny", Unlisted: unlisted, Rules: []policy.Rule{{Name: "all", Allow: []string{"**"}, Prompts: policy.Globs{Allow: []string{"**"}}, Resources: policy.Globs{Allow: []string{"**"}}}}})
		gone := Entry{Server: "gone", Name: "t", Raw: json.RawMessage(`{}`)}
		for _, method := range []string{"tools/call", "prompts/get", "resources/read", "completion/complete", "tasks/get", "x/other"} {
			c := &interceptor.Call{Target: interceptor.Target{Server: "gone", Method: method, Name: "t", Forward: json.RawMessage(`{"name":"t","uri":"mem://t","ref":{"type":"ref/prompt","name":"t"}}`)}}
			if d, unknown := r.Permit(c, gone); d != Removed || unknown {
				t.Errorf("%s: %+v, %v", method, d, unknown)
			}
		}
		for k := range Kinds {
			if shown, e, _, ok := r.Entry(k, "gone", nil, []byte(`{"name":"t","uri":"mem://t","uriTemplate":"mem://{t}"}`)); ok {
				t.Errorf("%s: shown as %s, %+v", k.Method(), shown, e)
			}
			if d := r.Visible(k, interceptor.Identity{}, gone); d != Removed || r.Hides(k, interceptor.Identity{}, gone) {
				t.Errorf("%s: %+v", k.Method(), d)
			}
		}
	}
}

// A catalog remembers what callers see, also of many at once, within bounds.
func TestForRemembersManyCallers(t *testing.T) {
	r := rulesOf(policy.Config{Default: "deny", Rules: []policy.Rule{
		{Name: "analysts", Who: policy.Who{Role: "analyst"}, Allow: []string{"up__a"}},
		{Name: "own", Allow: []string{"**"}, When: "tool == 'up__' + principal"},
	}})
	l := &List{Items: []json.RawMessage{[]byte(`{"name":"a","inputSchema":{}}`), []byte(`{"name":"b","inputSchema":{}}`)}}
	c := r.Merge(Tools, []*List{l})
	caller := func(i int) interceptor.Identity {
		return interceptor.Identity{Principal: "p" + strconv.Itoa(i), Roles: [][]string{{"analyst"}, nil}[i%2]}
	}
	first := [2]*Catalog{c.For(caller(0)), c.For(caller(1))}
	if len(first[0].Order) != 1 || len(first[1].Order) != 0 {
		t.Fatalf("callers see %v and %v", first[0].Order, first[1].Order)
	}
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 1000 {
				if i = (i + 250*g) % 1000; c.For(caller(i)) != first[i%2] {
					t.Errorf("the part of caller %d was made again", i)
				}
			}
		})
	}
	all.Wait()
	for i := range maxCallers {
		c.For(caller(1000 + i))
	}
	if len(c.sees) > maxCallers || len(c.parts) != 2 {
		t.Errorf("the catalog remembers %d callers and %d parts", len(c.sees), len(c.parts))
	}
	var m map[int]int
	for i := range 5 {
		remember(&m, i, i, 3)
	}
	if len(m) != 3 || m[4] != 4 {
		t.Errorf("the map has %v", m)
	}
}
