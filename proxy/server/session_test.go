package server

import (
	"context"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

func TestIdleSessions(t *testing.T) {
	bubble(t, HTTPOptions{SessionIdle: 10 * time.Minute}, func(t *testing.T, _ *gate, e *HTTP) {
		idle, listening := openIn(t, e), openIn(t, e)
		ctx, leave := context.WithCancel(t.Context())
		_, wait := serveIn(t, e, hostRequest(t, "GET", localURL, "", wire.HeaderSession, listening).WithContext(ctx))
		time.Sleep(9 * time.Minute)
		status := func(id string) int {
			c, wait := serveIn(t, e, hostRequest(t, "POST", localURL, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, wire.HeaderSession, id))
			wait()
			return c.code()
		}
		if got := status(idle); got != 200 {
			t.Errorf("after 9 min: %d, want 200", got)
		}
		time.Sleep(9 * time.Minute)
		if got := status(idle); got != 200 {
			t.Errorf("9 min after use: %d, want 200", got)
		}
		time.Sleep(12 * time.Minute)
		if got := status(idle); got != 404 {
			t.Errorf("12 min after use: %d, want 404", got)
		}
		if got := status(listening); got != 200 {
			t.Errorf("with an open GET stream: %d, want 200", got)
		}
		leave()
		wait()
		time.Sleep(12 * time.Minute)
		if got := status(listening); got != 404 {
			t.Errorf("12 min after the GET stream: %d, want 404", got)
		}
	})
}

func TestSessionCap(t *testing.T) {
	bubble(t, HTTPOptions{MaxSessions: 2}, func(t *testing.T, _ *gate, e *HTTP) {
		first := openIn(t, e)
		openIn(t, e)
		if id := openIn(t, e); id != "" {
			t.Errorf("third session = %q, want a refusal while the others are fresh", id)
		}
		time.Sleep(2 * time.Minute)
		if id := openIn(t, e); id == "" {
			t.Error("no session after two idle minutes, want the oldest displaced")
		}
		if len(e.allSessions()) != 2 {
			t.Errorf("%d sessions, want 2 (first was %s)", len(e.allSessions()), first)
		}
	})
}

// Of several principals one that opens session after session displaces its own,
// and not those of the others.
func TestSessionCapOfOnePrincipal(t *testing.T) {
	tokens := []auth.Token{token("alice", "a"), token("bob", "b")}
	bubble(t, HTTPOptions{MaxSessions: 6, Access: withTokens(tokens)}, func(t *testing.T, _ *gate, e *HTTP) {
		open := func(token string) string {
			r := hostRequest(t, "POST", "http://localhost/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`, "Authorization", "Bearer "+token)
			c, wait := serveIn(t, e, r)
			wait()
			_, h := c.head()
			return h.Get(wire.HeaderSession)
		}
		hers := open("a")
		time.Sleep(time.Minute)
		for range 3 {
			if open("b") == "" {
				t.Fatal("no session within bob's half")
			}
		}
		if id := open("b"); id != "" {
			t.Errorf("beyond his half bob has %q, want a refusal while his sessions are fresh", id)
		}
		for range 10 {
			time.Sleep(2 * time.Minute)
			if open("b") == "" {
				t.Error("no session for bob after idle minutes, want one of his displaced")
			}
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.sessions[hers] == nil || e.sessionCounts["bob"] != 3 || e.sessionCounts["alice"] != 1 {
			t.Errorf("the sessions are %v, want that of alice and three of bob", e.sessionCounts)
		}
	})
}

// A stream ends with its token, and so does the use of its session. A newer token of the same
// principal goes on.
func TestStreamEndsWithItsToken(t *testing.T) {
	var tokens []auth.Token
	access := func() *Access { return &Access{} }
	bubble(t, HTTPOptions{Access: func() *Access { return access() }, SessionIdle: time.Hour}, func(t *testing.T, _ *gate, e *HTTP) {
		old, next := token("alice", "old"), token("alice", "next")
		old.Expires = time.Now().Add(time.Minute)
		tokens = []auth.Token{old, next}
		now := withTokens(tokens)()
		access = func() *Access { return now }
		send := func(method, body, token, session string) (*fakeConn, func()) {
			return serveIn(t, e, hostRequest(t, method, localURL, body, "Authorization", "Bearer "+token, wire.HeaderSession, session))
		}
		c, wait := send("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`, "old", "")
		wait()
		_, h := c.head()
		session := h.Get(wire.HeaderSession)
		begin := time.Now()
		_, wait = send("GET", "", "old", session)
		wait()
		if lasted := time.Since(begin); lasted < time.Minute || lasted > time.Minute+sseKeepAlive {
			t.Errorf("the stream lasted %s, want a minute and at most one keep-alive", lasted)
		}
		for token, want := range map[string]int{"old": 401, "next": 200} {
			c, wait := send("POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, token, session)
			wait()
			if status, _ := c.head(); status != want {
				t.Errorf("ping with the %s token = %d, want %d", token, status, want)
			}
		}
	})
}
