package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// modernServer is a modern server as one legacy host sees it. It wraps the
// connection of that host's session.
type modernServer struct {
	conn.Conn
	b          *Bridge
	initialize json.RawMessage // the host's initialize params
	host       conn.Handler
	log        *slog.Logger

	mu        sync.Mutex
	level     json.RawMessage               // the log level that the host set, nil for none
	asked     int64                         // number of the newest question
	answers   map[string]chan answer        // of open questions, by id
	following map[string]context.CancelFunc // the resource subscriptions, by URI
}

type answer struct {
	result json.RawMessage
	err    error
}

// questionPrefix begins the ids of questions that the bridge asks.
const questionPrefix = "foldgate-question:"

// Call implements [conn.Conn]. If the server needs input, Call asks the host with
// server requests and makes the call again with the answers.
func (s *modernServer) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	switch {
	case r.Method == "resources/subscribe" || r.Method == "resources/unsubscribe":
		uri, _ := rawjson.GetString(r.Params, "uri")
		s.follow(uri, r.Method == "resources/subscribe", r.Caller == nil)
		return wire.Message{Result: json.RawMessage(`{}`)}, nil
	case r.Method == "logging/setLevel":
		s.mu.Lock()
		s.level, _ = rawjson.Get(r.Params, "level")
		s.mu.Unlock()
		return wire.Message{Result: json.RawMessage(`{}`)}, nil
	case r.Caller == nil: // foldgate's own request, which takes no questions
		return s.Conn.Call(ctx, r)
	}
	round := *r
	round.Params = s.withMeta(r.Params)
	round.Caller = lastRound{r.Caller}
	for range maxRounds {
		m, err := s.Conn.Call(ctx, &round)
		if err != nil {
			return m, err
		}
		if !needsInput(m) {
			return toLegacy(m), nil
		}
		answers, err := s.askAll(ctx, r.Caller, m.Result)
		if err != nil {
			return wire.Message{}, err
		}
		round.Params = rawjson.Set(round.Params, answers, "inputResponses")
		if state, ok := rawjson.Get(m.Result, "requestState"); ok {
			round.Params = rawjson.Set(round.Params, state, "requestState")
		} else {
			round.Params = rawjson.Delete(round.Params, "requestState")
		}
	}
	return wire.Message{}, &interceptor.Refusal{Reason: "upstream", Code: "too_many_rounds", Status: 502,
		Message: fmt.Sprintf("upstream %s asked for input %d times in one call and was stopped", r.Call.Target.Server, maxRounds)}
}

// lastRound hands on what the server sends, but of the responses only the one
// that the host gets.
type lastRound struct{ conn.Caller }

func (l lastRound) Answered(m wire.Message) {
	if !needsInput(m) {
		l.Caller.Answered(m)
	}
}

func needsInput(m wire.Message) bool {
	kind, _ := rawjson.GetString(m.Result, "resultType")
	return m.Error == nil && kind == "input_required"
}

// askAll puts all questions of an input_required result to the host at once and
// returns the inputResponses object.
func (s *modernServer) askAll(ctx context.Context, host conn.Caller, result []byte) ([]byte, error) {
	type open struct {
		key      []byte
		method   string
		answered chan answer
	}
	var questions []open
	var ids []string
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range ids {
			delete(s.answers, id)
		}
	}()
	requests, _ := rawjson.Get(result, "inputRequests")
	rawjson.Members(requests, func(f rawjson.Member) bool {
		method, _ := rawjson.GetString(f.Value, "method")
		params, _ := rawjson.Get(f.Value, "params")
		q := open{f.Key, method, make(chan answer, 1)}
		s.mu.Lock()
		s.asked++
		id := string(rawjson.Quote(questionPrefix + strconv.FormatInt(s.asked, 10)))
		s.answers[id] = q.answered
		s.mu.Unlock()
		questions, ids = append(questions, q), append(ids, id)
		host.Message(wire.Message{ID: json.RawMessage(id), Method: method, Params: params})
		return true
	})
	out := []byte{'{'}
	for i, q := range questions {
		select {
		case a := <-q.answered:
			if a.err != nil {
				return nil, fmt.Errorf("the host declined %s: %w", q.method, a.err)
			}
			if i > 0 {
				out = append(out, ',')
			}
			out = append(append(append(out, q.key...), ':'), a.result...)
		case <-s.Done():
			return nil, conn.ErrClosed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return append(out, '}'), nil
}

// Reply implements [conn.Conn]: it takes the host's answer to a question of the
// bridge. A modern server itself asks nothing.
func (s *modernServer) Reply(_ context.Context, m wire.Message) error {
	s.mu.Lock()
	ch := s.answers[string(m.ID)]
	s.mu.Unlock()
	if ch == nil {
		return nil // the call is over
	}
	a := answer{result: m.Result}
	if m.Error != nil {
		a.err = wire.NewAnswerError(m.Error)
	}
	select {
	case ch <- a:
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

// toLegacy removes from a modern response what the legacy era does not know.
func toLegacy(m wire.Message) wire.Message {
	if kind, _ := rawjson.GetString(m.Result, "resultType"); m.Error == nil && kind == "complete" {
		m.Result = rawjson.Delete(m.Result, "resultType")
	}
	return m
}

// follow starts or ends the listen that stands for a resource subscription. It
// lasts as long as the connection. restored means that the host had subscribed on
// the connection before: it is told that it may have missed updates.
func (s *modernServer) follow(uri string, on, restored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stop := s.following[uri]
	if !on && stop != nil {
		stop()
		delete(s.following, uri)
	}
	if !on || stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.b.lifetime)
	s.following[uri] = cancel
	want := rawjson.Marshal(map[string]any{"resourceSubscriptions": []string{uri}})
	s.b.wg.Go(func() {
		defer cancel()
		conn.Listen(ctx, func(context.Context) (conn.Conn, error) { return s.Conn, nil }, want, restored, s.log, update{s, uri})
	})
	s.b.wg.Go(func() {
		select {
		case <-s.Done():
			cancel()
		case <-ctx.Done():
		}
	})
}

// update hands the updates of a resource to a legacy host.
type update struct {
	s   *modernServer
	uri string
}

// Listened implements [conn.Listener].
func (u update) Listened(m wire.Message) {
	if m.Method == wire.MethodResourceUpdated {
		m.Params = wire.DropMeta(m.Params, func(key string) bool { return key == wire.MetaSubscriptionID })
		u.s.host.Unsolicited(m)
	}
}

// Missed implements [conn.Listener]: the resource may have changed meanwhile.
func (u update) Missed() {
	u.s.host.Unsolicited(wire.Message{Method: wire.MethodResourceUpdated, Params: rawjson.Marshal(map[string]string{"uri": u.uri})})
}
