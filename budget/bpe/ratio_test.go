//go:build linux && !race

package bpe

import (
	"math/rand/v2"
	"testing"

	"github.com/foldgate/foldgate/test/cputime"
)

// A long run costs the same whether or not its pieces depend on what follows it: a line end before
// blanks, a letter without case before capitals. A run that arrives in parts took twice the time,
// because it was counted both ways.
func TestRatioOfRunsThatMayEnd(t *testing.T) {
	const size, most = 512 << 10, 1.6
	c := mustTokenizer(t, "o200k_base")
	small := smallCounter(t, "o200k_base", 128, 64)
	run := func(set string, size int) string {
		chars, rng, text := []rune(set), rand.New(rand.NewPCG(1, 2)), []rune{}
		for n := 0; n < size; n += len(string(text[len(text)-1])) {
			text = append(text, chars[rng.IntN(len(chars))])
		}
		return string(text)
	}
	stream := func(text string) func() {
		return func() {
			s := c.Stream()
			s.Write(bytesOf(text))
			s.Close()
		}
	}
	for _, class := range []struct {
		starts, runs, ends []string
	}{
		{[]string{"\n", "\r\n", "x\n", " \r"}, []string{" ", "\t", "\u00a0", "\u3000", "\v", " \t", "       \t", " \t\u00a0\u3000"}, []string{"x", "", "\nx", "\xff"}},
		{[]string{"中", "\u0301", "A\u0301"}, []string{"A", "AB", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "АБВГДЕЖЗ"}, []string{"x", "", " ", "'s", "中"}},
	} {
		for i, fill := range class.runs {
			alone := run(fill, size)
			for j, start := range class.starts {
				for _, end := range class.ends {
					text := start + run(fill, 3000) + end
					if want, got := c.Count(text), streamed(small, rand.New(rand.NewPCG(1, 1)), text); got != want {
						t.Errorf("%q, %q, %q: a small stream counts %d, want %d", start, fill, end, got, want)
					}
				}
				if j != i%len(class.starts) {
					continue
				}
				r := 9.
				for try := 0; try < 3 && r > most; try++ { // the machine may be busy
					r = min(r, cputime.Ratio(3, stream(start+alone+"x"), stream(alone+"x")))
				}
				if r > most {
					t.Errorf("%q before a run of %q: %.1f times the time of the run, want at most %.1f", start, fill, r, most)
				}
			}
		}
	}
}
