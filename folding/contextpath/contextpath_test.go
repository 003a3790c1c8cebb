package contextpath

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type vectors struct {
	ADR struct {
		PathOps []struct {
			Path, Root string
			Parent     *string
			Nested     bool
			Depth      int
		} `json:"path_ops"`
		Ancestor []struct {
			Ancestor, Descendant string
			Want                 bool
		}
		Messages []struct{ ID, Context string }
		Tree     []struct {
			Context string
			Want    []string
		}
		Children []struct {
			Context string
			Want    []string
		}
		Main, Roots []string
	}
	Validate []struct {
		In         json.RawMessage
		Want       string
		OK         bool
		Depth      int
		Err        string
		Deprecated []string
	} `json:"context_validate"`
}

func load(t *testing.T) (v vectors) {
	t.Helper()
	data, err := os.ReadFile("testdata/envelope.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.ADR.PathOps) == 0 || len(v.Validate) == 0 || len(v.ADR.Tree) == 0 {
		t.Fatal("vectors are empty")
	}
	return v
}

func TestVectorsPathOps(t *testing.T) {
	v := load(t)
	for _, c := range v.ADR.PathOps {
		p, err := Parse(c.Path)
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if c.Parent != nil {
			want = *c.Parent
		}
		if string(p.Root()) != c.Root || string(p.Parent()) != want || (p.Parent() != Main) != c.Nested || p.Depth() != c.Depth {
			t.Errorf("%s: root %q parent %q nested %v depth %d, want %+v", p, p.Root(), p.Parent(), p.Parent() != Main, p.Depth(), c)
		}
	}
	for _, c := range v.ADR.Ancestor {
		if got := Path(c.Ancestor).IsAncestor(Path(c.Descendant)); got != c.Want {
			t.Errorf("%q.IsAncestor(%q) = %v, want %v", c.Ancestor, c.Descendant, got, c.Want)
		}
	}
}

func TestVectorsFilters(t *testing.T) {
	v := load(t)
	pick := func(keep func(Path) bool) []string {
		ids := []string{}
		for _, m := range v.ADR.Messages {
			if keep(Path(m.Context)) {
				ids = append(ids, m.ID)
			}
		}
		return ids
	}
	for _, c := range v.ADR.Tree {
		got := pick(func(p Path) bool { return p.InTree(Path(c.Context)) })
		if d := cmp.Diff(c.Want, got); d != "" {
			t.Errorf("tree of %s: %s", c.Context, d)
		}
	}
	for _, c := range v.ADR.Children {
		got := pick(func(p Path) bool { return p.IsChild(Path(c.Context)) })
		if d := cmp.Diff(c.Want, got); d != "" {
			t.Errorf("children of %s: %s", c.Context, d)
		}
	}
	if d := cmp.Diff(v.ADR.Main, pick(func(p Path) bool { return p == Main })); d != "" {
		t.Errorf("main: %s", d)
	}
	if d := cmp.Diff(v.ADR.Roots, pick(func(p Path) bool { return p.Depth() == 1 })); d != "" {
		t.Errorf("roots: %s", d)
	}
}

// codeOf returns the code that the vectors have for an error, by its words.
func codeOf(err error) string {
	if err == nil {
		return ""
	}
	for words, code := range map[string]string{
		" is not allowed; use ASCII": "context_syntax", "segments joined by single slashes": "context_syntax", " levels; at most ": "context_too_deep",
		" bytes; at most ": "context_too_long", "send a string such as": "context_type", "a context object": "context_type",
		"operations are not supported": "context_operation_unsupported",
	} {
		if strings.Contains(err.Error(), words) {
			return code
		}
	}
	return err.Error()
}

func TestVectorsDecode(t *testing.T) {
	for _, c := range load(t).Validate {
		p, deprecated, err := Decode(c.In)
		switch {
		case !c.OK:
			if codeOf(err) != c.Err {
				t.Errorf("Decode(%s) = %v, want code %s", c.In, err, c.Err)
			}
			continue
		case err != nil:
			t.Errorf("Decode(%s): %v", c.In, err)
		case string(p) != c.Want:
			t.Errorf("Decode(%s) = %q, want %q", c.In, p, c.Want)
		case c.Depth != 0 && p.Depth() != c.Depth:
			t.Errorf("Decode(%s) has depth %d, want %d", c.In, p.Depth(), c.Depth)
		}
		if d := cmp.Diff(c.Deprecated, deprecated); d != "" {
			t.Errorf("Decode(%s) deprecated: %s", c.In, d)
		}
	}
}

