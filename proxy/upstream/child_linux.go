package upstream

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

type groupSignal = syscall.Signal

const (
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
)

// prepareChild puts the child into a group of its own, and lets it be told
// when foldgate dies without a word.
func prepareChild(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// awaitExit waits until the process has ended, and leaves it to be reaped.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}

// signalGroup signals every process of the group that p leads. There may be
// none left, which is what the caller wants.
func signalGroup(p *os.Process, s groupSignal) { _ = syscall.Kill(-p.Pid, s) }
