//go:build linux || darwin

package main

import "syscall"

// freeBytes returns the free space of the file system with path, -1 if it can't be told.
func freeBytes(path string) int64 {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return -1
	}
	return int64(s.Bavail) * int64(s.Bsize)
}
