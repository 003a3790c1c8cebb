package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// listeners are the hosts that wait for changes: subscriptions/listen streams
// of the modern era, and legacy hosts that subscribed to a resource of a modern
// upstream. Its zero value is ready to use.
type listeners struct {
	mu  sync.Mutex
	all map[*listener]struct{}
}

// listener is one host's wish.
type listener struct {
	methods []string // list_changed notifications wanted
	uris    []string
	// send hands a notification to the host; it does not block.
	send func(method string, params json.RawMessage)
	up   *upstream.Server // for follow: the upstream whose updates are meant; nil for all
	s    *session
	stop func() // for follow: ends it
}

// Members of the notifications object of subscriptions/listen.
var listenFlags = map[string]string{
	"toolsListChanged":     "notifications/tools/list_changed",
	"promptsListChanged":   "notifications/prompts/list_changed",
	"resourcesListChanged": "notifications/resources/list_changed",
}

// listen serves subscriptions/listen: it acknowledges, and then lasts until
// the host ends it. Every notification carries the id of this request.
func (g *Gateway) listen(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	want, _ := rawjson.Get(c.Target.Params, "notifications")
	id := fl.ex.Msg.ID
	ln := &listener{s: fl.s, send: func(method string, params json.RawMessage) {
		params = rawjson.Set(orEmpty(params), id, "_meta", wire.MetaSubscriptionID)
		n := interceptor.Notification{From: "foldgate", To: fl.s.host(), Session: fl.s.ID, Correlates: []string{c.Outcome.Record}, Method: method}
		if err := g.recorder.Notification(ctx, n, &interceptor.Message{Body: params}); err != nil {
			return
		}
		_ = fl.ex.Emit(wire.Message{Method: method, Params: params}.Encode())
	}}
	agreed := []byte(`{}`)
	rawjson.Members(want, func(m rawjson.Member) bool {
		switch method := listenFlags[m.Name()]; {
		case method != "" && string(m.Value) == "true":
			ln.methods = append(ln.methods, method)
			agreed = rawjson.Set(agreed, m.Value, m.Name())
		case m.Is("resourceSubscriptions"):
			rawjson.Elements(m.Value, func(v []byte) bool { ln.uris = append(ln.uris, rawjson.Unquote(v)); return true })
			agreed = rawjson.Set(agreed, m.Value, m.Name())
		}
		return true
	})
	if len(ln.uris) > maxSubscriptions {
		return nil, tooManySubscriptions()
	}
	if len(ln.methods) > 0 { // changes are told over the principal's link
		for _, u := range g.ups {
			g.background(func() { _, _ = u.Connection(ctx, fl.s.scope(true)) })
		}
	}
	g.listens.add(ln)
	defer g.listens.remove(ln)
	ln.send("notifications/subscriptions/acknowledged", rawjson.Set([]byte(`{}`), agreed, "notifications"))
	for _, uri := range ln.uris {
		if owners := g.owners(fl, uri); len(owners) > 0 {
			g.background(func() { g.watchResource(ctx, owners[0], fl.s.scope(true), uri, ln) })
		}
	}
	<-ctx.Done()
	cause := context.Cause(ctx)
	if fl.s.Transport == "stdio" && !errors.Is(cause, errCancelledByHost) {
		// On a stream of its own the end of the stream says it.
		end := append(append([]byte(`{"requestId":`), id...), `,"reason":`...)
		_ = fl.ex.Emit(wire.Message{Method: wire.MethodCancelled, Params: append(rawjson.AppendQuote(end, cause.Error()), '}')}.Encode())
	}
	return nil, cause
}

// changed tells those hosts of a principal who asked that a list changed.
func (ls *listeners) changed(principal, method string) {
	for _, ln := range ls.list() {
		if ln.s.Principal == principal && slices.Contains(ln.methods, method) {
			ln.send(method, nil)
		}
	}
}

// updated tells those hosts of the tenant's principal who asked that a resource
// changed.
func (ls *listeners) updated(g *Gateway, st *tenant, m wire.Message) {
	uri, _ := rawjson.GetString(m.Params, "uri")
	for _, ln := range ls.list() {
		if slices.Contains(ln.uris, uri) && ln.s.Principal == st.principal && (ln.up == nil || ln.up == st.up) {
			ls.deliver(g, st.up, m, ln)
		}
	}
}

// deliver scrubs an update and hands it to one listener.
func (ls *listeners) deliver(g *Gateway, u *upstream.Server, m wire.Message, ln *listener) {
	msg := interceptor.Message{Server: u.Key, Body: m.Params}
	if g.boundary.Inbound(g.ctx, &msg); msg.Verdict >= interceptor.Blocked {
		u.Log.Warn("notification withheld: it could not be checked for secrets, or holds one", "method", m.Method)
		return
	}
	ln.send(m.Method, msg.Body)
}

// follow makes a legacy host's subscription on a modern upstream, or ends it.
func (ls *listeners) follow(g *Gateway, s *session, u *upstream.Server, uri string, on bool) {
	for _, ln := range ls.list() {
		if ln.s == s && ln.up == u && slices.Contains(ln.uris, uri) {
			if on {
				return
			}
			ls.remove(ln)
			ln.stop()
		}
	}
	if !on {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	ln := &listener{s: s, up: u, uris: []string{uri}, stop: cancel, send: func(method string, params json.RawMessage) {
		params = dropMeta(params, func(key string) bool { return key == wire.MetaSubscriptionID })
		g.relay(s, nil, origin{}, u, wire.Message{Method: method, Params: params})
	}}
	ls.add(ln)
	g.background(func() {
		defer ls.remove(ln)
		defer cancel()
		g.watchResource(ctx, u, s.scope(false), uri, ln)
	})
}

func (ls *listeners) add(ln *listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.all == nil {
		ls.all = map[*listener]struct{}{}
	}
	ls.all[ln] = struct{}{}
}

func (ls *listeners) remove(ln *listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.all, ln)
}

func (ls *listeners) list() []*listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	out := make([]*listener, 0, len(ls.all))
	for ln := range ls.all {
		out = append(out, ln)
	}
	return out
}
