package files

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/proxy/conn"
)

// The definitions are valid, and input has a field for each argument.
func TestTools(t *testing.T) {
	s := serve(t, t.TempDir())
	var defs []struct {
		Name, Description string
		InputSchema       struct {
			Type                 string
			Properties           map[string]map[string]any
			Required             []string
			AdditionalProperties *bool
		}
		Annotations map[string]bool
	}
	if err := json.Unmarshal(definitions(), &defs); err != nil {
		t.Fatalf("definitions() = %s: %v", definitions(), err)
	}
	m, err := s.Call(t.Context(), &conn.Request{Method: "tools/list"})
	if want := `{"tools":` + string(definitions()) + `}`; err != nil || string(m.Result) != want {
		t.Errorf("tools/list = %s, %v, want %s", m.Result, err, want)
	}
	var names []string
	for _, d := range defs {
		names = append(names, d.Name)
		if !d.Annotations["readOnlyHint"] {
			t.Errorf("%s is not marked read-only", d.Name)
		}
		if d.InputSchema.Type != "object" || d.InputSchema.AdditionalProperties == nil || *d.InputSchema.AdditionalProperties {
			t.Errorf("%s: inputSchema is open: %+v", d.Name, d.InputSchema)
		}
		for name := range d.InputSchema.Properties {
			if f, ok := reflect.TypeFor[input]().FieldByNameFunc(func(f string) bool { return strings.EqualFold(f, strings.ReplaceAll(name, "_", "")) }); !ok {
				t.Errorf("%s: input has no field for %s", d.Name, name)
			} else if tag := f.Tag.Get("json"); tag != name && !strings.EqualFold(f.Name, name) {
				t.Errorf("%s: field %s decodes %q, want %s", d.Name, f.Name, tag, name)
			}
		}
		for _, r := range d.InputSchema.Required {
			msg := call(t, s, d.Name, `{}`)
			if !strings.Contains(msg, fmt.Sprintf("%q is required", r)) {
				t.Errorf("%s without %s = %q", d.Name, r, msg)
			}
		}
	}
	if diff := cmp.Diff([]string{"read_file", "list_directory", "search_files", "grep"}, names); diff != "" {
		t.Error(diff)
	}
	if n := len(definitions()); n > 2000 {
		t.Errorf("the definitions are %d bytes, want at most 2000", n)
	}
}

func TestArguments(t *testing.T) {
	s := serve(t, tree(t, map[string]string{"f": "a\nb\n"}))
	for _, tt := range []struct{ tool, args, want string }{
		{"read_file", `{"path":"f","line":1,"Path":"g"}`, `error: invalid arguments: read_file takes no "line", "Path"; its arguments are path, start_line, end_line`},
		{"read_file", `{"path":"f","a\nb":1}`, `error: invalid arguments: read_file takes no "a\nb"; its arguments are path, start_line, end_line`},
		{"read_file", `{"path":1,"start_line":"2","end_line":1.5}`, `error: invalid arguments: path must be a string, not number; start_line must be a whole number, not "2"; end_line must be a whole number, not 1.5`},
		{"read_file", `{"path":"f","start_line":0}`, `error: invalid arguments: start_line must be at least 1`},
		{"read_file", `{"path":"f","start_line":1e400}`, `error: invalid arguments: start_line must be a whole number, not 1e400`},
		{"read_file", `{"path":"f","start_line":3,"end_line":2}`, "error: end_line 2 is before start_line 3"},
		{"read_file", `{"path":"f","start_line":null,"end_line":1.0}`, "a\n"},
		{"read_file", `{"path":"g","path":"f"}`, "a\nb\n"},
		{"read_file", `{"path":null}`, `error: invalid arguments: "path" is required`},
		{"read_file", `[]`, "error: invalid arguments: arguments must be a JSON object…"},
		{"read_file", `{"path":`, "error: invalid arguments: arguments must be a JSON object…"},
		{"read_file", ``, `error: invalid arguments: "path" is required`},
		{"list_directory", ``, "f 4"},
		{"list_directory", `null`, "f 4"},
		{"list_directory", `{"path":""}`, "f 4"},
		{"list_directory", `{"path":"f"}`, "error: f is a file, not a directory: use read_file"},
		{"grep", `{"pattern":"("}`, "error: not a valid RE2 pattern (missing closing )…"},
		{"grep", `{"pattern":"(?=x)"}`, "…no backreferences or lookarounds"},
		{"grep", `{"pattern":"a","ignore_case":"yes"}`, `error: invalid arguments: ignore_case must be true or false, not string`},
		{"grep", `{"pattern":"a","context":21,"max_matches":0}`, `error: invalid arguments: context must be at most 20; max_matches must be at least 1`},
		{"grep", `{"pattern":"` + strings.Repeat("a", maxPattern+1) + `"}`, "error: the pattern is 2049 bytes long…"},
		{"grep", `{"pattern":"` + strings.Repeat("a", maxArguments) + `"}`, "error: invalid arguments: arguments are…"},
		{"search_files", `{"pattern":"[a"}`, "error: [a is not a valid glob…"},
		{"search_files", `{"pattern":"{a,b}{a,b}{a,b}{a,b}{a,b}"}`, "error: the glob has more than 4…"},
		{"search_files", `{"pattern":"` + strings.Repeat("a", maxGlob+1) + `"}`, "error: the glob is 513 bytes long…"},
	} {
		want(t, tt.tool+" "+tt.args[:min(len(tt.args), 80)], call(t, s, tt.tool, tt.args), tt.want)
	}
}

// Whatever the arguments are: no panic, the result is one valid text block,
// and nothing from outside the root is in it.
func FuzzCall(f *testing.F) {
	outside := tree(f, map[string]string{"secret": "OUTSIDE-THE-ROOT"})
	dir := tree(f, map[string]string{
		"a.go": "package a\n", "b/c.txt": "x\ny\n", "b/.gitignore": "*.log\n", "b/d.log": "ignored",
		"bin": "\x00\x01", "out": "->" + outside, "b/up": "->../a.go",
	})
	s := serve(f, dir)
	for i := range tools {
		for _, args := range []string{
			`{"path":"a.go"}`, `{"path":"out/secret"}`, `{"path":"../x","pattern":"**"}`, `{"pattern":"*.{go,txt}","path":"b"}`,
			`{"pattern":"x","glob":"**/*.txt","context":2,"max_matches":1,"ignore_case":true}`, `{"path":"b/c.txt","start_line":2,"end_line":9}`,
			`{"path":"/etc/passwd"}`, `{"pattern":"[^a","path":"."}`, `null`, `{`, `{"path":"\ud800"}`,
		} {
			f.Add(i, []byte(args))
		}
	}
	f.Fuzz(func(t *testing.T, tool int, args []byte) {
		name := tools[(tool%len(tools)+len(tools))%len(tools)].name
		raw := s.run(t.Context(), name, args)
		if !json.Valid(raw) {
			t.Fatalf("run(%s, %q) = %q", name, args, raw)
		}
		var r result
		if err := json.Unmarshal(raw, &r); err != nil || len(r.Content) != 1 || r.Content[0].Type != "text" || r.Content[0].Text == "" && !r.IsError && name != "read_file" {
			t.Fatalf("Call(%s, %q) = %s", name, args, raw)
		}
		if strings.Contains(string(raw), "OUTSIDE-THE-ROOT") {
			t.Fatalf("Call(%s, %q) left the root: %s", name, args, raw)
		}
	})
}
