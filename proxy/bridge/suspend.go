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
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/replicaid"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// legacyServer is a legacy server as the hosts that share a connection see it.
type legacyServer struct {
	sharedConn
	b       *Bridge
	key     string // of the upstream
	log     *slog.Logger
	replies atomic.Int64 // of foldgate's own under way

	// Guarded by mu of sharedConn.
	level     int                      // the lowest log level that the server was told, or noLevel
	listening map[*conn.Request]string // the listens that are translated, and their URIs
}

// suspendedCall is a call to a legacy server that a modern host makes in rounds. It is suspended
// between the rounds.
type suspendedCall struct {
	state        string // the requestState that names it
	number       int    // counts up with each call of the bridge
	server       *legacyServer
	principal    string // of the host
	method, name string // name as in named
	first        string // id of the first round's trace record
	cancel       context.CancelCauseFunc
	done         chan struct{} // closed when the server has answered
	arrived      chan struct{} // capacity 1: there are new requests

	// Set before done is closed.
	result wire.Message
	err    error

	delivery  sync.Mutex // held while the receiver of a round takes a message; taken before mu
	mu        sync.Mutex
	round     *conn.Request            // the newest
	size      int                      // of the largest params of a round, in bytes
	suspended bool                     // the newest round is over
	expiry    *time.Timer              // ends the call; it runs while suspended
	requests  map[string]serverRequest // which the host has not answered, by the key that it knows
	last      int                      // number of the newest request
	over      bool                     // takes no more requests
}

// serverRequest is a request of the server that a host is to answer.
type serverRequest struct {
	m wire.Message
	// inferred means that the server did not say for which call it sent the request.
	inferred bool
}

// newState returns a request state with 130 random bits, among replicas 125.
func newState(replica string) string {
	random := rand.Text()
	if replica != "" {
		random = random[1:] // or it would be longer than 50 bytes
	}
	return replicaid.New(wire.SuspendedState, replica, random)
}

var errNotSuspended = &interceptor.Refusal{Reason: trace.ReasonInvalid, Code: "request_state_unknown", Status: 404,
	Message: "this requestState is unknown or expired; make the call again without requestState and inputResponses"}

// Call implements [conn.Conn]. A call that the server interrupts with a request ends with
// input_required; the host makes it again with the answers.
func (s *legacyServer) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	switch {
	case r.Method == wire.MethodListen:
		return s.listen(ctx, r)
	case r.Call == nil: // foldgate's own request
		return s.Conn.Call(ctx, r)
	}
	defer s.enter(r)()
	call, err := s.startOrResume(ctx, r)
	if err != nil {
		return wire.Message{}, err
	}
	for {
		select {
		case <-call.done:
		case <-call.arrived:
			select { // a few more may be on their way
			case <-call.done:
			case <-time.After(coalesceDelay):
			}
		case <-ctx.Done():
			s.b.forget(call, context.Cause(ctx))
			return wire.Message{}, context.Cause(ctx)
		}
		select {
		case <-call.done:
			s.b.forget(call, nil)
			return toModern(r.Method, call.result), call.err
		default:
		}
		if m, ok := call.suspend(); ok {
			// A host that never comes back leaves each of its calls for suspendedFor.
			own, bytes := 0, 0
			others := s.b.find(func(other *suspendedCall) bool {
				fits := other != call && other.suspended && other.principal == call.principal
				if fits {
					bytes += other.size
				} else if other == call {
					own = call.size
				}
				return fits
			})
			if len(others) == 0 || len(others) < maxSuspended && bytes+own <= maxSuspendedBytes {
				return m, nil
			}
			err := &interceptor.Refusal{Reason: trace.ReasonLimit, Code: "too_many_questions", Status: 429, RetryAfter: int(suspendedFor.Seconds()),
				Message: fmt.Sprintf("%s asks for input, and %d calls with %d bytes wait for some already: answer those first; this one was cancelled", call.name, len(others), bytes)}
			s.b.forget(call, err)
			return wire.Message{}, err
		}
	}
}

// startOrResume returns the call that a round belongs to: the suspended one that its requestState
// names, or a new one.
func (s *legacyServer) startOrResume(ctx context.Context, round *conn.Request) (*suspendedCall, error) {
	state, resumed := rawjson.GetString(round.Params, "requestState")
	if !resumed {
		s.lowerLevel(ctx, askedLevel(round))
		return s.start(round), nil
	}
	s.b.mu.Lock()
	call := s.b.calls[state]
	s.b.mu.Unlock()
	if call == nil || !call.at(s, round) || call.principal != round.Call.Origin.Principal || call.method != round.Method || call.name != named(round) {
		return nil, errNotSuspended
	}
	round.Call.Origin.Correlates = append(round.Call.Origin.Correlates, call.first)
	call.resume(ctx, round)
	return call, nil
}

