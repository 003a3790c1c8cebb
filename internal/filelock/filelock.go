// Package filelock locks files between processes. A lock ends with its process.
package filelock

import (
	"context"
	"fmt"
	"os"
	"time"
)

// poll is the pause between two attempts of Wait.
const poll = 20 * time.Millisecond

// Wait makes the file if need be, and returns when this process alone has its lock, or with the cause
// of ctx. unlock ends the lock. The file stays.
func Wait(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		got, err := Try(f)
		if got {
			return func() { f.Close() }, nil
		}
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		f.Close()
		return nil, fmt.Errorf("lock of %s: %w", file, err)
	}
}
