//go:build unix && !linux

package upstream

import (
	"os"
	"os/exec"
	"syscall"
)

// prepareChild puts the child into a group of its own.
func prepareChild(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// awaitExit returns false: waiting without reaping is not supported here.
func awaitExit(int) bool { return false }

// signalGroup signals every process of the group that p leads. If all have ended, nothing is to be
// done.
func signalGroup(p *os.Process, s syscall.Signal) { _ = syscall.Kill(-p.Pid, s) }
