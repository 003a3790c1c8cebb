// Package freeport finds ports for servers that cannot report which port they chose.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports below 32768 are never given to outgoing connections or to listeners on port 0, on Linux by
// ip_local_port_range and elsewhere by RFC 6335. So a port stays free until its server listens, and
// while the server restarts.
const first, count = 10_000, 20_000

var (
	start = rand.IntN(count) // test processes that run side by side start at different ports
	taken atomic.Int64
)

// Get returns a port of 127.0.0.1 that is free. It returns each port once in a process.
func Get() (string, error) {
	for range count {
		port := strconv.Itoa(first + (start+int(taken.Add(1)))%count)
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			return port, l.Close()
		}
	}
	return "", errors.New("no port from 10000 to 29999 is free")
}

// For is [Get] for a test, which ends if no port is free.
func For(t testing.TB) string {
	t.Helper()
	port, err := Get()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
