package upstream

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// prepareChild puts the child into a group of its own. The kernel sends it SIGTERM if foldgate is
// killed.
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

// signalGroup signals every process of the group that p leads. If all have ended, nothing is to be
// done.
func signalGroup(p *os.Process, s syscall.Signal) { _ = syscall.Kill(-p.Pid, s) }
