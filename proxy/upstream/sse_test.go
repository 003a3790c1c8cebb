package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// newFakeSSE serves HTTP+SSE as of 2024-11-05. endpoint is what it announces.
func newFakeSSE(t *testing.T, endpoint string) *httptest.Server {
	// Of the newest stream: an ended one may still be here, and must not take
	// what is meant for its successor.
	var newest atomic.Pointer[chan string]
	down := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/sse":
			out := make(chan string, 10)
			newest.Store(&out)
			events(w, "event: endpoint\ndata: "+endpoint)
			for {
				select {
				case e := <-out:
					events(w, "event: message\ndata: "+e)
				case <-down:
					return
				case <-r.Context().Done():
					return
				}
			}
		case r.Method == http.MethodPost && r.URL.Path == "/messages":
			body, _ := io.ReadAll(r.Body)
			m, _ := wire.ParseMessage(body)
			out := *newest.Load()
			w.WriteHeader(http.StatusAccepted)
			switch m.Method {
			case wire.MethodInitialize:
				out <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2024-11-05"}}`, m.ID)
			case "tools/call":
				out <- `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t"}}`
				out <- fmt.Sprintf("{\"jsonrpc\":\"2.0\",\ndata: \"id\":%s,\"result\":%s}", m.ID, m.Params)
			case "endless": // a response that does not end
				w.(http.Flusher).Flush()
				out <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
				<-r.Context().Done()
			case "down":
				close(down)
			}
		default:
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestSSE(t *testing.T) {
	srv := newFakeSSE(t, "/messages?sessionId=1")
	for _, params := range []json.RawMessage{nil, json.RawMessage(`{"protocolVersion":"2025-06-18"}`)} {
		l := open(t, Config{Name: "old", URL: srv.URL + "/sse", Host: conn.Host{Initialize: params}, Log: testLog(t)})
		if l.Info().Version != "2024-11-05" {
			t.Errorf("info() = %+v", l.Info())
		}
		n := 0
		p := json.RawMessage(`{"_meta":{"progressToken":"t"}}`)
		m, err := l.Call(t.Context(), &conn.Request{Method: "tools/call", Params: p, Receiver: takes(func(wire.Message) { n++ })})
		if err != nil || string(m.Result) != string(p) || n != 1 {
			t.Errorf("call = %s, %v, %d events", m.Result, err, n)
		}
		patient, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := l.Call(patient, &conn.Request{Method: "endless"}); err != nil || patient.Err() != nil {
			t.Errorf("call whose POST does not end = %v, %v", err, patient.Err())
		}
		cancel()
		l.Close()
		if _, err := l.Call(t.Context(), &conn.Request{Method: "x"}); !errors.Is(err, conn.ErrClosed) || l.Err() != nil {
			t.Errorf("call after close = %v, err() = %v", err, l.Err())
		}
	}
	l := open(t, Config{Name: "old", URL: srv.URL + "/sse", Log: testLog(t)})
	if _, err := l.Call(t.Context(), &conn.Request{Method: "down"}); !errors.Is(err, conn.ErrClosed) {
		t.Errorf("call on a stream that ends = %v", err)
	}
	<-l.Done()
}

func TestSSEForeignEndpoint(t *testing.T) {
	for _, endpoint := range []string{"http://elsewhere.example/messages", "//elsewhere.example/m", "http://u:p@127.0.0.1/", ":"} {
		srv := newFakeSSE(t, endpoint)
		_, err := Open(t.Context(), Config{Name: "old", URL: srv.URL + "/sse", Log: testLog(t)})
		if err == nil || !strings.Contains(err.Error(), "endpoint") {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
	}
}
