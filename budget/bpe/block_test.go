package bpe

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/corpus"
)

// blockText returns random text of the characters that the patterns tell apart,
// in short runs, mostly ASCII.
func blockText(rng *rand.Rand) string {
	const ascii = "abcstmdrevl'''''ABSTLXYZ0123456789      \t\t\n\n\n\r\v\f///.,:;-_=(){}[]\"\x00\x1f\x7f"
	var b strings.Builder
	for b.Len() < 3*blockSize {
		part := ascii[rng.IntN(len(ascii)):][:1]
		if rng.IntN(60) == 0 {
			part = corpus.Alphabet[rng.IntN(len(corpus.Alphabet))]
		}
		b.WriteString(strings.Repeat(part, 1+rng.IntN(4)*rng.IntN(4)))
	}
	return strings.ToValidUTF8(b.String(), "")
}

// TestBlocks holds that blocks end pieces where the function for single pieces does.
func TestBlocks(t *testing.T) {
	fillClasses() // as the first count does
	for i, name := range testEncodings {
		c := mustTokenizer(t, name)
		rng := rand.New(rand.NewPCG(uint64(i), 10))
		for range trials(50_000) {
			text := blockText(rng)
			want := []int{}
			b := bytesOf(text + strings.Repeat(" ", blockSize))
			for i := 0; i < len(text); want = append(want, i) {
				i = c.pattern.next(b, i)
			}
			if got := ends(c, text); !slices.Equal(got[:len(want)], want) {
				t.Fatalf("%s: %q: pieces end at %v by blocks, at %v one by one", name, text, got, want)
			}
		}
	}
}
