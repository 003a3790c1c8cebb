package cputime

import (
	"math"
	"runtime"
	"syscall"
	"time"
)

// Ratio returns the processor time of a, divided by that of b. It runs them in turns
// on one thread, and takes the least time of each in all rounds, so a disturbed round
// does not count. a and b must take some milliseconds, since kernels count in steps of
// up to four.
func Ratio(rounds int, a, b func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for range rounds {
		for i, f := range [2]func(){a, b} {
			start := used(syscall.RUSAGE_THREAD)
			f()
			least[i] = min(least[i], used(syscall.RUSAGE_THREAD)-start)
		}
	}
	return float64(least[0]) / float64(least[1])
}
