package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// net/http gathers 4 KB before it writes, so a longer reply would leave as two
// writes, and its host would need two reads. gatherConn, under net/http's
// buffer (and under TLS), holds the first piece back until the rest is there.

const (
	// gatherFrom is the length of a body from which head and body may be more
	// than net/http's buffer.
	gatherFrom = 3 << 10
	// gatherMax bounds what a connection holds back. What is more is written
	// in one system call together with what is held, without a copy.
	gatherMax = 16 << 10
)

var gatherBuffers = sync.Pool{New: func() any { return new([gatherMax]byte) }}

// gatherListener makes every connection of a listener a gatherConn.
type gatherListener struct{ net.Listener }

func (l gatherListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatherConn{Conn: c}, nil
}

// gatherConn is a connection whose writes can be held back for the length of a
// call: hold, then release whatever happened in between. Otherwise it changes
// nothing. It is safe for concurrent use, as under TLS the reader writes too;
// Close and the deadlines do not wait for a write.
type gatherConn struct {
	net.Conn
	mu   sync.Mutex
	buf  *[gatherMax]byte // nil unless writes are held back
	held int              // bytes of buf
}

// hold begins to hold back what is written.
func (c *gatherConn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buf == nil {
		c.buf = gatherBuffers.Get().(*[gatherMax]byte)
	}
}

// release writes what is held, under the deadline in force, and ends hold. If
// that fails, the connection is closed: whoever wrote those bytes was told
// that they are on their way, and must not send more behind a gap.
func (c *gatherConn) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buf == nil {
		return
	}
	if c.held > 0 {
		if _, err := c.Conn.Write(c.buf[:c.held]); err != nil {
			_ = c.Conn.Close()
		}
	}
	gatherBuffers.Put(c.buf)
	c.buf, c.held = nil, 0
}

func (c *gatherConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.buf != nil && len(p) <= gatherMax-c.held:
		c.held += copy(c.buf[c.held:], p)
		return len(p), nil
	case c.held == 0:
		return c.Conn.Write(p)
	}
	both := net.Buffers{c.buf[:c.held], p}
	n, err := both.WriteTo(c.Conn)
	written := max(0, int(n)-c.held)
	c.held = 0
	if err != nil { // as in release; under TLS, what is held may be another's
		_ = c.Conn.Close()
	}
	return written, err
}

// CloseWrite is what net/http uses to let the last reply arrive before it
// closes a connection whose request it did not read to the end.
func (c *gatherConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type gatherKey struct{}

// withGather lets the requests of a connection find its gatherConn. It is a
// ConnContext of an http.Server.
func withGather(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if g, ok := c.(*gatherConn); ok {
		return context.WithValue(ctx, gatherKey{}, g)
	}
	return ctx
}

// gatherOf returns the connection that the reply to r may be gathered on, or
// nil. In HTTP/2 other replies share the connection.
func gatherOf(r *http.Request) *gatherConn {
	if r.ProtoMajor != 1 {
		return nil
	}
	g, _ := r.Context().Value(gatherKey{}).(*gatherConn)
	return g
}
