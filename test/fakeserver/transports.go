package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// serveStdio speaks one message a line until in ends.
func (s *server) serveStdio(in io.Reader, out io.Writer) error {
	var mu sync.Mutex
	write := func(line []byte) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = out.Write(append(line[:len(line):len(line)], '\n'))
	}
	sess := newSession("")
	sess.push = write
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	br := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := br.ReadBytes('\n')
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			s.take(line, sess, func(m mcpclient.Message) {
				calls.Go(func() {
					c := &call{s: s, sess: sess, m: m, emit: write, rawLine: func(text string) { write([]byte(text)) }}
					if reply := s.serve(ctx, c); reply != nil {
						write(reply)
					}
				})
			})
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take sorts one incoming message; request gets the requests.
func (s *server) take(raw []byte, sess *session, request func(mcpclient.Message)) {
	s.write(raw)
	m, err := mcpclient.Parse(raw)
	switch {
	case err != nil:
		return
	case m.Method != "" && m.ID != nil:
		request(m)
	case m.Method != "":
		sess.notified(m)
	default:
		sess.answered(m)
	}
}

// serveHTTP speaks streamable HTTP at /mcp.
func (s *server) serveHTTP(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s is not a loopback address", addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/mcp\n", l.Addr())
	h := &httpServer{s: s, sessions: map[string]*httpSession{}}
	return http.Serve(l, h)
}

type httpServer struct {
	s        *server
	mu       sync.Mutex
	sessions map[string]*httpSession
}

// httpSession adds the GET stream to a session.
type httpSession struct {
	*session
	out chan []byte
}

func (h *httpServer) session(id string) *httpSession {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions[id]
}

func (h *httpServer) open() *httpSession {
	hs := &httpSession{session: newSession(rand.Text()), out: make(chan []byte, 1024)}
	hs.push = func(msg []byte) { hs.out <- msg }
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions[hs.id] = hs
	return hs
}

func (h *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Mcp-Session-Id")
	hs := h.session(id)
	modern := r.Header.Get("MCP-Protocol-Version") >= modernVersion
	switch {
	case r.URL.Path != "/mcp":
		http.NotFound(w, r)
	case id != "" && hs == nil:
		http.Error(w, "no such session", http.StatusNotFound)
	case r.Method == http.MethodPost:
		if modern {
			hs = &httpSession{session: newSession("")}
		}
		h.post(w, r, hs)
	case hs == nil:
		http.Error(w, "no session", http.StatusMethodNotAllowed)
	case r.Method == http.MethodGet:
		h.stream(w, r, hs)
	case r.Method == http.MethodDelete:
		h.mu.Lock()
		delete(h.sessions, id)
		h.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Error(w, "", http.StatusMethodNotAllowed)
	}
}

// post answers a request as an event stream, anything else with 202.
func (h *httpServer) post(w http.ResponseWriter, r *http.Request, hs *httpSession) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if hs == nil {
		if m, _ := mcpclient.Parse(raw); m.Method != "initialize" {
			http.Error(w, "no session", http.StatusBadRequest)
			return
		}
		hs = h.open()
		w.Header().Set("Mcp-Session-Id", hs.id)
	}
	served := false
	h.s.take(raw, hs.session, func(m mcpclient.Message) {
		served = true
		w.Header().Set("Content-Type", "text/event-stream")
		var mu sync.Mutex
		emit := func(msg []byte) { event(w, &mu, msg) }
		if reply := h.s.serve(r.Context(), &call{s: h.s, sess: hs.session, m: m, emit: emit}); reply != nil {
			emit(reply)
		}
	})
	if !served {
		w.WriteHeader(http.StatusAccepted)
	}
}

// stream is the GET stream of a session.
func (h *httpServer) stream(w http.ResponseWriter, r *http.Request, hs *httpSession) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	var mu sync.Mutex
	for {
		select {
		case msg := <-hs.out:
			event(w, &mu, msg)
		case <-r.Context().Done():
			return
		}
	}
}

func event(w http.ResponseWriter, mu *sync.Mutex, msg []byte) {
	mu.Lock()
	defer mu.Unlock()
	_, _ = fmt.Fprintf(w, "event: message\ndata: %s\n\n", msg)
	_ = http.NewResponseController(w).Flush()
}
