package upstream

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
	"github.com/google/go-cmp/cmp"
)

// fakeHTTP is an upstream whose answers a test writes by hand.
type fakeHTTP struct {
	*httptest.Server
	mu       sync.Mutex // guards what follows
	requests []string   // "METHOD rpc-method", as they came
	headers  []http.Header
	bodies   []string
}

// newFakeHTTP serves with handle, which may leave initialize and notifications
// to the fake by returning false.
func newFakeHTTP(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, m wire.Message) bool) *fakeHTTP {
	f := &fakeHTTP{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, _ := wire.ParseMessage(body)
		f.mu.Lock()
		f.requests = append(f.requests, strings.TrimSpace(r.Method+" "+m.Method))
		f.headers = append(f.headers, r.Header.Clone())
		f.bodies = append(f.bodies, string(body))
		f.mu.Unlock()
		if handle != nil && handle(w, r, m) {
			return
		}
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case m.Method == wire.MethodInitialize:
			w.Header().Set(wire.HeaderSession, "s-1")
			answerWith(w, m, `{"protocolVersion":"2025-06-18","capabilities":{}}`)
		case m.Method == wire.MethodDiscover:
			w.Header().Set("Content-Type", mediaJSON)
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no session"}}`)
		case !m.IsRequest():
			w.WriteHeader(http.StatusAccepted)
		default:
			answerWith(w, m, string(orNull(m.Params)))
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func answerWith(w http.ResponseWriter, m wire.Message, result string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	fmt.Fprintf(w, "{\n\"jsonrpc\":\"2.0\",\"id\":%s,\n\"result\":%s}\n", m.ID, result)
}

func events(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", mediaEvents)
	for _, e := range events {
		fmt.Fprintf(w, "%s\n\n", e)
	}
	w.(http.Flusher).Flush()
}

func (f *fakeHTTP) config(t *testing.T) Config {
	return Config{
		Name: "fake", URL: f.URL + "/mcp", Log: testLog(t),
		Headers: map[string]string{"authorization": "Bearer ours"},
		Host:    conn.Host{Initialize: json.RawMessage(`{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"h"}}`)},
	}
}

// seen returns what the fake was asked, once it was asked want.
func (f *fakeHTTP) seen(t *testing.T, want string) []string {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		f.mu.Lock()
		got := slices.Clone(f.requests)
		f.mu.Unlock()
		if slices.Contains(got, want) {
			return got
		}
	}
	t.Fatalf("upstream never saw %q but %q", want, f.requests)
	return nil
}

// TestSecretAsRevision: the revision of a server goes to a file, reports and spans, so it holds no secret.
func TestSecretAsRevision(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, _ *http.Request, m wire.Message) bool {
		if m.Method == wire.MethodInitialize {
			answerWith(w, m, `{"protocolVersion":"hush","capabilities":{}}`)
		}
		return m.Method == wire.MethodInitialize
	})
	cfg := f.config(t)
	cfg.Clean = func(text string) string { return strings.ReplaceAll(text, "hush", "[REDACTED]") }
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "protocolVersion with a secret") || strings.Contains(err.Error(), "hush") {
		t.Errorf("Open returns %v, want that the revision has a secret", err)
	}
}

