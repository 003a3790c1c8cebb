package main

import (
	"io"
	"net"
	"os"

	"github.com/foldgate/foldgate/internal/pollable"
)

// dial makes this process a wire: it copies standard input to the test that listens at addr, and
// the test's bytes to standard output. So a test can play a stdio server itself, byte by byte. It
// ends when either side does.
func dial(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	ends := make(chan error, 2)
	go func() { _, err := io.Copy(conn, pollable.File(os.Stdin)); ends <- err }()
	go func() { _, err := io.Copy(os.Stdout, conn); ends <- err }()
	return <-ends
}
