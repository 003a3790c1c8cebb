package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// listKind is one of the protocol's lists.
type listKind int

const (
	listTools listKind = iota
	listPrompts
	listResources
	listTemplates
	listKinds // their number
)

// kinds says for each list its method, the field that holds the items, the
// field that names an item, and the capability that offers it.
var kinds = [listKinds]struct{ method, field, id, capability, changed string }{
	listTools:     {"tools/list", "tools", "name", "tools", "notifications/tools/list_changed"},
	listPrompts:   {"prompts/list", "prompts", "name", "prompts", "notifications/prompts/list_changed"},
	listResources: {"resources/list", "resources", "uri", "resources", "notifications/resources/list_changed"},
	listTemplates: {"resources/templates/list", "resourceTemplates", "uriTemplate", "resources", "notifications/resources/list_changed"},
}

// listing is one list of one upstream, complete and scrubbed. It never changes.
type listing struct {
	items []json.RawMessage
	// rest are the members of the result beside the items and the cursor.
	rest []rawjson.Member
	// record is the trace record of the response that it came from.
	record string
}

// view is the lists of one upstream as seen over one link. Its zero value is
// ready to use.
type view struct {
	mu    sync.Mutex
	lists [listKinds]*listing
	// epoch counts invalidations, so that a list fetched before a change is
	// not kept after it.
	epoch [listKinds]int
	busy  [listKinds]*fetching // the fetch under way
}

// fetching is one reading of a list, which goes on when those who asked for it
// no longer wait.
type fetching struct {
	begun time.Time
	done  chan struct{}
	l     *listing
	err   error
	stale bool // a change came meanwhile
}

// get returns a list, fetching it once for all who ask at the same time. Nobody
// waits for a fetch that takes longer than listWait.
func (v *view) get(ctx context.Context, g *Gateway, k listKind, fetch func(context.Context) (*listing, error)) (*listing, error) {
	for first := true; ; first = false {
		v.mu.Lock()
		if l := v.lists[k]; l != nil {
			v.mu.Unlock()
			return l, nil
		}
		f := v.busy[k]
		if f == nil {
			f = &fetching{begun: time.Now(), done: make(chan struct{})}
			v.busy[k] = f
			epoch := v.epoch[k]
			g.background(func() { v.run(g, k, f, epoch, fetch) })
		}
		v.mu.Unlock()
		if first && time.Since(f.begun) > listWait {
			return nil, fmt.Errorf("%s is not answered since %s", kinds[k].method, time.Since(f.begun).Round(time.Second))
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if f.err != nil || !f.stale {
			return f.l, f.err
		}
	}
}

// fetchLimit bounds the reading of a list.
const fetchLimit = 2 * time.Minute

// run fetches a list and keeps it, unless it changed meanwhile.
func (v *view) run(g *Gateway, k listKind, f *fetching, epoch int, fetch func(context.Context) (*listing, error)) {
	ctx, cancel := context.WithTimeout(g.ctx, fetchLimit)
	defer cancel()
	f.l, f.err = fetch(ctx)
	v.mu.Lock()
	f.stale = v.epoch[k] != epoch
	if f.err == nil && !f.stale {
		v.lists[k] = f.l
	}
	v.busy[k] = nil
	v.mu.Unlock()
	close(f.done)
}

// peek returns a list without fetching it; nil if it is not at hand.
func (v *view) peek(k listKind) *listing {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lists[k]
}

// forget drops the lists that a change touched.
func (v *view) forget(ks ...listKind) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, k := range ks {
		v.lists[k] = nil
		v.epoch[k]++
	}
}

// changedKinds returns the lists that a list_changed notification is about.
func changedKinds(method string) (ks []listKind) {
	for k := range listKinds {
		if kinds[k].changed == method {
			ks = append(ks, k)
		}
	}
	return ks
}

// view returns the lists of u as s sees them: its own if the upstream told this
// session of a change, else those that all hosts of its principal share.
func (s *session) view(u *upstream.Server) *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.views[u.Key]; v != nil {
		return v
	}
	return &s.tenant(u).lists
}

