//go:build !race

package proxy

import (
	"runtime"
	"testing"
)

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
	}{{"legacy", false, false, 68}, {"modern", true, false, 104}, {"branch", false, true, 78}} {
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

// A list of tools that the gateway has is not made again: 61 servers with 17 tools each cost what one with
// as many costs, and a further session makes no copy of it. The room for bytes is for pools that the
// collector empties.
func TestAllocationsOfAList(t *testing.T) {
	const request = `"x":0`
	for _, modern := range []bool{false, true} {
		list := func(servers, tools int) (*costHost, func(), int) {
			h := newCostHost(t, modern, 0, servers, tools)
			size := h.once("tools/list", request).Body.Len()
			return h, h.caller("tools/list", request, size-100), size
		}
		_, one, _ := list(1, 61*17)
		h, many, size := list(61, 17)
		few, n := allocations(one), allocations(many)
		if n > few+12 {
			t.Errorf("modern: %v: a list of 61 servers takes %.0f allocations, of one server %.0f", modern, n, few)
		}
		const times = 50
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			h.connect() // of a legacy host
			h.caller("tools/list", request, size-100)()
		}
		runtime.ReadMemStats(&after)
		each := int(after.TotalAlloc-before.TotalAlloc) / times
		if each > size/2 {
			t.Errorf("modern: %v: a session that reads a list of %d bytes allocates %d", modern, size, each)
		}
		t.Logf("modern: %v: %.0f allocations, with one server %.0f; a session and its list of %d bytes allocate %d", modern, n, few, size, each)
	}
}

func allocations(call func()) float64 {
	call() // caches fill
	least := testing.AllocsPerRun(50, call)
	for range 19 { // work in the background only adds
		least = min(least, testing.AllocsPerRun(50, call))
	}
	return least
}
