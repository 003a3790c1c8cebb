package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A question that came for another call, and reaches the one that was chosen to
// carry it just when that one is over, goes on to a third and is not lost.
func TestQuestionOutlivesItsCarrier(t *testing.T) {
	r := newRig(t, true, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	u := r.g.byKey["up"]
	parkedCall := func(ticket string) *parked {
		fl := &inbound{ex: &edge.Exchange{Msg: wire.Message{Params: json.RawMessage(`{` + elicitMeta + `}`)}}, s: r.s}
		p := &parked{
			ticket: ticket, principal: edge.LocalPrincipal, up: u, cancel: func(error) {}, expiry: time.NewTimer(time.Hour),
			done: make(chan struct{}), asked: make(chan struct{}, 1), current: fl, latest: fl, open: map[string]question{},
		}
		r.g.parking.add(p)
		return p
	}
	first, second := parkedCall("first"), parkedCall("second")
	q := question{l: &fakeLink{gone: make(chan struct{})}, m: wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create"}, guess: true}
	if got := r.g.parking.suited(r.g.tenants.of(u, edge.LocalPrincipal), q.m); got != first {
		t.Fatalf("the question goes to %v, want the oldest call", got)
	}
	r.g.unpark(first) // between the choice and the asking
	first.ask(r.g, q)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case <-second.asked:
	case <-ctx.Done():
		t.Fatal("the question is lost")
	}
	if res := second.inputRequired(); res == nil {
		t.Error("the second call has no question for its host")
	}
	if first.inputRequired() != nil {
		t.Error("the call that is over has a question")
	}
	r.g.parking.remove(second)
}

// A host that is asked and never comes back doesn't gather calls without end;
// another principal's are not counted.
func TestQuestionsDoNotPileUp(t *testing.T) {
	cancelled := make(chan error, 2)
	up := echoUpstream("2025-11-25").onCall(func(ctx context.Context, _ *fakeLink, c *conn.Request) (wire.Message, error) {
		c.Caller.Message(wire.Message{ID: json.RawMessage(`7`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)})
		<-ctx.Done()
		cancelled <- context.Cause(ctx)
		return wire.Message{}, context.Cause(ctx)
	})
	r := newRig(t, true, map[string]fakeUpstream{"up": up})
	for n := range maxWaiting {
		r.g.parking.add(&parked{ticket: fmt.Sprint(n), principal: edge.LocalPrincipal, expiry: time.NewTimer(time.Hour), cancel: func(error) {}})
	}
	const ask = `{"name":"up__echo","arguments":{},` + elicitMeta + `}`
	got := []byte(r.ok("tools/call", ask))
	if code, _ := rawjson.GetString(got, "structuredContent", "error", "code"); code != "too_many_questions" {
		t.Errorf("one question more = %s, want a refusal", got)
	}
	if err := <-cancelled; err == nil {
		t.Error("the upstream still waits for its answer")
	}
	m := wire.Message{ID: json.RawMessage(`1`), Method: "tools/call", Params: json.RawMessage(ask)}
	m.Raw = m.Encode()
	other := r.g.newSession(edge.Peer{Principal: "other", Transport: "http", Modern: true})
	defer other.Close("test over")
	if kind, _ := rawjson.GetString(other.Begin(t.Context(), &edge.Exchange{Msg: m})().Result, "resultType"); kind != "input_required" {
		t.Errorf("another principal's question ends with %q", kind)
	}
}
