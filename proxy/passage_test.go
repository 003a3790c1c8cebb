package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/link"
	"github.com/foldgate/foldgate/proxy/wire"
)

// What an upstream sends after an answer reaches the host after it: the host may
// not know before what it is about.
func TestNotificationsFollowTheAnswer(t *testing.T) {
	const n = 5
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeLink, c *link.Call) (wire.Message, error) {
		c.Event(wire.Message{Method: "x/before"})
		c.Answered()
		for i := range n {
			l.cfg.Handle(wire.Message{Method: fmt.Sprintf("x/after-%d", i)})
		}
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	for range 3 {
		m := wire.Message{ID: json.RawMessage("1"), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
		rep := r.s.Begin(t.Context(), &edge.Exchange{Msg: m})()
		if m := <-r.push; m.Method != "x/before" || len(r.push) > 0 {
			t.Fatalf("before the reply the host gets %s and %d more, want x/before", m.Method, len(r.push))
		}
		rep.Sent()
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
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeLink, c *link.Call) (wire.Message, error) {
		for i := range n {
			c.Event(wire.Message{ID: json.RawMessage(fmt.Sprint(i)), Method: "sampling/createMessage", Params: json.RawMessage(`{}`)})
			c.Event(wire.Message{Method: "x/after"})
		}
		c.Answered()
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	m := wire.Message{ID: json.RawMessage("1"), Method: "tools/call", Params: json.RawMessage(`{"name":"up__echo","arguments":{}}`)}
	go func(l *fakeLink) { // which hears that its questions ended with the call
		for {
			select {
			case <-l.replied:
			case <-over:
				return
			}
		}
	}(r.last("up"))
	rep := r.s.Begin(t.Context(), &edge.Exchange{Msg: m})()
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
	rep.Sent()
}
