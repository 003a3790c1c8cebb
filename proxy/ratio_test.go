//go:build linux && !race

package proxy

import (
	"encoding/json"
	"go/build"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/test/cputime"
)

// The guard on what five matching limits add to a call, with their counts in SQLite, over the whole
// process: a note in memory for each call, and an operation of the store now and then. It takes sums
// over many turns, because the least time of few calls would miss the store. The room is for a machine
// that is busy.
func TestRatioOfLimits(t *testing.T) {
	var five []limits.Limit
	for i, per := range []string{limits.PerPrincipal, limits.PerTeam, limits.PerTool, limits.PerServer, limits.PerAll} {
		l := limits.Limit{Name: per, Per: per, Tokens: 1e12, Calls: limits.Amount(1e12 * (i % 2))}
		if err := l.Window.UnmarshalText([]byte([]string{"1h", "1d", "1w", "1mo", "rolling 24h"}[i])); err != nil {
			t.Fatal(err)
		}
		five = append(five, l)
	}
	const turns, calls = 40, 250
	took := func(call func()) time.Duration {
		before := cputime.Process()
		for range calls {
			call()
		}
		return cputime.Process() - before
	}
	for _, size := range []int{100, 4 << 10} {
		without, with := costGateway(t, false, false, size, 1, 1), costGateway(t, false, false, size, 1, 1, five...)
		var sum [2]time.Duration
		for range turns {
			sum[0] += took(without)
			sum[1] += took(with)
		}
		r := float64(sum[1]) / float64(sum[0])
		if r > 1.25 {
			t.Errorf("a call takes %.2f times the processor time with five limits, want at most 1.25", r)
		}
		t.Logf("a call of %d B takes %v, with five limits %v: %.3f times", size, sum[0]/turns/calls, sum[1]/turns/calls, r)
	}
}

// The guard on what a branch adds to a call: it is looked up, its arguments and results are charged and
// stored. The room is for a machine that is busy; one that changes its speed meanwhile is measured again.
func TestRatioOfABranch(t *testing.T) {
	main, branch := costGateway(t, false, false, 4<<10, 1, 1), costGateway(t, false, true, 4<<10, 1, 1)
	times := func(call func()) func() {
		return func() {
			for range 400 {
				call()
			}
		}
	}
	const most, tries = 1.25, 3
	r := math.Inf(1)
	for try := 0; r > most && try < tries; try++ {
		r = cputime.Ratio(15, times(branch), times(main))
		t.Logf("a call in a branch takes %.2f times the processor time of one in main", r)
	}
	if r > most {
		t.Errorf("a call in a branch takes %.2f times the processor time of one in main, want at most %.2f", r, most)
	}
}

// The guard on what a whole call costs: beside one plain copy of its answer by
// encoding/json, in one run, with room for a machine that is busy.
func TestRatioToCopy(t *testing.T) {
	for _, c := range []struct {
		name        string
		size, times int
		most        float64
	}{{"4 KB", 4 << 10, 400, 10}, {"1 MB", 1 << 20, 3, 4}} {
		if slices.Contains(build.Default.ToolTags, "goexperiment.jsonv2") { // of Go 1.27: the copy takes a third of the time
			c.most *= 3.5
		}
		call := costGateway(t, false, false, c.size, 1, 1)
		call() // caches fill
		answer := []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":` + string(rawjson.Quote(costText(c.size))) + `}]}}`)
		r := cputime.Ratio(7, func() {
			for range c.times {
				call()
			}
		}, func() {
			for range c.times {
				var v any
				if err := json.Unmarshal(answer, &v); err != nil {
					t.Fatal(err)
				}
				if _, err := json.Marshal(v); err != nil {
					t.Fatal(err)
				}
			}
		})
		if r > c.most {
			t.Errorf("%s: a call takes %.2f times a plain JSON copy of its answer, want at most %.1f", c.name, r, c.most)
		}
		t.Logf("%s: %.2f times a plain JSON copy", c.name, r)
	}
}
