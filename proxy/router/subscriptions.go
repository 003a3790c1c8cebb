package router

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Bounds of what hosts may be told of. Each subscription of a listen takes some 12 KB.
const (
	maxSubscriptions    = 1000    // resources of one session, or one listen
	maxAllSubscriptions = 20_000  // of all together; of several principals none has more than half
	maxSubscribed       = 8 << 10 // bytes of the URI of a subscription
)

var (
	errTooManySubscriptions = invalidParams("a session or a listen can be subscribed to %d resources: end some first, or ask for fewer", maxSubscriptions)
	errAllSubscriptions     = invalidParams("all hosts together can be subscribed to %d resources, and those of one of several principals to half of them: end some first, or ask for fewer", maxAllSubscriptions)
	errSubscriptionURI      = invalidParams("the URI of a subscription can have at most %d bytes", maxSubscribed)
)

// listen is one subscriptions/listen stream of a host.
type listen struct {
	r       *request
	call    *interceptor.Call
	methods []string // the list_changed notifications that it asks for
	uris    []string // the resources
}

// answerListen serves subscriptions/listen: it acknowledges what some server can have, and lasts until
// the host ends it. Every notification carries the id of the request.
func (r *request) answerListen(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	if err := r.keepable(); err != nil {
		return nil, err
	}
	rt, l := r.s.rt, &listen{r: r, call: c}
	agreed, err := l.agree()
	if err != nil {
		return nil, err
	}
	if !rt.subscribed.take(r.s.Principal, rt.several(), len(l.uris)) {
		return nil, errAllSubscriptions
	}
	defer rt.subscribed.change(r.s.Principal, -len(l.uris))
	owners := make([]*upstream.Server, len(l.uris))
	governed := rt.Settings().Rules.Govern()
	for i, uri := range l.uris {
		if !governed {
			break // finding the owners may take a while
		}
		if owners[i], err = l.owner(ctx, uri); err != nil {
			return nil, err
		}
	}
	if len(l.methods) > 0 { // servers announce changes over open connections only
		for _, srv := range rt.Settings().Servers {
			rt.wg.Go(func() { _, _ = srv.Connection(ctx, r.s.scope) }) // srv.Status has the fault
		}
	}
	rt.listens.Store(l, true)
	defer rt.listens.Delete(l)
	l.send("", wire.Message{Method: wire.MethodAcknowledged, Params: rawjson.Set([]byte(`{}`), agreed, "notifications")})
	for i, uri := range l.uris {
		if !governed {
			owners[i], _ = l.owner(ctx, uri)
		}
		if srv := owners[i]; srv != nil { // the one that the policy was asked about
			rt.wg.Go(func() { l.watch(ctx, srv, uri) })
		}
	}
	<-ctx.Done()
	err = context.Cause(ctx)
	if r.s.Transport == "stdio" && !errors.Is(err, errCancelledByHost) {
		// On a stream of its own the end of the stream says it.
		n := interceptor.Notification{From: "foldgate", Correlates: []string{c.Outcome.Record}}
		r.s.deliver(r, n, wire.Message{Method: wire.MethodCancelled, Params: wire.CancelledParams(r.Msg.ID, err.Error())})
	}
	return nil, err
}

// agree reads what the host wants to hear, and returns what some server can have of it.
func (l *listen) agree() (agreed []byte, err error) {
	wanted, _ := rawjson.Get(l.call.Target.Params, "notifications")
	agreed, offered := []byte(`{}`), l.r.s.serverCapabilities()
	for m := range rawjson.Members(wanted) {
		switch list, ok := strings.CutSuffix(m.Name(), "ListChanged"); {
		case ok && slices.Contains(wire.Lists, list) && string(m.Value) == "true":
			l.methods = append(l.methods, wire.ListChanged(list)) // a reload may add a server that has the list
			if _, ok := rawjson.Get(offered, list); ok {
				agreed = rawjson.Set(agreed, m.Value, m.Name())
			}
		case m.Is("resourceSubscriptions") && rawjson.KindOf(m.Value) != rawjson.Null:
			var uris []string
			ok := rawjson.KindOf(m.Value) == rawjson.Array
			for v := range rawjson.Elements(m.Value) {
				ok = ok && rawjson.KindOf(v) == rawjson.String
				uris = append(uris, rawjson.Unquote(v))
			}
			if !ok {
				return nil, invalidParams("params.notifications.resourceSubscriptions must be an array of URIs, each a string")
			}
			if slices.ContainsFunc(uris, func(uri string) bool { return len(uri) > maxSubscribed }) {
				return nil, errSubscriptionURI
			}
			if _, ok := rawjson.Get(offered, "resources", "subscribe"); ok {
				l.uris = uris
				agreed = rawjson.Set(agreed, m.Value, m.Name())
			}
		}
	}
	if len(l.uris) > maxSubscriptions {
		return nil, errTooManySubscriptions
	}
	return agreed, nil
}