// at reports whether the server of the call is the one that a round at s is for: another server may have a
// tool of the same name. The round may come on another connection, and goes to all candidates in turn.
func (call *suspendedCall) at(s *legacyServer, round *conn.Request) bool {
	return call.server.key == s.key || slices.Contains(round.Call.Target.Candidates, call.server.key)
}

// named returns the tool, prompt or resource that a request names. The Target may have another
// spelling of it from round to round, such as one without secrets.
func named(r *conn.Request) string {
	member, _ := wire.NameMember(r.Method)
	name, _ := rawjson.GetString(r.Params, member)
	return name
}

// lowerLevel makes the server send the log messages that a request asks for.
func (s *legacyServer) lowerLevel(ctx context.Context, asked int) {
	s.mu.Lock()
	told := s.level <= asked
	s.level = min(s.level, asked)
	s.mu.Unlock()
	if told {
		return
	}
	if s.Info().Capability("logging") == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, asideTimeout)
	defer cancel()
	if _, err := conn.Ask(ctx, s.Conn, "logging/setLevel", rawjson.Marshal(map[string]string{"level": wire.LogLevels[asked]})); err != nil {
		s.log.Debug("log level not set", "err", err)
	}
}

// start sends a call to the server. It goes on when its first round is over.
func (s *legacyServer) start(round *conn.Request) *suspendedCall {
	ctx, cancel := context.WithCancelCause(s.b.lifetime)
	call := &suspendedCall{
		state: newState(s.b.replica), server: s, principal: round.Call.Origin.Principal, method: round.Method, name: named(round), first: round.Call.Outcome.Record,
		cancel: cancel, done: make(chan struct{}), arrived: make(chan struct{}, 1), round: round, size: len(round.Params), requests: map[string]serverRequest{},
	}
	call.expiry = time.AfterFunc(suspendedFor, func() {
		s.b.forget(call, fmt.Errorf("the host did not come back with the input within %s", suspendedFor))
	})
	call.expiry.Stop()
	s.b.add(call)
	inner := *round
	inner.Params, inner.Receiver = wire.WithoutReservedMeta(round.Params), call
	s.b.wg.Go(func() {
		defer cancel(nil)
		call.result, call.err = s.Conn.Call(ctx, &inner)
		close(call.done)
	})
	return call
}

// Message implements [conn.Receiver]: it takes what the server sends during the call.
func (call *suspendedCall) Message(m wire.Message) {
	switch {
	case m.IsRequest():
		call.keep(serverRequest{m: m})
	case m.Method == wire.MethodCancelled:
		call.withdraw(m.Params)
	default:
		served := call.deliver(func(round *conn.Request) {
			if m.Method == wire.MethodProgress { // a later round may have another token, or none
				token, ok := rawjson.Get(round.Params, "_meta", "progressToken")
				if !ok {
					return
				}
				m = m.WithParams(rawjson.Set(m.Params, token, "progressToken"))
			}
			if wants(round, m) {
				round.Receiver.Message(m)
			}
		})
		if !served {
			call.mu.Lock()
			as := call.round.Call // the newest round
			call.mu.Unlock()
			call.server.Undelivered(conn.Undelivered{Message: m, Call: as, Rule: conn.RuleSuspended, Text: "the call waits for the answers of its host, which has no stream meanwhile"})
		}
	}
}

// ResponseArrived implements [conn.Receiver].
func (call *suspendedCall) ResponseArrived(m wire.Message) {
	call.deliver(func(round *conn.Request) { round.Receiver.ResponseArrived(m) })
}

// deliver calls hand with the round that is being served, and does nothing between rounds. The
// round does not end before hand returns.
func (call *suspendedCall) deliver(hand func(round *conn.Request)) (served bool) {
	call.delivery.Lock()
	defer call.delivery.Unlock()
	call.mu.Lock()
	round, served := call.round, !call.suspended && !call.over
	call.mu.Unlock()
	if served {
		hand(round)
	}
	return served
}

// keep keeps a request for the host, or refuses it if the host can't answer. An inferred
// request goes on to another call if this one is over.
func (call *suspendedCall) keep(req serverRequest) {
	call.mu.Lock()
	if call.over {
		call.mu.Unlock()
		if req.inferred {
			call.server.assign(req.m)
		}
		return
	}
	code, r := 0, conn.Undelivered{Message: req.m, Call: call.round.Call}
	switch {
	case !hostCan(call.round.Params, req.m):
		code, r.Rule, r.Text = wire.CodeMethodNotFound, conn.RuleCapability, "the host does not support "+req.m.Method
	case len(call.requests) >= maxRequests || len(call.requests) > 0 && call.waiting()+len(req.m.Raw) > maxRequestBytes:
		code, r.Rule, r.Text = wire.CodeInternal, conn.RuleTooMany, fmt.Sprintf("%d questions of this call are under way: wait for their answers first", len(call.requests))
	default:
		call.last++
		call.requests[fmt.Sprintf("r%d", call.last)] = req
	}
	call.mu.Unlock()
	if code != 0 {
		call.server.refuse(code, r)
		return
	}
	notify(call.arrived)
}