// TestDamagedBodies: the error of a body that can't be read to its end says what is wrong with it.
func TestDamagedBodies(t *testing.T) {
	gzipped := func(text string) string {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, text)
		z.Close()
		return b.String()
	}
	const (
		cut    = "the response ended before its body was complete: the server, or a proxy in front of it, cut it off"
		noGzip = "the response has Content-Encoding gzip, but its body can't be decompressed"
		brotli = `the response has Content-Encoding "br", which foldgate does not accept: it asks for gzip`
		broken = "upstream ended the response stream without an answer: "
	)
	whole := gzipped(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	for _, c := range []struct {
		name, kind, encoding, length, body, want string
		status                                   int
	}{
		{name: "shorter than its length", length: "100", body: `{"jsonrpc":`, want: cut},
		{name: "cut chunk", body: `{"jsonrpc":`, want: cut},
		{name: "empty", length: "0", want: `unreadable answer from upstream: HTTP 200 without an answer to tools/call: ""`},
		{name: "no gzip", encoding: "gzip", body: `{"jsonrpc":"2.0","id":1,"result":{}}`, want: noGzip + ": gzip: invalid header"},
		{name: "no gzip, short", encoding: "gzip", length: "2", body: `{}`, want: cut},
		{name: "cut gzip", encoding: "gzip", length: strconv.Itoa(len(whole)), body: whole[:len(whole)-5], want: cut},
		{name: "damaged gzip", encoding: "gzip", length: strconv.Itoa(len(whole)), body: whole[:len(whole)-3] + "xxx", want: noGzip + ": gzip: invalid checksum"},
		{name: "damaged deflate", encoding: "gzip", length: strconv.Itoa(len(whole)), body: whole[:10] + "\xff\xff\xff" + whole[13:], want: noGzip + ": flate: corrupt input before offset 1"},
		{name: "brotli", encoding: "br", body: "\x8b\x02\x80{}\x03", want: brotli},
		{name: "error without gzip", status: 500, encoding: "gzip", body: "down", want: "HTTP 500 Internal Server Error"},
		{name: "error cut", status: 500, length: "100", body: "down", want: `HTTP 500 Internal Server Error: "down"`},
		{name: "events without gzip", kind: mediaEvents, encoding: "gzip", body: "data: {}\n\n", want: broken + noGzip + ": gzip: invalid header"},
		{name: "events cut", kind: mediaEvents, body: "data: {}\n\n", want: broken + cut},
		{name: "brotli events", kind: mediaEvents, encoding: "br", body: "\x8b\x02\x80{}\x03\n\n", want: broken + brotli},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
				if m.Method != "tools/call" {
					return false
				}
				set := func(name, value string) {
					if value != "" {
						w.Header().Set(name, value)
					}
				}
				set("Content-Type", mediaJSON)
				set("Content-Type", c.kind)
				set("Content-Encoding", c.encoding)
				set("Content-Length", c.length)
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				_, _ = io.WriteString(w, c.body)
				if strings.Contains(c.name, "cut") {
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				}
				return true
			})
			_, err := open(t, f.config(t)).Call(t.Context(), &conn.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"x"}`)})
			if err == nil || err.Error() != c.want {
				t.Errorf("error %q, want %q", err, c.want)
			}
		})
	}
}

func TestHTTPSession(t *testing.T) {
	f := newFakeHTTP(t, nil)
	l := open(t, f.config(t))
	m, err := l.Call(t.Context(), &conn.Request{
		Method: "tools/call", Params: json.RawMessage("{\"name\":\"x\",\n\"n\":1.0}"),
		Header: http.Header{"Authorization": {"Bearer host"}, "Cookie": {"c"}, "Mcp-Session-Id": {"h"}, "Mcp-Name": {"y"}},
	})
	if err != nil || string(m.Result) != `{"name":"x", "n":1.0}` {
		t.Errorf("call = %s, %v", m.Result, err)
	}
	f.seen(t, "GET")
	l.Close()
	want := []string{"POST initialize", "POST notifications/initialized", "POST tools/call", "DELETE"}
	got := slices.DeleteFunc(f.seen(t, "DELETE"), func(s string) bool { return s == "GET" })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}
	for i, h := range f.headers {
		session, version := "s-1", "2025-06-18"
		if i == 0 {
			session, version = "", ""
		}
		if h.Get(wire.HeaderSession) != session || h.Get(wire.HeaderVersion) != version || h.Get("Authorization") != "Bearer ours" || h.Get("Cookie") != "" || h.Get(wire.HeaderName) != "" {
			t.Errorf("headers of request %d: %v", i, h)
		}
	}
}

func TestHTTPModern(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch m.Method {
		case wire.MethodDiscover:
			answerWith(w, m, `{"supportedVersions":["2026-07-28"]}`)
		case "resources/read":
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}`, `data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{}}`)
		case "hang":
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
			<-r.Context().Done()
		case wire.MethodListen:
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"`+wire.MetaSubscriptionID+`":`+string(m.ID)+`}}}`)
		case "unknown":
			w.Header().Set("Content-Type", mediaJSON)
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32601,"message":"no","data":1.0}}`)
		default:
			return false
		}
		return true
	})
	cfg := f.config(t)
	cfg.Host.Initialize = nil
	cfg.Handler = handles(func(m wire.Message) { t.Errorf("Handle(%s)", m.Raw) })
	l := open(t, cfg)
	if !l.Info().Modern() {
		t.Fatalf("info() = %+v", l.Info())
	}
	count := 0
	event := func(wire.Message) { count++ }
	if _, err := l.Call(t.Context(), &conn.Request{Method: "resources/read", Params: json.RawMessage(`{"uri":"file:///ä"}`), Receiver: takes(event),
		Header: http.Header{"mcp-param-region": {"eu"}, "Mcp-Param-Two": {"a", "b"}, "Authorization": {"no"}}}); err != nil || count != 1 {
		t.Errorf("call: %d events, %v", count, err)
	}
	h := f.headers[len(f.headers)-1]
	want := http.Header{wire.HeaderMethod: {"resources/read"}, wire.HeaderName: {"=?base64?ZmlsZTovLy/DpA==?="}, wire.HeaderVersion: {wire.VersionModern},
		"Mcp-Param-Region": {"eu"}, "Mcp-Param-Two": {"a", "b"}, "Authorization": {"Bearer ours"}}
	for k := range want {
		if diff := cmp.Diff(want[k], h[k]); diff != "" {
			t.Errorf("header %s (-want +got)\n%s", k, diff)
		}
	}
	m, err := l.Call(t.Context(), &conn.Request{Method: "unknown"})
	if err != nil || string(m.Error) != `{"code":-32601,"message":"no","data":1.0}` {
		t.Errorf("unknown method: %s, %v", m.Error, err)
	}
	var got wire.Message
	_, err = l.Call(t.Context(), &conn.Request{Method: wire.MethodListen, Receiver: takes(func(m wire.Message) { got = m })})
	if id, _ := rawjson.Get(got.Params, "_meta", wire.MetaSubscriptionID); !errors.Is(err, errListenEnded) || wire.OwnID(id) == 0 {
		t.Errorf("listen = %v, event %s", err, got.Raw)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	if _, err := l.Call(ctx, &conn.Request{Method: "hang", Receiver: takes(func(wire.Message) { cancel(stop) })}); err != stop {
		t.Errorf("call = %v, want %v", err, stop)
	}
	l.Close()
	if got := strings.Join(f.requests, ","); strings.Contains(got, "GET") || strings.Contains(got, "DELETE") || strings.Contains(got, wire.MethodCancelled) {
		t.Errorf("requests %s: the modern era has no such", got)
	}
}

