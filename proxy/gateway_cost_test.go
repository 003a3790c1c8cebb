package proxy

import (
	"runtime"
	"testing"
)

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
