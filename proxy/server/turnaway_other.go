//go:build !linux

package server

import (
	"errors"
	"net"
)

// turnAway is not supported on this platform.
func turnAway(*net.TCPListener) error { return errors.ErrUnsupported }
