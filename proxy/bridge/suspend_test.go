package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

const elicitMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// fakeConn is a legacy server inside the test: a func answers its requests.
type fakeConn struct {
	serve   func(ctx context.Context, r *conn.Request) (wire.Message, error)
	replies chan wire.Message
	blocked chan struct{} // gets an element for each message without replies
	gone    chan struct{} // nil for a connection that lasts
}

func (c *fakeConn) Info() conn.Info {
	return conn.Info{Version: wire.VersionLegacy, Result: json.RawMessage(`{"capabilities":{}}`)}
}

// serveWith sets what answers requests.
func (c *fakeConn) serveWith(f func(context.Context, *conn.Request) (wire.Message, error)) {
	c.serve = f
}

func (c *fakeConn) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	return c.serve(ctx, r)
}

func (c *fakeConn) Send(ctx context.Context, m wire.Message) error {
	if c.replies == nil { // the server does not read
		c.blocked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	c.replies <- m
	return nil
}

func (c *fakeConn) Done() <-chan struct{} { return c.gone }
func (c *fakeConn) Err() error            { return nil }
func (c *fakeConn) Close() error          { return nil }

// drop takes messages of a server and drops them.
type drop struct{}

func (drop) Unsolicited(wire.Message)     {}
func (drop) Undelivered(conn.Undelivered) {}
func (drop) Message(wire.Message)         {}
func (drop) ResponseArrived(wire.Message) {}

// newBridge returns a bridge that ends with the test.
func newBridge(t *testing.T) *Bridge {
	t.Helper()
	lifetime, end := context.WithCancel(context.Background())
	b := New(lifetime, "", slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(func() {
		end()
		b.Wait()
	})
	return b
}

// legacy returns a legacy server as the hosts that share a connection see it.
func (b *Bridge) legacy(t *testing.T, c conn.Conn) *legacyServer {
	t.Helper()
	w, h := b.Wrap("up", conn.Host{Shared: true}, c, drop{})
	s, ok := w.(*legacyServer)
	if !ok || h != conn.Handler(s) {
		t.Fatalf("Wrap = %T, %T, want a legacyServer that handles its own messages", w, h)
	}
	return s
}

// roundOf returns a round of a call of the tool greet.
func roundOf(params string) *conn.Request {
	return &conn.Request{
		Method: "tools/call", Params: json.RawMessage(params), Receiver: drop{},
		Call: &interceptor.Call{Target: interceptor.Target{Method: "tools/call", Name: "up__greet"}},
	}
}

// suspendable adds a call whose first round is being served.
func (s *legacyServer) suspendable(state string) *suspendedCall {
	round := roundOf(`{` + elicitMeta + `}`)
	call := &suspendedCall{
		state: state, server: s, method: round.Method, name: round.Call.Target.Name, cancel: func(error) {},
		done: make(chan struct{}), arrived: make(chan struct{}, 1), round: round, requests: map[string]serverRequest{}, expiry: time.NewTimer(suspendedFor),
	}
	s.b.add(call)
	return call
}

// await waits until a call has a new question.
func await(t *testing.T, call *suspendedCall) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case <-call.arrived:
	case <-ctx.Done():
		t.Fatal("the question is lost")
	}
}

