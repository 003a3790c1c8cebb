//go:build unix && !race

package extract

import "syscall"

// limitMemory bounds the private memory of this process, if the system has such a limit.
func limitMemory(bytes uint64) error {
	var limit syscall.Rlimit
	set(&limit.Cur, bytes)
	set(&limit.Max, bytes)
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &limit)
}

// set sets a field of a limit, whose type the system chooses.
func set[T int64 | uint64](field *T, n uint64) { *field = T(n) }

// memoryIsLimited reports whether limitMemory has an effect. On some systems it does not bound the
// heap.
const memoryIsLimited = true