// waiting returns the size of the open requests. call.mu is held.
func (call *suspendedCall) waiting() (bytes int) {
	for _, req := range call.requests {
		bytes += len(req.m.Raw)
	}
	return bytes
}

// suspend ends a round with the open requests. ok is false without one.
func (call *suspendedCall) suspend() (m wire.Message, ok bool) {
	call.delivery.Lock()
	defer call.delivery.Unlock()
	call.mu.Lock()
	defer call.mu.Unlock()
	if len(call.requests) == 0 {
		return wire.Message{}, false
	}
	call.suspended = true
	call.expiry.Reset(suspendedFor)
	out := []byte(`{"resultType":"input_required","inputRequests":{`)
	for i, key := range slices.Sorted(maps.Keys(call.requests)) {
		if i > 0 {
			out = append(out, ',')
		}
		req := call.requests[key].m
		out = append(rawjson.AppendQuote(out, key), `:{"method":`...)
		out = rawjson.AppendQuote(out, req.Method)
		if req.Params != nil {
			out = append(append(out, `,"params":`...), req.Params...)
		}
		out = append(out, '}')
	}
	out = append(out, `},"requestState":`...)
	return wire.Message{Result: append(rawjson.AppendQuote(out, call.state), '}')}, true
}

// resume starts a further round: the host's answers go to the server, as long as ctx, that of the round, lasts.
func (call *suspendedCall) resume(ctx context.Context, round *conn.Request) {
	responses, _ := rawjson.Get(round.Params, "inputResponses")
	var answers []wire.Message
	call.mu.Lock()
	call.round, call.size, call.suspended = round, max(call.size, len(round.Params)), false
	call.expiry.Stop()
	for m := range rawjson.Members(responses) {
		if req, ok := call.requests[m.Name()]; ok {
			delete(call.requests, m.Name())
			answers = append(answers, wire.Message{ID: req.m.ID, Result: m.Value})
		}
	}
	left := len(call.requests)
	call.mu.Unlock()
	for _, a := range answers {
		_ = call.server.Conn.Send(ctx, a) // the call itself fails if the connection is lost
	}
	if left > 0 {
		notify(call.arrived) // ask again for the missing answers
	}
}

// withdraw drops the request that the server took back, unless the host has answered it.
func (call *suspendedCall) withdraw(params json.RawMessage) {
	id, _ := rawjson.Get(params, "requestId")
	call.mu.Lock()
	defer call.mu.Unlock()
	maps.DeleteFunc(call.requests, func(_ string, req serverRequest) bool { return string(req.m.ID) == string(id) })
}

// Unsolicited implements [conn.Handler]: it takes the messages on the shared connection that belong
// to no known request.
func (s *legacyServer) Unsolicited(m wire.Message) {
	switch {
	case m.IsRequest():
		s.assign(m)
	case m.Method == wire.MethodCancelled:
		for _, call := range s.b.find(func(call *suspendedCall) bool { return call.server == s }) {
			call.withdraw(m.Params)
		}
	case m.Method == wire.MethodResourceUpdated:
		s.updated(m)
	default:
		s.sharedConn.Unsolicited(m)
	}
}

// assign gives an inferred request to the call that suits best: a call being served before
// a suspended one, then the call that had the fewest requests (hosts give up after some rounds), then the
// oldest. The answer goes back to the request, whichever call carried it.
func (s *legacyServer) assign(m wire.Message) {
	if s.everyone {
		s.refuse(wire.CodeMethodNotFound, conn.Undelivered{Message: m, Rule: conn.RuleShare, Text: "the principals that share this connection are not asked, since " + m.Method + " does not say for which call it is"})
		return
	}
	var best *suspendedCall
	var least []int
	s.b.find(func(call *suspendedCall) bool {
		rank := []int{0, call.last, call.number}
		if call.suspended {
			rank[0] = 1
		}
		fits := call.server == s && !call.over && hostCan(call.round.Params, m)
		if fits && (best == nil || slices.Compare(rank, least) < 0) {
			best, least = call, rank
		}
		return fits
	})
	if best == nil {
		s.refuse(wire.CodeMethodNotFound, conn.Undelivered{Message: m, Rule: conn.RuleNoCall, Text: "no host is waiting on this connection for " + m.Method})
		return
	}
	best.keep(serverRequest{m: m, inferred: true})
}

