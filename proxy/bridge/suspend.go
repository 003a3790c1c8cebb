package bridge

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// legacyServer is a legacy server as modern hosts see it. It wraps a connection
// that the hosts of one principal share.
type legacyServer struct {
	conn.Conn
	b         *Bridge
	principal string
	hosts     conn.Handler
	log       *slog.Logger
	refusing  atomic.Int64

	mu        sync.Mutex
	level     int                    // the lowest log level that the server was told, or noLevel
	serving   map[*request]struct{}  // the requests at the server
	listeners map[*listener]struct{} // the listens that are translated
}

// request is one round of a modern host's request.
type request struct {
	*conn.Request
	level int // of the log messages it asks for, or noLevel
}

// suspendedCall is a call to a legacy server that a modern host makes in rounds.
// It is suspended while no round is being served.
type suspendedCall struct {
	state        string // the requestState that names it
	number       int    // counts up with each call of the bridge
	server       *legacyServer
	method, name string
	first        string // id of the first round's trace record
	cancel       context.CancelCauseFunc
	done         chan struct{} // closed when the server has answered
	asked        chan struct{} // capacity 1: there are new questions

	// result and err are set before done is closed.
	result wire.Message
	err    error

	mu        sync.Mutex
	expiry    *time.Timer
	current   *request // the round being served; nil between rounds
	latest    *request // the newest round
	questions map[string]question
	last      int  // number of the newest question
	over      bool // takes no more questions
}

// question is a server request that the host has not answered yet.
type question struct {
	m wire.Message
	// unattributed means that the server did not say for which call it asks.
	unattributed bool
}

var errNotSuspended = &interceptor.Refusal{Reason: "invalid", Code: "request_state_unknown", Status: 404,
	Message: "this requestState is unknown or expired; make the call again without requestState and inputResponses"}

// Call implements [conn.Conn]. A call that the server interrupts with a question
// ends with input_required; the host makes it again with the answers.
func (s *legacyServer) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	switch {
	case r.Caller == nil: // foldgate's own request, which takes no questions
		return s.Conn.Call(ctx, r)
	case r.Method == wire.MethodListen:
		return s.listen(ctx, r)
	}
	round := &request{Request: r, level: askedLevel(r.Params)}
	defer s.enter(round)()
	call, err := s.startOrResume(ctx, round)
	if err != nil {
		return wire.Message{}, err
	}
	for {
		select {
		case <-call.done:
		case <-call.asked:
			select { // a few more may be on their way
			case <-call.done:
			case <-time.After(coalesceDelay):
			}
		case <-ctx.Done():
			call.cancel(context.Cause(ctx))
			s.b.forget(call)
			return wire.Message{}, context.Cause(ctx)
		}
		select {
		case <-call.done:
			s.b.forget(call)
			return toModern(r.Method, call.result), call.err
		default:
		}
		if m, ok := call.suspend(); ok {
			if !s.b.crowded(s.principal) {
				return m, nil
			}
			err := &interceptor.Refusal{Reason: "resource_limit", Code: "too_many_questions", Status: 429, RetryAfter: int(suspendedFor.Seconds()),
				Message: fmt.Sprintf("%s asks for input, and %d calls wait for some already: answer those first; this one was cancelled", call.name, maxSuspended)}
			call.cancel(err)
			s.b.forget(call)
			return wire.Message{}, err
		}
	}
}

// startOrResume returns the call that a round belongs to: the suspended one that
// its requestState names, or a new one.
func (s *legacyServer) startOrResume(ctx context.Context, round *request) (*suspendedCall, error) {
	state, resumed := rawjson.GetString(round.Params, "requestState")
	if !resumed {
		s.raiseLevel(ctx, round.level)
		return s.start(round), nil
	}
	call := s.b.find(state, s.principal, round)
	if call == nil {
		return nil, errNotSuspended
	}
	round.Call.Origin.Correlates = append(round.Call.Origin.Correlates, call.first)
	call.resume(round)
	return call, nil
}

