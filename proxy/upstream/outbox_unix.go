//go:build unix

package upstream

import (
	"os"
	"syscall"
	"time"
)

// tryWriter returns a function that writes to the pipe f what it takes without
// waiting, or nil where a write might wait. One call at a time.
func tryWriter(f *os.File) func([]byte) (int, error) {
	if f.SetWriteDeadline(time.Time{}) != nil {
		return nil // it is in blocking mode
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var p []byte // here, so that no write allocates
	var n int
	var failed error
	once := func(fd uintptr) bool {
		n, failed = syscall.Write(int(fd), p)
		return true // whatever it says: do not wait
	}
	return func(b []byte) (int, error) {
		p, n, failed = b, 0, nil
		err := raw.Write(once)
		p = nil
		if failed == syscall.EAGAIN || failed == syscall.EINTR {
			failed = nil
		}
		if err == nil {
			err = failed
		}
		return max(n, 0), err
	}
}
