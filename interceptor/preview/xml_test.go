package preview_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/preview"
)

// The items of XML are as many as the elements of their path, and fields of elements around or behind them are
// no fields of theirs. If several items stand in a line, the first and the last one are shown.
func TestItemsOfXML(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, end := range []string{"", "\n"} {
		for _, head := range []string{"", `<?xml version="1.0"?>`, "<!DOCTYPE a [<!ENTITY x \"y\">]>"} {
			for _, root := range []string{"rows", `testsuites tests="7"`, `a:b size="900"`} {
				for _, outer := range []string{"", `suite size="5000"`} {
					for _, item := range []string{"entry", "testcase", "title", "book"} {
						var b strings.Builder
						n, least, greatest, sum := 60+r.IntN(200), 1<<30, 0, 0
						open := func(tag string) { b.WriteString("<" + tag + ">" + end) }
						closing := func(tag string) {
							name, _, _ := strings.Cut(tag, " ")
							b.WriteString("</" + name + ">" + end)
						}
						b.WriteString(head + end)
						open(root)
						b.WriteString("<size>9999</size>" + end)
						if outer != "" {
							open(outer)
						}
						for i := range n {
							size := 1 + (i*7)%300
							least, greatest, sum = min(least, size), max(greatest, size), sum+size
							fmt.Fprintf(&b, "<%s itemId=\"i%d\">%s<size>%d</size><%s/><!-- <size>0</size> --><inner><size>77777</size></inner></%s>%s", item, i, end, size, []string{"id", "title"}[i%2], item, end)
							if outer != "" && i == n/2 {
								closing(outer)
								open(outer)
							}
						}
						if outer != "" {
							closing(outer)
						}
						b.WriteString("<size>88888</size>" + end)
						closing(root)
						p, _ := preview.Make(preview.Source{Text: b.String(), Tokens: 90_000, Handle: handle}, 800, quarter)
						noun := fmt.Sprintf(" %d %ss", n, strings.Replace(item, "entry", "entrie", 1))
						size := fmt.Sprintf("size: min %d max %d (i", least, greatest)
						if !strings.Contains(p.Text, noun) || !strings.Contains(p.Text, size) || !strings.Contains(p.Text, fmt.Sprintf(" sum %d", sum)) ||
							!strings.Contains(p.Text, item+" ×"+fmt.Sprint(n)) || end == "" && !strings.Contains(p.Text, fmt.Sprintf("%s[%d]: <%s itemId=", item, n-1, item)) {
							t.Errorf("%s %s in %s of %s lacks %q or %q, sum %d: %s", head, item, outer, root, noun, size, sum, p.Text)
						}
					}
				}
			}
		}
	}
}
