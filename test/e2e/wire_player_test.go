//go:build e2e

package e2e

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// player is an upstream that the test plays itself: foldgate's messages wait in got, and the test
// gives the answers. auto answers the handshake and the lists, unless the test plays that method
// too.
type player struct {
	t      *testing.T
	config string // of the upstream, for foldgate.yaml
	got    chan string
	// listens, if set, gets what would reach got of subscriptions/listen: the ids of several connections may be the same.
	listens chan *heldListen

	// script, if set, answers requests before auto does; "" leaves them to it.
	script func(m mcpclient.Message) (result string)

	mu      sync.Mutex
	auto    map[string]string // method to result
	own     map[string]bool   // methods that the test plays
	answer  map[string]func(string)
	latest  func(string) // the stream of the newest request
	unasked func(string) // the stream for what belongs to no request
}

// newPlayer returns a legacy or modern upstream on stdio or http, or a legacy
// one on sse, the HTTP transport before streamable HTTP.
func newPlayer(t *testing.T, transport string, era mcpclient.Era, auto map[string]string) *player {
	t.Helper()
	p := &player{t: t, got: make(chan string, 1000), auto: auto, own: map[string]bool{}, answer: map[string]func(string){}}
	if transport == "http" {
		srv := httptest.NewServer(&playedHTTP{p: p, modern: era == mcpclient.Modern, over: t.Context().Done()})
		t.Cleanup(srv.Close)
		p.config = fmt.Sprintf("url: %q", srv.URL+"/mcp")
		return p
	}
	if transport == "sse" {
		srv := httptest.NewServer(&playedSSE{p: p, over: t.Context().Done()})
		t.Cleanup(srv.Close)
		p.config = fmt.Sprintf("url: %q", srv.URL+"/sse")
		return p
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p.config = fmt.Sprintf("command: [%q, -dial, %q]", fakeserverBin, l.Addr().String())
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.speakLines(conn)
		}
	}()
	return p
}

// speakLines is one process of a stdio upstream.
func (p *player) speakLines(conn net.Conn) {
	defer conn.Close()
	var mu sync.Mutex
	say := func(msg string) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(conn, msg+"\n")
	}
	br := bufio.NewReaderSize(conn, 1<<20)
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return
		}
		p.take(strings.TrimSuffix(line, "\n"), say, say)
	}
}

// take sorts the messages of foldgate.
func (p *player) take(raw string, say, unasked func(string)) {
	m, err := mcpclient.Parse([]byte(raw))
	if err != nil {
		p.t.Errorf("foldgate sent what is no message: %v: %.300s", err, raw)
		return
	}
	p.mu.Lock()
	p.unasked = unasked
	result, known := p.auto[m.Method]
	known = known && !p.own[m.Method]
	if p.script != nil && m.ID != nil && m.Method != "" {
		if r := p.script(m); r != "" {
			result, known = r, true
		}
	}
	if !known && m.Method != "" {
		if m.ID != nil {
			p.answer[string(m.ID)], p.latest = say, say
		}
	}
	p.mu.Unlock()
	switch {
	case !known && p.listens != nil && m.Method == "subscriptions/listen":
		p.listens <- &heldListen{string(m.ID), string(m.Params), say}
	case !known:
		p.got <- raw
	case m.ID == nil:
	case strings.HasPrefix(result, `{"code"`):
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, result))
	default:
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
	}
}

// say sends a message to foldgate: a response on the stream of its request,
// anything else on that of the newest one, or, unasked, on neither.
func (p *player) say(msg string, unasked bool) {
	p.t.Helper()
	var m mcpclient.Message
	if err := json.Unmarshal([]byte(msg), &m); err != nil {
		p.t.Fatalf("%v: %s", err, msg)
	}
	p.mu.Lock()
	say := p.latest
	if unasked {
		say = p.unasked
	}
	if m.Method == "" {
		say = p.answer[string(m.ID)]
	}
	p.mu.Unlock()
	if say == nil {
		p.t.Fatalf("there is no stream for %s", msg)
	}
	say(msg)
}

// playedHTTP is a player on streamable HTTP. Every answer is an event stream.
type playedHTTP struct {
	p      *player
	modern bool
	over   <-chan struct{}
	get    sync.Map // session to chan string
}

func (h *playedHTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get("Mcp-Session-Id")
	switch r.Method {
	case http.MethodPost:
		raw, err := io.ReadAll(r.Body)
		if err == nil {
			h.post(w, r, string(raw), session)
		}
	case http.MethodGet:
		ch, ok := h.get.Load(session)
		if h.modern || !ok {
			http.Error(w, "no stream", http.StatusMethodNotAllowed)
			return
		}
		h.stream(w, r, ch.(chan string), "")
	case http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (h *playedHTTP) post(w http.ResponseWriter, r *http.Request, raw, session string) {
	m, err := mcpclient.Parse([]byte(raw))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if m.Method == "initialize" && !h.modern {
		session = rand.Text()
		h.get.Store(session, make(chan string, 100))
		w.Header().Set("Mcp-Session-Id", session)
	}
	unasked := func(string) { h.p.t.Error("no GET stream to speak on") }
	if ch, ok := h.get.Load(session); ok {
		unasked = func(msg string) { ch.(chan string) <- msg }
	}
	out := make(chan string, 1000)
	h.p.take(raw, func(msg string) { out <- msg }, unasked)
	if m.Method == "" || m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	h.stream(w, r, out, string(m.ID))
}

// stream writes events until the response to id is written.
func (h *playedHTTP) stream(w http.ResponseWriter, r *http.Request, out <-chan string, id string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_ = http.NewResponseController(w).Flush()
	var mu sync.Mutex
	for {
		select {
		case msg := <-out:
			if msg == "" { // hang up
				return
			}
			sendEvent(w, &mu, msg)
			var m mcpclient.Message
			if json.Unmarshal([]byte(msg), &m) == nil && m.Method == "" && id != "" && string(m.ID) == id {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.over:
			return
		}
	}
}

func sendEvent(w http.ResponseWriter, mu *sync.Mutex, msg string) {
	mu.Lock()
	defer mu.Unlock()
	_, _ = fmt.Fprintf(w, "data: %s\n\n", msg)
	_ = http.NewResponseController(w).Flush()
}

// playedSSE is a player on HTTP+SSE of 2024-11-05: one event stream to the client, which begins
// with the address for the client's messages.
type playedSSE struct {
	p    *player
	over <-chan struct{}
	out  sync.Map // session to chan string
}

func (h *playedSSE) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		ch, ok := h.out.Load(r.URL.Query().Get("session"))
		raw, err := io.ReadAll(r.Body)
		if !ok || err != nil {
			http.NotFound(w, r) // so too for one that tries streamable HTTP
			return
		}
		say := func(msg string) { ch.(chan string) <- msg }
		h.p.take(string(raw), say, say)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	session, out := rand.Text(), make(chan string, 1000)
	h.out.Store(session, out)
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w, "event: endpoint\ndata: /message?session=%s\n\n", session)
	_ = http.NewResponseController(w).Flush()
	var mu sync.Mutex
	for {
		select {
		case msg := <-out:
			sendEvent(w, &mu, msg)
		case <-r.Context().Done():
			return
		case <-h.over:
			return
		}
	}
}
