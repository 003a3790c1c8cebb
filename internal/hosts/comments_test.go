package hosts

import (
	"path/filepath"
	"strings"
	"testing"
)

// After a change elsewhere in the file, disconnect brings the servers back byte for byte, with their comments,
// also if import took some out.
func TestDisconnectKeepsComments(t *testing.T) {
	dir := home(t)
	h := known(t, "opencode")
	const a, b = `"a": {"type": "local", "command": ["a"]}`, `"b": {"type": "local", "command": ["b"]}`
	for _, text := range []string{
		"{\n  \"mcp\": {\n    A // behind\n  }\n}\n",
		"{\n  \"mcp\": {\n    A, // behind\n  }\n}\n",
		"{\n  \"mcp\": {\n    A\n    // below\n  }\n}\n",
		"{\n  \"mcp\": {\n    A /* x */\n  }\n}\n",
		"{\n  \"mcp\": {\n    A, /* x */ // y\n    // z\n  }\n}\n",
		"{\n  \"mcp\": {\n    A // x\n  , // y\n  }\n}\n",
		"{\n  \"mcp\": {\n    // one\n    A, // behind a\n    // two\n    B // behind b\n    // below\n  } // table\n}\n",
		"{\n  \"mcp\": {\n    B /* x */,\n\n    A // behind\n  },\n  \"other\": 1 // last\n}\n",
		"{\"mcp\": {A /* x */}}\n",
		"{\"mcp\": {A, /* x */}}\n",
		"{\"mcp\": {A /* x // */}}\n",
		"{\n  \"mcp\": {\n    // only\n  }\n}\n",
		"{\n  \"mcp\": {} // only\n}\n",
		"{\n  \"other\": 1, // only\n  // more\n}\n",
	} {
		text = strings.NewReplacer("A", a, "B", b).Replace(text)
		for _, moved := range [][]Imported{nil, {{Key: "a", Entry: entry{"mcp", "a"}}}, {{Key: "a", Entry: entry{"mcp", "a"}}, {Key: "b", Entry: entry{"mcp", "b"}}}} {
			if len(moved) > 0 && !strings.Contains(text, a) || len(moved) > 1 && !strings.Contains(text, b) {
				continue
			}
			f := filepath.Join(dir, "opencode.json")
			write(t, f, text)
			c, err := h.Connect(f, Server{Command: []string{"foldgate", "run"}}, moved)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Write(); err != nil {
				t.Fatal(err)
			}
			write(t, f, append(c.After, "// new\n"...))
			d, err := h.Disconnect(f)
			if err != nil {
				t.Fatal(err)
			}
			if string(d.After) != text+"// new\n" {
				t.Errorf("%d servers were moved: the file was\n%sconnected it was\n%sdisconnected it is\n%s", len(moved), text, c.After, d.After)
			}
			if err := d.Write(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A file may end with a comment without a newline: connect and disconnect take it, and change no byte of it.
func TestCommentAtEnd(t *testing.T) {
	dir := home(t)
	h := known(t, "opencode")
	for _, text := range []string{"{\"mcp\": {}} // end", "{\n  \"mcp\": {}\n}\n// end", "\ufeff{\r\n  \"a\": 1,\r\n}\r\n// end", "{} /* x */ //"} {
		f := filepath.Join(dir, "opencode.json")
		write(t, f, text)
		c, err := h.Connect(f, Server{Command: []string{"foldgate", "run"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, end, _ := strings.Cut(text, "}")
		end = end[strings.LastIndexByte(end, '/')-1:]
		if d, err := c.Diff(func(string) bool { return false }); err != nil || !strings.HasSuffix(string(c.After), end) || !strings.Contains(d, Entry) {
			t.Errorf("%v: %q became %q:\n%s", err, text, c.After, d)
		}
		changed := append([]byte{}, c.After...)
		if err := c.Write(); err != nil {
			t.Fatal(err)
		}
		write(t, f, append(changed, "ed"...))
		d, err := h.Disconnect(f)
		if err != nil || string(d.After) != text+"ed" {
			t.Fatalf("%v: %q became %q", err, text, d.After)
		}
		if err := d.Write(); err != nil {
			t.Fatal(err)
		}
	}
}