// Load balancers find the server that has a task by the header Mcp-Name.
func TestHTTPModernTaskNames(t *testing.T) {
	h := http.Header{}
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		h.Del(wire.HeaderName)
		modernHeaders(h, method, []byte(`{"taskId":"t \u00e9"}`))
		if h.Get(wire.HeaderMethod) != method || h.Get(wire.HeaderName) != "=?base64?dCDDqQ==?=" {
			t.Errorf("headers of %s: %v", method, h)
		}
	}
}

func TestHTTPLegacyCancel(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		if m.Method == "hang" {
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
			<-r.Context().Done()
		}
		return m.Method == "hang"
	})
	l := open(t, f.config(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	if _, err := l.Call(ctx, &conn.Request{Method: "hang", Receiver: takes(func(wire.Message) { cancel(stop) })}); err != stop {
		t.Errorf("call = %v, want %v", err, stop)
	}
	i := slices.Index(f.seen(t, "POST "+wire.MethodCancelled), "POST "+wire.MethodCancelled)
	f.mu.Lock() // the server may see the end of the stream now
	defer f.mu.Unlock()
	if want := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"stop"}}`; f.bodies[i] != want {
		t.Errorf("cancelled with %s, want %s", f.bodies[i], want)
	}
}

// The cancellation of a call reaches the server before the end of the session, also if the
// connection is closed at once, or before the call ends.
func TestHTTPCloseAfterCancel(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		if m.Method == "hang" {
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
			<-r.Context().Done()
		}
		return m.Method == "hang"
	})
	for i := range 20 {
		l := open(t, f.config(t))
		ctx, cancel := context.WithCancel(t.Context())
		stop := cancel
		if i%2 > 0 {
			stop = func() { go l.Close() }
		}
		if _, err := l.Call(ctx, &conn.Request{Method: "hang", Receiver: takes(func(wire.Message) { stop() })}); err == nil {
			t.Fatal("a cancelled call succeeded")
		}
		cancel()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		cancelled, deleted := slices.Index(f.requests, "POST "+wire.MethodCancelled), slices.Index(f.requests, "DELETE")
		if cancelled < 0 || deleted < cancelled {
			t.Errorf("requests %q: want the cancellation, then DELETE", f.requests)
		}
		f.requests = nil
		f.mu.Unlock()
	}
}

// A server that accepts a message and never ends its response delays nothing for long.
func TestHTTPEndlessAcceptance(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		if !m.IsNotification() {
			return false
		}
		events(w, ": accepted")
		<-r.Context().Done()
		return true
	})
	begin := time.Now()
	l := open(t, f.config(t))
	if err := l.Send(t.Context(), wire.Message{Method: "notifications/roots/list_changed"}); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// A server that sends requests and does not take the answers costs a bounded number of network
// connections, and its call goes on.
func TestHTTPFloodOfRequests(t *testing.T) {
	var now, most atomic.Int64
	release := make(chan struct{})
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch {
		case m.Method == "flood":
			events(w)
			for i := range 3 * maxAsides {
				fmt.Fprintf(w, `data: {"jsonrpc":"1.0","id":%d,"method":"ping"}`+"\n\n", i)
			}
			events(w, `data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{}}`)
			return true
		case r.Method == http.MethodPost && m.IsResponse():
			most.Store(max(most.Load(), now.Add(1)))
			<-release
			now.Add(-1)
		}
		return false
	})
	c := f.config(t)
	c.Handler, c.Log = handles(func(wire.Message) {}), slog.New(slog.DiscardHandler)
	l := open(t, c)
	defer close(release)
	for range 2 {
		if _, err := l.Call(t.Context(), &conn.Request{Method: "flood"}); err != nil {
			t.Error(err)
		}
	}
	f.seen(t, "POST")
	if waiting := l.(*httpConn).asides.Load(); most.Load() > maxPosts || waiting > maxAsides {
		t.Errorf("%d answers at once and %d waiting, want at most %d and %d", most.Load(), waiting, maxPosts, maxAsides)
	}
}

// The stream of a call breaks twice, and its messages come all the same.
func TestHTTPResume(t *testing.T) {
	var mu sync.Mutex
	step := 0
	var id string
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		last := r.Header.Get("Last-Event-Id")
		switch {
		case m.Method == "tools/call":
			id = string(m.ID)
			events(w, "id: e0\nretry: 5\ndata:", "id: e1\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"notifications/one\"}")
		case last != "" && last != fmt.Sprintf("e%d", step+1):
			t.Errorf("Last-Event-Id = %q in step %d", last, step)
		case last == "e1":
			step++
			events(w, "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/two\"}")
		case last == "e2" && r.Header.Get("X-Again") == "":
			step++
			events(w, "id: e3\ndata: {\"jsonrpc\":\"2.0\",\"id\":"+id+",\"result\":{\"ok\":1}}")
		default:
			return false
		}
		return true
	})
	l := open(t, f.config(t))
	var got []string
	m, err := l.Call(t.Context(), &conn.Request{Method: "tools/call", Receiver: takes(func(m wire.Message) { got = append(got, m.Method) })})
	if err != nil || string(m.Result) != `{"ok":1}` || strings.Join(got, " ") != "notifications/one notifications/two" {
		t.Errorf("call = %s, %v; events %q", m.Result, err, got)
	}
}

func TestHTTPBrokenStream(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch m.Method {
		case "no-ids":
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/one"}`)
		case "big":
			events(w, `data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":"`+strings.Repeat("x", 20000)+`"}`)
		case "big-json":
			answerWith(w, m, `"`+strings.Repeat("x", 20000)+`"`)
		case "big-note":
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/one","params":{"x":"`+strings.Repeat("x", 20000)+`"}}`,
				`data: nonsense`, `event: other`+"\n"+`data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"n":0}}`,
				`data: [{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"n":1}}]`)
		case "html":
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "<html>")
		case "empty":
			w.WriteHeader(http.StatusAccepted)
		case "away":
			w.Header().Set("Location", "http://elsewhere.example/mcp")
			w.WriteHeader(http.StatusTemporaryRedirect)
		default:
			return false
		}
		return true
	})
	cfg := f.config(t)
	cfg.MaxMessage = 10000
	l := open(t, cfg)
	for method, want := range map[string]string{
		"no-ids":   errStreamBroken.Error(),
		"big":      errUnreadable.Error(),
		"big-json": errUnreadable.Error(),
		"big-note": "",
		"html":     `HTTP 502 Bad Gateway: "<html>"`,
		"empty":    "HTTP 202 without an answer",
		"away":     "elsewhere.example",
		"fine":     "",
	} {
		m, err := l.Call(t.Context(), &conn.Request{Method: method})
		if want == "" && (err != nil || m.Result == nil) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s = %s, %v; want %q", method, m.Result, err, want)
		}
	}
}

