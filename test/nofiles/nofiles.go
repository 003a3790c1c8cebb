//go:build unix

// Package nofiles lets a test see what a process does that can open no more files.
package nofiles

import (
	"syscall"
	"testing"
)

// During calls f while the process can open no file. The limit is that of the whole process, so no test may run
// in parallel, and f must not end the test.
func During(t *testing.T, f func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	f()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
}
