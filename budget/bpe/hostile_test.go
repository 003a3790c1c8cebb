package bpe

import (
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/corpus"
	"github.com/foldgate/foldgate/test/cputime"
)

// A hostile input is made to be slow to count. The pattern of the name says how.
type hostile struct {
	name string
	unit func(l *corpus.Lexicon) string // repeated, each time anew
}

func repeat(s string) func(*corpus.Lexicon) string { return func(*corpus.Lexicon) string { return s } }

// runesFrom draws n of count code points from first on.
func runesFrom(l *corpus.Lexicon, first rune, count, n int) string {
	var b strings.Builder
	for range n {
		b.WriteRune(first + rune(l.Rand.IntN(count)))
	}
	return b.String()
}

var hostiles = []hostile{
	{"one letter", repeat("a")},
	{"one capital", repeat("A")},
	{"two letters", repeat("ab")},
	{"capital and small", repeat("aB")},
	{"spaces", repeat(" ")},
	{"spaces then a word", func(l *corpus.Lexicon) string { return strings.Repeat(" ", 1000) + "x" }},
	{"newlines", repeat("\n")},
	{"blanks and newlines", repeat(" \n")},
	{"newline then blanks", repeat("\n" + strings.Repeat(" ", 4000))},
	{"tabs", repeat("\t")},
	{"tabs and blanks", func(l *corpus.Lexicon) string { return " \t"[l.Rand.IntN(2):][:1] }},
	{"one digit", repeat("7")},
	{"random digits", func(l *corpus.Lexicon) string { return runesFrom(l, '0', 10, 100) }},
	{"one sign", repeat("=")},
	{"signs", repeat("-=")},
	{"slashes and newlines", repeat("/\n")},
	{"apostrophes", repeat("'s")},
	{"contractions", repeat("a's")},
	{"an accent now and then", repeat("abcdefghé")},
	{"slashes after line ends", repeat("a;\n/")},
	{"blank lines in blanks", repeat("a\n \n ")},
	{"random letters", func(l *corpus.Lexicon) string { return runesFrom(l, 'a', 26, 100) }},
	{"random capitals", func(l *corpus.Lexicon) string { return runesFrom(l, 'A', 26, 100) }},
	{"random ASCII", func(l *corpus.Lexicon) string { return runesFrom(l, 0, 128, 100) }},
	{"random signs", func(l *corpus.Lexicon) string { return runesFrom(l, '!', 15, 100) }},
	{"random Cyrillic", func(l *corpus.Lexicon) string { return runesFrom(l, 0x430, 32, 100) }},
	{"random Chinese", func(l *corpus.Lexicon) string { return runesFrom(l, 0x4e00, 20000, 100) }},
	{"random Hangul", func(l *corpus.Lexicon) string { return runesFrom(l, 0xac00, 11172, 100) }},
	{"random Hindi", func(l *corpus.Lexicon) string { return runesFrom(l, 0x900, 128, 100) }},
	{"random code points", func(l *corpus.Lexicon) string { return runesFrom(l, 0, 0x30000, 100) }},
	{"random bytes", func(l *corpus.Lexicon) string {
		b := make([]byte, 100)
		for i := range b {
			b[i] = byte(l.Rand.Uint32())
		}
		return string(b)
	}},
	{"bytes of no character", repeat("\xff")},
	{"cut characters", repeat("\xe4\xb8")},
	{"joined English", func(l *corpus.Lexicon) string { return strings.ToLower(l.Word("english")) }},
	{"joined words with capitals", func(l *corpus.Lexicon) string { return l.Word("english") }},
	{"joined Georgian", func(l *corpus.Lexicon) string { return l.Word("georgian") }},
	{"joined English and Hindi", func(l *corpus.Lexicon) string { return l.Word("english") + l.Word("devanagari") }},
	{"joined Russian", func(l *corpus.Lexicon) string { return strings.ToLower(l.Word("cyrillic")) }},
	{"joined Chinese", func(l *corpus.Lexicon) string { return l.Word("han") }},
	{"joined Hindi", func(l *corpus.Lexicon) string { return l.Word("devanagari") }},
	{"joined Thai", func(l *corpus.Lexicon) string { return l.Word("thai") }},
	{"Chinese then capitals", func(l *corpus.Lexicon) string { return l.Word("han") + strings.Repeat("A", 4000) }},
	{"scripts in turn", repeat("aбγ中あ한")},
	{"marks", repeat("a\u0301")},
	{"marks alone", repeat("\u0301")},
	{"marks and capitals", repeat("\u0301ABC")},
	{"emoji", repeat("👩‍👩‍👧‍👦")},
	{"emoji and joiners", repeat("😀\u200d")},
	{"base64", func(l *corpus.Lexicon) string {
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(l.Rand.Uint32())
		}
		return base64.StdEncoding.EncodeToString(b)
	}},
	{"hexadecimal", func(l *corpus.Lexicon) string {
		return strings.ToLower(runesFrom(l, 'A', 6, 3) + runesFrom(l, '0', 10, 5))
	}},
	{"Fibonacci word", func(*corpus.Lexicon) string {
		a, b := "a", "ab"
		for len(b) < 100_000 {
			a, b = b, b+a
		}
		return b
	}},
}

// text returns size bytes.
func (h hostile) text(size int) string {
	l := corpus.NewLexicon(11)
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(h.unit(l))
	}
	return b.String()[:size]
}

// TestHostileCounts compares with tiktoken-go on the start of each hostile input,
// as far as its quadratic time allows, through Count and through a small stream.
func TestHostileCounts(t *testing.T) {
	for _, name := range testEncodings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, enc := mustTokenizer(t, name), oracle(t, name)
			small := smallCounter(t, name, 128, 64)
			for _, h := range hostiles {
				text := h.text(5000)
				want := len(enc.EncodeOrdinary(text))
				if got := c.Count(text); got != want {
					t.Errorf("%s: Count = %d, want %d", h.name, got, want)
				}
				if got := streamed(small, rand.New(rand.NewPCG(1, 1)), text); got != want {
					t.Errorf("%s: small stream = %d, want %d", h.name, got, want)
				}
			}
		})
	}
}

// TestHostileTime holds that no megabyte takes as long as one that is counted in
// quadratic time: that would be thousands of times an ordinary one that is new to
// the counter, too. BenchmarkHostile tells the time.
func TestHostileTime(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes most of the time")
	}
	const most = 40.
	measure := func(c *counter, text string) time.Duration {
		start := cputime.Process()
		c.Count(text)
		return cputime.Process() - start
	}
	for _, name := range testEncodings[:2] {
		c, worst := mustTokenizer(t, name), 0.
		ordinary := time.Hour
		for seed := range uint64(3) {
			ordinary = min(ordinary, measure(c, corpus.MixedFrom(seed+1, 1<<20)))
		}
		for _, h := range hostiles {
			text, r := h.text(1<<20), most+1
			for try := 0; try < 3 && r > most; try++ {
				r = float64(measure(c, text)) / float64(ordinary)
			}
			if worst = max(worst, r); r > most {
				t.Errorf("%s: 1 MB of %s takes %.0f times the time of ordinary text, want at most %.0f", name, h.name, r, most)
			}
		}
		t.Logf("%s: the slowest takes %.1f times the time of ordinary text, %v", name, worst, ordinary)
	}
}
