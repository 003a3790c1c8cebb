//go:build !unix

package hosts

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: a new file inherits its directory's access list.
func keepOwner(*os.File, fs.FileInfo) error { return nil }
