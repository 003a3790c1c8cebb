//go:build !race

package proxy

import "testing"

// The guard on what a call costs from the HTTP endpoint to the connection to the upstream, in
// allocations: they are the same on every machine, times are not. The limits leave room for a few more
// than there are. The text of 4 KB costs eleven more than that of 100 B: the scrubber takes its last line, which
// is cut, for a row of a table, and tries the line above that as its header and as its title. The race detector
// would add some and empty the pools at random.
func TestAllocationsOfACall(t *testing.T) {
	for _, c := range []struct {
		name           string
		modern, branch bool
		limit          float64
	}{{"legacy", false, false, 86}, {"modern", true, false, 114}, {"branch", false, true, 131}} {
		t.Run(c.name, func(t *testing.T) {
			small := allocations(costGateway(t, c.modern, c.branch, 100, 1, 1))
			large := allocations(costGateway(t, c.modern, c.branch, 4096, 1, 1))
			if small > c.limit || large > c.limit {
				t.Errorf("a call allocates %.0f times with a result of 100 B, %.0f with 4 KB; want at most %.0f", small, large, c.limit)
			}
			t.Logf("allocations: %.0f with 100 B, %.0f with 4 KB", small, large)
		})
	}
}

// A call knows nothing of the upstreams that it does not go to.
func TestAllocationsWithManyUpstreams(t *testing.T) {
	one, many := allocations(costGateway(t, false, false, 100, 1, 50)), allocations(costGateway(t, false, false, 100, 30, 50))
	if many > one+1 {
		t.Errorf("a call allocates %.0f times with 30 upstreams, %.0f with one", many, one)
	}
}

func allocations(call func()) float64 {
	call() // caches fill
	least := testing.AllocsPerRun(200, call)
	for range 2 { // work in the background only adds
		least = min(least, testing.AllocsPerRun(200, call))
	}
	return least
}
