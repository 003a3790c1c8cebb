//go:build linux

// Package allocprobe lets a benchmark ask a Go process how much it has allocated.
// The processes of the benchmark import it; foldgate itself does not: the
// benchmark adds the import to the foldgate that it builds.
package allocprobe

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// Dir is the variable of the environment that names the directory for answers.
// Without it the package does nothing.
const Dir = "FOLDGATE_BENCH_PROBE"

// A Reading holds the allocations of a process since its start.
type Reading struct {
	Count  uint64 // of readings before this one
	Allocs uint64
	Bytes  uint64
}

func init() {
	if dir := os.Getenv(Dir); dir != "" {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGUSR1)
		go answer(File(dir, os.Getpid()), asked)
	}
}

// File is where process pid writes its last reading.
func File(dir string, pid int) string { return filepath.Join(dir, strconv.Itoa(pid)) }

// answer writes a reading now, as a sign that it listens, and one for each signal.
func answer(file string, asked <-chan os.Signal) {
	for n := uint64(0); ; n++ {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if write(file, Reading{n, m.Mallocs, m.TotalAlloc}) != nil {
			return // the benchmark is over
		}
		<-asked
	}
}

func write(file string, r Reading) error {
	next := file + ".next"
	if err := os.WriteFile(next, fmt.Appendln(nil, r.Count, r.Allocs, r.Bytes), 0o600); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// Last returns the last reading in file.
func Last(file string) (r Reading, err error) {
	raw, err := os.ReadFile(file)
	if err == nil {
		_, err = fmt.Sscanln(string(raw), &r.Count, &r.Allocs, &r.Bytes)
	}
	return r, err
}
