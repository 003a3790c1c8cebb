package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/wire"
)

// What an upstream sends after an answer reaches the host after it: the host may
// not know before what it is about.
func TestNotificationsFollowTheAnswer(t *testing.T) {
	const n = 5
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		c.Receiver.Message(wire.Message{Method: "x/before"})
		c.Receiver.ResponseArrived(wire.Message{})
		for i := range n {
			l.cfg.Handler.Unsolicited(wire.Message{Method: fmt.Sprintf("x/after-%d", i)})
		}
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	for range 3 {
		m := wire.Message{ID: json.RawMessage("1"), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
		p := r.s.Begin(t.Context(), server.NewRequest(m))
		p.Serve()
		if m := <-r.push; m.Method != "x/before" || len(r.push) > 0 {
			t.Fatalf("before the reply the host gets %s and %d more, want x/before", m.Method, len(r.push))
		}
		p.Sent()
		for i := range n {
			if m, want := <-r.push, fmt.Sprintf("x/after-%d", i); m.Method != want {
				t.Errorf("after the reply the host gets %s, want %s", m.Method, want)
			}
		}
	}
}

// So does what follows a question, and an answer what came before it.
func TestNotificationsFollowTheQuestion(t *testing.T) {
	const n = 30
	over := make(chan struct{})
	t.Cleanup(func() { close(over) }) // after the gateway's end, which the upstream sees
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		for i := range n {
			c.Receiver.Message(wire.Message{ID: json.RawMessage(fmt.Sprint(i)), Method: "sampling/createMessage", Params: json.RawMessage(`{}`)})
			c.Receiver.Message(wire.Message{Method: "x/after"})
		}
		c.Receiver.ResponseArrived(wire.Message{})
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	m := wire.Message{ID: json.RawMessage("1"), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
	go func(l *fakeConn) { // which hears that its questions ended with the call
		for {
			select {
			case <-l.replied:
			case <-over:
				return
			}
		}
	}(r.last("up"))
	p := r.s.Begin(t.Context(), server.NewRequest(m))
	p.Serve()
	questions, after := 0, 0
	for len(r.push) > 0 {
		switch m := <-r.push; {
		case m.IsRequest():
			questions++
		case m.Method == "x/after": // and not that the call ended with the questions open
			if after++; after > questions {
				t.Errorf("notification %d comes after %d questions", after, questions)
			}
		}
	}
	if after != n {
		t.Errorf("the host has %d notifications at the answer, want %d", after, n)
	}
	p.Sent()
}

// A notification that waits keeps the cause it had when it came: the calls that
// begin meanwhile did not cause it.
func TestNotificationThatWaitsKeepsItsCause(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		if string(c.Call.Origin.ID) == "2" {
			close(entered)
			<-leave
			return result(`{"content":[]}`)
		}
		c.Receiver.ResponseArrived(wire.Message{})
		l.cfg.Handler.Unsolicited(wire.Message{Method: "x/status"})
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	call := func(id string) server.Pending {
		m := wire.Message{ID: json.RawMessage(id), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
		p := r.s.Begin(t.Context(), server.NewRequest(m))
		p.Serve()
		return p
	}
	rep, second := call("1"), make(chan server.Pending)
	go func() { second <- call("2") }()
	<-entered
	rep.Sent()
	if m := <-r.push; m.Method != "x/status" {
		t.Fatalf("the host gets %s", m.Encode())
	}
	close(leave)
	(<-second).Sent()
	var calls, causes []string
	for rec := range scan(t, r.g.Start.StateDir, query.Filter{}) {
		switch rec.Kind {
		case trace.KindRequest + "tools/call":
			calls = append(calls, rec.ID)
		case trace.KindNotification + "x/status":
			causes = rec.CorrelationID
		}
	}
	if len(calls) != 2 || len(causes) != 1 || causes[0] != calls[0] {
		t.Errorf("of the calls %q the notification is caused by %q; want the first", calls, causes)
	}
}

// A session that closes has no host for what waits; it was not withheld for a secret.
func TestNotificationsOfAClosedSessionAreDropped(t *testing.T) {
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		c.Receiver.ResponseArrived(wire.Message{})
		l.cfg.Handler.Unsolicited(wire.Message{Method: "x/after", Params: json.RawMessage(`{"n":1}`)})
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	m := wire.Message{ID: json.RawMessage("1"), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
	p := r.s.Begin(t.Context(), server.NewRequest(m))
	p.Serve() // and its answer is never sent
	r.s.Close("test")
	r.close() // waits for what waits
	p.Sent()
	if log := r.warnings.String(); strings.Contains(log, "withheld") || len(r.push) > 0 {
		t.Errorf("%d messages go to the host, and the log says: %s", len(r.push), log)
	}
}

// A call that fails does not wait for its turn: its progress ends with it.
func TestProgressEndsWithItsCall(t *testing.T) {
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		if string(c.Call.Origin.ID) == "1" {
			c.Receiver.ResponseArrived(wire.Message{})
			return result(`{"content":[]}`)
		}
		c.Receiver.Message(wire.Message{Method: wire.MethodProgress, Params: json.RawMessage(`{"progressToken":"p","progress":1}`)})
		c.Receiver.Message(wire.Message{Method: "x/said"})
		return wire.Message{}, conn.ErrClosed
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	call := func(id string) server.Pending {
		m := wire.Message{ID: json.RawMessage(id), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
		p := r.s.Begin(t.Context(), &server.Request{Msg: m, Meta: wire.ReadMeta(m.Params), Emit: r.s.Push})
		p.Serve()
		return p
	}
	first := call("1")
	call("2").Sent()
	first.Sent()
	if m := <-r.push; m.Method != "x/said" || len(r.push) > 0 {
		t.Errorf("after the replies the host gets %s and %d more, want x/said", m.Encode(), len(r.push))
	}
}

// So it is where the upstream is of the modern era, and asked before it answered.
func TestNotificationsFollowTheAnswerOfARound(t *testing.T) {
	rounds := 0
	up := echoUpstream("2026-07-28").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		rounds++
		m, _ := result(`{"resultType":"complete","content":[]}`)
		if rounds == 1 {
			m, _ = result(`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{}}}}`)
		}
		if c.Receiver != nil {
			c.Receiver.ResponseArrived(m)
		}
		l.cfg.Handler.Unsolicited(wire.Message{Method: fmt.Sprintf("x/after-%d", rounds)})
		return m, nil
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	m := wire.Message{ID: json.RawMessage("1"), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
	answered := make(chan server.Pending, 1)
	go func() {
		p := r.s.Begin(t.Context(), &server.Request{Msg: m, Meta: wire.ReadMeta(m.Params), Emit: r.s.Push})
		p.Serve()
		answered <- p
	}()
	if m := <-r.push; m.Method != "x/after-1" {
		t.Fatalf("before the question the host gets %s", m.Encode())
	}
	question := <-r.push
	r.s.HandleResponse(wire.Message{ID: question.ID, Result: json.RawMessage(`{"action":"decline"}`)})
	rep := <-answered
	if len(r.push) > 0 {
		t.Fatalf("before the reply the host gets %s", (<-r.push).Encode())
	}
	rep.Sent()
	if m := <-r.push; m.Method != "x/after-2" {
		t.Errorf("after the reply the host gets %s", m.Encode())
	}
}

// A call whose session ends while its answer waits for its turn is cut off, and the reply says so: the answer
// does not pass the layers any more.
func TestSessionEndsWhileTheAnswerWaits(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		c.Receiver.ResponseArrived(wire.Message{})
		l.cfg.Handler.Unsolicited(wire.Message{Method: "x/after"})
		if string(c.Call.Origin.ID) == "2" { // its turn is after x/after, which follows the first answer
			cancel(errors.New("the host closed the connection"))
		}
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	call := func(id string) (server.Pending, wire.Message) {
		m := wire.Message{ID: json.RawMessage(id), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
		p := r.s.Begin(ctx, server.NewRequest(m))
		return p, p.Serve().Message
	}
	first, reply := call("1")
	defer first.Sent()
	if reply.Error != nil {
		t.Fatalf("the first call: %s", reply.Error)
	}
	second, reply := call("2")
	defer second.Sent()
	if text := string(reply.Encode()); !strings.Contains(text, "cut off with its session (the host closed the connection)") {
		t.Errorf("the second call is answered with %s", text)
	}
}
