package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/wire"

	"github.com/google/go-cmp/cmp"
)

// modernRequest builds a correct request of the modern era; extra are members
// of params, each with a leading comma.
func modernRequest(t testing.TB, url, method, extra string, headers ...string) *http.Request {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + modernMeta + extra + `}}`
	return hostRequest(t, "POST", url, body, append([]string{wire.HeaderVersion, wire.VersionModern, wire.HeaderMethod, method}, headers...)...)
}

func TestModernRules(t *testing.T) {
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		for _, code := range []string{"-32601", "-32602", "-32021", "-32000"} {
			if ex.Msg.Method == "error"+code {
				return wire.Message{Error: json.RawMessage(`{"code":` + code + `,"message":"m","data":{"z":1.0}}`)}
			}
		}
		return echo(ctx, ex)
	})
	c.onCheck = func(h http.Header) *wire.Error {
		if h.Get("Mcp-Param-Bad") != "" {
			return &wire.Error{Code: wire.CodeHeaderMismatch, Message: "bad param"}
		}
		return nil
	}
	_, url := startServer(t, c, HTTPOptions{})
	raw := func(body string, headers ...string) *http.Request {
		return hostRequest(t, "POST", url, body, headers...)
	}
	msg := func(params string) string { return `{"jsonrpc":"2.0","id":1,"method":"m","params":{` + params + `}}` }
	std := []string{wire.HeaderVersion, wire.VersionModern, wire.HeaderMethod, "m"}
	for _, tc := range []struct {
		name   string
		r      *http.Request
		status int
		want   string
	}{
		{"plain", modernRequest(t, url, "ping", ""), 200, `"result"`},
		{"header only, no _meta", raw(msg(""), std...), 400, `"id":1,"error":{"code":-32602`},
		{"_meta only, no header", raw(msg(modernMeta)), 400, `"id":1,"error":{"code":-32020`},
		{"no capabilities", raw(msg(`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`), std...), 400, `-32602`},
		{"version not a string", raw(msg(`"_meta":{"io.modelcontextprotocol/protocolVersion":2026}`), std...), 400, `-32602`},
		{"version differs", raw(msg(modernMeta), wire.HeaderVersion, "2031-01-01", wire.HeaderMethod, "m"), 400, `-32020`},
		{"future version", raw(msg(strings.ReplaceAll(modernMeta, "2026-07-28", "2031-01-01")), wire.HeaderVersion, "2031-01-01", wire.HeaderMethod, "m"), 400, `"data":{"supported":["2026-07-28",`},
		{"old version in _meta", raw(msg(strings.ReplaceAll(modernMeta, "2026-07-28", "2025-11-25")), wire.HeaderVersion, "2025-11-25", wire.HeaderMethod, "m"), 400, `"code":-32022`},
		{"no Mcp-Method", raw(msg(modernMeta), wire.HeaderVersion, wire.VersionModern), 400, `-32020`},
		{"wrong Mcp-Method", raw(msg(modernMeta), wire.HeaderVersion, wire.VersionModern, wire.HeaderMethod, "M"), 400, `-32020`},
		{"two Mcp-Method", raw(msg(modernMeta), append(std, wire.HeaderMethod, "m")...), 400, `-32020`},
		{"name", modernRequest(t, url, "tools/call", `,"name":"echo"`, wire.HeaderName, "echo"), 200, `"result"`},
		{"name with space around", modernRequest(t, url, "tools/call", `,"name":"echo"`, wire.HeaderName, "  echo "), 200, `"result"`},
		{"name in base64", modernRequest(t, url, "tools/call", `,"name":"é"`, wire.HeaderName, "=?base64?w6k=?="), 200, `"result"`},
		{"broken base64", modernRequest(t, url, "tools/call", `,"name":"é"`, wire.HeaderName, "=?base64?w6k?="), 400, `-32020`},
		{"no name", modernRequest(t, url, "tools/call", `,"name":"echo"`), 400, `-32020`},
		{"wrong name", modernRequest(t, url, "prompts/get", `,"name":"echo"`, wire.HeaderName, "Echo"), 400, `-32020`},
		{"wrong uri", modernRequest(t, url, "resources/read", `,"uri":"a:b"`, wire.HeaderName, "a:c"), 400, `-32020`},
		{"wrong task", modernRequest(t, url, "tasks/get", `,"taskId":"1"`, wire.HeaderName, "2"), 400, `-32020`},
		{"name in header only", modernRequest(t, url, "tools/call", ``, wire.HeaderName, "x"), 400, `-32020`},
		{"parameter header", modernRequest(t, url, "ping", "", "Mcp-Param-Bad", "1"), 400, `bad param`},
		{"unknown method", modernRequest(t, url, "error-32601", ""), 404, `"error":{"code":-32601,"message":"m","data":{"z":1.0}}`},
		{"invalid params", modernRequest(t, url, "error-32602", ""), 400, `-32602`},
		{"capability", modernRequest(t, url, "error-32021", ""), 400, `-32021`},
		{"any other error", modernRequest(t, url, "error-32000", ""), 200, `-32000`},
		{"response", raw(`{"jsonrpc":"2.0","id":1,"result":{}}`, wire.HeaderVersion, wire.VersionModern), 400, `-32600`},
		{"batch", raw(`[]`, wire.HeaderVersion, wire.VersionModern), 400, `-32600`},
		{"notification", raw(`{"jsonrpc":"2.0","method":"notifications/x"}`, wire.HeaderVersion, wire.VersionModern), 202, ``},
		{"notification, future version", raw(`{"jsonrpc":"2.0","method":"notifications/x"}`, wire.HeaderVersion, "2031-01-01"), 400, `-32022`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body, h := hostAnswer(t, tc.r)
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("answer = %d %s, want %d with %s", status, body, tc.status, tc.want)
			}
			if id := h.Get(wire.HeaderSession); id != "" {
				t.Errorf("a modern answer has a session id %q", id)
			}
		})
	}
	opened, closed := c.counts()
	if opened != closed {
		t.Errorf("sessions opened, closed = %d, %d, want the same", opened, closed)
	}
	for _, p := range c.peers {
		if p.ID != "" || p.Era.OwnConnections || p.Push(nil) == nil {
			t.Fatalf("peer of a modern request = %+v, want no id, Modern, and nowhere to push", p)
		}
	}
}

