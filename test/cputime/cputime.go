//go:build unix

// Package cputime measures processor time, for benchmarks and for tests that compare.
// Other programs on the machine disturb it less than the clock.
package cputime

import (
	"fmt"
	"syscall"
	"time"
)

// Process returns the processor time that this process has used, in the kernel too.
func Process() time.Duration { return used(syscall.RUSAGE_SELF) }

func used(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		panic(fmt.Sprintf("getrusage: %v", err)) // the arguments are constants
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
