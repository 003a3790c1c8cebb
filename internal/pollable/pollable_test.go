//go:build unix

package pollable

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A pipe and a socket that a process gets from its parent are read through the poller: with deadlines, and
// until Close.
func TestFile(t *testing.T) {
	for name, open := range map[string]func(fds []int) error{
		"pipe": func(fds []int) error { return syscall.Pipe(fds) },
		"socket": func(fds []int) error {
			pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			copy(fds, pair[:])
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fds := make([]int, 2)
			if err := open(fds); err != nil {
				t.Fatal(err)
			}
			inherited, other := os.NewFile(uintptr(fds[0]), "stdin"), os.NewFile(uintptr(fds[1]), "other")
			defer inherited.Close()
			defer other.Close()
			if err := inherited.SetReadDeadline(time.Time{}); err == nil {
				t.Fatal("the file has deadlines already: this tests nothing")
			}
			f := File(inherited)
			if f.Name() != "stdin" || f == inherited {
				t.Errorf("File returned %q", f.Name())
			}
			buf := make([]byte, 9)
			if err := f.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read after the deadline = %v", err)
			}
			_ = f.SetReadDeadline(time.Time{})
			if _, err := other.WriteString("text"); err != nil {
				t.Fatal(err)
			}
			if n, err := f.Read(buf); err != nil || string(buf[:n]) != "text" {
				t.Errorf("Read = %q, %v", buf[:n], err)
			}
			ended := make(chan error)
			go func() { _, err := f.Read(buf); ended <- err }()
			time.Sleep(10 * time.Millisecond)
			f.Close()
			if err := <-ended; !errors.Is(err, os.ErrClosed) {
				t.Errorf("Read after Close = %v", err)
			}
		})
	}
}

// What can't be polled, or is polled already, stays as it is.
func TestFileStays(t *testing.T) {
	plain, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{plain, r, w, null} {
		if File(f) != f {
			t.Errorf("File replaced %s", f.Name())
		}
		defer f.Close()
	}
}
