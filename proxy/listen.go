package proxy

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
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
	up   *upstream // for follow: the upstream whose updates are meant; nil for all
	s    *session
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
	want, _ := rawjson.Get(c.Params, "notifications")
	id := fl.ex.Msg.ID
	ln := &listener{s: fl.s, send: func(method string, params json.RawMessage) {
		params = rawjson.Set(orEmpty(params), id, "_meta", metaSubscriptionID)
		if err := g.recorder.Notification("foldgate", fl.s.host(), fl.s.ID, "", []string{c.Record}, method, params); err != nil {
			return
		}
		_ = fl.ex.Emit(Message{Method: method, Params: params}.Encode())
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
	g.listens.add(ln)
	defer g.listens.remove(ln)
	ln.send("notifications/subscriptions/acknowledged", rawjson.Set([]byte(`{}`), agreed, "notifications"))
	for _, uri := range ln.uris {
		if owners := g.owners(fl, uri); len(owners) > 0 {
			g.background(func() { g.watchResource(ctx, owners[0], uri, ln) })
		}
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// watchResource asks an upstream for updates of one resource, for as long as
// ctx lasts, again whenever its link was replaced.
func (g *Gateway) watchResource(ctx context.Context, u *upstream, uri string, ln *listener) {
	for ctx.Err() == nil {
		l, err := u.shared.get(ctx)
		if err != nil {
			return // listeners.again starts over when it comes up
		}
		if l.info().Modern() {
			params := rawjson.Marshal(map[string]any{"notifications": map[string]any{"resourceSubscriptions": []string{uri}}})
			_, err = l.call(ctx, &linkCall{Method: "subscriptions/listen", Params: params, Event: func(m Message) {
				if m.Method == "notifications/resources/updated" {
					g.listens.deliver(g, u, m, ln)
				}
			}})
		} else {
			_, err = l.call(ctx, &linkCall{Method: "resources/subscribe", Params: rawjson.Marshal(map[string]string{"uri": uri})})
		}
		if err != nil || !l.info().Modern() {
			return
		}
	}
}

// watchLists keeps a listen of foldgate's own open on a modern upstream, so
// that the catalog follows its changes.
func (g *Gateway) watchLists(u *upstream, l link) {
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
	params := rawjson.Marshal(map[string]any{"notifications": flags})
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	g.background(func() {
		select {
		case <-l.done():
			cancel()
		case <-stop:
		}
	})
	_, err := l.call(ctx, &linkCall{Method: "subscriptions/listen", Params: params, Event: func(m Message) {
		if changedKinds(m.Method) != nil {
			g.listChanged(nil, u, m.Method)
		}
	}})
	if err != nil && ctx.Err() == nil {
		u.log.Debug("list changes can't be followed", "err", err)
	}
}

// changed tells all who asked that a list changed.
func (ls *listeners) changed(g *Gateway, method string) {
	for _, ln := range ls.list() {
		if slices.Contains(ln.methods, method) {
			ln.send(method, nil)
		}
	}
}

// updated tells all who asked that a resource changed.
func (ls *listeners) updated(g *Gateway, u *upstream, m Message) {
	uri, _ := rawjson.GetString(m.Params, "uri")
	for _, ln := range ls.list() {
		if slices.Contains(ln.uris, uri) && (ln.up == nil || ln.up == u) {
			ls.deliver(g, u, m, ln)
		}
	}
}

// deliver scrubs an update and hands it to one listener.
func (ls *listeners) deliver(g *Gateway, u *upstream, m Message, ln *listener) {
	if params, ok := g.clean(g.ctx, u, m.Method, m.Params); ok {
		ln.send(m.Method, params)
	}
}

// follow makes a legacy host's subscription on a modern upstream, or ends it.
func (ls *listeners) follow(g *Gateway, s *session, u *upstream, l link, uri string, on bool) {
	for _, ln := range ls.list() {
		if ln.s == s && ln.up == u && slices.Contains(ln.uris, uri) {
			if on {
				return
			}
			ls.remove(ln)
		}
	}
	if !on {
		return
	}
	ln := &listener{s: s, up: u, uris: []string{uri}, send: func(method string, params json.RawMessage) {
		params = dropMeta(params, func(key string) bool { return key == metaSubscriptionID })
		g.relay(s, nil, u, Message{Method: method, Params: params})
	}}
	ls.add(ln)
	g.background(func() {
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		g.watchResource(ctx, u, uri, ln)
	})
}

// again renews the subscriptions at an upstream whose shared link is new.
func (ls *listeners) again(g *Gateway, u *upstream, l link) {
	if l.info().Modern() {
		return // watchResource opens its own stream anew
	}
	for _, ln := range ls.list() {
		for _, uri := range ln.uris {
			if e, ok := ownerOf(g, uri); ok && e == u {
				g.background(func() {
					_, _ = l.call(g.ctx, &linkCall{Method: "resources/subscribe", Params: rawjson.Marshal(map[string]string{"uri": uri})})
				})
			}
		}
	}
}

// ownerOf looks a resource up in the last merged list, without asking anyone.
func ownerOf(g *Gateway, uri string) (*upstream, bool) {
	if m := g.menus.latest(listResources); m != nil {
		e, ok := m.entries[uri]
		return e.up, ok
	}
	return nil, false
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
