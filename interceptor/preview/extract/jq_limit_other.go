//go:build !unix || race

package extract

// limitMemory does nothing here: the race detector needs more than any limit.
func limitMemory(uint64) error { return nil }

// memoryIsLimited reports whether limitMemory has an effect.
const memoryIsLimited = false
