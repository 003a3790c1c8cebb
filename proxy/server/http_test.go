package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/wire"

	"github.com/google/go-cmp/cmp"
)

// startServer serves c on a loopback listener until the test ends.
func startServer(t testing.TB, c Router, opts HTTPOptions) (*HTTP, string) {
	t.Helper()
	if opts.Log == nil {
		opts.Log = testLog(t)
	}
	e := NewHTTP(c, opts)
	srv := httptest.NewServer(e.Handler())
	closeServer(t, e, srv)
	return e, srv.URL + "/mcp"
}

// closeServer ends e and what serves it with the test.
func closeServer(t testing.TB, e *HTTP, srv *httptest.Server) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = e.Shutdown(ctx)
		srv.CloseClientConnections()
		srv.Close()
	})
}

// hostRequest builds a request as a host would send it; headers are key, value, ….
func hostRequest(t testing.TB, method, url, body string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(headers); i += 2 {
		switch headers[i+1] {
		case "":
			r.Header.Del(headers[i])
		default:
			r.Header.Add(headers[i], headers[i+1])
			if headers[i] == "Accept" || headers[i] == "Content-Type" {
				r.Header.Set(headers[i], headers[i+1])
			}
		}
	}
	if h := r.Header.Get("Host"); h != "" {
		r.Host = h
	}
	return r
}

