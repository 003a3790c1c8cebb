package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"
)

// fakeConn is a ResponseWriter on the clock of a synctest bubble: no network, so
// that time stands still unless everybody waits.
type fakeConn struct {
	mu      sync.Mutex
	header  http.Header // the handler's
	status  int
	sent    http.Header // as they were at WriteHeader
	body    strings.Builder
	blocked chan struct{} // Write waits for it if not nil, as on a full socket
	until   time.Time     // write deadline
}

func (c *fakeConn) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}

func (c *fakeConn) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status, c.sent = status, c.Header().Clone()
}

func (c *fakeConn) Flush() {}

// head returns the status and the headers that were sent; 0 before that.
func (c *fakeConn) head() (int, http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status, c.sent
}

func (c *fakeConn) code() int {
	status, _ := c.head()
	return status
}

func (c *fakeConn) SetWriteDeadline(t time.Time) error {
	c.until = t
	return nil
}

func (c *fakeConn) Write(b []byte) (int, error) {
	if c.blocked != nil {
		select {
		case <-c.blocked:
		case <-time.After(time.Until(c.until)):
			return 0, errors.New("write deadline passed")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.body.Write(b)
}

func (c *fakeConn) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.body.String()
}

// bubble runs f with a server inside a synctest bubble, and shuts it down.
func bubble(t *testing.T, opts HTTPOptions, f func(t *testing.T, g *gate, e *HTTP)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Log = testLog(t)
		g := newGate()
		e := NewHTTP(g, opts)
		f(t, g, e)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = e.Shutdown(ctx)
		if opened, closed := g.counts(); opened != closed {
			t.Errorf("sessions opened, closed = %d, %d, want the same", opened, closed)
		}
	})
}

const localURL = "http://127.0.0.1/mcp"

// serveIn runs one request of the server in the bubble; wait returns when the
// handler does.
func serveIn(t *testing.T, e *HTTP, r *http.Request) (c *fakeConn, wait func()) {
	c = &fakeConn{}
	done := make(chan struct{})
	go func() { defer close(done); e.ServeHTTP(c, r) }()
	synctest.Wait()
	return c, func() { <-done }
}

func openIn(t *testing.T, e *HTTP) string {
	c, wait := serveIn(t, e, hostRequest(t, "POST", localURL, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`))
	wait()
	_, h := c.head()
	return h.Get(wire.HeaderSession)
}
