package preview_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/preview"
)

// Keys are those of mappings that are in no list, items those of lists that are in no other, and neither is what
// a text in a value looks like.
func TestKeysAndItemsOfYAML(t *testing.T) {
	item := "id: %d\n  name: n%d # the name: of it\n  size: 5\n"
	rows := func(form string) string {
		var b strings.Builder
		for i := range 40 {
			fmt.Fprintf(&b, form, i, i)
		}
		return b.String()
	}
	for name, k := range map[string]struct {
		text   string
		says   []string
		denies string
	}{
		"a list":            {rows("- " + item), []string{"lines, 40 items]", "id: min 0 max 39", "all 40 have size 5"}, "key"},
		"an alone dash":     {rows("-\n  " + item), []string{"lines, 40 items]", "id: min 0 max 39", "all 40 have size 5"}, "key"},
		"a list of a key":   {"all:\n" + rows("- "+item), []string{"1 top key, 40 items in all]", "all 40 have size 5"}, "keys in"},
		"two lists":         {"a:\n" + rows("- "+item) + "b:\n" + rows("- "+item), []string{"2 top keys, 80 items]", "list: a ×40, b ×40"}, "keys in"},
		"a key behind":      {"a:\n" + rows("- "+item) + "b:\n  size: 7\n  id: 900\n", []string{"2 top keys, 40 items in a]", "keys in b 2", "id: min 0 max 39", "all 40 have size 5"}, "900 sum"},
		"lists in items":    {rows("- " + item + "  tags:\n  - size: 8\n  - b\n  - - c\n"), []string{"lines, 40 items]", "all 40 have size 5"}, "key"},
		"mappings in items": {rows("- " + item + "  more:\n    size: 9\n    x:\n      size: 10\n"), []string{"lines, 40 items]", "all 40 have size 5, more.size 9, more.x.size 10"}, "key"},
		"texts":             {rows("- " + item + "  about: |-\n    size: 9\n    - id: 77\n  note: >+2\n    id: 99\n  q: \"a\n    b: c\"\n  p: plain and\n    more\n"), []string{"lines, 40 items]", "id: min 0 max 39", "all 40 have size 5"}, "77"},
		"a text as item":    {"a:\n" + rows("- |\n  id: %d\n  name: %d\n"), []string{"1 top key, 40 items in a]"}, "name"},
		"scalars":           {"a:\n  b:\n" + rows("  - 4%d%d\n") + "c:\n" + rows("  k%d: %d\n"), []string{"2 top keys, 40 items in a.b]", "value: min 400 max 43939", "keys in c 40"}, "k1: min"},
		"a map":             {"%YAML 1.2\n---\n" + rows("key%d:\n  n: %d\n  size: 5\n"), []string{"40 entries]", "n: min 0 max 39", "all 40 have size 5"}, "top key"},
		"two documents":     {"---\na: 1\nb:\n  c: 2\n  d: 1\n---\na: 1\nb:\n  c: 2\n", []string{"2 documents]"}, "key"},
		"mappings":          {"a:\n  b: 1\n  c:\n    d: 1\n    e: 2\n    f: 3\ng: 1\n", []string{"2 top keys]", "keys in a 2, a.c 3"}, "item"},
	} {
		p, _ := preview.Make(preview.Source{Text: k.text, Tokens: 1e6, Handle: handle}, 400, quarter)
		text := strings.Replace(p.Text, ". Read more", "]", 1)
		for _, says := range k.says {
			if p.Kind != preview.YAML || !strings.Contains(text, says) {
				t.Errorf("%s: %s without %q:\n%s", name, p.Kind, says, text)
			}
		}
		for l := range strings.SplitSeq(text, "\n") {
			if number, _, _ := strings.Cut(l, ":"); strings.Trim(number, "0123456789") != "" && strings.Contains(l, k.denies) {
				t.Errorf("%s: %q in %s:\n%s", name, k.denies, l, text)
			}
		}
	}
}
