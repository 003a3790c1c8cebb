//go:build unix

// Package cputime tells how much processor time something takes, for benchmarks
// and for tests that compare: it depends less than the clock on what else the
// machine does.
package cputime

import (
	"fmt"
	"syscall"
	"time"
)

// Process returns the processor time that this process has used, the kernel's
// on its behalf included.
func Process() time.Duration { return used(syscall.RUSAGE_SELF) }

func used(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		panic(fmt.Sprintf("getrusage: %v", err)) // the arguments are constants
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
