package steadyclock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func sinceBoot() time.Duration { return clock(unix.CLOCK_BOOTTIME) }

func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}
