package proxy

import (
	"context"
	"encoding/json"
	"testing"
	"time"

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
	if got := r.g.parking.suited(u.seat(edge.LocalPrincipal), q.m); got != first {
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
