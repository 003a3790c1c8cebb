package server

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// turnAway makes the kernel ignore new connections. Those that are being made reach Accept. The kernel
// would reset them if the listener were closed at once, and a load balancer that has already sent a
// request must not send it to another replica. A client that is ignored asks again after a second, and is
// then refused.
func turnAway(ln *net.TCPListener) error {
	const (
		flags    = 13 // their place in the TCP header
		synAck   = 0x12
		syn      = 0x02
		dropIt   = 0
		wholeOne = 0xffffffff
	)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flags},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: synAck},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: syn, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: dropIt},
		{Code: unix.BPF_RET | unix.BPF_K, K: wholeOne},
	}
	raw, err := ln.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}) // #nosec G115: 5
	})
	return errors.Join(err, failed)
}
