//go:build !unix

package upstream

import (
	"os"
	"os/exec"
	"syscall"
)

func prepareChild(*exec.Cmd) {}

// awaitExit returns false: waiting without reaping is not supported here.
func awaitExit(int) bool { return false }

// signalGroup can only kill here. The end of its stdin asks a process to end.
func signalGroup(p *os.Process, s syscall.Signal) {
	if s == syscall.SIGKILL {
		_ = p.Kill() // it may have ended by itself
	}
}
