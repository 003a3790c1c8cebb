package preview_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/test/previewtest"
)

// A text has the same preview whatever its handle costs, and no handle takes it over its budget.
func TestTheHandleDecidesNothing(t *testing.T) {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	r := rand.New(rand.NewPCG(1, 2))
	for _, encoding := range []string{"o200k_base", "cl100k_base"} {
		counter, err := budget.NewCounter(encoding)
		if err != nil {
			t.Fatal(err)
		}
		handles := []string{"res_" + strings.Repeat("0", 26), "res_" + strings.Repeat("a", 26), "res_" + strings.Repeat("x7", 13), "res_" + strings.Repeat("7z", 13)}
		for range 300 {
			h := []byte("res_")
			for range 26 {
				h = append(h, alphabet[r.IntN(len(alphabet))])
			}
			handles = append(handles, string(h))
		}
		slices.SortFunc(handles, func(a, b string) int { return counter.Count(a) - counter.Count(b) })
		low, high := counter.Count(handles[0]), counter.Count(handles[len(handles)-1])
		if high-low < 5 {
			t.Errorf("%s: all handles have %d to %d tokens, want different numbers", encoding, low, high)
		}
		few := []string{handles[0], handles[len(handles)/2], handles[len(handles)-1]}
		for _, f := range previewtest.Fixtures() {
			for _, most := range []int{36, 44, 120, 400} {
				var first string
				for i, h := range few {
					p, ok := preview.Make(preview.Source{Text: f.Text, Tokens: counter.Count(f.Text), Handle: h}, most, counter.Count)
					if n := counter.Count(p.Text); n > most {
						t.Errorf("%s of %s: %d tokens with %s, want at most %d", encoding, f.Name, n, h, most)
					}
					shown := strings.ReplaceAll(p.Text, h, "")
					if i == 0 {
						first = shown
					}
					if shown != first || ok != (first != "") {
						t.Errorf("%s of %s in %d tokens: with %s (%d tokens) it is\n%s\nand with %s (%d tokens)\n%s", encoding, f.Name, most, few[0], counter.Count(few[0]), first, h, counter.Count(h), shown)
						break
					}
				}
			}
		}
	}
}