func hostDo(t testing.TB, r *http.Request) *http.Response {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// hostAnswer sends a request and reads the whole answer.
func hostAnswer(t testing.TB, r *http.Request) (status int, body string, h http.Header) {
	t.Helper()
	resp := hostDo(t, r)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v", err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// openHost opens a legacy session and returns its id.
func openHost(t testing.TB, url string) string {
	t.Helper()
	status, body, h := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`))
	id := h.Get(wire.HeaderSession)
	if status != http.StatusOK || !strings.HasPrefix(id, "ses_") || len(id) != len("ses_")+36 {
		t.Fatalf("initialize = %d, session %q, %s", status, id, body)
	}
	return id
}

// sseEvent is one event as a host reads it.
type sseEvent struct{ id, data, retry string }

type sseReader struct {
	t        testing.TB
	r        *bufio.Reader
	comments int
}

func newSSEReader(t testing.TB, resp *http.Response) *sseReader {
	t.Helper()
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("Content-Type = %q (%d %s), want an event stream", ct, resp.StatusCode, b)
	}
	return &sseReader{t: t, r: bufio.NewReader(resp.Body)}
}

// next returns the next event; ok is false at the end of the stream.
func (s *sseReader) next() (ev sseEvent, ok bool) {
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			return ev, false
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "\n" && ok:
			return ev, true
		case line == "\n":
		case key == "":
			s.comments++
		case key == "id":
			ev.id, ok = value, true
		case key == "data":
			ev.data, ok = value, true
		case key == "retry":
			ev.retry = value
		}
	}
}

// want reads the next event and compares its data.
func (s *sseReader) want(data string) sseEvent {
	s.t.Helper()
	ev, ok := s.next()
	if !ok || ev.data != data {
		s.t.Fatalf("event = %+v, %v, want data %s", ev, ok, data)
	}
	return ev
}

func TestHTTPRefusals(t *testing.T) {
	_, url := startServer(t, newFakeRouter(nil), HTTPOptions{MaxBody: 1000, Access: func() *Access {
		return &Access{Origins: []string{"https://good.example"}, Hosts: []string{"gate.example"}}
	}})
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for _, tc := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		want                     string // in the answer
	}{
		{"no session", "POST", "", ping, nil, 400, `"id":1,"error":{"code":-32600`},
		{"unknown session", "POST", "", ping, []string{wire.HeaderSession, "ses_x"}, 404, `"id":1`},
		{"GET without session", "GET", "", "", nil, 400, ""},
		{"DELETE without session", "DELETE", "", "", nil, 400, ""},
		{"PUT", "PUT", "", "", nil, 405, ""},
		{"HEAD", "HEAD", "", "", nil, 405, ""},
		{"modern GET", "GET", "", "", []string{wire.HeaderVersion, wire.VersionModern}, 405, ""},
		{"modern DELETE", "DELETE", "", "", []string{wire.HeaderVersion, wire.VersionModern}, 405, ""},
		{"no such path", "POST", "/x", ping, nil, 404, "MCP is served on /mcp"},
		{"content type", "POST", "", ping, []string{"Content-Type", "text/plain"}, 415, ""},
		{"content type with charset", "POST", "", ping, []string{"Content-Type", "Application/JSON; charset=utf-8"}, 400, "Mcp-Session-Id"},
		{"accept", "POST", "", ping, []string{"Accept", "application/json"}, 406, ""},
		{"accept wildcard", "POST", "", ping, []string{"Accept", "application/*, text/*;q=0.5"}, 400, "Mcp-Session-Id"},
		{"accept anything", "POST", "", ping, []string{"Accept", "*/*"}, 400, "Mcp-Session-Id"},
		{"GET accept", "GET", "", "", []string{"Accept", "application/json"}, 406, ""},
		{"large", "POST", "", strings.Repeat(" ", 1001), nil, 413, "1000 bytes"},
		{"not JSON", "POST", "", `{"jsonrpc"`, nil, 400, `"id":null,"error":{"code":-32700`},
		{"empty", "POST", "", ``, nil, 400, `-32700`},
		{"invalid", "POST", "", `{"id":4,"method":"x"}`, nil, 400, `"id":4,"error":{"code":-32600`},
		{"unknown legacy version", "POST", "", ping, []string{wire.HeaderVersion, "2025-01-01"}, 400, `"code":-32022`},
		{"unknown later version", "POST", "", ping, []string{wire.HeaderVersion, "2031-01-01"}, 400, `"code":-32022`},
		{"no version", "POST", "", ping, []string{wire.HeaderVersion, "latest"}, 400, `"code":-32022`},
		{"foreign host", "POST", "", ping, []string{"Host", "evil.example"}, 403, ""},
		{"rebound host with port", "POST", "", ping, []string{"Host", "evil.example:80"}, 403, ""},
		{"host localhost", "POST", "", ping, []string{"Host", "localhost:1"}, 400, "Mcp-Session-Id"},
		{"host IPv6", "POST", "", ping, []string{"Host", "[::1]:80"}, 400, "Mcp-Session-Id"},
		{"allowed host", "POST", "", ping, []string{"Host", "gate.example"}, 400, "Mcp-Session-Id"},
		{"foreign origin", "POST", "", ping, []string{"Origin", "http://evil.example"}, 403, ""},
		{"null origin", "POST", "", ping, []string{"Origin", "null"}, 403, ""},
		{"other port", "POST", "", ping, []string{"Origin", "http://127.0.0.1:1"}, 403, ""},
		{"own origin", "POST", "", ping, []string{"Host", "localhost:80", "Origin", "http://LOCALHOST"}, 400, "Mcp-Session-Id"},
		{"allowed origin", "POST", "", ping, []string{"Origin", "https://good.example"}, 400, "Mcp-Session-Id"},
		{"preflight", "OPTIONS", "", "", []string{"Origin", "https://good.example", "Access-Control-Request-Headers", "x"}, 204, ""},
		{"batch without session", "POST", "", "[" + ping + "]", nil, 400, "Mcp-Session-Id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body, h := hostAnswer(t, hostRequest(t, tc.method, url+tc.path, tc.body, tc.headers...))
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("status = %d, want %d; answer %s, want it to hold %s", status, tc.status, body, tc.want)
			}
			if status == 405 && h.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
			if tc.name == "preflight" && h.Get("Access-Control-Allow-Headers") != "x" {
				t.Errorf("preflight headers = %v", h)
			}
		})
	}
}

func TestLegacySession(t *testing.T) {
	c := newFakeRouter(nil)
	_, url := startServer(t, c, HTTPOptions{})
	id := openHost(t, url)
	if p := c.lastPeer(); p.ID != id || p.Principal != "local" || p.Transport != "http" || !p.Era.OwnConnections {
		t.Errorf("peer = %+v", p)
	}
	status, body, h := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":"x","method":"any/thing","params":{"a": 1.0}}`, wire.HeaderSession, id))
	if want := `{"jsonrpc":"2.0","id":"x","result":{"method":"any/thing","params":{"a": 1.0}}}`; status != 200 || body != want {
		t.Errorf("call = %d %s, want %s", status, body, want)
	}
	if h.Get("Content-Type") != "application/json" || h.Get("Content-Length") != fmt.Sprint(len(body)) || h.Get(wire.HeaderSession) != "" {
		t.Errorf("headers of a plain reply = %v", h)
	}
	for _, m := range []string{`{"jsonrpc":"2.0","method":"notifications/any"}`, `{"jsonrpc":"2.0","id":9,"result":{}}`} {
		if status, body, _ := hostAnswer(t, hostRequest(t, "POST", url, m, wire.HeaderSession, id)); status != 202 || body != "" {
			t.Errorf("%s = %d %q, want 202 and nothing", m, status, body)
		}
	}
	if m := <-c.answers; string(m.ID) != "9" {
		t.Errorf("answer id = %s, want 9", m.ID)
	}
	if diff := cmp.Diff([]string{"notifications/any"}, c.notified); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	if status, _, _ := hostAnswer(t, hostRequest(t, "DELETE", url, "", wire.HeaderSession, id)); status != 204 {
		t.Errorf("DELETE = %d, want 204", status)
	}
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if status, _, _ := hostAnswer(t, hostRequest(t, method, url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, wire.HeaderSession, id)); status != 404 {
			t.Errorf("%s after DELETE = %d, want 404", method, status)
		}
	}
	if diff := cmp.Diff([]string{"ended by the host"}, c.closed); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
}

func TestLegacyInitializeRefused(t *testing.T) {
	c := newFakeRouter(func(context.Context, *Request) wire.Message {
		return wire.Message{Error: (&wire.Error{Code: wire.CodeInternal, Message: "no"}).JSON()}
	})
	e, url := startServer(t, c, HTTPOptions{})
	status, body, h := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`))
	if status != 200 || !strings.Contains(body, `"code":-32603`) || h.Get(wire.HeaderSession) != "" {
		t.Errorf("refused initialize = %d %s, session %q, want no session", status, body, h.Get(wire.HeaderSession))
	}
	if n := len(e.allSessions()); n != 0 {
		t.Errorf("%d sessions left, want 0", n)
	}
}

func TestLegacyPrincipal(t *testing.T) {
	c := newFakeRouter(nil)
	_, url := startServer(t, c, HTTPOptions{Access: withTokens([]auth.Token{token("alice", "token-a"), token("bob", "token-b")})})
	_, _, h := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`, "Authorization", "Bearer token-a"))
	id := h.Get(wire.HeaderSession)
	if p := c.lastPeer(); p.Principal != "alice" {
		t.Errorf("principal = %q, want alice", p.Principal)
	}
	for user, want := range map[string]int{"Bearer token-a": 200, "bearer  token-a ": 200, "Bearer token-b": 404, "Bearer token-c": 401, "": 401} {
		if status, _, _ := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, wire.HeaderSession, id, "Authorization", user)); status != want {
			t.Errorf("%s on alice's session = %d, want %d", user, status, want)
		}
	}
}

