package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// isTerminal reports whether a stream of the command is a terminal; tests replace it.
var isTerminal = func(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// interruptible is a reader that fails when its context ends. A signal ends the context of a command, but no
// read of a terminal or a pipe.
type interruptible struct {
	ctx context.Context // of the command
	in  io.Reader
}

// Read implements [io.Reader]. What comes after the end of the context is lost.
func (r interruptible) Read(p []byte) (int, error) {
	type outcome struct {
		text []byte
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		buf := make([]byte, len(p))
		n, err := r.in.Read(buf)
		done <- outcome{buf[:n], err}
	}()
	select {
	case o := <-done:
		return copy(p, o.text), o.err
	case <-r.ctx.Done():
		return 0, errInterrupted
	}
}

// showProgress shows on a terminal, each second, how long a command works and what share of the journal it has read,
// until the command prints something or ends.
func (a *app) showProgress(cmd *cobra.Command, what string) {
	if !isTerminal(a.rawErr) {
		return
	}
	a.endProgress()
	var percent atomic.Int64
	cmd.SetContext(trace.WithProgress(cmd.Context(), func(done, all int64) { percent.Store(100 * done / max(all, 1)) }))
	begin, stop, stopped := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for clear := ""; ; clear = "\r\x1b[K" {
			select {
			case <-time.After(time.Second):
				share := ""
				if n := percent.Load(); n > 0 {
					share = fmt.Sprintf(", %d %%", n)
				}
				fmt.Fprintf(a.rawErr, "\r%s: %.0f s%s", what, time.Since(begin).Seconds(), share)
			case <-stop:
				fmt.Fprint(a.rawErr, clear)
				return
			}
		}
	}()
	a.stopProgress = func() { close(stop); <-stopped }
}

// endProgress removes the progress line. Printing to standard output calls it, and so does the end of the command.
func (a *app) endProgress() {
	if a.stopProgress != nil {
		a.stopProgress()
		a.stopProgress = nil
	}
}
