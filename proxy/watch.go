package proxy

import (
	"context"
	"slices"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// This file keeps foldgate's own subscriptions at upstreams: streams break and
// upstreams restart, and what a host once asked for holds all the same.

// watchResource asks u for updates of one resource on behalf of ln, for as long
// as ctx lasts, over the connection of scope. After a break ln is told that
// the resource may have changed, since nobody knows.
func (g *Gateway) watchResource(ctx context.Context, u *upstream.Server, scope upstream.Scope, uri string, ln *listener) {
	missed := func() {
		g.listens.deliver(g, u, wire.Message{Method: "notifications/resources/updated", Params: rawjson.Marshal(map[string]string{"uri": uri})}, ln)
	}
	upstream.Resubscribe(ctx, u.Log, "updates of "+uri, missed, func(ctx context.Context, up func()) (goOn bool, err error) {
		l, err := u.Connection(ctx, scope)
		if err != nil {
			return true, err
		}
		if !l.Info().Modern() {
			return g.subscribe(ctx, ln.s.Principal, l, uri, up)
		}
		want := rawjson.Marshal(map[string]any{"resourceSubscriptions": []string{uri}})
		return upstream.Listen(ctx, l, want, up, func(m wire.Message) {
			if m.Method == "notifications/resources/updated" {
				g.listens.deliver(g, u, m, ln)
			}
		})
	})
}

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