// A question that came for another call, and reaches the one that was chosen to
// carry it just when that one is over, goes on to a third and is not lost.
func TestQuestionOutlivesItsCarrier(t *testing.T) {
	b := newBridge(t)
	s := b.legacy(t, &fakeConn{replies: make(chan wire.Message, 10)})
	first, second := s.suspendable("first"), s.suspendable("second")
	q := serverRequest{m: wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create"}, inferred: true}
	s.assign(q.m)
	await(t, first)
	if len(first.requests) != 1 || len(second.requests) != 0 {
		t.Fatalf("the calls have %d and %d questions, want the oldest call to have the one", len(first.requests), len(second.requests))
	}
	s.Unsolicited(wire.Message{Method: wire.MethodCancelled, Params: json.RawMessage(`{"requestId":1}`)})
	if len(first.requests) != 0 {
		t.Fatal("the question that was taken back is still open")
	}
	b.forget(first, nil) // between the choice and the asking
	first.keep(q)
	await(t, second)
	if _, ok := second.suspend(); !ok {
		t.Error("the second call has no question for its host")
	}
	if _, ok := first.suspend(); ok {
		t.Error("the call that is over has a question")
	}
	b.forget(second, nil)
}

// An unattributed question that its carrier leaves open goes on to another call;
// the carrier's own question does not.
func TestForgottenCallPassesItsQuestionsOn(t *testing.T) {
	b := newBridge(t)
	c := &fakeConn{replies: make(chan wire.Message, 10)}
	s := b.legacy(t, c)
	first, second := s.suspendable("first"), s.suspendable("second")
	first.keep(serverRequest{m: wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"own"}`)}})
	first.keep(serverRequest{m: wire.Message{ID: json.RawMessage(`2`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"any"}`)}, inferred: true})
	b.forget(first, nil)
	await(t, second)
	m, ok := second.suspend()
	if text, _ := rawjson.GetString(m.Result, "inputRequests", "r1", "params", "message"); !ok || text != "any" || len(second.requests) != 1 {
		t.Errorf("the second call asks %s, want the unattributed question alone", m.Result)
	}
	b.forget(second, nil) // no call is left: the question is refused
	select {
	case m := <-c.replies:
		if string(m.ID) != "2" || m.Error == nil {
			t.Errorf("the server is told %s %s %s, want an error for 2", m.ID, m.Result, m.Error)
		}
	case <-time.After(10 * time.Second):
		t.Error("the question is lost")
	}
}

// A host that is asked and never comes back doesn't gather calls without end.
// Another principal's calls are not counted.
func TestQuestionsDoNotPileUp(t *testing.T) {
	cancelled := make(chan error, 2)
	c := &fakeConn{replies: make(chan wire.Message, 10), serve: func(ctx context.Context, r *conn.Request) (wire.Message, error) {
		r.Receiver.Message(wire.Message{ID: json.RawMessage(`7`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)})
		<-ctx.Done()
		cancelled <- context.Cause(ctx)
		return wire.Message{}, context.Cause(ctx)
	}}
	b := newBridge(t)
	s := b.legacy(t, c)
	for n := range maxSuspended {
		b.add(&suspendedCall{state: fmt.Sprint(n), server: s, suspended: true, cancel: func(error) {}, expiry: time.NewTimer(suspendedFor)})
	}
	const ask = `{"name":"greet","arguments":{},` + elicitMeta + `}`
	m, err := s.Call(t.Context(), roundOf(ask))
	var refusal *interceptor.Refusal
	if !errors.As(err, &refusal) || refusal.Code != "too_many_questions" {
		t.Errorf("one question more = %s, %v, want a refusal", m.Result, err)
	}
	if err := <-cancelled; err == nil {
		t.Error("the upstream still waits for its answer")
	}
	other := roundOf(ask)
	other.Call.Origin.Principal = "other"
	m, err = s.Call(t.Context(), other)
	if kind, _ := rawjson.GetString(m.Result, "resultType"); err != nil || kind != "input_required" {
		t.Errorf("another principal's question ends with %q, %v", kind, err)
	}
	state, _ := rawjson.GetString(m.Result, "requestState")
	answer := fmt.Sprintf(`{"name":"greet","arguments":{},"requestState":%q,"inputResponses":{"r1":{"action":"accept"}}}`, state)
	if _, err := s.Call(t.Context(), roundOf(answer)); !errors.Is(err, errNotSuspended) {
		t.Errorf("a principal answers for another one: %v", err)
	}
}

