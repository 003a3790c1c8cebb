package proxy

import (
	"runtime"
	"testing"
)

// The guard on what a call costs from the HTTP endpoint to the connection to the upstream, in
// allocations: they are the same on every machine, times are not. The limits
// leave room for a few more than there are.
func TestGatewayAllocations(t *testing.T) {
	for _, c := range []struct {
		name           string
		modern, branch bool
		limit          float64
	}{{"legacy", false, false, 86}, {"modern", true, false, 118}, {"branch", false, true, 146}} {
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

// A large result is not copied into memory that is thrown away: counting,
// scrubbing, the trace and the reply each need it in another form. The race
// detector throws away a quarter of what a sync.Pool is given, hence the room.
func TestGatewayCopies(t *testing.T) {
	const size, calls = 64 << 10, 100
	call := costGateway(t, false, false, size, 1, 1)
	call()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		call()
	}
	runtime.ReadMemStats(&after)
	each := (after.TotalAlloc - before.TotalAlloc) / calls
	if each > 3*size {
		t.Errorf("a call with a result of %d bytes allocates %d, want less than three copies of it", size, each)
	}
	t.Logf("%d bytes a call", each)
}

// A call knows nothing of the upstreams that it does not go to.
func TestCallCostsTheSameWithManyUpstreams(t *testing.T) {
	one, many := allocations(costGateway(t, false, false, 100, 1, 50)), allocations(costGateway(t, false, false, 100, 30, 50))
	if many > one+5 {
		t.Errorf("a call allocates %.0f times with 30 upstreams, %.0f with one", many, one)
	}
}

func allocations(call func()) float64 {
	call() // caches fill
	return testing.AllocsPerRun(200, call)
}