// An answer that is no stream may hold more than the answer, or all but that.
func TestHTTPWholeAnswers(t *testing.T) {
	const note = `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`
	for _, c := range []struct{ body, want string }{
		{`{"jsonrpc":"2.0","id":"ID","result":{"n":1}}`, `{"n":1}`},
		{`{"jsonrpc":"2.0","id":ID,"result":null}`, `{}`},
		{`{"jsonrpc":"2.0","id":ID,"result":1}`, string(wire.Message{Result: []byte("1")}.ReadableResult().Error)},
		{`[` + note + `,{"jsonrpc":"2.0","id":ID,"result":{"n":1}},{"jsonrpc":"2.0","id":ID,"result":{"n":2}}]`, `{"n":1}`},
		{`{"jsonrpc":"2.0","id":ID,"error":"boom"}`, string(wire.ReadableError([]byte(`"boom"`)))},
		{`{"jsonrpc":"2.0","id":999,"result":1}`, ""},
		{note, ""},
		{`[` + note + `]`, ""},
		{`[]`, ""},
		{``, ""},
	} {
		f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
			if m.Method == "tools/call" {
				w.Header().Set("Content-Type", mediaJSON)
				fmt.Fprint(w, strings.ReplaceAll(c.body, "ID", string(m.ID)))
			}
			return m.Method == "tools/call"
		})
		m, err := open(t, f.config(t)).Call(t.Context(), &conn.Request{Method: "tools/call"})
		if string(m.Result)+string(m.Error) != c.want || errors.Is(err, errUnreadable) != (c.want == "") {
			t.Errorf("answer %s = %s%s, %v; want %q", c.body, m.Result, m.Error, err, c.want)
		}
	}
}

