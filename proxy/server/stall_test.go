package server

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

// pipes is a listener whose connections are in memory, so that their deadlines
// are the bubble's.
type pipes struct {
	conns chan net.Conn
	open  context.Context
	close func()
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return localConn{c}, nil
	case <-p.open.Done():
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { p.close(); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// localConn is a connection to a loopback address.
type localConn struct{ net.Conn }

func (localConn) LocalAddr() net.Addr { return pipes{}.Addr() }

// servePipes serves c in a bubble as the binary does; dial opens a connection.
func servePipes(t *testing.T, c Router, opts HTTPOptions, f func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	opts.Log = testLog(t)
	synctest.Test(t, func(t *testing.T) {
		e := NewHTTP(c, opts)
		open, closeIt := context.WithCancel(t.Context())
		ln := pipes{make(chan net.Conn), open, closeIt}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, ln, e, e.Handler(), time.Second) }()
		f(t, func() net.Conn {
			here, there := net.Pipe()
			t.Cleanup(func() { here.Close() })
			ln.conns <- there
			return here
		})
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}

const postHead = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

// A request whose body never comes is answered and its connection closed,
// whoever sends it: one that is refused before its body is of interest, too.
func TestBodyNeverComes(t *testing.T) {
	alice := []auth.Token{{Principal: "alice"}}
	for _, tc := range []struct {
		name, request, status string
		tokens                []auth.Token
	}{
		{"taken", postHead + "Content-Length: 100\r\n\r\n{", "400", nil},
		{"in chunks", postHead + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", "400", nil},
		{"without a token", postHead + "Content-Length: 100\r\n\r\n{", "401", alice},
		{"without a token, in chunks", postHead + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", "401", alice},
		{"for a host not served", strings.Replace(postHead, "localhost", "evil.example", 1) + "Content-Length: 100\r\n\r\n{", "403", nil},
		{"of a type not taken", strings.Replace(postHead, "json", "yaml", 1) + "Content-Length: 100\r\n\r\n{", "415", nil},
		{"at no place", strings.Replace(postHead, "/mcp", "/else", 1) + "Content-Length: 100\r\n\r\n{", "404", nil},
		{"health", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", "200", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			servePipes(t, newFakeRouter(nil), HTTPOptions{Access: withTokens(tc.tokens)}, func(t *testing.T, dial func() net.Conn) {
				conn := dial()
				if _, err := io.WriteString(conn, tc.request); err != nil {
					t.Fatal(err)
				}
				_ = conn.SetReadDeadline(time.Now().Add(time.Hour))
				said, err := io.ReadAll(conn)
				if err != nil || !strings.HasPrefix(string(said), "HTTP/1.1 "+tc.status) {
					t.Errorf("answer = %.80q, %v, want status %s and the end", said, err, tc.status)
				}
			})
		})
	}
}

// A host that sends requests and reads no reply loses its connection.
func TestRepliesNeverRead(t *testing.T) {
	for name, request := range map[string]string{
		"health":          "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"not found":       "GET /else HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"without a token": "GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			servePipes(t, newFakeRouter(nil), HTTPOptions{Access: withTokens([]auth.Token{{Principal: "alice"}})}, func(t *testing.T, dial func() net.Conn) {
				conn := dial()
				_ = conn.SetWriteDeadline(time.Now().Add(time.Hour))
				for {
					if _, err := io.WriteString(conn, request); err == io.ErrClosedPipe {
						return
					} else if err != nil {
						t.Fatalf("the server waits for a host that reads nothing: %v", err)
					}
				}
			})
		})
	}
}

// What was slow to take is answered all the same.
func TestSlowNotification(t *testing.T) {
	c := newFakeRouter(nil)
	c.onNotify = func(wire.Message) { time.Sleep(time.Hour) }
	servePipes(t, c, HTTPOptions{SessionIdle: 2 * time.Hour}, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
		defer client.CloseIdleConnections()
		post := func(body string, headers ...string) *http.Response {
			resp, err := client.Do(hostRequest(t, "POST", "http://localhost/mcp", body, headers...))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, bufio.NewReader(resp.Body))
			resp.Body.Close()
			return resp
		}
		session := post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`).Header.Get(wire.HeaderSession)
		if resp := post(`{"jsonrpc":"2.0","method":"notifications/x"}`, wire.HeaderSession, session); resp.StatusCode != 202 {
			t.Errorf("a notification = %s, want 202", resp.Status)
		}
	})
}

// A stream that a host only listens on has no end: the deadline of a request is
// not that of its reply.
func TestQuietStreamStays(t *testing.T) {
	servePipes(t, newFakeRouter(nil), HTTPOptions{}, func(t *testing.T, dial func() net.Conn) {
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(), nil }}}
		defer client.CloseIdleConnections()
		do := func(r *http.Request) *http.Response {
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		opened := do(hostRequest(t, "POST", "http://localhost/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`))
		_, _ = io.Copy(io.Discard, opened.Body)
		opened.Body.Close()
		resp := do(hostRequest(t, "GET", "http://localhost/mcp", "", wire.HeaderSession, opened.Header.Get(wire.HeaderSession)))
		ended := make(chan struct{})
		go func() { defer close(ended); _, _ = io.Copy(io.Discard, resp.Body) }()
		select {
		case <-ended:
			t.Error("the stream ended by itself")
		case <-time.After(time.Hour):
		}
		resp.Body.Close()
		<-ended
	})
}
