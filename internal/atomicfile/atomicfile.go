// Package atomicfile replaces files as a whole: after a crash or a power loss there is the old file or the new one.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Write replaces the file at path, or makes it. When it returns, the disk has it. Until then the data is in a file
// of its own beside it, path.foldgate-*.new. That stays if the process is killed; a Write an hour later removes it.
// Several processes may write at a time: the last one wins.
func Write(path string, data []byte, mode fs.FileMode) error {
	return WriteAs(path, data, mode, func(*os.File) error { return nil })
}

// WriteAs is Write. It calls prepare with the new file before that replaces the old one.
func WriteAs(path string, data []byte, mode fs.FileMode, prepare func(*os.File) error) error {
	dir, begins := filepath.Dir(path), filepath.Base(path)+".foldgate-"
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), begins) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	f, err := os.CreateTemp(dir, begins+"*.new")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	for _, step := range []func() error{func() error { return f.Chmod(mode) }, func() error { return prepare(f) }, f.Sync} {
		if err == nil {
			err = step()
		}
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	if d, err := os.Open(dir); err == nil { // not every system can sync a directory
		_ = d.Sync()
		_ = d.Close()
	}
	return nil
}

// Unchanged compares what a file was and is, nil for none. Each [Write] makes another file.
func Unchanged(a, b fs.FileInfo) bool {
	return a == nil && b == nil || a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
