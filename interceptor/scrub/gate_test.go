package scrub

import (
	"context"
	"strings"
	"testing"
)

// TestGateLosesNothing: wherever an expression matches, its gate lets it pass.
func TestGateLosesNothing(t *testing.T) {
	s := newScrubber(t, Options{})
	gates, matches, turned := 0, 0, 0
	for i, r := range s.engine.set.rules {
		sam := newSampler(uint64(i))
		for _, p := range s.engine.plans[i] {
			if p.gate == nil {
				continue
			}
			gates++
			for range 5 {
				text := sam.text(defaultTrees(s)[:1], 100) + sam.text(append(defaultTrees(s)[:1], r.tree, r.tree, r.tree), 600)
				m, o := gateAt(t, s, p, text)
				matches, turned = matches+m, turned+o
			}
		}
	}
	if gates < 100 || matches < 1000 || turned < 100000 {
		t.Errorf("%d gates, %d matches, %d places turned away: want more of each", gates, matches, turned)
	}
}

// gateAt tries the gate of p at every place of text, and returns how many
// matches there are and how many places it turned away.
func gateAt(t *testing.T, s *Scrubber, p *plan, text string) (matches, turned int) {
	t.Helper()
	j := s.begin(context.Background())
	defer j.end()
	c := cursor{plan: p, dfa: j.scratch.dfa(p), rest: j.scratch.dfa(p.gate.rest), pivot: -1}
	defer j.scratch.reset()
	for i := range len(text) {
		if inside(text, i) {
			continue
		}
		open, err := c.passes(text, i, &j.limit)
		if err != nil {
			t.Fatal(err)
		}
		end, err := c.dfa.end(text, i, &j.limit)
		switch {
		case err != nil:
			t.Fatal(err)
		case end >= 0 && !open:
			t.Fatalf("%s matches %q, but its gate is closed at %d of %q", p.tail, text[i:end], i, text)
		case end >= 0:
			matches++
		case !open:
			turned++
		}
	}
	return matches, turned
}

// TestGateWithoutLimit: what may be as long as it likes may be very long.
func TestGateWithoutLimit(t *testing.T) {
	s := newScrubber(t, Options{})
	long := strings.Repeat("aB3dE5gH7jK1mN2pQ4sT", 75_000)
	text := "token ey" + long + ".ey" + long + "." + long + " "
	hits := ours(t, s, text)
	if len(hits) != 1 || hits[0].rule != "jwt" || len(hits[0].secret) < 2*len(long) {
		t.Errorf("%d findings in a token of %d bytes, want it as one of rule jwt", len(hits), len(text))
	}
}
