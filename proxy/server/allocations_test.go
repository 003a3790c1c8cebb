//go:build !race

package server

import "testing"

// The guard on allocations of the server itself; net/http adds about 28.
func TestAllocationsOfACall(t *testing.T) {
	const limit = 32 // some are the fake core's
	if got := testing.AllocsPerRun(500, costCall(t)); got > limit {
		t.Errorf("a simple call allocates %.0f times in the server, want at most %d", got, limit)
	} else {
		t.Logf("%.0f allocations per simple call", got)
	}
}
