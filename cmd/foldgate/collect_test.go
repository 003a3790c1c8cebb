package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestCollectAt(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 8 << 20: 400, 16 << 20: 200, 32 << 20: 100, 1 << 30: 100} {
		if got := collectAt(live); got != want {
			t.Errorf("collectAt(%d) = %d, want %d", live, got, want)
		}
	}
}

// The pace follows the heap: wide while little is live, Go's own once much is.
func TestCollectLess(t *testing.T) {
	set := func() int { // reads by setting
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now
	}
	t.Setenv("GOMEMLIMIT", "")
	t.Setenv("GOGC", "")
	before := set()
	t.Setenv("GOMEMLIMIT", "1GiB")
	if collectLess(); set() != before {
		t.Errorf("GOGC is %d with a limit in the environment, want it left at %d", set(), before)
	}
	t.Setenv("GOMEMLIMIT", "")
	runtime.GC() // what the tests before left
	collectLess()
	if got := set(); got <= 100 {
		t.Errorf("GOGC is %d with a small heap, want more than 100", got)
	}
	much := make([][]byte, 0, 64)
	for range 64 {
		much = append(much, make([]byte, 1<<20))
	}
	for deadline := time.Now().Add(20 * time.Second); set() != 100; runtime.GC() { // cleanups run some time after it
		if time.Now().After(deadline) {
			t.Fatalf("GOGC is %d with 64 MB live, want 100", set())
		}
	}
	runtime.KeepAlive(much)
}
