// Package openfiles recognizes errors of a process that has as many files open as it may.
package openfiles

import (
	"errors"
	"os"
	"syscall"
)

// Remedy says what to do about the limit.
const Remedy = "foldgate or the machine has as many files open as it may: raise the limit, with ulimit -n, LimitNOFILE= of systemd, or fs.file-max"

// Exceeded reports whether err means that no further file could be opened.
func Exceeded(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// Few reports whether four more files can't be opened now. It is for errors that do not say which
// limit it was, such as those of SQLite, which opens up to that many files for a database.
func Few() bool {
	for range 4 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return Exceeded(err)
		}
		defer f.Close()
	}
	return false
}
