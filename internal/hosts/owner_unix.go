//go:build unix

package hosts

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives f the owner and the group of the file that it replaces.
func keepOwner(f *os.File, old fs.FileInfo) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	was, ok := old.Sys().(*syscall.Stat_t)
	is, ok2 := mine.Sys().(*syscall.Stat_t)
	if !ok || !ok2 || was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	if err := f.Chown(int(was.Uid), int(was.Gid)); err != nil {
		return fmt.Errorf("%s belongs to user %d and group %d, and that can't be kept: run foldgate as its owner", old.Name(), was.Uid, was.Gid)
	}
	return nil
}
