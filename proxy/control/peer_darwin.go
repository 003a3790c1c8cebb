package control

import (
	"net"

	"golang.org/x/sys/unix"
)

// peer returns the user at the other end of a connection; known is false if the system does not tell.
func peer(c net.Conn) (uid int, known bool) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Xucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED) }) != nil || err != nil {
		return 0, false
	}
	return int(cred.Uid), true
}
