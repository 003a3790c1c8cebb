package steadyclock

import (
	"time"

	"golang.org/x/sys/unix"
)

func sinceBoot() time.Duration { return clock(unix.CLOCK_MONOTONIC) } // runs on while the machine sleeps

func bootID() string {
	id, _ := unix.Sysctl("kern.bootsessionuuid")
	return id
}
