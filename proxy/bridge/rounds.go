package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// modernServer is a modern server, or a shared connection, as one legacy host sees it.
type modernServer struct {
	conn.Conn
	b          *Bridge
	initialize json.RawMessage // the host's initialize params
	host       conn.Handler
	log        *slog.Logger

	mu        sync.Mutex
	level     json.RawMessage              // the log level that the host set, nil for none
	last      int64                        // number of the newest request to the host
	answers   map[string]chan wire.Message // to open requests, by id
	following map[string]*subscription     // of the host to resources, by URI
}

// Call implements [conn.Conn]. If the server needs input, Call asks the host with server requests
// and makes the call again with the answers.
func (s *modernServer) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	uri, _ := rawjson.GetString(r.Params, "uri")
	done := wire.Message{Result: json.RawMessage(`{}`)}
	switch {
	case r.Method == "resources/subscribe":
		if refused, err := s.follow(ctx, uri, r.Call == nil); refused != nil || err != nil {
			return wire.Message{Error: refused}, err
		}
		return done, nil
	case r.Method == "resources/unsubscribe":
		s.unfollow(uri)
		return done, nil
	case r.Method == "logging/setLevel":
		s.mu.Lock()
		s.level, _ = rawjson.Get(r.Params, "level")
		s.mu.Unlock()
		return done, nil
	case r.Call == nil: // foldgate's own request
		return s.Conn.Call(ctx, r)
	}
	round := *r
	round.Params = s.withMeta(r.Params)
	round.Receiver = lastRound{r.Receiver}
	for range maxRounds {
		m, err := s.Conn.Call(ctx, &round)
		if err != nil {
			return m, err
		}
		if !needsInput(m) {
			if kind, _ := rawjson.GetString(m.Result, "resultType"); m.Error == nil && kind == "complete" {
				m.Result = rawjson.Delete(m.Result, "resultType") // the legacy era does not know it
			}
			return m, nil
		}
		answers, err := s.requestInput(ctx, r.Receiver, m.Result)
		state, ok := rawjson.Get(m.Result, "requestState")
		if err != nil {
			s.b.abandon(rawjson.Unquote(state), err)
			return wire.Message{}, err
		}
		round.Params = rawjson.Set(round.Params, answers, "inputResponses")
		if ok {
			round.Params = rawjson.Set(round.Params, state, "requestState")
		} else {
			round.Params = rawjson.Delete(round.Params, "requestState")
		}
	}
	err := &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "too_many_rounds", Status: 502,
		Message: fmt.Sprintf("upstream %s asked for input %d times in one call and was stopped", r.Call.Target.Server, maxRounds)}
	state, _ := rawjson.GetString(round.Params, "requestState")
	s.b.abandon(state, err)
	return wire.Message{}, err
}

// lastRound hands on messages of the server, and the final response, not an input_required.
type lastRound struct{ conn.Receiver }

func (l lastRound) ResponseArrived(m wire.Message) {
	if !needsInput(m) {
		l.Receiver.ResponseArrived(m)
	}
}

func needsInput(m wire.Message) bool {
	kind, _ := rawjson.GetString(m.Result, "resultType")
	return m.Error == nil && kind == "input_required"
}

// requestPrefix begins the ids of requests of the bridge to the host.
const requestPrefix = "foldgate-question:"

// requestInput puts all input requests of a result to the host at once and returns the
// inputResponses object.
func (s *modernServer) requestInput(ctx context.Context, host conn.Receiver, result []byte) ([]byte, error) {
	type inputRequest struct {
		id     string
		key    []byte
		method string
		answer chan wire.Message
	}
	var open []inputRequest
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, req := range open {
			delete(s.answers, req.id)
		}
	}()
	requests, _ := rawjson.Get(result, "inputRequests")
	for f := range rawjson.Members(requests) { // all of them, before the host gets one
		if method, _ := rawjson.GetString(f.Value, "method"); method == "" {
			return nil, &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "upstream_failed", Status: 502,
				Message: "the server asked for input with a question that has no method"}
		}
	}
	for f := range rawjson.Members(requests) {
		method, _ := rawjson.GetString(f.Value, "method")
		params, _ := rawjson.Get(f.Value, "params")
		s.mu.Lock()
		s.last++
		req := inputRequest{string(rawjson.Quote(requestPrefix + strconv.FormatInt(s.last, 10))), f.Key, method, make(chan wire.Message, 1)}
		s.answers[req.id] = req.answer
		s.mu.Unlock()
		open = append(open, req)
		host.Message(wire.Message{ID: json.RawMessage(req.id), Method: method, Params: params})
	}
	out := []byte{'{'}
	for i, req := range open {
		select {
		case a := <-req.answer:
			if a.Error != nil {
				why, _ := rawjson.GetString(a.Error, "message")
				return nil, &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "upstream_failed", Status: 502,
					Message: fmt.Sprintf("the host declined %s: %s", req.method, why)}
			}
			if i > 0 {
				out = append(out, ',')
			}
			out = append(append(append(out, req.key...), ':'), a.Result...)
		case <-s.Done():
			return nil, conn.ErrClosed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return append(out, '}'), nil
}

