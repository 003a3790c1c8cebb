package replicas

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/foldgate/foldgate/internal/redisdb"
)

// newSet returns a replica that takes requests for h, without a registry.
func newSet(t *testing.T, name, key string, h http.Handler) *Set {
	t.Helper()
	db, err := redisdb.Open("redis://127.0.0.1:1", "test")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Name: name, Address: ln.Addr().String(), Key: key, DB: db, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.Serve(ln, h)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Close(ctx)
	})
	return s
}

// knows lets a replica know another one under a name.
func (s *Set) knows(other *Set, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[name] = &Member{Name: name, Address: other.opts.Address, State: Up, Seen: 2 * absent} // so nobody waits for it
}

// A request arrives at its owner once and whole; the answer streams back; if the host leaves, the owner
// learns of it.
func TestForward(t *testing.T) {
	gone, said := make(chan struct{}), make(chan struct{})
	owner := newSet(t, "owner", "key", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !Forwarded(r) || r.Header.Get("Authorization") != "Bearer x" || r.Host != "gate.example" || r.RemoteAddr == "" || r.Header.Get(headerTo) != "" {
			t.Errorf("the owner gets %s %v from %s, forwarded %v", r.Host, r.Header, r.RemoteAddr, Forwarded(r))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n", body)
		_ = http.NewResponseController(w).Flush()
		<-said
		fmt.Fprint(w, "data: more\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	first := newSet(t, "first", "key", nil)
	first.knows(owner, "owner")
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if _, err := first.Forward(r.Context(), w, r, body, Target{Replica: "owner"}); err != nil {
			t.Error(err)
		}
	}))
	defer front.Close()
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/mcp", strings.NewReader("hello"))
	r.Host = "gate.example"
	r.Header.Set("Authorization", "Bearer x")
	r.Header.Set(headerTo, "forged")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(res.Body)
	for _, want := range []string{"data: hello", "data: more"} {
		if lines.Scan(); lines.Text() != want {
			t.Errorf("the host gets %q, want %q", lines.Text(), want)
		}
		if want == "data: hello" {
			close(said)
		}
	}
	cancel()
	<-gone
}

// Requests that the owner does not take have no effect, and the error says that it is down. Ids without a
// known replica, and principals, stay here.
func TestForwardInVain(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { t.Error("a request was taken") })
	other, stranger := newSet(t, "other", "key", served), newSet(t, "alien", "another key", served)
	stopping := newSet(t, "stops", "key", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		NotTaken(w.Header())
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	s := newSet(t, "first", "key", nil)
	s.knows(other, "moved") // another replica has its address now
	s.knows(stranger, "alien")
	s.knows(stopping, "stops")
	for _, name := range []string{"moved", "alien", "stops"} {
		w := httptest.NewRecorder()
		_, err := s.Forward(t.Context(), w, httptest.NewRequest(http.MethodPost, "/mcp", nil), []byte("{}"), Target{Replica: name})
		if down, ok := errors.AsType[*DownError](err); !ok || down.Replica != name || !down.Absent || w.Body.Len() > 0 {
			t.Errorf("Forward to %s: %v, wrote %q; want that it is down, and nothing written", name, err, w.Body)
		}
	}
	for _, to := range []Target{{Replica: "nobody"}, {Replica: "first"}, {Principal: "alice"}, {Principal: "bob"}, {Principal: "carol"}} {
		if forwarded, err := s.Forward(t.Context(), httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/mcp", nil), nil, to); forwarded || err != nil {
			t.Errorf("Forward(%+v) = %v, %v; want that it is served here", to, forwarded, err)
		}
	}
}

// A request without ids is offered to each other replica once, and then served here. An id with a name that
// no replica has decides nothing.
func TestForwardOffersOnce(t *testing.T) {
	var offers [2]atomic.Int64
	s := newSet(t, "first", "key", nil)
	for i, name := range []string{"aaaaa", "bbbbb"} {
		s.knows(newSet(t, name, "key", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			offers[i].Add(1)
			NotTaken(w.Header())
			w.WriteHeader(http.StatusServiceUnavailable)
		})), name)
	}
	principal := "user"
	for score(principal, "first") > min(score(principal, "aaaaa"), score(principal, "bbbbb")) {
		principal += "x"
	}
	for range 3 { // the second and third avoid those that did not take the first
		forwarded, err := s.Forward(t.Context(), httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/mcp", nil), nil, Target{Principal: principal})
		if forwarded || err != nil {
			t.Errorf("Forward = %v, %v; want that it is served here", forwarded, err)
		}
	}
	if a, b := offers[0].Load(), offers[1].Load(); a != 1 || b != 1 {
		t.Errorf("the request was offered %d and %d times, want once to each", a, b)
	}
	if !s.Known("first") || !s.Known("aaaaa") || s.Known("agent") {
		t.Error("Known takes a replica for unknown, or an unknown name for one")
	}
}

// What this replica has answered already is not there twice, and an Upgrade of the host's connection is not
// passed on.
func TestForwardedHeaders(t *testing.T) {
	const cors = "Access-Control-Allow-Origin"
	owner := newSet(t, "owner", "key", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" || r.Header.Get("Expect") != "" {
			t.Errorf("the owner gets %v", r.Header)
		}
		w.Header().Set(cors, "https://other.example")
		w.Header().Set("Owner", "yes")
	}))
	s := newSet(t, "first", "key", nil)
	s.knows(owner, "owner")
	w := httptest.NewRecorder()
	w.Header().Set(cors, "https://host.example")
	r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Expect": {"100-continue"}}
	if _, err := s.Forward(t.Context(), w, r, []byte("{}"), Target{Replica: "owner"}); err != nil {
		t.Fatal(err)
	}
	if got := w.Header(); !slices.Equal(got.Values(cors), []string{"https://host.example"}) || got.Get("Owner") != "yes" {
		t.Errorf("the host gets %v", got)
	}
}

// A replica that did not join, such as one with a copied name, writes nothing to the registry when it ends.
func TestRefusedReplicaRegistersNothing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var asked atomic.Int64
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = c.Close()
		}
	}()
	db, err := redisdb.Open("redis://"+ln.Addr().String(), "test")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Name: "first", Key: "key", DB: db, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.Close(t.Context())
	if n := asked.Load(); n > 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}