// refuse answers a request of the server with an error, and reports it.
func (s *legacyServer) refuse(code int, r conn.Undelivered) {
	s.Undelivered(r)
	s.reply(wire.Message{ID: r.Message.ID, Error: (&wire.Error{Code: code, Message: r.Text}).JSON()})
}

// reply sends an answer of foldgate's own in the background, because the connection's reader must
// not block. It drops answers if too many are under way.
func (s *legacyServer) reply(m wire.Message) {
	if s.replies.Add(1) > maxReplies {
		s.replies.Add(-1)
		s.log.Debug("request of an upstream dropped: too many are under way")
		return
	}
	s.b.wg.Go(func() {
		defer s.replies.Add(-1)
		_ = s.Conn.Send(s.b.lifetime, m) // a lost connection needs no answer
	})
}

// hostCan reports whether a modern request declares the capability that a server's request needs.
func hostCan(params json.RawMessage, m wire.Message) bool {
	declared, _ := rawjson.Get(params, "_meta", wire.MetaClientCapabilities)
	return wire.ReadCapabilities(declared).Answers(m)
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

// listen translates a subscriptions/listen for one resource, as package router sends it: it
// subscribes, and lasts until ctx is done or the connection is lost. List changes need no
// subscription at a legacy server.
func (s *legacyServer) listen(ctx context.Context, r *conn.Request) (wire.Message, error) {
	wanted, _ := rawjson.Get(r.Params, "notifications")
	uris, _ := rawjson.Get(wanted, "resourceSubscriptions")
	uri := ""
	for v := range rawjson.Elements(uris) {
		uri = rawjson.Unquote(v)
		break
	}
	params := rawjson.Marshal(map[string]string{"uri": uri})
	s.mu.Lock()
	s.listening[r] = uri // before the subscription: an update may come at once
	s.mu.Unlock()
	m, err := s.Conn.Call(ctx, &conn.Request{Method: "resources/subscribe", Params: params})
	subscribed := err == nil && m.Error == nil
	if subscribed {
		r.Receiver.Message(wire.Message{Method: wire.MethodAcknowledged, Params: rawjson.Set([]byte(`{}`), wanted, "notifications")})
		select {
		case <-s.Done():
			err = errors.Join(conn.ErrClosed, s.Err())
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	s.mu.Lock()
	delete(s.listening, r)
	s.mu.Unlock()
	if subscribed && !s.listens(uri) && s.b.lifetime.Err() == nil {
		aside, cancel := context.WithTimeout(s.b.lifetime, asideTimeout)
		defer cancel()
		_, _ = s.Conn.Call(aside, &conn.Request{Method: "resources/unsubscribe", Params: params}) // without it, updates are dropped here
		if s.listens(uri) {                                                                       // since a moment: this may have ended its subscription
			_, _ = s.Conn.Call(aside, &conn.Request{Method: "resources/subscribe", Params: params})
		}
	}
	return m, err
}

// listens reports whether a host listens for updates of a resource.
func (s *legacyServer) listens(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(s.listening)), uri)
}

// InUse reports whether a host listens for updates, which is no open call at the server.
func (s *legacyServer) InUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listening) > 0
}

// updated hands the update of a resource to the listens that ask for it.
func (s *legacyServer) updated(m wire.Message) {
	uri, _ := rawjson.GetString(m.Params, "uri")
	s.mu.Lock()
	listening := maps.Clone(s.listening)
	s.mu.Unlock()
	for r, wanted := range listening {
		if wanted == uri {
			r.Receiver.Message(m)
		}
	}
}

func (b *Bridge) add(call *suspendedCall) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.number++
	call.number = b.number
	b.calls[call.state] = call
}

// abandon ends the suspended call with a request state, if there is one.
func (b *Bridge) abandon(state string, cause error) {
	b.mu.Lock()
	call := b.calls[state]
	b.mu.Unlock()
	if call != nil {
		b.forget(call, cause)
	}
}

// forget ends a call, with the cause if the server has not answered it. Inferred requests that
// it carried go to another call.
func (b *Bridge) forget(call *suspendedCall, cause error) {
	call.cancel(cause)
	b.mu.Lock()
	delete(b.calls, call.state)
	b.mu.Unlock()
	call.delivery.Lock()
	call.mu.Lock()
	call.expiry.Stop()
	open := call.requests
	call.requests, call.over = nil, true
	call.mu.Unlock()
	call.delivery.Unlock()
	for _, req := range open {
		if req.inferred {
			call.server.assign(req.m)
		}
	}
}

// find returns the calls that fit. fits is called with their locks held.
func (b *Bridge) find(fits func(*suspendedCall) bool) (calls []*suspendedCall) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range b.calls {
		call.mu.Lock()
		if fits(call) {
			calls = append(calls, call)
		}
		call.mu.Unlock()
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
