//go:build unix

package filelock

import (
	"os"
	"syscall"
)

// Try takes an exclusive lock on f that ends with the process, without
// waiting. It reports false if another process holds it.
func Try(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == syscall.EWOULDBLOCK {
		return false, nil
	}
	return err == nil, err
}
