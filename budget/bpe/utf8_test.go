package bpe

import (
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/foldgate/foldgate/test/corpus"
)

// TestValid compares with utf8.Valid on every sequence of up to three bytes, on
// four bytes around every bound, and on random ones, followed by other text.
func TestValid(t *testing.T) {
	same := func(b []byte) {
		if got, want := valid(b), utf8.Valid(b); got != want {
			t.Fatalf("valid(%q) = %v, want %v", b, got, want)
		}
	}
	text := []byte("....after it")
	bounds := []byte{0, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0, 0xed, 0xf0, 0xf4, 0xff}
	for i := range 1 << 16 {
		text[0], text[1] = byte(i>>8), byte(i)
		for _, text[2] = range bounds {
			for _, text[3] = range bounds {
				same(text)
				same(text[:2])
				same(text[:4])
			}
		}
	}
	rng := rand.New(rand.NewPCG(4, 4))
	for range trials(50_000) {
		b := []byte(corpus.Adversarial(rng, 12))
		same(b)
		if len(b) > 0 {
			b[rng.IntN(len(b))] = byte(rng.Uint32())
			same(b)
		}
	}
}
