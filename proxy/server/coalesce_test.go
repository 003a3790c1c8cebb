package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"
)

// countedListener counts the connections that it accepts and their writes.
type countedListener struct {
	net.Listener
	conns, writes *atomic.Int64
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.conns.Add(1)
	return &countedConn{c.(*net.TCPConn), l.writes}, nil
}

// countedConn counts calls of Write. One system call for several buffers goes
// by it: net.Buffers asks the TCPConn.
type countedConn struct {
	*net.TCPConn
	writes *atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(b)
}

// startCoalescing serves c as Listen and Serve do, behind wrap if there is one;
// with TLS if secure.
func startCoalescing(t *testing.T, c Router, secure bool, wrap func(http.Handler) http.Handler) (url string, client *http.Client, l countedListener) {
	t.Helper()
	e := NewHTTP(c, HTTPOptions{Log: testLog(t)})
	h := e.Handler()
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewUnstartedServer(h)
	l = countedListener{srv.Listener, new(atomic.Int64), new(atomic.Int64)}
	srv.Listener = coalescingListener{l}
	srv.Config.ConnContext = withCoalescing
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	closeServer(t, e, srv)
	return srv.URL + "/mcp", srv.Client(), l
}

// sized answers every call with a string as long as its params say.
func sized(ctx context.Context, ex *Request) wire.Message {
	var n int
	if json.Unmarshal(ex.Msg.Params, &struct{ N *int }{&n}) != nil || n == 0 {
		return echo(ctx, ex)
	}
	return wire.Message{Result: json.RawMessage(`"` + strings.Repeat("x", n) + `"`)}
}

func sizedCall(t *testing.T, url string, n int) *http.Request {
	return hostRequest(t, "POST", url, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":%d,"_meta":{%q:%q,%q:{}}}}`,
		n, wire.MetaProtocolVersion, wire.VersionModern, wire.MetaClientCapabilities),
		wire.HeaderVersion, wire.VersionModern, wire.HeaderMethod, "m")
}

// answerOf returns the string in the answer to a sizedCall.
func answerOf(resp *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var m struct{ Result string }
	if err := json.Unmarshal(b, &m); err != nil {
		return "", fmt.Errorf("%d %.200s: %w", resp.StatusCode, b, err)
	}
	return m.Result, nil
}

func TestRepliesLeaveInOneWrite(t *testing.T) {
	for _, secure := range []bool{false, true} {
		url, client, l := startCoalescing(t, newFakeRouter(sized), secure, nil)
		// Over 15 KB net/http's buffer of 4 KB leaves first; over 256 KB each piece is a write.
		for _, c := range []struct{ size, writes int }{
			{10, 1}, {3000, 1}, {3900, 1}, {4096, 1}, {5000, 1}, {8000, 1}, {12_000, 1}, {64 << 10, 2}, {300 << 10, 3}, {2 << 20, -1}, {4096, 1},
		} {
			if secure {
				if _, err := answerOf(client.Do(sizedCall(t, url, 10))); err != nil { // the handshake
					t.Fatal(err)
				}
			}
			before := l.writes.Load()
			got, err := answerOf(client.Do(sizedCall(t, url, c.size)))
			if err != nil || got != strings.Repeat("x", c.size) {
				t.Fatalf("TLS %v: a reply of %d bytes came as %d, %v", secure, c.size, len(got), err)
			}
			if n := l.writes.Load() - before; c.writes >= 0 && n != int64(c.writes) && (!secure || c.size < 12_000) {
				t.Errorf("TLS %v: a reply of %d bytes took %d writes, want %d", secure, c.size, n, c.writes)
			}
		}
		if n := l.conns.Load(); n != 1 {
			t.Errorf("TLS %v: %d connections, want one that is kept", secure, n)
		}
	}
}

// A request that asks leave for its body gets it, and an event stream is not
// held back: the call goes on only after the host has the event.
func TestCoalescingLeavesOthersAlone(t *testing.T) {
	read := make(chan struct{})
	url, client, _ := startCoalescing(t, newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		if ex.Msg.Method == "stream" {
			_ = ex.Emit([]byte(`{"jsonrpc":"2.0","method":"n","params":{"s":"` + strings.Repeat("x", 5000) + `"}}`))
			select {
			case <-read:
			case <-ctx.Done():
			}
		}
		return sized(ctx, ex)
	}), false, nil)
	r := sizedCall(t, url, 5000)
	r.Header.Set("Expect", "100-continue")
	client.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
	if got, err := answerOf(client.Do(r)); err != nil || len(got) != 5000 {
		t.Fatalf("with 100-continue: %d bytes, %v", len(got), err)
	}
	r = sizedCall(t, url, 5000)
	body, _ := io.ReadAll(r.Body)
	s := strings.Replace(string(body), `"method":"m"`, `"method":"stream"`, 1)
	r = hostRequest(t, "POST", url, s, wire.HeaderVersion, wire.VersionModern, wire.HeaderMethod, "stream")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := newSSEReader(t, resp)
	if ev, ok := events.next(); !ok || len(ev.data) < 5000 {
		t.Fatalf("the event = %d bytes, %v", len(ev.data), ok)
	}
	close(read)
	if ev, ok := events.next(); !ok || len(ev.data) < 5000 {
		t.Fatalf("the reply = %d bytes, %v", len(ev.data), ok)
	}
}

