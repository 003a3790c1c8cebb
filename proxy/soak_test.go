package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// soakers is how many sessions are open at once.
const soakers = 4

var soak = flag.Int("soak", 500, "sessions that TestSoak opens and closes in each era")

// TestSoak opens and closes sessions of both eras, with a call, a question to
// the host and a subscription in each, and ends with the goroutines and the
// memory that it began with.
func TestSoak(t *testing.T) {
	ups := map[string]fakeUpstream{"old": soakUpstream("2025-11-25"), "new": soakUpstream("2026-07-28")}
	r := newRig(t, true, ups)
	r.g.servers.Dial = func(_ context.Context, c upstream.Config) (conn.Conn, error) {
		f := ups[c.Name]
		return &fakeConn{cfg: c, version: f.version, caps: f.caps, serve: f.serve, gone: make(chan struct{}), forgetful: true}, nil
	}
	e := server.NewHTTP(r.g.router, server.HTTPOptions{Log: warnings(t), MaxSessions: soakers}) // one that is left has the place of the next
	srv := httptest.NewServer(e.Handler())
	t.Cleanup(func() {
		_ = e.Shutdown(context.Background())
		srv.Close()
	})
	s := &soaker{t: t, url: srv.URL + "/mcp", client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	t.Cleanup(s.client.CloseIdleConnections)
	s.many(64) // connections, pools, shared connections: what lasts
	goroutines, heap := s.settle(0)
	s.many(*soak)
	gotGoroutines, gotHeap := s.settle(goroutines)
	t.Logf("%d sessions of each era: goroutines %d, then %d; heap %d KiB, then %d KiB", *soak, goroutines, gotGoroutines, heap>>10, gotHeap>>10)
	if gotGoroutines > goroutines+8 {
		buf := make([]byte, 1<<20)
		t.Errorf("goroutines grew from %d to %d:\n%s", goroutines, gotGoroutines, buf[:runtime.Stack(buf, true)])
	}
	if gotHeap > heap+4<<20 {
		t.Errorf("the heap grew from %d to %d KiB", heap>>10, gotHeap>>10)
	}
	if n := len(r.g.router.Sessions("")); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// soakUpstream asks its host in every call.
func soakUpstream(version string) fakeUpstream {
	up := echoUpstream(version)
	up.caps = `{"tools":{},"resources":{"subscribe":true}}`
	list := up.serve
	up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		switch {
		case strings.HasPrefix(c.Method, "resources/list"), strings.HasPrefix(c.Method, "resources/templates"):
			return result(`{"resources":[{"uri":"mem://` + version + `","name":"r"}]}`)
		case c.Method == "resources/subscribe":
			return result(`{}`)
		case c.Method == wire.MethodListen:
			c.Receiver.Message(wire.Message{Method: "notifications/subscriptions/acknowledged"})
			<-ctx.Done()
			return wire.Message{}, context.Cause(ctx)
		case c.Method != "tools/call":
			return list(ctx, l, c)
		case l.Info().Modern() && !bytes.Contains(c.Params, []byte("inputResponses")):
			return result(`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{}}}}`)
		case !l.Info().Modern():
			id := json.RawMessage(fmt.Sprint(l.asked.Add(1)))
			l.waiting.Store(string(id), make(chan wire.Message, 1))
			c.Receiver.Message(wire.Message{ID: id, Method: "elicitation/create", Params: json.RawMessage(`{}`)})
			ch, _ := l.waiting.Load(string(id))
			select {
			case <-ch.(chan wire.Message):
			case <-ctx.Done():
				return wire.Message{}, context.Cause(ctx)
			}
			l.waiting.Delete(string(id))
		}
		return result(`{"content":[],"resultType":"complete"}`)
	}
	return up
}

// soaker opens and closes sessions over HTTP.
type soaker struct {
	t      *testing.T
	url    string
	client *http.Client
}

func (s *soaker) many(n int) {
	work := make(chan struct{})
	var wg sync.WaitGroup
	for range soakers {
		wg.Go(func() {
			for range work {
				s.legacy()
				s.modern()
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
}

// settle waits until no more goroutines than want are left, for a while, and
// returns how many there are and how large the heap is.
func (s *soaker) settle(want int) (goroutines int, heap uint64) {
	s.client.CloseIdleConnections()
	for range 200 {
		runtime.GC()
		if goroutines = runtime.NumGoroutine(); want > 0 && goroutines <= want {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return goroutines, m.HeapAlloc
}

// legacy is the whole life of a session with an id.
func (s *soaker) legacy() {
	id := s.post("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"soak","version":"1"}}}`, nil)
	for _, up := range []string{"old", "new"} {
		s.post(id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"`+up+`__echo","arguments":{}}}`, func(ask string) {
			s.post(id, `{"jsonrpc":"2.0","id":`+ask+`,"result":{"action":"decline"}}`, nil)
		})
	}
	s.post(id, `{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"mem://2026-07-28"}}`, nil)
	s.post(id, `{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"mem://2025-11-25"}}`, nil)
	req, err := http.NewRequest(http.MethodDelete, s.url, nil)
	if err != nil {
		s.t.Error(err)
		return
	}
	req.Header.Set(wire.HeaderSession, id)
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Error(err)
		return
	}
	res.Body.Close()
}

// modern makes a call in two rounds, another that is left after the first, and
// a listen that is left too.
func (s *soaker) modern() {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`
	state := s.post("", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"old__echo","arguments":{},`+meta+`}}`, nil)
	s.post("", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"old__echo","arguments":{},"requestState":"`+state+`","inputResponses":{"r1":{"action":"decline"}},`+meta+`}}`, nil)
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	body := `{"jsonrpc":"2.0","id":3,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["mem://2025-11-25","mem://2026-07-28"]},` + meta + `}}`
	req := s.request(ctx, "", body)
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Error(err)
		return
	}
	_, _ = io.ReadFull(res.Body, make([]byte, 10))
	cancel()
	res.Body.Close()
}

func (s *soaker) request(ctx context.Context, session, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set(wire.HeaderSession, session)
	}
	m, _ := wire.ParseMessage([]byte(body))
	if _, modern := rawjson.Get(m.Params, "_meta", wire.MetaProtocolVersion); modern {
		req.Header.Set(wire.HeaderVersion, wire.VersionModern)
		req.Header.Set(wire.HeaderMethod, m.Method)
		if m.Method == "tools/call" {
			req.Header.Set(wire.HeaderName, "old__echo")
		}
	}
	return req
}

// post sends one message and reads the answer to its end; ask gets the id of a
// question that comes before it. It returns the session id or the requestState.
func (s *soaker) post(session, body string, ask func(id string)) (found string) {
	res, err := s.client.Do(s.request(s.t.Context(), session, body))
	if err != nil {
		s.t.Error(err)
		return ""
	}
	defer res.Body.Close()
	found = res.Header.Get(wire.HeaderSession)
	if res.StatusCode/100 != 2 {
		text, _ := io.ReadAll(res.Body)
		s.t.Errorf("%s: %s %s", body, res.Status, text)
		return found
	}
	if res.Header.Get("Content-Type") == "text/event-stream" {
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			data, _ := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
			if m, err := wire.ParseMessage(data); err == nil && m.IsRequest() && ask != nil {
				ask(string(m.ID))
			}
		}
		return found
	}
	text, _ := io.ReadAll(res.Body)
	var out struct {
		Error  json.RawMessage
		Result struct {
			RequestState string
			IsError      bool
		}
	}
	_ = json.Unmarshal(text, &out)
	if out.Error != nil || out.Result.IsError {
		s.t.Errorf("%s: %s", body, text)
	}
	if out.Result.RequestState != "" {
		return out.Result.RequestState
	}
	return found
}
