package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/config"
)

// finds is a Requester that finds tools with definitions of so many words.
type finds struct {
	answers
	words []int
}

func (f finds) FindTools(_ context.Context, _, _ string, limit int) (found []json.RawMessage, note string, err error) {
	for i, n := range f.words[:min(limit, len(f.words))] {
		found = append(found, fmt.Appendf(nil, `{"name":"tool_%d","description":%q}`, i, strings.Repeat("word ", n)))
	}
	return found, "[note]", nil
}

func searchable(c *config.Config) { c.Tools.Mode = config.ModeSearch }

// An answer of find_tools is bounded: what does not fit is named.
func TestFoundDefinitionsAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		words  []int
		limit  int
		branch int // the budget
		whole  string
		named  string
	}{
		{"small", []int{10, 20, 30}, 5, 0, "012", ""},
		{"by limit", []int{10, 20, 30}, 2, 0, "01", ""},
		{"one too large among others", []int{10, 9000, 30}, 5, 0, "02", "1"},
		{"the first may be large", []int{9000, 30, 9000}, 5, 0, "01", "2"},
		{"together too large", []int{3000, 3000, 3000, 3000}, 5, 0, "012", "3"},
		{"nearly all of a branch", []int{100, 2000, 100}, 5, 1024, "02", "1"},
		{"more than a branch", []int{2000}, 5, 512, "", "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tools := newTools(t, finds{words: tt.words}, searchable)
			c := &interceptor.Call{
				Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: "alice"}, Session: "s"},
				Target: interceptor.Target{Method: "tools/call", Name: config.FindTools, Metered: true, Arguments: fmt.Appendf(nil, `{"query":"x","limit":%d}`, tt.limit)},
			}
			if tt.branch > 0 {
				made := tools.host("alice", "s")("branch_create", fmt.Sprintf(`{"description":"d","budget":%d}`, tt.branch))
				_, id, _ := strings.Cut(made, `branch_id\":\"`)
				id, _, _ = strings.Cut(id, `\"`)
				c.Target.Arguments = fmt.Appendf(nil, `{"query":"x","limit":%d,"branch_id":%q}`, tt.limit, id)
				tools.Attribute(t.Context(), c)
				b, err := tools.Branches.Resolve(c.Caller(), c.Attribution.BranchID)
				if err != nil {
					t.Fatal(err)
				}
				c.Attribution.Branch = &b
			}
			chain := interceptor.NewChain(func(context.Context, *interceptor.Call) {}, interceptor.Meter(tools.Branches, func() *interceptor.Limits { return nil }, interceptor.TokenMeter{Counter: tools.Counter}))
			res, err := chain(t.Context(), c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
				body, err := tools.Call(ctx, &Request{c, tools.from})
				return &interceptor.Result{Body: body}, err
			})
			if err != nil {
				t.Fatal(err)
			}
			text, _ := res.Text()
			whole, named := "", ""
			for i := range tt.words {
				_, line, _ := strings.Cut(text, fmt.Sprintf(`{"name":"tool_%d",`, i))
				switch line, _, _ = strings.Cut(line, "\n"); {
				case strings.Contains(line, "left out"):
					named += fmt.Sprint(i)
				case line != "":
					whole += fmt.Sprint(i)
				}
			}
			if whole != tt.whole || named != tt.named || !strings.HasSuffix(text, "[note]") {
				t.Errorf("whole %q, named %q, want %q and %q:\n%.300s", whole, named, tt.whole, tt.named, text)
			}
		})
	}
}

// call_tool takes a name, and arguments as an object, or as a text that is one.
func TestInner(t *testing.T) {
	tools := newTools(t, finds{}, searchable)
	for args, want := range map[string]string{
		`{"name":"a","arguments":{"n":1.0}}`:               `a {"n":1.0} `,
		`{"name":"a","arguments":{"n":1},"branch_id":"b"}`: `a {"n":1} b`,
		`{"name":"a"}`:                                `a {} `,
		`{"name":"a","arguments":null}`:               `a {} `,
		`{"name":"a","arguments":"{\"n\":[1]}"}`:      `a {"n":[1]} `,
		`{"name":"a","arguments":"{\"n\":"}`:          "arguments must be an object",
		`{"name":"a","arguments":[1]}`:                "arguments must be an object",
		`{"name":"a","args":{}}`:                      "its arguments are name, arguments, branch_id",
		`{}`:                                          "name is missing",
		`{"name":"call_tool","arguments":{"name":1}}`: "can't call itself",
		`{"name":7}`:                                  "name must be a string",
		`"a"`:                                         "must be a JSON object",
	} {
		c := &interceptor.Call{Target: interceptor.Target{Name: config.CallTool, Arguments: json.RawMessage(args)}}
		name, inner, branch, err := tools.Inner(c)
		got := fmt.Sprintf("%s %s %s", name, inner, branch)
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%s = %s, want %s", args, got, want)
		}
	}
}

// Without a search the names belong to upstreams.
func TestSearchToolsAreOnlyThereToSearch(t *testing.T) {
	for _, name := range []string{config.FindTools, config.CallTool} {
		if Has(name) || newTools(t, finds{}, nil).Has(name) || !newTools(t, finds{}, searchable).Has(name) {
			t.Errorf("%s is not there only with a search", name)
		}
	}
	n := 0
	for _, d := range SearchDefinitions() {
		n += counter(t).CountBytes(d)
	}
	if n > 260 {
		t.Errorf("the definitions have %d tokens, which every session with a search pays", n)
	}
}