func TestBranchURL(t *testing.T) {
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		return wire.Message{Result: json.RawMessage(fmt.Sprintf("%q", ex.BranchID))}
	})
	_, url := startServer(t, c, HTTPOptions{})
	url = strings.TrimSuffix(url, "/mcp")
	_, body, _ := hostAnswer(t, modernRequest(t, url+"/b/br_1/mcp", "ping", ""))
	if want := `{"jsonrpc":"2.0","id":1,"result":"br_1"}`; body != want {
		t.Errorf("answer on the URL of a branch = %s, want %s", body, want)
	}
	for _, path := range []string{"/b//mcp", "/b/a/b/mcp", "/b/x", "/", "/mcp/"} {
		if status, _, _ := hostAnswer(t, hostRequest(t, "POST", url+path, "{}")); status != 404 {
			t.Errorf("POST %s = %d, want 404", path, status)
		}
	}
}

func TestBatch(t *testing.T) {
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		if ex.Msg.Method == "initialize" {
			return wire.Message{Result: json.RawMessage(`{"protocolVersion":` + string(ex.Msg.Params[19:31]) + `}`)}
		}
		return echo(ctx, ex)
	})
	_, url := startServer(t, c, HTTPOptions{})
	open := func(version string) string {
		_, _, h := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`"}}`))
		return h.Get(wire.HeaderSession)
	}
	old, current := open("2025-03-26"), open("2025-11-25")
	for _, tc := range []struct {
		name, body, session string
		status, answers     int
	}{
		{"two requests, one notification, one fault", `[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"n"},7,{"jsonrpc":"2.0","id":2,"method":"b"}]`, old, 200, 3},
		{"notifications only", `[{"jsonrpc":"2.0","method":"n"}]`, old, 202, 0},
		{"initialize inside", `[{"jsonrpc":"2.0","id":1,"method":"initialize"}]`, old, 200, 1},
		{"empty", `[]`, old, 400, 0},
		{"not JSON", `[{]`, old, 400, 0},
		{"as many as there may be", "[1" + strings.Repeat(",1", batchMax-1) + "]", old, 200, batchMax},
		{"one more", "[1" + strings.Repeat(",1", batchMax) + "]", old, 400, 0},
		{"removed later", `[{"jsonrpc":"2.0","id":1,"method":"a"}]`, current, 400, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body, _ := hostAnswer(t, hostRequest(t, "POST", url, tc.body, wire.HeaderSession, tc.session))
			var list []json.RawMessage
			_ = json.Unmarshal([]byte(body), &list)
			if status != tc.status || len(list) != tc.answers {
				t.Errorf("batch = %d with %d answers (%s), want %d with %d", status, len(list), body, tc.status, tc.answers)
			}
		})
	}
}

