package regexset

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLiterals compares the places of literals with those that a naive search
// finds, in short texts over a small alphabet.
func TestLiterals(t *testing.T) {
	literals := []string{"ab", "abc", "bca", "a-", "-a@", "cabab", "aaaaaaaa", "@`["}
	m := NewLiterals(literals)
	rnd := rand.New(rand.NewPCG(1, 2))
	const alphabet = "abcABC-@`[\x00\r"
	for range 6000 {
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = alphabet[rnd.IntN(len(alphabet))]
		}
		text := string(b)
		got := make([][]int, len(literals))
		var found []literalHit
		for at := 0; at < len(text); {
			at, found = m.block(text, at, found)
		}
		for _, f := range found {
			got[f.literal] = append(got[f.literal], int(f.at))
		}
		want := make([][]int, len(literals))
		for l, lit := range literals {
			for i := 0; i+len(lit) <= len(text); i++ {
				if strings.ToLower(text[i:i+len(lit)]) == lit {
					want[l] = append(want[l], i)
				}
			}
			if !slices.IsSorted(got[l]) {
				t.Fatalf("places of %q in %q are not in order: %v", lit, text, got[l])
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("places in %q differ (-want +got):\n%s", text, d)
		}
	}
}
