package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The live heap of a gateway is a few megabytes, and calls leave little behind. By default Go
// collects whenever the heap has doubled: dozens of collections a second under load, to save
// megabytes. paceCollector lets spareHeap of garbage gather before a collection, or as much as is
// live if that is more, which is Go's default.

// spareHeap is in bytes.
const spareHeap = 32 << 20

// paceCollector sets the collector's pace after each collection, for the life of the process. If
// the environment sets a pace or a limit, it does nothing.
func paceCollector() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	(&pacer{}).collected()
}

// pacer remembers the percentage that it set.
type pacer struct{ percent int }

// collected runs after each collection: its sentinel is garbage for the next one.
func (p *pacer) collected() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	want := gcPercent(live[0].Value.Uint64())
	if d := want - p.percent; d > p.percent/8 || -d > p.percent/8 { // a change stops the world for microseconds
		p.percent = want
		debug.SetGCPercent(want)
	}
	runtime.AddCleanup(&sentinel{}, (*pacer).collected, p)
}

// sentinel has a pointer: small objects without one share a block and its lifetime.
type sentinel struct{ _ *sentinel }

// gcPercent returns GOGC for a heap with that many live bytes.
func gcPercent(live uint64) int {
	const least, most = 100, 400
	return int(min(max(spareHeap*100/max(live, 1), least), most))
}