// The messages of a batch are taken in their order: a cancellation finds the
// requests before it, and none of those after it.
func TestBatchKeepsItsOrder(t *testing.T) {
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		if ex.Msg.Method == "initialize" {
			return wire.Message{Result: json.RawMessage(`{"protocolVersion":"2025-03-26"}`)}
		}
		return echo(ctx, ex)
	})
	var before []int
	c.onNotify = func(wire.Message) {
		c.mu.Lock()
		defer c.mu.Unlock()
		before = append(before, len(c.began))
	}
	_, url := startServer(t, c, HTTPOptions{})
	id := openHost(t, url)
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	request := func(id int) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"a"}`, id) }
	body := "[" + strings.Join([]string{cancel, request(1), cancel, request(2), request(3), cancel}, ",") + "]"
	if status, answer, _ := hostAnswer(t, hostRequest(t, "POST", url, body, wire.HeaderSession, id)); status != 200 {
		t.Fatalf("batch = %d %s", status, answer)
	}
	if diff := cmp.Diff([]int{1, 2, 4}, before); diff != "" { // initialize is one of them
		t.Errorf("requests begun at each notification (-want +got):\n%s", diff)
	}
}

func TestHealthAndReady(t *testing.T) {
	ready := false
	_, url := startServer(t, newFakeRouter(nil), HTTPOptions{Ready: func() (bool, []byte) { return ready, []byte(`{"x":1}`) }})
	url = strings.TrimSuffix(url, "/mcp")
	if status, _, _ := hostAnswer(t, hostRequest(t, "GET", url+"/healthz", "")); status != 200 {
		t.Errorf("/healthz = %d, want 200", status)
	}
	for _, want := range []int{503, 200} {
		if status, body, _ := hostAnswer(t, hostRequest(t, "GET", url+"/readyz", "")); status != want || body != `{"x":1}` {
			t.Errorf("/readyz = %d %s, want %d", status, body, want)
		}
		ready = true
	}
	if status, _, _ := hostAnswer(t, hostRequest(t, "GET", url+"/readyz", "", "Host", "evil.example")); status != 403 {
		t.Errorf("/readyz for a foreign Host = %d, want 403", status)
	}
}

// Only headers that repeat arguments travel on.
func TestParamHeaders(t *testing.T) {
	host := http.Header{"Mcp-Param-Key": {"a", "b"}, "Mcp-Name": {"x"}, "Accept": {"x"}}
	want := http.Header{"Mcp-Param-Key": {"a", "b"}}
	if diff := cmp.Diff(want, paramHeaders(host)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if got := paramHeaders(http.Header{"Accept": {"x"}}); got != nil {
		t.Errorf("headers = %v, want none", got)
	}
}