// owner returns the likeliest owner of a resource, nil if there is none. The error is the policy's.
func (l *listen) owner(ctx context.Context, uri string) (*upstream.Server, error) {
	all := l.r.s.ownersOf(ctx, uri)
	if len(all) == 0 {
		return nil, nil
	}
	one := &interceptor.Call{Origin: l.call.Origin, Attribution: l.call.Attribution}
	one.Target = interceptor.Target{Method: "resources/subscribe", Name: uri, Server: all[0].Key, Forward: rawjson.Marshal(map[string]string{"uri": uri})}
	if err := l.r.permit(one); err != nil {
		return nil, err
	}
	return all[0], nil
}

// send hands a notification to the host, on the stream of the listen.
func (l *listen) send(server string, m wire.Message) {
	if l.r.s.lifetime.Err() != nil {
		return
	}
	if len(m.Params) == 0 {
		m.Params = json.RawMessage(`{}`)
	}
	m.Params = rawjson.Set(m.Params, l.r.Msg.ID, "_meta", wire.MetaSubscriptionID)
	l.r.s.deliver(l.r, interceptor.Notification{From: "foldgate", Server: server, Correlates: []string{l.call.Outcome.Record}}, m)
}

// tellListens tells the listens of a group that asked for it that a list changed.
func (rt *Router) tellListens(g upstream.Group, method string) {
	for l := range rt.listens.Range {
		if l := l.(*listen); g.Includes(l.r.s.scope.Group) && slices.Contains(l.methods, method) && !l.r.s.ignores(method) {
			l.send("", wire.Message{Method: method})
		}
	}
}

// watch keeps a listen of foldgate's own open for as long as ctx lasts, for a resource of l at the
// server that owns it.
func (l *listen) watch(ctx context.Context, srv *upstream.Server, uri string) {
	own := conn.Listener{Notifications: rawjson.Marshal(map[string]any{"resourceSubscriptions": []string{uri}}), Log: srv.Log, Listened: func(m wire.Message) {
		if m.Method == wire.MethodResourceUpdated {
			l.send(srv.Key, m)
		}
	}, Acknowledged: func(again bool) {
		if again { // it may have changed while the stream was broken
			l.send(srv.Key, wire.ResourceUpdated(uri))
		}
	}}
	own.Keep(ctx, func(ctx context.Context) (conn.Conn, error) {
		now := l.r.s.rt.Settings().Server(srv.Key) // a reload may have replaced it
		return cmp.Or(now, srv).Connection(ctx, l.r.s.scope)
	})
}

// subscribe serves resources/subscribe. The subscription is restored when the server restarts,
// unless it failed.
func (r *request) subscribe(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	sub := subscription{r.servers[0].Key, c.Target.Name}
	if len(sub.uri) > maxSubscribed {
		return nil, errSubscriptionURI
	}
	if err := r.s.subscribed.add(sub, r.s.rt.several()); err != nil { // before the call: the server may end right after it
		return nil, err
	}
	res, err := r.askServers(ctx, c)
	made := c.Target.Server // another one, if the likeliest server did not know it, or is forbidden
	if err != nil || res.Error != nil {
		made = ""
	}
	if made != sub.server {
		r.s.subscribed.move(sub, made)
	}
	return res, err
}

// unsubscribe serves resources/unsubscribe. It forgets the subscription, also if the server fails: only a
// refusal leaves it as it was.
func (r *request) unsubscribe(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	ended := r.s.subscribed.end(c.Target.Name) // before the call: a subscribe that follows adds it again
	res, err := r.askServers(ctx, c)
	if ref, refused := errors.AsType[*interceptor.Refusal](err); refused && ref.Reason == trace.ReasonPolicy {
		r.s.subscribed.restore(ended)
	}
	return res, err
}

// subscription is a resource of a server that a session is told of.
type subscription struct{ server, uri string }

// subscriptions are those of a session.
type subscriptions struct {
	count     *shares
	principal string

	mu     sync.Mutex
	open   map[subscription]int // how many requests made it, or wait for it
	closed bool
}

// lock takes mu. What unlock finds more or fewer is counted.
func (s *subscriptions) lock() (unlock func()) {
	s.mu.Lock()
	before := len(s.open)
	return func() {
		defer s.mu.Unlock()
		if s.closed {
			clear(s.open)
		}
		s.count.change(s.principal, len(s.open)-before)
	}
}

// add keeps a subscription to restore. It fails if there are too many. several means that there are several principals.
func (s *subscriptions) add(sub subscription, several bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errSessionClosed
	case s.open[sub] > 0:
	case len(s.open) >= maxSubscriptions:
		return errTooManySubscriptions
	case !s.count.take(s.principal, several, 1):
		return errAllSubscriptions
	}
	s.open[sub]++
	return nil
}

