package bpe

import (
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/foldgate/foldgate/test/corpus"
)

// TestValid compares valid with utf8.Valid: on all starts of characters at each place, and on text
// with a few wrong bytes.
func TestValid(t *testing.T) {
	check := func(b []byte) {
		if got, want := valid(b), utf8.Valid(b); got != want {
			t.Fatalf("valid(%q) = %v, want %v", b, got, want)
		}
	}
	for lead := 0x80; lead < 0x100; lead++ {
		for second := range 0x100 {
			for place := range 9 {
				for _, end := range []string{"", "\x80", "\xbf", "\x80\x80", "\x80x", "x\x80", "\x80\x80\x80", "я", "中"} {
					b := append([]byte("яx中яяяяя")[:place], byte(lead), byte(second))
					check(append(append(b, end...), "aaaaaaaaa"...))
				}
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range trials(200_000) {
		b := []byte(corpus.Adversarial(rng, 6))
		check(b)
		if b = []byte(string([]rune(string(b)))); len(b) > 0 { // valid, but for one byte
			b[rng.IntN(len(b))] = byte(rng.Uint32())
			check(b)
		}
	}
}