// listOf returns one list of one upstream as s sees it.
func (g *Gateway) listOf(ctx context.Context, s *session, u *upstream.Server, k listKind, modern bool, causes []string) (*listing, error) {
	return s.view(u).get(ctx, g, k, func(ctx context.Context) (*listing, error) {
		begun := time.Now()
		l, err := g.list(ctx, s, u, k, modern, causes)
		if err == nil && time.Since(begun) > listWait { // hosts were answered without it
			for _, other := range g.sessions.of(s.Principal) {
				other.pushChange(kinds[k].changed)
			}
			g.listens.changed(s.Principal, kinds[k].changed)
		}
		return l, err
	})
}

// list reads a list over whatever link s has to u.
func (g *Gateway) list(ctx context.Context, s *session, u *upstream.Server, k listKind, modern bool, causes []string) (*listing, error) {
	l := u.Live(s.scope(false))
	if l == nil {
		l = u.Live(s.scope(true))
	}
	if l == nil {
		// stdio has one session: its own link serves the catalog too.
		scope := s.scope(modern || s.Transport != "stdio")
		if err := u.Slow(scope, listWait); err != nil {
			return nil, err
		}
		var err error
		if l, err = u.Connection(ctx, scope); err != nil {
			return nil, err
		}
	}
	if capability := u.Capability(kinds[k].capability); capability == nil {
		return &listing{}, nil
	}
	return g.fetch(ctx, s, u, l, k, causes)
}

// maxPages bounds what a server that never stops paging can cost.
const maxPages = 1000

// fetch reads all pages of a list over l. Each page is a call of foldgate's
// own, recorded and scrubbed like any other.
func (g *Gateway) fetch(ctx context.Context, s *session, u *upstream.Server, l conn.Conn, k listKind, causes []string) (*listing, error) {
	out := &listing{}
	var seen []string
	params := json.RawMessage(`{}`)
	for range maxPages {
		c := &interceptor.Call{
			Origin: interceptor.Origin{
				Direction: interceptor.Internal, Session: s.ID, Principal: s.Principal, From: "foldgate",
				Revision: l.Info().Version, Correlates: causes,
			},
			Target: interceptor.Target{To: "upstream:" + u.Key, Server: u.Key, Method: kinds[k].method, Params: params, Forward: params},
		}
		res, err := g.through(ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
			m, err := l.Call(ctx, &conn.Request{Method: c.Target.Method, Params: withTraceparent(c.Target.Forward, c.Outgoing())})
			return resultOf(m), err
		})
		if err != nil {
			return nil, err
		}
		if res.Error != nil {
			if code, _ := rawjson.Get(res.Error, "code"); string(code) == "-32601" && k == listTemplates {
				return out, nil // many servers have resources and no templates
			}
			return nil, fmt.Errorf("upstream %s: %s: %s", u.Key, kinds[k].method, res.Error)
		}
		out.record = c.Outcome.Record
		cursor := out.add(res.Body, k)
		if cursor == "" {
			return out, nil
		}
		if slices.Contains(seen, cursor) {
			u.Log.Warn("upstream repeats a cursor; its list is cut there", "method", kinds[k].method)
			return out, nil
		}
		seen = append(seen, cursor)
		params = rawjson.Marshal(map[string]string{"cursor": cursor})
	}
	u.Log.Warn("upstream's list has too many pages; it is cut", "method", kinds[k].method, "pages", maxPages)
	return out, nil
}

// add takes one page into l and returns the cursor of the next.
func (l *listing) add(page []byte, k listKind) (cursor string) {
	first := l.rest == nil
	rawjson.Members(page, func(m rawjson.Member) bool {
		switch {
		case m.Is(kinds[k].field):
			rawjson.Elements(m.Value, func(v []byte) bool { l.items = append(l.items, v); return true })
		case m.Is("nextCursor"):
			cursor = rawjson.Unquote(m.Value)
		case first:
			l.rest = append(l.rest, m)
		}
		return true
	})
	if l.rest == nil {
		l.rest = []rawjson.Member{}
	}
	return cursor
}