// start sends a call to the server. It goes on when its first round is over.
func (s *legacyServer) start(round *request) *suspendedCall {
	ctx, cancel := context.WithCancelCause(s.b.lifetime)
	call := &suspendedCall{
		state: "foldgate-parked:" + rand.Text(), server: s, method: round.Method, name: round.Call.Target.Name, first: round.Call.Outcome.Record,
		cancel: cancel, done: make(chan struct{}), asked: make(chan struct{}, 1), current: round, latest: round, questions: map[string]question{},
	}
	call.expiry = time.AfterFunc(suspendedFor, func() {
		cancel(fmt.Errorf("the host did not come back with the input within %s", suspendedFor))
		s.b.forget(call)
	})
	s.b.add(call)
	inner := *round.Request
	inner.Params, inner.Caller = wire.WithoutReservedMeta(round.Params), call
	s.b.wg.Go(func() {
		defer cancel(nil)
		call.result, call.err = s.Conn.Call(ctx, &inner)
		close(call.done)
	})
	return call
}

// Message implements [conn.Caller]: it takes what the server sends during the
// call.
func (call *suspendedCall) Message(m wire.Message) {
	switch {
	case m.IsRequest():
		call.ask(question{m: m})
		return
	case m.Method == wire.MethodCancelled:
		call.withdraw(m.Params)
		return
	}
	call.mu.Lock()
	round := call.current
	call.mu.Unlock()
	if round == nil || !round.wants(m) {
		return
	}
	if m.Method == wire.MethodProgress { // a later round may have another token, or none
		token, ok := rawjson.Get(round.Params, "_meta", "progressToken")
		if !ok {
			return
		}
		m = m.WithParams(rawjson.Set(m.Params, token, "progressToken"))
	}
	round.Caller.Message(m)
}

// Answered implements [conn.Caller].
func (call *suspendedCall) Answered(m wire.Message) {
	call.mu.Lock()
	round := call.current
	call.mu.Unlock()
	if round != nil {
		round.Caller.Answered(m)
	}
}

// ask keeps a question for the host, or refuses it if the host can't answer. An
// unattributed question goes on to another call if this one is over.
func (call *suspendedCall) ask(q question) {
	call.mu.Lock()
	if call.over {
		call.mu.Unlock()
		if q.unattributed {
			call.server.askAnyone(q.m)
		}
		return
	}
	can, code, why := hostCan(call.latest.Params, q.m), wire.CodeMethodNotFound, "the host does not support "+q.m.Method
	if can && len(call.questions) >= maxQuestions {
		can, code, why = false, wire.CodeInternal, fmt.Sprintf("%d questions of this call are under way: wait for their answers first", maxQuestions)
	}
	if can {
		call.last++
		call.questions[fmt.Sprintf("r%d", call.last)] = q
	}
	call.mu.Unlock()
	if !can {
		call.server.refuse(q.m, code, why)
		return
	}
	notify(call.asked)
}

// suspend ends a round with the open questions; ok is false if there are none.
func (call *suspendedCall) suspend() (m wire.Message, ok bool) {
	call.mu.Lock()
	defer call.mu.Unlock()
	if len(call.questions) == 0 {
		return wire.Message{}, false
	}
	call.current = nil
	out := []byte(`{"resultType":"input_required","inputRequests":{`)
	for i, key := range slices.Sorted(maps.Keys(call.questions)) {
		if i > 0 {
			out = append(out, ',')
		}
		q := call.questions[key].m
		out = append(rawjson.AppendQuote(out, key), `:{"method":`...)
		out = rawjson.AppendQuote(out, q.Method)
		if q.Params != nil {
			out = append(append(out, `,"params":`...), q.Params...)
		}
		out = append(out, '}')
	}
	out = append(out, `},"requestState":`...)
	return wire.Message{Result: append(rawjson.AppendQuote(out, call.state), '}')}, true
}

// resume starts a further round: the host's answers go to the server.
func (call *suspendedCall) resume(round *request) {
	responses, _ := rawjson.Get(round.Params, "inputResponses")
	call.mu.Lock()
	call.current, call.latest = round, round
	var answers []wire.Message
	rawjson.Members(responses, func(m rawjson.Member) bool {
		if q, ok := call.questions[m.Name()]; ok {
			delete(call.questions, m.Name())
			answers = append(answers, wire.Message{ID: q.m.ID, Result: m.Value})
		}
		return true
	})
	left := len(call.questions)
	call.mu.Unlock()
	for _, a := range answers {
		_ = call.server.Conn.Reply(call.server.b.lifetime, a) // the call itself fails if the connection is lost
	}
	if left > 0 {
		notify(call.asked) // ask again for the missing answers
	}
}

