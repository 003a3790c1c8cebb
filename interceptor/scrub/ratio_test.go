//go:build linux && !race

package scrub

import (
	"context"
	"testing"

	"github.com/foldgate/foldgate/internal/cputime"
)

// The guard on the scrubber's speed: beside gitleaks, in one run, with room for
// a machine that is busy. docs/performance.md says how many times it is.
func TestRatioToGitleaks(t *testing.T) {
	const most = 1. / 20
	s, d, text := newScrubber(t, Options{}), reference(t), dense(64<<10)
	r := cputime.Ratio(5, func() {
		for range 30 {
			if _, _, err := s.Text(context.Background(), text); err != nil {
				t.Fatal(err)
			}
		}
	}, func() { d.DetectString(text) }) / 30
	if r > most {
		t.Errorf("scrubbing takes 1/%.0f of gitleaks' time, want at most 1/%.0f", 1/r, 1/most)
	}
	t.Logf("1/%.0f of gitleaks' time", 1/r)
}
