package filelock

import (
	"os"

	"golang.org/x/sys/windows"
)

// Try takes an exclusive lock on f that ends with the process, without
// waiting. It reports false if another process holds it.
func Try(f *os.File) (bool, error) {
	err := windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, new(windows.Overlapped))
	if err == windows.ERROR_LOCK_VIOLATION {
		return false, nil
	}
	return err == nil, err
}
