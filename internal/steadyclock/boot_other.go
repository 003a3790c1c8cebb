//go:build !linux && !darwin && !windows

package steadyclock

import "time"

func sinceBoot() time.Duration { return 0 }

func bootID() string { return "" }
