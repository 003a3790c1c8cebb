package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/wire"
)

// nullWriter is a ResponseWriter that keeps nothing but the status.
type nullWriter struct {
	h      http.Header
	status int
	n      int
}

func (w *nullWriter) Header() http.Header { return w.h }
func (w *nullWriter) WriteHeader(s int)   { w.status = s }

func (w *nullWriter) Write(b []byte) (int, error) {
	w.n += len(b)
	return len(b), nil
}

const callBody = `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"echo","arguments":{"message":"hello"}}}`

// costCall returns a func that serves one simple legacy call, network aside.
func costCall(tb testing.TB) func() {
	e := NewHTTP(newFakeRouter(nil), HTTPOptions{Log: slog.New(slog.DiscardHandler)})
	tb.Cleanup(func() { _ = e.Shutdown(context.Background()) })
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, hostRequest(tb, "POST", localURL, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`))
	r := hostRequest(tb, "POST", localURL, callBody, wire.HeaderSession, rec.Header().Get(wire.HeaderSession))
	body := strings.NewReader(callBody)
	r.Body, r.ContentLength = io.NopCloser(body), int64(len(callBody))
	w := &nullWriter{h: http.Header{}}
	return func() {
		body.Reset(callBody)
		clear(w.h)
		if e.ServeHTTP(w, r); w.status != http.StatusOK {
			tb.Fatalf("status = %d", w.status)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	call := costCall(b)
	b.ReportAllocs()
	for b.Loop() {
		call()
	}
}

// Property: whatever a host posts, in either era, it gets a status with a valid
// JSON-RPC answer, or 202 with nothing; nothing panics or hangs.
func FuzzPost(f *testing.F) {
	for _, s := range []string{callBody, `{"jsonrpc":"2.0","method":"n"}`, `[{"jsonrpc":"2.0","id":1,"method":"m"},1]`, `[]`, `{`, `{"jsonrpc":"2.0","id":1,"method":"m","params":{` + modernMeta + `}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, "{\"jsonrpc\":\"2.0\",\n\"id\":\"\\ud800\",\"method\":\"m\"}"} {
		for era := range byte(4) {
			f.Add([]byte(s), era, "m", "m")
		}
	}
	e := NewHTTP(newFakeRouter(nil), HTTPOptions{Log: slog.New(slog.DiscardHandler), MaxSessions: 100})
	f.Cleanup(func() { _ = e.Shutdown(context.Background()) })
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, hostRequest(f, "POST", localURL, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`))
	session := rec.Header().Get(wire.HeaderSession)
	f.Fuzz(func(t *testing.T, body []byte, era byte, method, name string) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", localURL, bytes.NewReader(body))
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}, wire.HeaderSession: {session}}
		switch era % 4 {
		case 1:
			r.Header[wire.HeaderVersion] = []string{wire.VersionModern}
		case 2:
			r.Header[wire.HeaderVersion], r.Header[wire.HeaderMethod], r.Header[wire.HeaderName] = []string{wire.VersionModern}, []string{method}, []string{name}
		case 3:
			r.Header[wire.HeaderVersion] = []string{versionBatch}
		}
		rec := httptest.NewRecorder()
		e.ServeHTTP(rec, r)
		out := rec.Body.Bytes()
		switch {
		case rec.Code == http.StatusAccepted && len(out) == 0:
		case bytes.HasPrefix(out, []byte("[")):
		case rec.Header().Get("Content-Type") == "text/event-stream":
		default:
			m, err := wire.ParseMessage(out)
			if err != nil || !m.IsResponse() {
				t.Fatalf("answer %d %q: %v", rec.Code, out, err)
			}
		}
	})
}
