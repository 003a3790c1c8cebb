//go:build linux || darwin

package steadyclock

import (
	"time"

	"golang.org/x/sys/unix"
)

func clock(id int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // fails for unknown clocks only
	return time.Duration(t.Nano())
}