// The calls of a principal that wait have a bound in bytes, too. One alone may be of any size.
func TestCallsThatWaitAreBoundedInBytes(t *testing.T) {
	c := &fakeConn{replies: make(chan wire.Message, 10), serve: func(ctx context.Context, r *conn.Request) (wire.Message, error) {
		r.Receiver.Message(wire.Message{ID: json.RawMessage(`7`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)})
		<-ctx.Done()
		return wire.Message{}, context.Cause(ctx)
	}}
	s := newBridge(t).legacy(t, c)
	ask := func(principal string, size int) (code string) {
		round := roundOf(`{"name":"greet","arguments":{"pad":"` + strings.Repeat("x", size) + `"},` + elicitMeta + `}`)
		round.Call.Origin.Principal = principal
		_, err := s.Call(t.Context(), round)
		if refusal, ok := errors.AsType[*interceptor.Refusal](err); ok {
			return refusal.Code
		}
		return fmt.Sprint(err)
	}
	for i, step := range []struct {
		principal string
		size      int
		want      string
	}{
		{"alone", maxSuspendedBytes, "<nil>"}, {"alone", 1, "too_many_questions"},
		{"several", maxSuspendedBytes / 2, "<nil>"}, {"several", 1, "<nil>"}, {"several", maxSuspendedBytes / 2, "too_many_questions"}, {"several", 1, "<nil>"},
	} {
		if got := ask(step.principal, step.size); got != step.want {
			t.Errorf("step %d: a call of %s with %d bytes: %s, want %s", i, step.principal, step.size, got, step.want)
		}
	}
	// A call that asks again has the size of its largest round.
	round := func(params string) (wire.Message, error) {
		r := roundOf(params + elicitMeta + `}`)
		r.Call.Origin.Principal = "again"
		return s.Call(t.Context(), r)
	}
	m, err := round(`{"name":"greet","arguments":{"pad":"` + strings.Repeat("x", maxSuspendedBytes/2) + `"},`)
	state, ok := rawjson.GetString(m.Result, "requestState")
	if err != nil || !ok {
		t.Fatalf("%s, %v", m.Result, err)
	}
	s.b.add(&suspendedCall{state: "other", server: s, principal: "again", suspended: true, size: maxSuspendedBytes / 2, cancel: func(error) {}, expiry: time.NewTimer(suspendedFor)})
	if m, err = round(`{"name":"greet","requestState":"` + state + `",`); err == nil || !strings.Contains(err.Error(), "wait for some already") {
		t.Errorf("a call that asks again = %s, %v", m.Result, err)
	}
}

// One call has no more questions open than documented, and each that is refused is
// answered with an error.
func TestQuestionsOfOneCallAreBounded(t *testing.T) {
	b := newBridge(t)
	c := &fakeConn{replies: make(chan wire.Message, 10)}
	s := b.legacy(t, c)
	call := s.suspendable("one")
	var wg sync.WaitGroup
	for n := range 101 {
		wg.Go(func() {
			call.Message(wire.Message{ID: json.RawMessage(fmt.Sprint(n)), Method: "elicitation/create"})
		})
	}
	wg.Wait()
	if m := <-c.replies; wire.ErrorCode(m.Error) != wire.CodeInternal {
		t.Errorf("the question over the limit is answered with %s", m.Error)
	}
	if len(call.requests) != 100 {
		t.Errorf("the call has %d questions open, want 100", len(call.requests))
	}
	b.forget(call, nil)
}

// A round that its host cancels ends, also while its answers can't be sent.
func TestCancelledRoundEnds(t *testing.T) {
	b := newBridge(t)
	c := &fakeConn{blocked: make(chan struct{}, 10)}
	s := b.legacy(t, c)
	call := s.suspendable("st")
	call.keep(serverRequest{m: wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create"}})
	if _, ok := call.suspend(); !ok {
		t.Fatal("the call has no question")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, roundOf(`{"name":"up__greet","requestState":"st","inputResponses":{"r1":{"action":"decline"}},`+elicitMeta+`}`))
		ended <- err
	}()
	<-c.blocked
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the round ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the round goes on")
	}
}

// receiver notes what it gets without a lock: the race detector finds a message that comes after
// the round.
type receiver struct{ got int }

