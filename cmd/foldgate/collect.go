package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// A gateway's live heap is small, a few megabytes, and its calls make little
// that lasts. Go's default, a collection whenever the heap has doubled, then
// means dozens of collections a second under load, for the sake of megabytes.
// collectLess trades spareHeap of memory for them: as much may gather before a
// collection, or as much as is live where that is more, which is the default.

// spareHeap is in bytes.
const spareHeap = 32 << 20

// collectLess sets the collector's pace after each collection, as long as the
// process lives. Where the environment sets a pace or a limit it does nothing.
func collectLess() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	(&pacer{}).collected()
}

// pacer knows the percentage that is set; nobody else in the process sets one.
type pacer struct{ percent int }

// collected is called once per collection: what it leaves behind for the next
// one to find is garbage already.
func (p *pacer) collected() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	want := collectAt(live[0].Value.Uint64())
	if d := want - p.percent; d > p.percent/8 || -d > p.percent/8 { // setting it stops the world, for microseconds
		p.percent = want
		debug.SetGCPercent(want)
	}
	runtime.AddCleanup(&sentinel{}, (*pacer).collected, p)
}

// sentinel has a pointer, because small objects without share one block and
// one life.
type sentinel struct{ _ *sentinel }

// collectAt returns the percentage, as in GOGC, for a heap of which so many
// bytes are live.
func collectAt(live uint64) int {
	const least, most = 100, 400
	return int(min(max(spareHeap*100/max(live, 1), least), most))
}
