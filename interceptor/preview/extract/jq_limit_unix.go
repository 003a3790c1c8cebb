//go:build unix && !race

package extract

import "syscall"

// limitMemory bounds the private memory of this process, if the system has such a limit.
func limitMemory(bytes uint64) error {
	limit := syscall.Rlimit{Cur: bytes, Max: bytes}
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &limit)
}

// memoryIsLimited reports whether limitMemory has an effect. On some systems it does not bound the
// heap.
const memoryIsLimited = true