// oddWriter cannot flush, and panics after a Write if it is told to.
type oddWriter struct {
	http.ResponseWriter
	panics bool
}

func (w oddWriter) Write(b []byte) (int, error) {
	if !w.panics {
		return w.ResponseWriter.Write(b)
	}
	_, _ = w.ResponseWriter.Write(b[:len(b)-10])
	panic(http.ErrAbortHandler)
}

// What was written arrives if nothing flushes, and if the handler panics.
func TestCoalescingReleases(t *testing.T) {
	for _, panics := range []bool{false, true} {
		url, client, _ := startCoalescing(t, newFakeRouter(sized), false, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(oddWriter{w, panics}, r) })
		})
		resp, err := client.Do(sizedCall(t, url, 5000))
		if err != nil {
			t.Fatalf("panics %v: %v", panics, err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if panics && (!errors.Is(err, io.ErrUnexpectedEOF) || len(b) < 3000) || !panics && (err != nil || len(b) < 5000) {
			t.Errorf("panics %v: %d bytes, %v", panics, len(b), err)
		}
	}
}

// What cannot be written closes the connection, and nothing hangs.
func TestCoalescingConnFails(t *testing.T) {
	near, far := net.Pipe() // nobody reads
	c := &coalescingConn{Conn: near}
	c.startBuffering()
	if n, err := c.Write([]byte("held")); n != 4 || err != nil {
		t.Fatalf("Write = %d, %v", n, err)
	}
	_ = c.SetWriteDeadline(time.Unix(1, 0))
	c.flush()
	if _, err := c.Write([]byte("y")); !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write after a failure = %v, want a failure", err)
	}
	c.flush()
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other end reads %v, want EOF", err)
	}
	near, far = net.Pipe()
	defer far.Close()
	c = &coalescingConn{Conn: near}
	c.startBuffering()
	_, _ = c.Write([]byte("held"))
	_ = c.Close()
	c.flush() // does not wait for a reader
}

func TestServeCoalesces(t *testing.T) {
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	host, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, c := range []net.Conn{c, tls.Server(c, &tls.Config{})} {
		r := (&http.Request{ProtoMajor: 1}).WithContext(withCoalescing(t.Context(), c))
		if coalescingOf(r) == nil {
			t.Errorf("no coalescing on a %T of Listen", c)
		}
		if r.ProtoMajor = 2; coalescingOf(r) != nil {
			t.Error("HTTP/2 coalesces on a connection that is shared")
		}
	}
	if coalescingOf((&http.Request{ProtoMajor: 1}).WithContext(withCoalescing(t.Context(), host))) != nil {
		t.Error("coalescing on a connection of somebody else")
	}

	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, ln, NewHTTP(newFakeRouter(nil), HTTPOptions{Log: testLog(t)}), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, coalescingOf(r) != nil)
		}), time.Second)
	}()
	if _, body, _ := hostAnswer(t, hostRequest(t, "GET", "http://"+ln.Addr().String(), "")); body != "true" {
		t.Errorf("a request of Serve finds its connection: %s, want true", body)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A reply's memory is used again once it is sent, and only then: answers keep
// their bytes, also while other hosts hang up in the middle of theirs.
func TestRepliesKeepTheirBytes(t *testing.T) {
	letter := func(n int) string { return string(rune('a' + n%26)) }
	core := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		r := sized(ctx, ex)
		return wire.Message{Result: bytes.ReplaceAll(r.Result, []byte("x"), []byte(letter(len(r.Result)-2)))}
	})
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			e := NewHTTP(core, HTTPOptions{Log: testLog(t)})
			srv := httptest.NewUnstartedServer(e.Handler())
			srv.Listener, srv.Config.ConnContext, srv.EnableHTTP2 = coalescingListener{srv.Listener}, withCoalescing, http2
			if http2 {
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			var wg sync.WaitGroup
			for worker := range 8 {
				wg.Go(func() {
					for i := range 100 {
						n := 1 + (i*7919+worker*104729)%(20<<10)
						r := sizedCall(t, srv.URL+"/mcp", n)
						if i%5 == 0 { // leaves
							ctx, cancel := context.WithTimeout(r.Context(), time.Duration(n%700)*time.Microsecond)
							if resp, err := srv.Client().Do(r.WithContext(ctx)); err == nil {
								resp.Body.Close()
							}
							cancel()
							continue
						}
						if got, err := answerOf(srv.Client().Do(r)); err != nil || got != strings.Repeat(letter(n), n) {
							t.Errorf("answer of %d bytes, %v: want %d times %s", len(got), err, n, letter(n))
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