func (r *receiver) Message(wire.Message) {
	time.Sleep(time.Millisecond)
	r.got++
}

func (r *receiver) ResponseArrived(wire.Message) { r.got++ }

// The receiver of a round takes nothing once the round is over.
func TestRoundEndsForItsReceiver(t *testing.T) {
	b := newBridge(t)
	for range 50 {
		answer := make(chan struct{})
		c := &fakeConn{replies: make(chan wire.Message, 10), serve: func(_ context.Context, r *conn.Request) (wire.Message, error) {
			r.Receiver.Message(wire.Message{ID: json.RawMessage(`7`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)})
			<-answer
			r.Receiver.Message(wire.Message{Method: "notifications/x"})
			r.Receiver.ResponseArrived(wire.Message{})
			return wire.Message{Result: json.RawMessage(`{}`)}, nil
		}}
		s := b.legacy(t, c)
		round, got := roundOf(`{"name":"greet",`+elicitMeta+`}`), &receiver{}
		round.Receiver = got
		time.AfterFunc(coalesceDelay-time.Millisecond/2, func() { close(answer) }) // the round is about to end
		if _, err := s.Call(t.Context(), round); err != nil {
			t.Fatal(err)
		}
		_ = got.got
	}
}

// A call that has carried a question for another gets the next one only after the others: hosts give
// up after some rounds.
func TestUnattributedQuestionsAreSpread(t *testing.T) {
	b := newBridge(t)
	c := &fakeConn{replies: make(chan wire.Message, 10)}
	s := b.legacy(t, c)
	calls := []*suspendedCall{s.suspendable("first"), s.suspendable("second"), s.suspendable("third")}
	for n := range 2 * len(calls) {
		call := calls[n%len(calls)]
		s.Unsolicited(wire.Message{ID: json.RawMessage(fmt.Sprint(n)), Method: "elicitation/create"})
		await(t, call)
		m, _ := call.suspend()
		asked, _ := rawjson.Get(m.Result, "inputRequests")
		var answers []byte
		for q := range rawjson.Members(asked) {
			answers = rawjson.Set([]byte(`{}`), []byte(`{}`), q.Name())
		}
		call.resume(t.Context(), roundOf(`{`+elicitMeta+`,"inputResponses":`+string(answers)+`}`))
		if m := <-c.replies; string(m.ID) != fmt.Sprint(n) {
			t.Errorf("answer to %s, want to %d", m.ID, n)
		}
	}
}

// A further round belongs to its call by what it names, whatever the Target calls it.
func TestRoundNamesItsCall(t *testing.T) {
	b := newBridge(t)
	s := b.legacy(t, &fakeConn{serve: func(ctx context.Context, _ *conn.Request) (wire.Message, error) {
		<-ctx.Done()
		return wire.Message{}, context.Cause(ctx)
	}})
	call := s.start(roundOf(`{"name":"greet"}`))
	for name, want := range map[string]error{"greet": nil, "leave": errNotSuspended} {
		round := roundOf(fmt.Sprintf(`{"name":%q,"requestState":%q}`, name, call.state))
		round.Call.Target.Name = "another spelling"
		if got, err := s.startOrResume(t.Context(), round); !errors.Is(err, want) || err == nil && got != call {
			t.Errorf("a round that names %s: %v, want %v", name, err, want)
		}
	}
	for _, at := range []struct { // another connection
		key        string
		candidates []string
		want       error
	}{{"up", nil, nil}, {"other", nil, errNotSuspended}, {"other", []string{"other", "third"}, errNotSuspended}, {"other", []string{"other", "up"}, nil}} {
		w, _ := b.Wrap(at.key, conn.Host{Shared: true}, &fakeConn{}, drop{})
		round := roundOf(fmt.Sprintf(`{"name":"greet","requestState":%q}`, call.state))
		round.Call.Target.Candidates = at.candidates
		if _, err := w.(*legacyServer).startOrResume(t.Context(), round); !errors.Is(err, at.want) {
			t.Errorf("a round at %s of %v: %v, want %v", at.key, at.candidates, err, at.want)
		}
	}
	b.forget(call, nil)
}