func TestHTTPSessionGone(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		if m.Method == "tools/call" {
			w.WriteHeader(http.StatusNotFound)
		}
		return m.Method == "tools/call"
	})
	l := open(t, f.config(t))
	for range 2 {
		if _, err := l.Call(t.Context(), &conn.Request{Method: "tools/call"}); !errors.Is(err, conn.ErrSessionGone) || !errors.Is(err, conn.ErrClosed) {
			t.Errorf("call = %v, want %v", err, conn.ErrSessionGone)
		}
		<-l.Done()
	}
	if !errors.Is(l.Err(), conn.ErrSessionGone) {
		t.Errorf("err() = %v", l.Err())
	}
}

// A server that forgets the session while it handles a call may have done what the call asks for.
// The call must not be repeated.
func TestHTTPSessionGoneDuringCall(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch m.Method {
		case "first":
			events(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
			<-r.Context().Done()
		case "second":
			w.WriteHeader(http.StatusNotFound)
		}
		return m.Method == "first" || m.Method == "second"
	})
	l := open(t, f.config(t))
	second := make(chan error, 1)
	_, first := l.Call(t.Context(), &conn.Request{Method: "first", Receiver: takes(func(wire.Message) {
		go func() {
			_, err := l.Call(t.Context(), &conn.Request{Method: "second"})
			second <- err
		}()
	})})
	if !errors.Is(first, conn.ErrClosed) || errors.Is(first, conn.ErrSessionGone) {
		t.Errorf("the call that the server had accepted ends with %v", first)
	}
	if err := <-second; !errors.Is(err, conn.ErrSessionGone) {
		t.Errorf("the call that the server refused ends with %v", err)
	}
}

