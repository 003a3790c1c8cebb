package regexset

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLiterals compares the places of literals with those that a naive search
// finds, in texts over a small alphabet.
func TestLiterals(t *testing.T) {
	literals := []string{"ab", "abc", "bca", "a-", "-a@", "cabab", "aaaaaaaa", "@`[", "aaaaaaaaaaab", "cabcabc"}
	m := NewLiterals(literals)
	rnd := rand.New(rand.NewPCG(1, 2))
	const alphabet = "abcABC-@`[\x00\r"
	for round := range 6000 {
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = alphabet[rnd.IntN(len(alphabet))]
		}
		text := string(b)
		if round%100 == 0 { // over the end of a block
			text = strings.Repeat("\x00", blockSize-rnd.IntN(40)) + text
		}
		got := make([][]int, len(literals))
		var found []literalHit
		for at := 0; at < len(text); {
			at, found = m.block(text, at, found)
		}
		for i, f := range found {
			if i > 0 && f.at < found[i-1].at {
				t.Fatalf("place %d in %q comes after %d", f.at, text, found[i-1].at)
			}
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

// TestLiteralsAtTheEndOfABlock: a literal is found wherever it begins, and wherever its window is in it.
func TestLiteralsAtTheEndOfABlock(t *testing.T) {
	for offset := range maxOffset + 1 {
		literal := strings.Repeat("e", offset) + "zqx"
		m := NewLiterals([]string{literal})
		if got := int(m.entries[0].offset); got != offset {
			t.Fatalf("the window of %q is at %d", literal, got)
		}
		for at := blockSize - 20; at < blockSize+20; at++ {
			text := strings.Repeat(" ", at) + literal + "."
			var found []literalHit
			for end := 0; end < len(text); {
				var more []literalHit
				end, more = m.block(text, end, nil)
				found = append(found, more...)
			}
			if len(found) != 1 || int(found[0].at) != at {
				t.Errorf("%q at byte %d: found %v", literal, at, found)
			}
		}
	}
}

// TestLiteralsWithZeros: the end of a text is no literal's byte 0.
func TestLiteralsWithZeros(t *testing.T) {
	m := NewLiterals([]string{"ab\x00", "c\x00"})
	for text, want := range map[string]bool{"ab": false, "xxab": false, "c": false, "xc": false, "ab\x00": true, "xc\x00y": true} {
		if got := m.Contains(text); got != want {
			t.Errorf("%q contains one: %t", text, got)
		}
	}
}
