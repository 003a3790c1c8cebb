package server

import (
	"net"
	"testing"
	"time"
)

// A connection that waits to be accepted when a listener turns new ones away is accepted; a later one is not
// made.
func TestTurnAway(t *testing.T) {
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func() (net.Conn, error) { return net.DialTimeout("tcp", ln.Addr().String(), 100*time.Millisecond) }
	before, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	TurnAway(ln)
	if c, err := dial(); err == nil {
		t.Errorf("%s connects later", c.LocalAddr())
	}
	c, err := ln.Accept()
	if err != nil || c.RemoteAddr().String() != before.LocalAddr().String() {
		t.Fatalf("accepted %v, %v, want %v", c, err, before.LocalAddr())
	}
	defer c.Close()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil { // the filter does not reach it
		t.Error(err)
	}
	if _, err := before.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}