// refusals notes the messages that go to no host.
type refusals struct {
	drop
	heard *[]conn.Undelivered
}

func (r refusals) Undelivered(refusal conn.Undelivered) { *r.heard = append(*r.heard, refusal) }

// One question may be as large as a message; several together have a limit.
func TestLargeQuestions(t *testing.T) {
	var heard []conn.Undelivered
	b := newBridge(t)
	w, _ := b.Wrap("up", conn.Host{Shared: true}, &fakeConn{replies: make(chan wire.Message, 10)}, refusals{heard: &heard})
	call := w.(*legacyServer).suspendable("s")
	for _, size := range []int{2 * maxRequestBytes, 1} {
		call.Message(wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create", Raw: make([]byte, size)})
	}
	if len(heard) != 1 || heard[0].Rule != conn.RuleTooMany || call.last != 1 {
		t.Errorf("%d questions are kept, %v refused", call.last, heard)
	}
}

// What the server sends while a call waits for its host goes to nobody, and says so with the call. So do
// questions beyond the limit.
func TestRefusedWhileSuspended(t *testing.T) {
	var heard []conn.Undelivered
	b := newBridge(t)
	w, _ := b.Wrap("up", conn.Host{Shared: true}, &fakeConn{replies: make(chan wire.Message, 10)}, refusals{heard: &heard})
	call := w.(*legacyServer).suspendable("s")
	asks := wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create"}
	for range maxRequests {
		call.Message(asks)
	}
	progress := wire.Message{Method: wire.MethodProgress, Params: json.RawMessage(`{"progress":1}`)}
	call.Message(progress)
	if len(heard) > 0 {
		t.Fatalf("%v is refused", heard[0])
	}
	call.Message(asks)
	if _, ok := call.suspend(); !ok {
		t.Fatal("the call has no question")
	}
	call.Message(progress)
	b.forget(call, nil)
	var got []string
	for _, r := range heard {
		if r.Call != call.round.Call || r.Text == "" {
			t.Errorf("%+v names no call or no reason", r)
		}
		got = append(got, r.Message.Method+" "+r.Rule)
	}
	if want := []string{"elicitation/create too_many_waiting", "notifications/progress suspended"}; !slices.Equal(got, want) {
		t.Errorf("refused: %q, want %q", got, want)
	}
}

// A host that subscribes while the last other one unsubscribes keeps its subscription.
func TestSubscriptionOutlivesAnother(t *testing.T) {
	var subscribed atomic.Bool
	asked := make(chan struct{}, 10)
	c := &fakeConn{}
	s := newBridge(t).legacy(t, c)
	listen := func(ctx context.Context) {
		_, _ = s.Call(ctx, &conn.Request{Method: wire.MethodListen, Params: json.RawMessage(`{"notifications":{"resourceSubscriptions":["mem://a"]}}`), Receiver: drop{}})
	}
	second, endSecond := context.WithCancel(t.Context())
	var hosts sync.WaitGroup
	var once sync.Once
	c.serveWith(func(_ context.Context, r *conn.Request) (wire.Message, error) {
		if r.Method == "resources/unsubscribe" {
			once.Do(func() { // the other host comes while the request is on its way
				hosts.Go(func() { listen(second) })
				<-asked
			})
		}
		if subscribed.Store(r.Method == "resources/subscribe"); subscribed.Load() {
			asked <- struct{}{}
		}
		return wire.Message{Result: json.RawMessage(`{}`)}, nil
	})
	first, endFirst := context.WithCancel(t.Context())
	hosts.Go(func() { <-asked; endFirst() })
	listen(first)
	if !subscribed.Load() {
		t.Error("the second host is not subscribed any more")
	}
	endSecond()
	hosts.Wait()
	if subscribed.Load() {
		t.Error("the subscription has no host and stays")
	}
}
