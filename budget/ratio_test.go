//go:build linux && !race

package budget

import (
	"testing"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"

	"github.com/foldgate/foldgate/test/corpus"
	"github.com/foldgate/foldgate/test/cputime"
)

// The guard on the counter's speed: beside tiktoken-go, in one run, with room
// for a machine that is busy. test/bench/README.md has the figures.
func TestRatioToTiktoken(t *testing.T) {
	text := corpus.Mixed(256 << 10)
	for name, most := range map[string]float64{"o200k_base": 1. / 15, "cl100k_base": 1. / 12} {
		c, enc := mustCounter(t, name), oracle(t, name)
		r := cputime.Ratio(3, func() {
			for range 10 {
				c.Count(text)
			}
		}, func() { enc.EncodeOrdinary(text) }) / 10
		if r > most {
			t.Errorf("%s: counting takes 1/%.0f of tiktoken-go's time, want at most 1/%.0f", name, 1/r, 1/most)
		}
		t.Logf("%s: 1/%.0f of tiktoken-go's time", name, 1/r)
	}
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