// withdraw drops the question that the server took back, unless the host has
// answered it.
func (call *suspendedCall) withdraw(params json.RawMessage) {
	id, _ := rawjson.Get(params, "requestId")
	call.mu.Lock()
	defer call.mu.Unlock()
	maps.DeleteFunc(call.questions, func(_ string, q question) bool { return string(q.m.ID) == string(id) })
}

// Unsolicited implements [conn.Handler]: it takes what the server sends on the
// shared connection without saying for which request.
func (s *legacyServer) Unsolicited(m wire.Message) {
	switch {
	case m.IsRequest():
		s.askAnyone(m)
	case m.Method == wire.MethodCancelled:
		for _, call := range s.b.callsAt(s) {
			call.withdraw(m.Params)
		}
	case m.Method == wire.MethodResourceUpdated:
		s.updated(m)
	default:
		if round := s.only(m); round != nil {
			round.Caller.Message(m)
			return
		}
		s.hosts.Unsolicited(m)
	}
}

// askAnyone gives an unattributed question to the call that suits best: a call
// being served before a suspended one, then the call with the fewest questions,
// then the oldest. The answer goes back to the question, whichever call carried
// it. A ping is about the connection, so foldgate answers it.
func (s *legacyServer) askAnyone(m wire.Message) {
	if m.Method == "ping" {
		s.reply(wire.Message{ID: m.ID, Result: json.RawMessage(`{}`)})
		return
	}
	var best *suspendedCall
	var least [3]int
	for _, call := range s.b.callsAt(s) {
		call.mu.Lock()
		fits := !call.over && hostCan(call.latest.Params, m)
		rank := [3]int{0, len(call.questions), call.number}
		if call.current == nil {
			rank[0] = 1
		}
		call.mu.Unlock()
		if fits && (best == nil || slices.Compare(rank[:], least[:]) < 0) {
			best, least = call, rank
		}
	}
	if best == nil {
		s.refuse(m, wire.CodeMethodNotFound, "no host is waiting on this connection for "+m.Method)
		return
	}
	best.ask(question{m: m, unattributed: true})
}

// refuse answers a question of the server with an error.
func (s *legacyServer) refuse(m wire.Message, code int, text string) {
	s.reply(wire.Message{ID: m.ID, Error: (&wire.Error{Code: code, Message: text}).JSON()})
}

// reply sends an answer in the background, because the connection's reader must
// not block. It drops answers if too many are under way.
func (s *legacyServer) reply(m wire.Message) {
	if s.refusing.Add(1) > maxRefusing {
		s.refusing.Add(-1)
		s.log.Debug("request of an upstream dropped: too many are under way")
		return
	}
	s.b.wg.Go(func() {
		defer s.refusing.Add(-1)
		_ = s.Conn.Reply(s.b.lifetime, m) // a lost connection needs no answer
	})
}

