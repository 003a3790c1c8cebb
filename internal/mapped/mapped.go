// Package mapped writes to a file through memory. Such a write survives the death of the process, and
// takes no operation of the kernel. A process that is killed may have done a part of it.
package mapped

import (
	"os"
	"runtime/debug"
)

// Memory is the start of a file, mapped into memory. It is nil if the system can't map the file.
type Memory []byte

// Open returns the memory of a file up to a size that it may grow to.
func Open(f *os.File, size int) Memory { return open(f, size) }

// Do calls write with the n bytes of the file at offset at, and returns what write returns. The file must have
// these bytes. Do returns false if it can't access them: m is nil, the file was truncated, or the disk is full.
func (m Memory) Do(at, n int64, write func([]byte) bool) (done bool) {
	if at+n > int64(len(m)) {
		return false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	return write(m[at:][:n])
}