// A ping is answered by the connection, also on the stream of a call: it is not for the receiver of the call.
func TestHTTPPing(t *testing.T) {
	pong := make(chan string, 1)
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch {
		case m.Method == "tools/call":
			events(w, `data: {"jsonrpc":"2.0","id":"p","method":"ping"}`)
			events(w, `data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"pong":`+<-pong+`}}`)
			return true
		case string(m.ID) == `"p"`:
			pong <- string(m.Result)
		}
		return false
	})
	m, err := open(t, f.config(t)).Call(t.Context(), &conn.Request{Method: "tools/call", Receiver: takes(func(m wire.Message) { t.Errorf("the receiver got %s", m.Raw) })})
	if err != nil || string(m.Result) != `{"pong":{}}` {
		t.Errorf("call = %s, %v", m.Result, err)
	}
}

// A server that has sent no header when it forgets the session may be working on the call. Its own answer says so.
func TestHTTPSessionGoneBeforeTheAnswer(t *testing.T) {
	begun, goOn := make(chan bool), make(chan bool)
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch m.Method {
		case "first":
			begun <- true
			<-goOn
			answerWith(w, m, `{"done":true}`)
		case "second":
			w.WriteHeader(http.StatusNotFound)
		}
		return m.Method == "first" || m.Method == "second"
	})
	l := open(t, f.config(t))
	first := make(chan string, 1)
	go func() {
		m, err := l.Call(t.Context(), &conn.Request{Method: "first"})
		first <- fmt.Sprint(string(m.Result), err)
	}()
	<-begun
	if _, err := l.Call(t.Context(), &conn.Request{Method: "second"}); !errors.Is(err, conn.ErrSessionGone) {
		t.Errorf("the call that the server refused ends with %v", err)
	}
	l.Close() // as its owner does once the connection is lost
	close(goOn)
	if got := <-first; got != `{"done":true}<nil>` {
		t.Errorf("the call that the server worked on ends with %s", got)
	}
}

// The GET stream brings what belongs to no call, is reopened where it ended,
// and its progress finds its call.
func TestHTTPGetStream(t *testing.T) {
	progress := make(chan string, 1)
	opened := make(chan string, 10)
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch {
		case r.Method == http.MethodGet && r.Header.Get("Last-Event-Id") == "":
			events(w, "retry: 1\nid: 7\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"roots/list\"}")
		case r.Method == http.MethodGet:
			opened <- r.Header.Get("Last-Event-Id")
			events(w, ": hello")
			select {
			case e := <-progress:
				events(w, e)
			case <-r.Context().Done():
			}
			<-r.Context().Done()
		case m.Method == "tools/call":
			<-opened
			progress <- `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(m.ID) + `,"n":1}}` +
				"\n\n" + `data: {"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"by":"GET"}}`
			w.WriteHeader(http.StatusAccepted)
		default:
			return false
		}
		return true
	})
	cfg := f.config(t)
	cfg.Host.Shared = true
	asked := make(chan wire.Message, 1)
	cfg.Handler = handles(func(m wire.Message) { asked <- m })
	l := open(t, cfg)
	if m := <-asked; m.Method != "roots/list" {
		t.Errorf("Handle(%s)", m.Raw)
	}
	var got string
	m, err := l.Call(t.Context(), &conn.Request{Method: "tools/call", Params: json.RawMessage(`{"_meta":{"progressToken":"a"}}`),
		Receiver: takes(func(m wire.Message) { got = string(m.Params) })})
	if err != nil || string(m.Result) != `{"by":"GET"}` || got != `{"progressToken":"a","n":1}` {
		t.Errorf("call = %s, %v; progress %s", m.Result, err, got)
	}
}

