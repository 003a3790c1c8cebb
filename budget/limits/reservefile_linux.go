package limits

import (
	"fmt"
	"os"
	"syscall"
)

// life returns what says that a file is the same one, and that no write to it can have been lost:
// its place, and the life of the machine.
func life(f *os.File) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	info, errOfFile := f.Stat()
	if err != nil || errOfFile != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s%d %d\n", boot, stat.Dev, stat.Ino)
}