// hostCan reports whether a modern request declares the capability that a
// server's question needs.
func hostCan(params json.RawMessage, m wire.Message) bool {
	need := map[string]string{"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}[m.Method]
	if need == "" {
		return false
	}
	has, ok := rawjson.Get(params, "_meta", wire.MetaClientCapabilities, need)
	if mode, _ := rawjson.GetString(m.Params, "mode"); ok && mode == "url" {
		_, ok = rawjson.Get(has, "url")
	}
	return ok
}

// toModern gives a legacy response the members that the modern era demands.
func toModern(method string, m wire.Message) wire.Message {
	if m.Error != nil || m.Result == nil {
		return m
	}
	if _, ok := rawjson.Get(m.Result, "resultType"); !ok && rawjson.KindOf(m.Result) == rawjson.Object {
		m.Result = rawjson.Set(m.Result, []byte(`"complete"`), "resultType")
	}
	if method == "resources/read" {
		m.Result = rawjson.Set(rawjson.Set(m.Result, []byte("0"), "ttlMs"), []byte(`"private"`), "cacheScope")
	}
	return m
}

// listener is a subscriptions/listen of a modern host that is translated into
// resources/subscribe.
type listener struct {
	*conn.Request
	uris []string
}

// listen translates subscriptions/listen: it subscribes to the resources and
// lasts until ctx is done or the connection is lost. List changes need no
// subscription at a legacy server.
func (s *legacyServer) listen(ctx context.Context, r *conn.Request) (wire.Message, error) {
	l := &listener{Request: r}
	wanted, _ := rawjson.Get(r.Params, "notifications")
	uris, _ := rawjson.Get(wanted, "resourceSubscriptions")
	rawjson.Elements(uris, func(v []byte) bool { l.uris = append(l.uris, rawjson.Unquote(v)); return true })
	for _, uri := range l.uris {
		m, err := s.Conn.Call(ctx, &conn.Request{Method: "resources/subscribe", Params: rawjson.Marshal(map[string]string{"uri": uri})})
		if err != nil || m.Error != nil {
			return m, err
		}
	}
	s.mu.Lock()
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	r.Caller.Message(wire.Message{Method: wire.MethodAcknowledged, Params: rawjson.Set([]byte(`{}`), wanted, "notifications")})
	select {
	case <-s.Conn.Done():
	case <-ctx.Done():
	}
	s.mu.Lock()
	delete(s.listeners, l)
	var unused []string
	for _, uri := range l.uris {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(s.listeners)), func(l *listener) bool { return slices.Contains(l.uris, uri) }) {
			unused = append(unused, uri)
		}
	}
	s.mu.Unlock()
	if ctx.Err() == nil {
		return wire.Message{}, errors.Join(conn.ErrClosed, s.Conn.Err())
	}
	if s.b.lifetime.Err() == nil {
		aside, cancel := context.WithTimeout(s.b.lifetime, asideTimeout)
		defer cancel()
		for _, uri := range unused {
			_, _ = s.Conn.Call(aside, &conn.Request{Method: "resources/unsubscribe", Params: rawjson.Marshal(map[string]string{"uri": uri})})
		}
	}
	return wire.Message{}, context.Cause(ctx)
}

// updated hands the update of a resource to the listens that asked for it.
func (s *legacyServer) updated(m wire.Message) {
	uri, _ := rawjson.GetString(m.Params, "uri")
	s.mu.Lock()
	var to []*listener
	for l := range s.listeners {
		if slices.Contains(l.uris, uri) {
			to = append(to, l)
		}
	}
	s.mu.Unlock()
	for _, l := range to {
		l.Caller.Message(m)
	}
}

// add enters a call.
func (b *Bridge) add(call *suspendedCall) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.number++
	call.number = b.number
	b.calls[call.state] = call
}

// find returns the call that a request state names, if it is the same call of
// the same principal.
func (b *Bridge) find(state, principal string, round *request) *suspendedCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	call := b.calls[state]
	if call == nil || call.server.principal != principal || call.method != round.Method || call.name != round.Call.Target.Name {
		return nil
	}
	return call
}

// forget drops a call that is over. Unattributed questions that it carried go to
// another call.
func (b *Bridge) forget(call *suspendedCall) {
	b.mu.Lock()
	delete(b.calls, call.state)
	b.mu.Unlock()
	call.mu.Lock()
	call.expiry.Stop()
	open := call.questions
	call.questions, call.over = map[string]question{}, true
	call.mu.Unlock()
	for _, q := range open {
		if q.unattributed {
			call.server.askAnyone(q.m)
		}
	}
}

// crowded reports whether more calls of a principal are suspended than may be. A
// host that never comes back leaves each of its calls for suspendedFor.
func (b *Bridge) crowded(principal string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	suspended := 0
	for _, call := range b.calls {
		call.mu.Lock()
		if call.server.principal == principal && call.current == nil {
			suspended++
		}
		call.mu.Unlock()
	}
	return suspended > maxSuspended
}

// callsAt returns the calls at a server.
func (b *Bridge) callsAt(s *legacyServer) (calls []*suspendedCall) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range b.calls {
		if call.server == s {
			calls = append(calls, call)
		}
	}
	return calls
}

// notify makes a channel of capacity 1 ready.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