func TestModernHeadersReachTheRouter(t *testing.T) {
	var got http.Header
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message { got = ex.Header; return echo(ctx, ex) })
	_, url := startServer(t, c, HTTPOptions{})
	hostAnswer(t, modernRequest(t, url, "tools/call", `,"name":"n"`, wire.HeaderName, "n", "Mcp-Param-Region", "eu", "Authorization", "Bearer x", wire.HeaderSession, "y"))
	want := http.Header{"Mcp-Param-Region": {"eu"}} // the others are of this hop
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exchange.Header (-want +got):\n%s", diff)
	}
}

func TestModernDisconnectCancels(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		close(started)
		<-ctx.Done()
		close(ended)
		return wire.Message{}
	})
	_, url := startServer(t, c, HTTPOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if _, err := http.DefaultClient.Do(modernRequest(t, url, "slow", "").WithContext(ctx)); err == nil {
		t.Error("the call was answered, want a client that left")
	}
	<-ended
}

func TestModernListen(t *testing.T) {
	type pair struct {
		ex *Request
		p  Peer
	}
	got, ended := make(chan pair, 1), make(chan struct{})
	c := newFakeRouter(nil)
	c.onServe = func(ctx context.Context, ex *Request) wire.Message {
		got <- pair{ex, c.lastPeer()}
		<-ctx.Done()
		close(ended)
		return wire.Message{}
	}
	e, url := startServer(t, c, HTTPOptions{})
	resp := hostDo(t, modernRequest(t, url, "subscriptions/listen", ""))
	s := newSSEReader(t, resp) // the head is there before any event
	l := <-got
	_ = l.ex.Emit([]byte(`{"n":1}`))
	_ = l.p.Push([]byte("{\"n\":\n2}"))
	if ev := s.want(`{"n":1}`); ev.id != "" || ev.retry != "" {
		t.Errorf("event = %+v, want no id and no retry in this era", ev)
	}
	s.want(`{"n": 2}`)
	done := make(chan error, 1)
	go func() { done <- e.Shutdown(t.Context()) }()
	if ev, ok := s.next(); ok {
		t.Errorf("event at shutdown = %+v, want the end", ev)
	}
	<-ended
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
}
