//go:build unix

package pollable

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func open(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return f
	}
	if syscall.SetNonblock(fd, true) != nil {
		syscall.Close(fd)
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}