// close forgets all subscriptions, and those that requests which are over late would add.
func (s *subscriptions) close() {
	defer s.lock()()
	s.closed = true
}

// move counts a request that add counted for another server, or for none if that is "".
func (s *subscriptions) move(sub subscription, server string) {
	defer s.lock()()
	if s.open[sub]--; s.open[sub] <= 0 { // the host may have unsubscribed
		delete(s.open, sub)
	}
	if server != "" {
		s.open[subscription{server, sub.uri}]++
	}
}

// owner returns the server of a subscription to a resource, "" if there is none.
func (s *subscriptions) owner(uri string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.open {
		if sub.uri == uri {
			return sub.server
		}
	}
	return ""
}

// end forgets the subscriptions to a resource, and returns them.
func (s *subscriptions) end(uri string) map[subscription]int {
	defer s.lock()()
	ended := map[subscription]int{}
	maps.DeleteFunc(s.open, func(sub subscription, n int) bool {
		if sub.uri == uri {
			ended[sub] = n
		}
		return sub.uri == uri
	})
	return ended
}

// restore takes back what end forgot.
func (s *subscriptions) restore(ended map[subscription]int) {
	defer s.lock()()
	maps.Copy(s.open, ended)
}

// keep forgets the subscriptions at servers that the configuration no longer has.
func (s *subscriptions) keep(known func(server string) bool) {
	defer s.lock()()
	maps.DeleteFunc(s.open, func(sub subscription, _ int) bool { return !known(sub.server) })
}

// has reports whether there is a subscription to the resource of an update by a server, or to one above it.
func (s *subscriptions) has(server string, update json.RawMessage) bool {
	uri, _ := rawjson.GetString(update, "uri")
	return slices.ContainsFunc(s.at(server), func(to string) bool { return strings.HasPrefix(uri, to) })
}

func (s *subscriptions) at(server string) (uris []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.open {
		if sub.server == server {
			uris = append(uris, sub.uri)
		}
	}
	return uris
}

// restoreTimeout bounds the restoring on a new connection: the calls of the host wait for it.
const restoreTimeout = 30 * time.Second

// Opened implements [upstream.Owner]: it restores the log level and the resource subscriptions of
// the host on a new connection of the session.
func (s *Session) Opened(srv *upstream.Server, c conn.Conn, again bool) {
	supply{s.rt, srv, s.scope.Group}.instructions(s.rt.lifetime, c.Info(), true)
	s.mu.Lock()
	level := s.logLevel
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.lifetime, restoreTimeout)
	defer cancel()
	if level != nil && c.Info().Capability("logging") != nil {
		_, _ = c.Call(ctx, &conn.Request{Method: "logging/setLevel", Params: level}) // else the server logs at its own level
	}
	s.rt.wg.Go(func() { s.reopen(srv, c) })
	s.group.of(srv).tellMissed(c.Info())
	if !again {
		return
	}
	for _, uri := range s.subscribed.at(srv.Key) {
		if _, err := conn.Ask(ctx, c, "resources/subscribe", rawjson.Marshal(map[string]string{"uri": uri})); err != nil {
			srv.Log.Warn("subscription could not be made again", "uri", uri, "err", err)
		}
	}
	s.rt.allChanged(srv, c.Info(), s.scope.Group, s)
}

// Uses implements [upstream.Owner].
func (s *Session) Uses(srv *upstream.Server) bool {
	if s.tasks.open(srv.Key) || len(s.subscribed.at(srv.Key)) > 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.serverRequests {
		if req.server == srv.Key {
			return true
		}
	}
	return false
}

// Retired implements [upstream.Owner]. On HTTP the lists come from the shared connection.
func (s *Session) Retired(srv *upstream.Server) {
	if s.Transport == "stdio" {
		s.cacheOf(srv).markStale()
	}
}

// reopen opens the session's connection again as soon as it is lost, if the host waits for
// updates over it. Otherwise the next call does. If connections are lost soon, one after the other, each
// waits longer.
func (s *Session) reopen(srv *upstream.Server, c conn.Conn) {
	opened := time.Now()
	select {
	case <-c.Done():
	case <-s.lifetime.Done():
	}
	s.mu.Lock()
	if time.Since(opened) >= backoff.Steady {
		s.lost[srv.Key] = 0
	}
	s.lost[srv.Key]++
	fails := s.lost[srv.Key]
	s.mu.Unlock()
	pause := backoff.Backoff{First: 500 * time.Millisecond, Max: 30 * time.Second}
	for ; s.lifetime.Err() == nil && len(s.subscribed.at(srv.Key)) > 0; fails++ {
		if fails > 1 && pause.Wait(s.lifetime, fails-2) != nil {
			return
		}
		if srv = s.rt.Settings().Server(srv.Key); srv == nil {
			return // the configuration no longer has it
		}
		if _, err := srv.Connection(s.lifetime, s.scope); err == nil {
			return
		}
	}
}