// Send implements [conn.Conn]: it takes the host's answer to a request of the bridge, and drops it
// if the call is over. A modern server itself asks nothing.
func (s *modernServer) Send(ctx context.Context, m wire.Message) error {
	if !m.IsResponse() {
		return s.Conn.Send(ctx, m)
	}
	s.mu.Lock()
	answer := s.answers[string(m.ID)]
	s.mu.Unlock()
	select {
	case answer <- m: // has room for one; a nil channel has none
	default:
	}
	return nil
}

// withMeta adds to params what a modern server must know of the host.
func (s *modernServer) withMeta(params json.RawMessage) json.RawMessage {
	s.mu.Lock()
	level := s.level
	s.mu.Unlock()
	if len(params) == 0 {
		params = json.RawMessage(`{}`)
	}
	params = rawjson.Set(params, rawjson.Quote(wire.VersionModern), "_meta", wire.MetaProtocolVersion)
	if info, ok := rawjson.Get(s.initialize, "clientInfo"); ok {
		params = rawjson.Set(params, info, "_meta", wire.MetaClientInfo)
	}
	capabilities, ok := rawjson.Get(s.initialize, "capabilities")
	if !ok {
		capabilities = []byte("{}")
	}
	params = rawjson.Set(params, capabilities, "_meta", wire.MetaClientCapabilities)
	if level != nil {
		params = rawjson.Set(params, level, "_meta", wire.MetaLogLevel)
	}
	return params
}

// followWait bounds the wait for the server's acknowledgement of a subscription. Without one the
// subscription counts as made.
const followWait = 5 * time.Second

// subscription is a subscription to a resource. A listen at the server stands for it.
type subscription struct {
	end          context.CancelFunc
	users        int             // requests that wait for it or have made it; guarded by modernServer.mu
	acknowledged chan struct{}   // closed once the server has acknowledged it
	over         chan struct{}   // closed at its end
	refused      json.RawMessage // the server's refusal, nil if there is none; set before over is closed
}

// follow returns when the server has acknowledged or refused a resource subscription. It opens one
// unless there is one. restored means that the host subscribed on an earlier connection, so that it may
// have missed an update, and nobody waits for the acknowledgement.
func (s *modernServer) follow(ctx context.Context, uri string, restored bool) (refused json.RawMessage, err error) {
	s.mu.Lock()
	sub := s.following[uri]
	if sub == nil {
		sub = s.open(uri, restored)
	}
	sub.users++
	s.mu.Unlock()
	if restored {
		return nil, nil
	}
	wait := time.NewTimer(followWait)
	defer wait.Stop()
	select {
	case <-sub.acknowledged:
	case <-wait.C:
	case <-sub.over: // without a refusal if the connection ended, or the host unsubscribed
		select {
		case <-s.Done():
			err = conn.ErrClosed
		default:
		}
		return sub.refused, err
	case <-ctx.Done():
		s.leave(uri, sub)
		err = context.Cause(ctx)
	}
	return nil, err
}

// open opens the listen that stands for a subscription. It lasts as long as the connection. s.mu is held.
func (s *modernServer) open(uri string, restored bool) *subscription {
	life, cancel := context.WithCancel(s.b.lifetime)
	sub := &subscription{end: cancel, acknowledged: make(chan struct{}), over: make(chan struct{})}
	s.following[uri] = sub
	first := sync.OnceFunc(func() { close(sub.acknowledged) })
	l := &conn.Listener{Notifications: rawjson.Marshal(map[string]any{"resourceSubscriptions": []string{uri}}), Log: s.log, Listened: func(m wire.Message) {
		if m.Method == wire.MethodResourceUpdated {
			m.Params = wire.DropMeta(m.Params, func(key string) bool { return key == wire.MetaSubscriptionID })
			s.host.Unsolicited(m)
		}
	}, Acknowledged: func(again bool) {
		if first(); again {
			s.host.Unsolicited(wire.ResourceUpdated(uri))
		}
	}, Stood: restored}
	s.b.wg.Go(func() {
		sub.refused = l.KeepOn(life, s.Conn)
		s.mu.Lock()
		if s.following[uri] == sub { // the server refused: the host may try again
			delete(s.following, uri)
		}
		s.mu.Unlock()
		cancel()
		close(sub.over)
	})
	return sub
}

// leave ends a subscription if the request that leaves is the only one that wants it.
func (s *modernServer) leave(uri string, sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.users--; sub.users == 0 && s.following[uri] == sub {
		sub.end()
		delete(s.following, uri)
	}
}

// unfollow ends a resource subscription.
func (s *modernServer) unfollow(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.following[uri]; sub != nil {
		sub.end()
		delete(s.following, uri)
	}
}
