//go:build linux && !race

package budget

import (
	"testing"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"

	"github.com/foldgate/foldgate/test/corpus"
	"github.com/foldgate/foldgate/test/cputime"
)

// The guards on the counter's speed: beside tiktoken-go, in one run, with room
// for a machine that is busy. test/bench/README.md has the figures.
func TestRatioToTiktoken(t *testing.T) {
	text := corpus.Mixed(256 << 10)
	for name, least := range map[string]float64{"o200k_base": 60, "cl100k_base": 40} {
		c := mustCounter(t, name)
		timesTiktoken(t, name, text, least, func() {
			for range 10 {
				c.Count(text)
			}
		}, 10)
	}
}

// The same for text that is drawn anew for each count.
func TestRatioToTiktokenUnseen(t *testing.T) {
	const size, texts = 256 << 10, 10
	for name, least := range map[string]float64{"o200k_base": 38, "cl100k_base": 21} {
		c := mustCounter(t, name)
		c.Count(corpus.MixedFrom(1<<40, 4<<20)) // as a gateway that has run for a while
		unseen := make([]string, 3*3*texts)
		for i := range unseen {
			unseen[i] = corpus.MixedFrom(uint64(i)<<20, size)[:size]
		}
		timesTiktoken(t, name, corpus.MixedFrom(1, size)[:size], least, func() {
			for _, text := range unseen[:texts] {
				c.Count(text)
			}
			unseen = unseen[texts:]
		}, texts)
	}
}

// timesTiktoken holds that counting n texts takes at least the given number of times less than
// tiktoken-go takes for n times the text.
func timesTiktoken(t *testing.T, name, text string, least float64, count func(), n float64) {
	t.Helper()
	enc, times := oracle(t, name), 0.
	for try := 0; try < 3 && times < least; try++ { // the machine may be busy
		times = max(times, n/cputime.Ratio(3, count, func() { enc.EncodeOrdinary(text) }))
	}
	if times < least {
		t.Errorf("%s: counting is %.0f times as fast as tiktoken-go, want at least %.0f", name, times, least)
	}
	t.Logf("%s: %.0f times as fast as tiktoken-go", name, times)
}

// oracle returns tiktoken-go for an encoding.
func oracle(t *testing.T, name string) *tiktoken.Tiktoken {
	t.Helper()
	tiktoken.SetBpeLoader(loader.NewOfflineLoader())
	enc, err := tiktoken.GetEncoding(name)
	if err != nil {
		t.Fatal(err)
	}
	return enc
}
