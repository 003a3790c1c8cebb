//go:build linux && !race

package results

import (
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/cputime"
)

// A long line is cut into passages in about the time of the same text in lines: no passage looks at all that follows it.
func TestRatioOfALongLine(t *testing.T) {
	const size, times, most = 2 << 20, 50, 5.
	cut := func(part string) func() {
		whole := strings.Repeat(part, size/len(part))
		return func() {
			for range times {
				for text := whole; text != ""; {
					text = text[len(passage(text)):]
				}
			}
		}
	}
	words := strings.Repeat("word ", 20)
	r := cputime.Ratio(3, cut(words), cut(words[1:]+"\n"))
	if r > most {
		t.Errorf("one long line takes %.1f times the time of short lines, want at most %.0f", r, most)
	}
	t.Logf("%.2f times", r)
}
