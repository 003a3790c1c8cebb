//go:build linux && !race

package scrub

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/cputime"
)

// The guard on the scrubber's speed: beside gitleaks, in one run, with room for
// a machine that is busy. test/bench/README.md has the figures.
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

// TestRatioOfManySecrets: a text with many secrets takes no more time than its
// parts.
func TestRatioOfManySecrets(t *testing.T) {
	const parts, most = 32, 2.
	s := newScrubber(t, Options{Timeout: time.Minute})
	body := func(n int) []byte {
		return []byte(`{"content":[{"type":"text","text":"` + strings.Repeat(github(50)+" ", n) + `"}]}`)
	}
	whole, part := body(parts*1500), body(1500)
	scrub := func(raw []byte, times int) func() {
		return func() {
			for range times {
				if _, found, err := s.JSON(context.Background(), raw); err != nil || len(found) == 0 {
					t.Fatal(len(found), err)
				}
			}
		}
	}
	r := cputime.Ratio(2, scrub(whole, 1), scrub(part, parts))
	if r > most {
		t.Errorf("%d secrets in one text take %.1f times the time of %d texts, want at most %.0f", parts*1500, r, parts, most)
	}
	t.Logf("%.1f times the time of its parts", r)
}
