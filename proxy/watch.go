package proxy

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// This file keeps foldgate's own subscriptions at upstreams: streams break and
// upstreams restart, and what a host once asked for holds all the same.

// watchResource asks u for updates of one resource on behalf of ln, for as long
// as ctx lasts, over whatever link get returns. After a break ln is told that
// the resource may have changed, since nobody knows.
func (g *Gateway) watchResource(ctx context.Context, u *upstream, get func(context.Context) (conn.Conn, error), uri string, ln *listener) {
	missed := func() {
		g.listens.deliver(g, u, wire.Message{Method: "notifications/resources/updated", Params: rawjson.Marshal(map[string]string{"uri": uri})}, ln)
	}
	g.insist(ctx, u, "updates of "+uri, missed, func(ctx context.Context, up func()) (goOn bool, err error) {
		l, err := get(ctx)
		if err != nil {
			return true, err
		}
		if !l.Info().Modern() {
			return g.subscribe(ctx, ln.s.Principal, l, uri, up)
		}
		want := rawjson.Marshal(map[string]any{"resourceSubscriptions": []string{uri}})
		return listenAt(ctx, l, want, up, func(m wire.Message) {
			if m.Method == "notifications/resources/updated" {
				g.listens.deliver(g, u, m, ln)
			}
		})
	})
}

// watchLists keeps a listen of foldgate's own open on the modern link l, so
// that the catalog follows the changes of the upstream. s is the session whose own link it
// is, nil for a shared one. It ends with the link.
func (g *Gateway) watchLists(st *seat, s *session, l conn.Conn) {
	u := st.up
	flags := map[string]bool{}
	for flag, method := range listenFlags {
		ks := changedKinds(method)
		if v, _ := rawjson.Get(u.capability(kinds[ks[0]].capability), "listChanged"); string(v) == "true" {
			flags[flag] = true
		}
	}
	if len(flags) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	g.background(func() {
		select {
		case <-l.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	missed := func() { g.allChanged(st, s) }
	g.insist(ctx, u, "list changes", missed, func(ctx context.Context, up func()) (bool, error) {
		return listenAt(ctx, l, rawjson.Marshal(flags), up, func(m wire.Message) {
			if changedKinds(m.Method) != nil {
				g.listChanged(st, s, m.Method)
			}
		})
	})
}

// insist runs try until ctx ends or try gives up, with a pause in between that
// grows while it brings nothing. try calls up when the subscription stands;
// from the second time on, missed is called then.
func (g *Gateway) insist(ctx context.Context, u *upstream, what string, missed func(), try func(ctx context.Context, up func()) (goOn bool, err error)) {
	stood := false
	for fails := 0; ctx.Err() == nil; fails++ {
		goOn, err := try(ctx, func() {
			if stood {
				missed()
			}
			stood, fails = true, 0
		})
		if ctx.Err() != nil {
			return
		}
		u.log.Debug("subscription ended", "to", what, "err", err)
		if !goOn || retryBackoff.Wait(ctx, fails) != nil {
			return
		}
	}
}

// listenAt holds one subscriptions/listen open. goOn is false where the
// upstream refuses.
func listenAt(ctx context.Context, l conn.Conn, want json.RawMessage, up func(), event func(wire.Message)) (goOn bool, err error) {
	params := append(append([]byte(`{"notifications":`), want...), '}')
	m, err := l.Call(ctx, &conn.Request{Method: wire.MethodListen, Params: params, Caller: listenCaller{up, event}})
	if err == nil && m.Error != nil {
		return false, wire.NewAnswerError(m.Error)
	}
	return true, err
}

// listenCaller takes the messages of a subscriptions/listen.
type listenCaller struct {
	up    func() // the subscription stands
	event func(wire.Message)
}

// Message takes a notification of the subscription.
func (r listenCaller) Message(m wire.Message) {
	if m.Method == "notifications/subscriptions/acknowledged" {
		r.up()
		return
	}
	r.event(m)
}

// Answered does nothing: the subscription is over.
func (r listenCaller) Answered() {}

// subscribe holds a legacy subscription until the link dies or ctx ends. The
// updates come to the connection's Handler.
func (g *Gateway) subscribe(ctx context.Context, principal string, l conn.Conn, uri string, up func()) (goOn bool, err error) {
	params := rawjson.Marshal(map[string]string{"uri": uri})
	m, err := l.Call(ctx, &conn.Request{Method: "resources/subscribe", Params: params})
	if err == nil && m.Error != nil {
		return false, wire.NewAnswerError(m.Error)
	}
	if err != nil {
		return true, err
	}
	up()
	select {
	case <-l.Done():
		return true, l.Err()
	case <-ctx.Done():
	}
	wanted := slices.ContainsFunc(g.listens.list(), func(ln *listener) bool { return ln.s.Principal == principal && slices.Contains(ln.uris, uri) })
	if !wanted && g.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(g.ctx, asideTimeout)
		defer cancel()
		_, err = l.Call(ctx, &conn.Request{Method: "resources/unsubscribe", Params: params})
	}
	return false, err
}
