// Package mapped writes to a file through memory. Such a write survives the death of the process, and
// takes no operation of the kernel. A process that is killed may have done a part of it.
package mapped

import (
	"os"
	"runtime/debug"
)

// Memory is the start of a file. It is nil where that can't be.
type Memory []byte

// Open returns the memory of a file up to a size that it may grow to.
func Open(f *os.File, size int) Memory { return open(f, size) }

// Do calls write with n bytes of the file at a place, which it has. It returns what write returns. It
// returns false if the bytes can't be had: there is no memory, somebody has cut the file, or the disk is full.
func (m Memory) Do(at, n int64, write func([]byte) bool) (done bool) {
	if at+n > int64(len(m)) {
		return false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	return write(m[at:][:n])
}
