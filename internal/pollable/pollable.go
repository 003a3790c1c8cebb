// Package pollable lets a process read a pipe or a socket that it was started with through the poller
// of the Go runtime, as it reads the pipes and sockets that it opens itself.
//
// A read of os.Stdin otherwise blocks a thread. The runtime of Go 1.26 can miss that thread when it
// stops all goroutines for the garbage collector. It then waits until the read returns, or for up to a
// minute, and no goroutine runs in that time. In a test with two busy processors that happened once in
// some 700,000 reads.
package pollable

import (
	"os"
	"time"
)

// File returns a file that reads what f reads, through the poller. It has deadlines, and Close ends a
// Read. It returns f itself if f already uses the poller, or is neither a pipe nor a socket. Otherwise the
// two share the non-blocking mode, so that nothing may be read from f any more.
func File(f *os.File) *os.File {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 || f.SetReadDeadline(time.Time{}) == nil {
		return f
	}
	return open(f)
}
