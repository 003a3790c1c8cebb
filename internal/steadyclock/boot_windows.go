package steadyclock

import (
	"time"

	"golang.org/x/sys/windows"
)

func sinceBoot() time.Duration { return windows.DurationSinceBoot() }

func bootID() string { return "" }
