//go:build !linux

package mapped

import "os"

func open(*os.File, int) Memory { return nil }

// Close ends the use of the memory.
func (m Memory) Close() {}
