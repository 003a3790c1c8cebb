//go:build !linux

package limits

import "os"

// life returns "": here nothing says whether writes were lost.
func life(*os.File) string { return "" }