func TestHTTPUnreachable(t *testing.T) {
	f := newFakeHTTP(t, nil)
	cfg := f.config(t)
	f.Close()
	start := time.Now()
	var d *dialError
	if _, err := Open(t.Context(), cfg); !errors.As(err, &d) {
		t.Errorf("openLink = %v, want a dialError", err)
	}
	if time.Since(start) > time.Second {
		t.Errorf("took %v", time.Since(start))
	}
}

// Connections are used again, for JSON and for event streams.
func TestHTTPKeepAlive(t *testing.T) {
	var mu sync.Mutex
	remote := map[string]bool{}
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		mu.Lock()
		remote[r.RemoteAddr] = true
		mu.Unlock()
		if m.Method == "stream" {
			events(w, `data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{}}`)
			return true
		}
		return false
	})
	l := open(t, f.config(t))
	for i := range 40 {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := l.Call(ctx, &conn.Request{Method: []string{"json", "stream"}[i%2]}); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	mu.Lock()
	defer mu.Unlock()
	if len(remote) > 8 {
		t.Errorf("%d connections for 40 calls in a row", len(remote))
	}
}

func TestHTTPRedirect(t *testing.T) {
	target := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "/mcp", http.StatusPermanentRedirect)
		}
		return r.URL.Path == "/old"
	})
	cfg := target.config(t)
	cfg.URL = target.URL + "/old"
	l := open(t, cfg)
	if _, err := l.Call(t.Context(), &conn.Request{Method: "x"}); err != nil {
		t.Errorf("call over a redirect within the host: %v", err)
	}
}

// A configured URL can be a credential by itself: no error shows its user, path or query.
func TestNoURLInErrors(t *testing.T) {
	f := newFakeHTTP(t, func(w http.ResponseWriter, r *http.Request, m wire.Message) bool {
		switch m.Method {
		case "cut":
			panic(http.ErrAbortHandler)
		case "move":
			http.Redirect(w, r, "https://other.example.com"+r.URL.String(), http.StatusTemporaryRedirect)
		case "away":
			http.Redirect(w, r, "https://other.example.com/new?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		default:
			return false
		}
		return true
	})
	cfg := f.config(t)
	cfg.URL = strings.Replace(f.URL, "://", "://plain-user:plain-password@", 1) + "/s/plain-path?k=plain-query"
	l := open(t, cfg)
	errs := map[string]error{}
	for method, want := range map[string]string{"cut": f.URL, "move": `"https://other.example.com" with the same path`, "away": `"https://other.example.com/new"`} {
		_, err := l.Call(t.Context(), &conn.Request{Method: method})
		if errs[method] = err; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", method, err, want)
		}
	}
	f.Close()
	_, errs["closed"] = Open(t.Context(), cfg)
	for method, err := range errs {
		if err == nil || strings.Contains(err.Error(), "plain-") {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func BenchmarkHTTPCall(b *testing.B) {
	for _, stream := range []bool{false, true} {
		b.Run(fmt.Sprintf("stream=%v", stream), func(b *testing.B) {
			body := strings.Repeat("x", 4<<10)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				in, _ := io.ReadAll(r.Body)
				m, _ := wire.ParseMessage(in)
				switch {
				case r.Method != http.MethodPost:
					w.WriteHeader(http.StatusMethodNotAllowed)
				case m.Method == wire.MethodInitialize:
					answerWith(w, m, `{"protocolVersion":"2025-06-18"}`)
				case !m.IsRequest():
					w.WriteHeader(http.StatusAccepted)
				case stream:
					events(w, `data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":"`+body+`"}`)
				default:
					answerWith(w, m, `"`+body+`"`)
				}
			}))
			defer srv.Close()
			l := open(b, Config{Name: "bench", URL: srv.URL, Host: conn.Host{Initialize: ownInitialize(wire.AllCapabilities)}, Log: quiet})
			defer l.Close()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Call(b.Context(), &conn.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"x"}`)}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
