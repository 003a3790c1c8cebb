//go:build !unix

package main

import "io/fs"

// ownedByMe reports whether a file belongs to the user who runs the command; it can't be told here.
func ownedByMe(fs.FileInfo) bool { return true }
