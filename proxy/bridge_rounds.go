package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A legacy host on a modern upstream. The upstream ends a call with
// input_required where it wants to ask something; a legacy host is asked with
// requests, so foldgate asks them and makes the call again with the answers.

// maxRounds bounds how often an upstream may ask for more.
const maxRounds = 16

// sendRounds sends c to a modern upstream on behalf of a legacy host.
func (g *Gateway) sendRounds(ctx context.Context, fl *inbound, c *interceptor.Call, u *upstream.Server, l conn.Conn) (*interceptor.Result, error) {
	switch c.Target.Method {
	case "resources/subscribe", "resources/unsubscribe":
		g.listens.follow(g, fl.s, u, c.Target.Name, c.Target.Method == "resources/subscribe")
		return &interceptor.Result{Body: json.RawMessage(`{}`)}, nil
	}
	params := fl.s.modernMeta(c.Target.Forward)
	for range maxRounds {
		m, err := fl.callInTurn(ctx, c, u, l, params)
		if err != nil {
			return nil, callFault(ctx, u, c, err)
		}
		kind, _ := rawjson.GetString(m.Result, "resultType")
		if m.Error != nil || kind != "input_required" {
			return toLegacy(resultOf(m)), nil
		}
		fl.arrived() // the questions go, not the answer
		answers, err := g.askAll(ctx, fl, u, m.Result)
		if err != nil {
			return nil, err
		}
		params = rawjson.Set(params, answers, "inputResponses")
		if state, ok := rawjson.Get(m.Result, "requestState"); ok {
			params = rawjson.Set(params, state, "requestState")
		} else {
			params = rawjson.Delete(params, "requestState")
		}
	}
	return nil, &interceptor.Refusal{Reason: "upstream", Code: "too_many_rounds", Status: 502,
		Message: fmt.Sprintf("upstream %s asked for input %d times in one call and was stopped", u.Key, maxRounds)}
}

// askAll puts an input_required result's questions to the host, all at once,
// and returns the inputResponses object.
func (g *Gateway) askAll(ctx context.Context, fl *inbound, u *upstream.Server, result []byte) ([]byte, error) {
	requests, _ := rawjson.Get(result, "inputRequests")
	var keys [][]byte
	var asks []wire.Message
	rawjson.Members(requests, func(m rawjson.Member) bool {
		method, _ := rawjson.GetString(m.Value, "method")
		params, _ := rawjson.Get(m.Value, "params")
		keys = append(keys, m.Key)
		asks = append(asks, wire.Message{ID: m.Key, Method: method, Params: params})
		return true
	})
	answers := make([]json.RawMessage, len(asks))
	errs := make([]error, len(asks))
	var wg sync.WaitGroup
	for i, m := range asks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			a := fl.s.newAsk(fl, false, u, nil, m)
			defer fl.s.endAsk(a)
			res, err := g.askHost(fl.s, fl, a, u, m)
			if err == nil && res.Error != nil {
				text, _ := rawjson.GetString(res.Error, "message")
				err = fmt.Errorf("the host declined %s: %s", m.Method, text)
			}
			if err == nil {
				answers[i] = res.Body
			}
			errs[i] = err
		}()
	}
	wg.Wait()
	out := []byte{'{'}
	for i := range asks {
		if errs[i] != nil {
			return nil, errs[i]
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, keys[i]...), ':'), answers[i]...)
	}
	return append(out, '}'), ctx.Err()
}

// modernMeta adds to params what a modern upstream must know of the host.
func (s *session) modernMeta(params json.RawMessage) json.RawMessage {
	s.mu.Lock()
	initialize, level := s.initialize, s.logLevel
	s.mu.Unlock()
	params = rawjson.Set(orEmpty(params), rawjson.Quote(wire.VersionModern), "_meta", wire.MetaProtocolVersion)
	if info, ok := rawjson.Get(initialize, "clientInfo"); ok {
		params = rawjson.Set(params, info, "_meta", wire.MetaClientInfo)
	}
	caps, ok := rawjson.Get(initialize, "capabilities")
	if !ok {
		caps = []byte("{}")
	}
	params = rawjson.Set(params, caps, "_meta", wire.MetaClientCapabilities)
	if l, ok := rawjson.Get(level, "level"); ok {
		params = rawjson.Set(params, l, "_meta", wire.MetaLogLevel)
	}
	return params
}

// toLegacy takes out of a modern result what the legacy era does not know.
func toLegacy(res *interceptor.Result) *interceptor.Result {
	if kind, _ := rawjson.GetString(res.Body, "resultType"); res.Error == nil && kind == "complete" {
		return &interceptor.Result{Body: rawjson.Delete(res.Body, "resultType"), Extra: res.Extra}
	}
	return res
}