func TestDecodeObjectFaults(t *testing.T) {
	for in, code := range map[string]string{
		`{}`:                              "context_type",
		`{"id":""}`:                       "context_type",
		`{"id":7}`:                        "context_type",
		`{"id":"a","parent":7}`:           "context_type",
		`{"id":"../a"}`:                   "context_syntax",
		`{"id":"a","parent":"b/"}`:        "context_syntax",
		`{"id":"e/f","parent":"a/b/c/d"}`: "context_too_deep",
		`true`:                            "context_type",
		`{`:                               "context_type",
	} {
		_, _, err := Decode(json.RawMessage(in))
		if codeOf(err) != code {
			t.Errorf("Decode(%s) = %v, want code %s", in, err, code)
		}
	}
}

func TestJoinStaysBelow(t *testing.T) {
	base := Path("br_1/br_2/br_3")
	for sub, want := range map[string]string{
		"": "br_1/br_2/br_3", "x": "br_1/br_2/br_3/x", "x/y": "br_1/br_2/br_3/x/y",
	} {
		if got, err := base.Join(sub); err != nil || string(got) != want {
			t.Errorf("Join(%q) = %q, %v, want %q", sub, got, err, want)
		}
	}
	for _, sub := range []string{"/br_9", "..", "../br_9", "x/", "x/y/z", "x y", strings.Repeat("a", 250)} {
		if got, err := base.Join(sub); err == nil {
			t.Errorf("Join(%q) = %q, want an error", sub, got)
		}
	}
	if got, err := Main.Join("own/sub"); err != nil || got != "own/sub" {
		t.Errorf("Main.Join = %q, %v", got, err)
	}
}

// A call's context may have the levels of a branch and those of its host, but no other form.
func TestValidateCall(t *testing.T) {
	segment := strings.Repeat("a", 50)
	for in, code := range map[string]string{
		"": "", "a": "", "b/b/b/b/b/h/h/h/h/h": "", "1/2/3/4/5/6/7/8/9/10/11": "context_too_deep", "a//b": "context_syntax", "a/b/c/d/e/f/": "context_syntax", "a/b/c/d/e/f.": "context_syntax",
		strings.Repeat(segment+"/", 9) + segment + "a": "", strings.Repeat("a", 512): "context_too_long",
	} {
		err := ValidateCall(in)
		if codeOf(err) != code {
			t.Errorf("ValidateCall(%.20q) = %v, want %q", in, err, code)
		}
	}
}

func TestParentAndLeaf(t *testing.T) {
	if p := Path("a/b/c").Parent(); p != "a/b" || p.Parent() != "a" {
		t.Errorf("the parents of a/b/c are %s and %s", p, p.Parent())
	}
	if Path("a").Parent() != Main || Main.Parent() != Main {
		t.Error("a root and main have no ancestors")
	}
	if Path("a/b").Leaf() != "b" || Path("a").Leaf() != "a" || Main.Leaf() != "" {
		t.Error("wrong leaf")
	}
	if Main.InTree(Main) || Path("a").InTree(Main) || Main.IsAncestor("a") {
		t.Error("main is the absence of a context, it has no tree")
	}
}

// FuzzParse: an accepted path is within the limits, equals its parts joined,
// and is in the tree of its root.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "a", "a/b", "a/b/c/d/e/f", "/", "a//b", "ä", "a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		if len(p) > maxBytes || p.Depth() > MaxDepth {
			t.Fatalf("Parse(%q) breaks a limit", s)
		}
		if p == Main {
			return
		}
		if q, err := p.Parent().Join(p.Leaf()); err != nil || q != p {
			t.Fatalf("%q: parent joined with leaf = %q, %v", p, q, err)
		}
		if !p.InTree(p.Root()) || p.Parent().Depth() != p.Depth()-1 {
			t.Fatalf("%q is not in its root's tree", p)
		}
	})
}
