package main

import (
	"fmt"
	"os"
	"time"

	"github.com/mattn/go-isatty"
)

// isTerminal reports whether a stream of the command is a terminal; tests replace it.
var isTerminal = func(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// working shows on a terminal, each second, how long a command works, until done is called.
func (a *app) working(command string) (done func()) {
	if !isTerminal(a.rawErr) {
		return func() {}
	}
	begin, stop, stopped := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for clear := ""; ; clear = "\r\x1b[K" {
			select {
			case <-time.After(time.Second):
				fmt.Fprintf(a.rawErr, "\r%s: %.0f s", command, time.Since(begin).Seconds())
			case <-stop:
				fmt.Fprint(a.rawErr, clear)
				return
			}
		}
	}()
	return func() { close(stop); <-stopped }
}
