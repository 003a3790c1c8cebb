package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/foldgate/foldgate/proxy/replicas"
	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Requests in flight have a bound, also those whose hosts have left, in number and in bytes. Of several principals
// none takes more than half. Others are refused before the router sees them.
func TestRequestsInFlight(t *testing.T) {
	tokens := []auth.Token{token("alice", "a"), token("bob", "b")}
	for _, c := range []struct {
		name string
		opts HTTPOptions
		pad  int // bytes of a request
	}{
		{"number", HTTPOptions{MaxRequests: 6}, 0},
		{"bytes", HTTPOptions{MaxRequestBytes: 6 * (1000 + 100)}, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.opts.Access = withTokens(tokens)
			bubble(t, c.opts, func(t *testing.T, g *gate, e *HTTP) {
				sessions := map[string]string{}
				post := func(token, body string) (*fakeConn, func()) {
					return serveIn(t, e, hostRequest(t, "POST", "http://localhost/mcp", body, "Authorization", "Bearer "+token, wire.HeaderSession, sessions[token]))
				}
				for _, token := range []string{"a", "b"} {
					conn, wait := post(token, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
					wait()
					_, h := conn.head()
					sessions[token] = h.Get(wire.HeaderSession)
				}
				n := 0
				call := func(token string) (*fakeConn, func()) {
					n++
					return post(token, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"wait","params":{"pad":%q}}`, n, strings.Repeat("x", c.pad)))
				}
				var waits []func()
				for range 3 {
					_, wait := call("b")
					waits = append(waits, wait)
				}
				refused, wait := call("b")
				wait()
				if status, h := refused.head(); status != http.StatusTooManyRequests || h.Get("Retry-After") == "" || !strings.Contains(refused.text(), "are in flight, wait for a reply first") {
					t.Errorf("bob's fourth request: %d, %s", status, refused.text())
				}
				_, wait = call("a")
				waits = append(waits, wait)
				if len(g.started) != 4 {
					t.Errorf("the router got %d requests, want three of bob and one of alice", len(g.started))
				}
				for range 4 {
					g.release <- doneReply
				}
				for _, wait := range waits {
					wait()
				}
				synctest.Wait()
				if e.allInFlight != (inFlight{}) || len(e.inFlight) > 0 {
					t.Errorf("after all replies %v and %v are in flight", e.allInFlight, e.inFlight)
				}
				g.release <- doneReply
				if again, wait := call("b"); again != nil {
					if wait(); again.code() != http.StatusOK {
						t.Errorf("afterwards bob gets %d", again.code())
					}
				}
			})
		})
	}
}

// A request that the router can't register is answered, and counts no longer.
func TestBeginPanics(t *testing.T) {
	bubble(t, HTTPOptions{MaxRequests: 2}, func(t *testing.T, g *gate, e *HTTP) {
		g.onServe = func(ctx context.Context, ex *Request) wire.Message {
			if ex.Msg.Method == "initialize" {
				return wire.Message{Result: json.RawMessage(`{"protocolVersion":"2025-03-26"}`)}
			}
			return echo(ctx, ex)
		}
		session := openIn(t, e)
		g.onBegin = func(ex *Request) {
			if ex.Msg.Method != "fine" {
				panic("in Begin")
			}
		}
		const failed, fine = `"error":{"code":-32603,"message":"internal error"}`, `"result":`
		for _, c := range []struct {
			name string
			req  *http.Request
			want []string
		}{
			{"legacy", hostRequest(t, "POST", localURL, `{"jsonrpc":"2.0","id":1,"method":"a"}`, wire.HeaderSession, session), []string{`"id":1,` + failed}},
			{"initialize", hostRequest(t, "POST", localURL, `{"jsonrpc":"2.0","id":2,"method":"initialize"}`), []string{`"id":2,` + failed}},
			{"batch", hostRequest(t, "POST", localURL, `[{"jsonrpc":"2.0","id":3,"method":"fine"},{"jsonrpc":"2.0","id":4,"method":"a"}]`, wire.HeaderSession, session),
				[]string{`"id":3,` + fine, `"id":4,` + failed}},
			{"modern", modernRequest(t, localURL, "a", ""), []string{failed}},
		} {
			conn, wait := serveIn(t, e, c.req)
			wait()
			for _, want := range c.want {
				if !strings.Contains(conn.text(), want) {
					t.Errorf("%s: %s", c.name, conn.text())
				}
			}
			if e.allInFlight != (inFlight{}) || len(e.inFlight) > 0 {
				t.Errorf("%s: %v and %v are in flight", c.name, e.allInFlight, e.inFlight)
			}
		}
	})
	// The connection ends if the router can't open a session.
	bubble(t, HTTPOptions{}, func(t *testing.T, g *gate, e *HTTP) {
		g.onOpen = func() { panic("in Open") }
		for _, r := range []*http.Request{hostRequest(t, "POST", localURL, `{"jsonrpc":"2.0","id":1,"method":"initialize"}`), modernRequest(t, localURL, "a", "")} {
			func() {
				defer func() { _ = recover() }() // as net/http does
				e.ServeHTTP(&fakeConn{}, r)
			}()
			if e.allInFlight != (inFlight{}) || len(e.inFlight) > 0 {
				t.Errorf("%v and %v are in flight", e.allInFlight, e.inFlight)
			}
		}
	})
}

// The requests of a batch count one by one.
func TestRequestsInFlightOfABatch(t *testing.T) {
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		if ex.Msg.Method == "initialize" {
			return wire.Message{Result: json.RawMessage(`{"protocolVersion":"2025-03-26"}`)}
		}
		return echo(ctx, ex)
	})
	_, url := startServer(t, c, HTTPOptions{MaxRequests: 1})
	_, _, h := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}`))
	status, body, _ := hostAnswer(t, hostRequest(t, "POST", url, `[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","id":2,"method":"b"}]`, wire.HeaderSession, h.Get(wire.HeaderSession)))
	if status != http.StatusOK || strings.Count(body, `"result"`) != 1 || strings.Count(body, "1 requests are in flight") != 1 {
		t.Errorf("%d, %s", status, body)
	}
}

// With too many requests in flight a host can still end some: it cancels them, answers requests of servers, and ends its
// session, also at one of several replicas.
func TestRequestsInFlightCanEnd(t *testing.T) {
	set, err := replicas.New(replicas.Options{Name: "aaaaa", Key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]HTTPOptions{"alone": {MaxRequests: 1}, "replica": {MaxRequests: 1, Replicas: set}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, opts, func(t *testing.T, g *gate, e *HTTP) {
				serve := g.onServe
				g.onServe = func(ctx context.Context, ex *Request) wire.Message {
					if ex.Msg.Method == "initialize" {
						return wire.Message{Result: json.RawMessage(`{"protocolVersion":"2025-03-26"}`)}
					}
					return serve(ctx, ex)
				}
				session := ""
				send := func(method, body string) (*fakeConn, func()) {
					return serveIn(t, e, hostRequest(t, method, "http://localhost/mcp", body, wire.HeaderSession, session))
				}
				opened, wait := send("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
				wait()
				_, h := opened.head()
				session = h.Get(wire.HeaderSession)
				_, waitForCall := send("POST", `{"jsonrpc":"2.0","id":1,"method":"wait"}`)
				for _, c := range []struct {
					method, body string
					want         int
				}{
					{"POST", `{"jsonrpc":"2.0","id":2,"method":"wait"}`, http.StatusTooManyRequests},
					{"POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, http.StatusAccepted},
					{"POST", `{"jsonrpc":"2.0","id":"s1","result":{}}`, http.StatusAccepted},
					{"POST", `[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}},{"jsonrpc":"2.0","id":"s1","result":{}}]`, http.StatusAccepted},
					{"DELETE", "", http.StatusNoContent},
				} {
					conn, wait := send(c.method, c.body)
					if wait(); conn.code() != c.want {
						t.Errorf("%s %s: %d, want %d", c.method, c.body, conn.code(), c.want)
					}
				}
				g.release <- doneReply
				waitForCall()
			})
		})
	}
}

// A principal alone may have all of them, and a request alone is never too large.
func TestRequestsInFlightOfOnePrincipal(t *testing.T) {
	bubble(t, HTTPOptions{MaxRequests: 2, MaxRequestBytes: 10}, func(t *testing.T, _ *gate, e *HTTP) {
		for _, step := range []struct {
			size int
			want bool
		}{{100, true}, {1, false}} {
			if err := e.enter("", step.size); (err == nil) != step.want {
				t.Errorf("%d bytes: %v", step.size, err)
			}
		}
		e.leave("", 100)
		for i, want := range []bool{true, true, false} {
			if err := e.enter("", 1); (err == nil) != want {
				t.Errorf("request %d: %v", i, err)
			}
		}
		e.leave("", 1)
		e.leave("", 1)
	})
}

// arriving is a body of which left bytes arrive, and no more until its end.
type arriving struct {
	left int
	end  chan struct{}
}

func (a *arriving) Read(p []byte) (int, error) {
	if a.left == 0 {
		<-a.end
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), a.left)
	a.left -= n
	return n, nil
}

func (a *arriving) Close() error { return nil }

// Bodies that arrive count as in flight, whether or not their length is known: a host can't fill the memory with many that do
// not end. What is small is read nevertheless.
func TestBodiesThatArriveAreBounded(t *testing.T) {
	const part = 300_000
	for _, length := range []int64{-1, 2 * part, 10_000_000} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			opts := HTTPOptions{MaxRequestBytes: 4 * 2 * part, Access: withTokens([]auth.Token{token("alice", "a"), token("bob", "b")})}
			bubble(t, opts, func(t *testing.T, _ *gate, e *HTTP) {
				var waits []func()
				end := make(chan struct{})
				begin := func(token string) (*fakeConn, func()) {
					req := hostRequest(t, "POST", "http://localhost/mcp", "", "Authorization", "Bearer "+token)
					req.Body, req.ContentLength = &arriving{part, end}, length
					conn, wait := serveIn(t, e, req)
					synctest.Wait()
					return conn, wait
				}
				const most = 4 // of half of all bytes, each with part or, if that is believed, its length
				for n := 1; ; n++ {
					conn, wait := begin("b")
					if e.inFlight["bob"].bytes > 4*part {
						t.Fatalf("%d bytes of bob's arrive", e.inFlight["bob"].bytes)
					}
					if conn.code() == http.StatusTooManyRequests {
						if wait(); n < 3 {
							t.Errorf("body %d of bob's is refused: %s", n, conn.text())
						}
						break
					}
					waits = append(waits, wait)
					if n > most {
						t.Fatalf("%d bodies of bob's arrive at once", n)
					}
				}
				conn, wait := serveIn(t, e, hostRequest(t, "POST", "http://localhost/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled"}`, "Authorization", "Bearer b"))
				if wait(); conn.code() == http.StatusTooManyRequests {
					t.Errorf("a small message of bob's is refused: %s", conn.text())
				}
				if conn, wait := begin("a"); conn.code() == http.StatusTooManyRequests {
					t.Errorf("alice's body is refused: %s", conn.text())
				} else {
					waits = append(waits, wait)
				}
				close(end)
				for _, wait := range waits {
					wait()
				}
				if synctest.Wait(); e.allInFlight != (inFlight{}) || len(e.inFlight) > 0 {
					t.Errorf("after all %v and %v are in flight", e.allInFlight, e.inFlight)
				}
			})
		})
	}
}
