//go:build unix && !race

package extract

import "syscall"

// limitMemory bounds the private memory of this process. Where the system
// knows no such limit it does nothing.
func limitMemory(bytes uint64) error {
	limit := syscall.Rlimit{Cur: bytes, Max: bytes}
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &limit)
}

// memoryIsLimited reports that limitMemory does something; not on every system
// does it then bound the heap.
const memoryIsLimited = true
