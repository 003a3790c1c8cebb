package bpe

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go"

	"github.com/foldgate/foldgate/test/corpus"
)

// corpusBytes is the size of the differential corpus: 2 MB, or the number of
// megabytes in BUDGET_CORPUS_MB.
func corpusBytes() int {
	if mb, err := strconv.Atoi(os.Getenv("BUDGET_CORPUS_MB")); err == nil {
		return mb << 20
	}
	return trials(2 << 20)
}

// trials is n, or less where the race detector runs along.
func trials(n int) int {
	if raceEnabled {
		return n / 20
	}
	return n
}

// shrink returns a small part of text that is still counted differently.
func shrink(c *counter, enc *tiktoken.Tiktoken, text string) string {
	differs := func(s string) bool { return c.Count(s) != len(enc.EncodeOrdinary(s)) }
	for step := len(text) / 2; step > 0; step /= 2 {
		for i := 0; i+step <= len(text); {
			if shorter := text[:i] + text[i+step:]; differs(shorter) {
				text = shorter
			} else {
				i += step
			}
		}
	}
	return text
}

func check(t *testing.T, c *counter, enc *tiktoken.Tiktoken, text string) {
	t.Helper()
	got, want := c.Count(text), len(enc.EncodeOrdinary(text))
	if got != want {
		s := shrink(c, enc, text)
		t.Fatalf("%s: Count(%q) = %d, want %d", c.Name(), s, c.Count(s), len(enc.EncodeOrdinary(s)))
	}
}

// TestCorpus compares with tiktoken-go on every kind of text, 4 KB at a time.
func TestCorpus(t *testing.T) {
	const chunk = 4 << 10
	for _, name := range testEncodings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, enc := mustTokenizer(t, name), oracle(t, name)
			total := 0
			size := corpusBytes() / len(testEncodings) / len(corpus.Kinds)
			for seed, kind := range corpus.Kinds {
				text := kind.Text(uint64(seed), size)
				for len(text) > 0 {
					n := min(chunk, len(text))
					check(t, c, enc, text[:n])
					text = text[n:]
					total += n
				}
			}
			t.Logf("%d bytes in %d kinds of text, no difference", total, len(corpus.Kinds))
		})
	}
}

// TestCodePoints puts every code point in contexts where its class decides.
func TestCodePoints(t *testing.T) {
	step := func(rune) rune { return 1 }
	if os.Getenv("BUDGET_CORPUS_MB") == "" { // the ordinary test takes a part
		step = func(r rune) rune {
			switch {
			case raceEnabled:
				return 97
			case r < 0x800:
				return 1
			case r > 0x40000 && r < 0xe0000 || r > 0xe1000: // unassigned or for private use
				return 97
			}
			return 7
		}
	}
	for _, name := range testEncodings[:3] {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, enc := mustTokenizer(t, name), oracle(t, name)
			for r := rune(0); r <= utf8.MaxRune; {
				text := ""
				for range 8 {
					s := string(r)
					text += "a" + s + "B" + s + s + "c 1" + s + "2 " + s + "\n" + s + " " + s + "'s!" + s + "/\n AB" + s + "CD" + s + ".\n"
					r += step(r)
				}
				check(t, c, enc, text)
			}
		})
	}
}

func FuzzCount(f *testing.F) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		f.Add(corpus.Adversarial(rng, 60))
	}
	counters := map[*counter]*tiktoken.Tiktoken{}
	for _, name := range testEncodings {
		counters[mustTokenizer(f, name)] = oracle(f, name)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 {
			t.Skip("the oracle is quadratic")
		}
		for c, enc := range counters {
			check(t, c, enc, text)
		}
	})
}

// TestAdversarial compares on random texts from an alphabet that reaches every rule.
func TestAdversarial(t *testing.T) {
	for i, name := range testEncodings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, enc := mustTokenizer(t, name), oracle(t, name)
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			for range corpusBytes() >> 10 {
				check(t, c, enc, corpus.Adversarial(rng, 80))
			}
		})
	}
}

// TestJoined compares on words that are joined without blanks, in every case, some with accents,
// digits, marks and characters of other scripts between them.
func TestJoined(t *testing.T) {
	between := []string{"é", "ñ", "\u0301", "1", "42", "_", "'s", "中", "的", "я", " ", ".", "한", "\xe4"}
	for i, name := range testEncodings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, enc := mustTokenizer(t, name), oracle(t, name)
			l := corpus.NewLexicon(uint64(i))
			for range corpusBytes() >> 10 {
				var b strings.Builder
				scripts := []string{"english", "english", "latin", "cyrillic", "han", "devanagari"}[:1+l.Rand.IntN(6)]
				for range 1 + l.Rand.IntN(30) {
					w := l.Word(scripts[l.Rand.IntN(len(scripts))])
					switch l.Rand.IntN(6) {
					case 0:
						w = strings.ToUpper(w)
					case 1, 2:
						w = strings.ToLower(w)
					case 3, 4:
						first, n := utf8.DecodeRuneInString(w)
						w = strings.ToUpper(string(first)) + strings.ToLower(w[n:])
					}
					b.WriteString(w)
					if l.Rand.IntN(8) == 0 {
						b.WriteString(between[l.Rand.IntN(len(between))])
					}
				}
				check(t, c, enc, b.String())
			}
		})
	}
}
