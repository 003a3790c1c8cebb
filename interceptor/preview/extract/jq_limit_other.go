//go:build !unix || race

package extract

// limitMemory does nothing here: the race detector needs more than any limit.
func limitMemory(uint64) error { return nil }

// memoryIsLimited reports that limitMemory does something; not on every system
// does it then bound the heap.
const memoryIsLimited = false
