package bpe

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/foldgate/foldgate/test/corpus"
)

// streamed counts text in parts of random size.
func streamed(c *counter, rng *rand.Rand, text string) int {
	s := c.Stream()
	for rest := text; rest != ""; {
		n := min(1+rng.IntN(60), len(rest))
		s.Write(bytesOf(rest[:n]))
		rest = rest[n:]
	}
	s.Close()
	return s.Tokens()
}

// stretched returns adversarial text with runs that are long for a small stream.
func stretched(rng *rand.Rand) string {
	var b strings.Builder
	runs := [...][]string{
		{"A", "B", "É"}, {"A", "a"}, {"A", "中", "B"}, {"中", "文"}, {"A", "A", "A", "\u0301"}, {"a", "b", "中"}, {" ", "  "}, {" ", "\n", "\t"},
		{" ", "\r", "\u3000"}, {"!", "-", "\u0301"}, {"/", "\n", "\r"}, {"1", "2"}, {"\xff", "\xe4\xb8"}, {"'", "s"}, {"👩", "\u200d", "\ufe0f"},
	}
	for range 1 + rng.IntN(6) {
		b.WriteString(corpus.Alphabet[rng.IntN(len(corpus.Alphabet))])
		run := runs[rng.IntN(len(runs))]
		for range rng.IntN(150) {
			b.WriteString(run[rng.IntN(len(run))])
		}
		b.WriteString(corpus.Alphabet[rng.IntN(len(corpus.Alphabet))])
	}
	return b.String()
}

// TestStreamEqualsCount compares a stream, in large and in tiny buffers, with Count.
func TestStreamEqualsCount(t *testing.T) {
	for i, name := range testEncodings {
		rng := rand.New(rand.NewPCG(uint64(i), 5))
		whole := mustTokenizer(t, name)
		counters := []*counter{whole, smallCounter(t, name, windowSize, 64), smallCounter(t, name, 128, 32), smallCounter(t, name, 512, 256)}
		for range trials(2000) {
			text := stretched(rng)
			want := whole.Count(text)
			for _, c := range counters {
				if got := streamed(c, rng, text); got != want {
					t.Fatalf("%s: stream with window %d and buffer %d of %q = %d, Count = %d", name, c.window, c.buffer, text, got, want)
				}
			}
		}
	}
}

// TestStretchedEqualsOracle compares Count with tiktoken-go on the same kind of text.
func TestStretchedEqualsOracle(t *testing.T) {
	for i, name := range testEncodings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(i), 6))
			enc := oracle(t, name)
			for _, c := range []*counter{mustTokenizer(t, name), smallCounter(t, name, 128, 64)} {
				for range trials(1000) {
					check(t, c, enc, stretched(rng))
				}
			}
		})
	}
}

func TestLimitedCount(t *testing.T) {
	c := mustTokenizer(t, "o200k_base")
	for _, text := range []string{
		strings.Repeat("one line of text\n", 40_000), strings.Repeat("a", 1<<18), strings.Repeat("ab中", 1<<17), strings.Repeat(" ", 1<<18) + "x",
		strings.Repeat("\xff", 1<<18),
	} {
		total := c.Count(text)
		for _, limit := range []int{-1, 0, 1, 1000, total - 1, total, total + 1} {
			if got, want := c.Exceeds(text, limit), total > limit; got != want {
				t.Errorf("Exceeds(%d tokens, %d) = %v, want %v", total, limit, got, want)
			}
		}
		if tokens := c.count(bytesOf(text), 1000); utf8.ValidString(text) && total > 100_000 && tokens > total/2 {
			t.Errorf("counted %d of %d tokens to know that they are more than 1000", tokens, total)
		}
	}
}

func TestStreamClosed(t *testing.T) {
	s := mustTokenizer(t, "o200k_base").Stream()
	s.Write([]byte("hello wor"))
	s.Write([]byte("ld\xe4"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.Tokens(), mustTokenizer(t, "o200k_base").Count("hello world\xe4"); got != want {
		t.Errorf("Tokens() = %d, want %d", got, want)
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("Write after Close succeeded, want an error")
	}
}

func TestTruncate(t *testing.T) {
	for i, name := range testEncodings {
		rng := rand.New(rand.NewPCG(uint64(i), 8))
		plain := mustTokenizer(t, name)
		slack := 0
		for _, c := range []*counter{plain, smallCounter(t, name, 128, 64)} {
			for k := range trials(2000) {
				text := stretched(rng)
				if k%2 == 0 {
					text = corpus.Adversarial(rng, 60)
				}
				total := c.Count(text)
				n := rng.IntN(total + 2)
				kept, tokens := c.Truncate(text, n)
				switch {
				case !strings.HasPrefix(text, kept), tokens != c.Count(kept), tokens > max(n, 0):
					t.Fatalf("%s: Truncate(%q, %d) = %q, %d; Count(kept) = %d", c.Name(), text, n, kept, tokens, c.Count(kept))
				case total <= n && kept != text:
					t.Fatalf("%s: Truncate(%q, %d) = %q, want all of it", c.Name(), text, n, kept)
				case len(kept) < len(text) && utf8.ValidString(text) && !utf8.RuneStart(text[len(kept)]):
					t.Fatalf("%s: Truncate(%q, %d) = %q: cut inside a character", c.Name(), text, n, kept)
				}
				slack = max(slack, min(n, total)-tokens)
			}
		}
		if slack > 20 {
			t.Errorf("%s: a truncated text stayed %d tokens below the limit", name, slack)
		}
	}
}
