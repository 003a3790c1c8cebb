package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	// answerWait is the longest wait for one server in initialize and in list requests. It counts from
	// the start of the server, or, if the server runs, from the start of the fetch. Some hosts give up 5
	// seconds after they started foldgate. What arrives later is announced with list_changed.
	answerWait = 4 * time.Second
	// hurriedWait replaces answerWait for hosts that give up on a slow server after 2 seconds, and ask
	// again after list_changed.
	hurriedWait = 500 * time.Millisecond
	// listWait is the same for a call that waits for the list that names its tool.
	listWait = 10 * time.Second
	// fetchLimit bounds the reading of a list, which goes on in the background.
	fetchLimit = 2 * time.Minute
	// maxPages and maxListBytes bound a list, because a server may page without end. One page may have more.
	maxPages     = 1000
	maxListBytes = 64 << 20
)

// listCache has the lists of a supply.
type listCache struct {
	supply
	wg      *sync.WaitGroup      // of the fetches
	changed func(k catalog.Kind) // tells the hosts, after a fetch if one was answered without the list, or with another one

	mu    sync.Mutex
	lists [catalog.Kinds]*catalog.List
	// stale means that the list may have changed: it was stored by an earlier process, or is from a connection
	// that was idle and is closed. It is fetched again when a host asks for it, which does not wait for that.
	stale   [catalog.Kinds]bool
	missed  [catalog.Kinds]bool       // somebody was answered without the list
	epoch   [catalog.Kinds]int        // counts changes, so that a list from before a change is not kept
	fetches [catalog.Kinds]*listFetch // under way, at most one for each list
}

// listFetch is a fetch of a list that is under way.
type listFetch struct {
	begun  time.Time     // the fetch, or the start of the server that it waits for
	before *catalog.List // that it replaces
	epoch  int           // of the list when it began
	old    bool          // the rules have changed since, so its list is not used; guarded by listCache.mu
	done   chan struct{} // closed at its end
	list   *catalog.List // set then, unless the fetch is old
	err    error         // set then
}

// get returns a list. It fetches the list by read, once for all that ask at the same time, and waits until
// wait after the fetch began. A fetch that begins now begins at begun, which may lie in the past. If the list
// changes meanwhile, get waits for one more fetch, and takes what that brings: some servers announce a change with
// each list.
func (c *listCache) get(ctx context.Context, k catalog.Kind, begun time.Time, wait time.Duration, read func() (*catalog.List, error)) (*catalog.List, error) {
	l, f := c.listOrFetch(k, begun, read)
	if l != nil {
		return l, nil
	}
	ctx, cancel := context.WithDeadline(ctx, f.begun.Add(wait))
	defer cancel()
	for again := false; l == nil; again = true {
		select {
		case <-f.done:
			switch {
			case f.err != nil:
				return c.miss(k, f.err)
			case again && f.list != nil:
				return f.list, nil
			}
			l, f = c.listOrFetch(k, time.Now(), read) // another fetch, if the list has changed meanwhile
		case <-ctx.Done():
			return c.miss(k, fmt.Errorf("%s is not answered since %s: %w", k.Method(), time.Since(f.begun).Round(time.Second), context.Cause(ctx)))
		}
	}
	return l, nil
}

// listOrFetch returns a list and the fetch of it, each if there is one. It begins a fetch of a list that is
// missing or stale.
func (c *listCache) listOrFetch(k catalog.Kind, begun time.Time, read func() (*catalog.List, error)) (*catalog.List, *listFetch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fetches[k] == nil && (c.lists[k] == nil || c.stale[k]) {
		f := &listFetch{begun: begun, before: c.lists[k], epoch: c.epoch[k], done: make(chan struct{})}
		c.fetches[k] = f
		c.wg.Go(func() { c.runFetch(k, f, read) })
	}
	return c.lists[k], c.fetches[k]
}

// runFetch runs one fetch and keeps the list, unless the list changed meanwhile.
func (c *listCache) runFetch(k catalog.Kind, f *listFetch, read func() (*catalog.List, error)) {
	defer close(f.done)
	l, err := read()
	c.mu.Lock()
	c.fetches[k], f.err = nil, err
	missed := false
	if err == nil {
		if !f.old {
			f.list = l
		}
		if c.epoch[k] == f.epoch {
			c.lists[k], c.stale[k] = l, false
		}
		missed, c.missed[k] = c.missed[k] && len(l.Items) > 0, false
	}
	c.mu.Unlock()
	if missed || err == nil && f.before != nil && (!bytes.Equal(f.before.Page(k), l.Page(k)) || !maps.Equal(f.before.Held, l.Held)) {
		c.changed(k)
	}
}

// replace replaces a list that is there with what f makes of it: nil, if it has to be fetched again. It
// reports whether that is another list.
func (c *listCache) replace(k catalog.Kind, f func(*catalog.List) *catalog.List) (changed bool) {
	for {
		before := c.peek(k)
		if before == nil {
			return false
		}
		after := f(before)
		c.mu.Lock()
		same := c.lists[k] == before // else it changed meanwhile
		if same {
			c.lists[k], c.stale[k] = after, c.stale[k] && after != nil
		}
		c.mu.Unlock()
		if same {
			return after != before
		}
	}
}

// rescrub scrubs the lists that are there by the rules in force. Lists of fetches under way are not used.
func (c *listCache) rescrub() {
	for k := range catalog.Kinds {
		c.mu.Lock()
		c.epoch[k]++
		if f := c.fetches[k]; f != nil {
			f.old = true
		}
		c.mu.Unlock()
		c.replace(k, func(l *catalog.List) *catalog.List { return c.scrubbed(k, l) })
	}
}

// miss notes that somebody is answered without a list, because of err, unless the list has just arrived.
func (c *listCache) miss(k catalog.Kind, err error) (*catalog.List, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lists[k]; l != nil {
		return l, nil
	}
	c.missed[k] = true
	return nil, err
}

// tellMissed tells the hosts of the lists that one was answered without, and which the server has, by info. It leaves out those
// that are being fetched: the fetch announces them.
func (c *listCache) tellMissed(info conn.Info) {
	for k := range catalog.Kinds {
		c.mu.Lock()
		missed := c.missed[k] && c.fetches[k] == nil
		c.missed[k] = c.missed[k] && !missed
		c.mu.Unlock()
		if missed && info.Capability(k.Capability()) != nil {
			c.changed(k)
		}
	}
}

// peek returns a list without fetching it, nil if it is not there.
func (c *listCache) peek(k catalog.Kind) *catalog.List {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists[k]
}

// fresh returns a list that needs no fetch, or none but the one under way. It is nil if there is none.
func (c *listCache) fresh(k catalog.Kind) *catalog.List {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale[k] && c.fetches[k] == nil {
		return nil
	}
	return c.lists[k]
}

// markStale marks the lists as possibly changed.
func (c *listCache) markStale() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, l := range c.lists {
		c.stale[k] = l != nil
	}
}

// hasChanged reports whether a list may differ from the one that was read first.
func (c *listCache) hasChanged(k catalog.Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch[k] > 0
}

func (c *listCache) forget(changed []catalog.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range changed {
		c.lists[k], c.stale[k] = nil, false
		c.epoch[k]++
	}
}

// groupLists are the lists that a group shares.
type groupLists struct {
	rt     *Router
	group  upstream.Group
	caches sync.Map // the *listCache of each *upstream.Server
	merged [catalog.Kinds]atomic.Pointer[catalog.Catalog]
	tasks  tasks
	chosen atomic.Int32 // by tools.mode: auto, for single requests

	sessions int       // that use the lists; guarded by Router.mu
	used     time.Time // when the last one closed; likewise
}

// maxGroups is how many groups have lists and connections. Beyond it, those that are not in use are
// forgotten, the longest unused first. A forgotten group that returns starts anew.
const maxGroups = 1000

// groupFor returns the lists of a group for one more session. The caller holds rt.mu.
func (rt *Router) groupFor(g upstream.Group) *groupLists {
	p := rt.lists[g]
	if p == nil {
		if len(rt.lists) >= maxGroups {
			rt.forgetGroups()
		}
		p = &groupLists{rt: rt, group: g}
		rt.lists[g] = p
	}
	p.sessions++
	return p
}

// forgetGroups forgets a quarter of maxGroups, if so many are not in use. It also closes connections that
// background work opened for a group after the group was forgotten. The caller holds rt.mu.
func (rt *Router) forgetGroups() {
	var unused []*groupLists
	for _, p := range rt.lists {
		if p.sessions == 0 && !p.tasks.open("") {
			unused = append(unused, p)
		}
	}
	slices.SortFunc(unused, func(a, b *groupLists) int { return a.used.Compare(b.used) })
	left := maxGroups / 4
	for _, p := range unused {
		if left > 0 && rt.Connections.Forget(p.group) {
			delete(rt.lists, p.group)
			left--
		}
	}
	for _, g := range rt.Connections.Groups() {
		if rt.lists[g] == nil {
			rt.Connections.Forget(g)
		}
	}
}

// groups returns the lists of all groups.
func (rt *Router) groups() []*groupLists {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.Collect(maps.Values(rt.lists))
}

// caches returns the lists of all groups, and those that sessions have of their own.
func (rt *Router) caches() (all []*listCache) {
	for _, p := range rt.groups() {
		for _, c := range p.caches.Range {
			all = append(all, c.(*listCache))
		}
	}
	for _, s := range rt.Sessions("") {
		for _, c := range s.own.Range {
			all = append(all, c.(*listCache))
		}
	}
	return all
}

// of returns the lists of a server. Router.mu must not be held.
func (p *groupLists) of(srv *upstream.Server) *listCache {
	c, ok := p.caches.Load(srv)
	if !ok {
		c, _ = p.caches.LoadOrStore(srv, supply{p.rt, srv, p.group}.storedLists())
	}
	return c.(*listCache)
}

// storedLists returns a cache with the lists that the server gave to an earlier process, or to another principal if they do not
// depend on that, for hosts that can do the same.
func (s supply) storedLists() *listCache {
	c := &listCache{supply: s, wg: &s.rt.wg, changed: func(k catalog.Kind) { s.rt.tell(s.group, k.Changed()) }}
	info, known := s.srv.InfoFor(upstream.Scope{Group: s.group})
	for k := range catalog.Kinds {
		page := s.srv.StoredList(k.Method(), s.group)
		if page == nil && (!known || info.Capability(k.Capability()) != nil) {
			continue
		}
		c.lists[k], c.stale[k] = &catalog.List{}, true
		if page != nil { // else it had no such list
			c.lists[k].AddPage(page, k)
			c.lists[k] = s.pin(s.rt.lifetime, k, s.scrubbed(k, c.lists[k]), false)
			c.stale[k] = c.lists[k] != nil
		}
	}
	return c
}

// scrubbed returns a list that was scrubbed by earlier rules without the secrets that the rules in force
// find; nil if it has to be fetched again.
func (s supply) scrubbed(k catalog.Kind, l *catalog.List) *catalog.List {
	m := interceptor.Message{Server: s.srv.Key, Body: l.Page(k)}
	switch s.rt.Boundary.ToHost(s.rt.lifetime, &m); m.Verdict {
	case interceptor.Passed:
		return l
	case interceptor.Redacted:
		clean := &catalog.List{Record: l.Record, Held: l.Held, Connection: l.Connection}
		clean.AddPage(m.Body, k)
		return clean
	}
	return nil
}

// reload merges a list by new settings, from the servers' lists that are known. It reports whether
// the hosts of the group should ask for the list again.
func (p *groupLists) reload(before, st *Settings, k catalog.Kind) (changed bool) {
	old := p.merged[k].Load()
	if old == nil {
		return false // no host has asked for it
	}
	lists := make([]*catalog.List, len(st.Servers))
	for i, srv := range st.Servers {
		lists[i] = p.of(srv).peek(k)
		changed = changed || lists[i] == nil
	}
	merged := st.Rules.Merge(k, lists)
	p.merged[k].Store(merged)
	principal := p.group.Principal
	if strings.Contains(principal, ":") { // an issuer's: each token may see something else
		return changed || st.Rules.Govern() || before.Rules.Govern() || !bytes.Equal(old.Result(false), merged.Result(false))
	}
	seen, now := old.For(before.Config.Identity(principal)), merged.For(st.Config.Identity(principal))
	return changed || !bytes.Equal(seen.Result(false), now.Result(false))
}

// cacheOf returns the lists of a server as the session sees them: its own if the server told this
// session of a change, else the group's.
func (s *Session) cacheOf(srv *upstream.Server) *listCache {
	if own, ok := s.own.Load(srv); ok {
		return own.(*listCache)
	}
	return s.group.of(srv)
}

// ownCache returns the lists of a server that only this session sees, because they are read over a connection that only
// this session uses. It is nil on stdio, where a group has one session, and if the session shares its connection.
func (s *Session) ownCache(srv *upstream.Server) *listCache {
	if s.Transport == "stdio" || s.scope.Own == nil || srv.SharesConnections() {
		return nil
	}
	own, _ := s.own.LoadOrStore(srv, &listCache{supply: supply{s.rt, srv, s.scope.Group}, wg: &s.rt.wg, changed: func(k catalog.Kind) { s.announce(k.Changed()) }})
	return own.(*listCache)
}

// listing returns the connections over which the session's lists are read. On stdio the session's
// own serve the lists, too.
func (s *Session) listing() upstream.Scope {
	if s.Transport == "stdio" {
		return s.scope
	}
	return upstream.Scope{Group: s.scope.Group}
}

// hurried are the hosts that hurriedWait is for, by the name that they give themselves. The protocol has no
// capability that says it.
var hurried = []string{"claude-code"}

// patience is how long the session's host waits for a server that starts.
func (s *Session) patience() time.Duration {
	if slices.Contains(hurried, s.clientName()) {
		return hurriedWait
	}
	return answerWait
}

func (r *request) answerList(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	rt := r.s.rt
	k, _ := catalog.KindOf(c.Target.Method)
	if cursor, ok := rawjson.GetString(c.Target.Params, "cursor"); ok {
		return nil, invalidParams("cursor %s is not foldgate's: its lists have one page", rt.echo(cursor))
	}
	wait := r.s.patience()
	if k == catalog.Tools && r.s.choice() == decidedSearch && len(rt.Settings().Config.Tools.Always) == 0 {
		wait = 0 // the list has no tool of a server
	}
	list, missing := r.s.Catalog(ctx, wait, k, []string{c.Outcome.Record})
	list = list.For(c.Origin.Identity)
	if k == catalog.Tools {
		late := slices.ContainsFunc(slices.Collect(maps.Values(missing)), func(err error) bool { return errors.Is(err, context.DeadlineExceeded) })
		list = list.Listed(r.s.searches(list, late))
	}
	c.Outcome.Checked, c.Outcome.Clean = true, !rt.Settings().Config.LetsSecretsThrough() // each list was scrubbed when it was fetched
	for _, l := range list.Lists {
		if l != nil && l.Record != "" {
			c.Origin.Correlates = append(c.Origin.Correlates, l.Record)
		}
	}
	return &interceptor.Result{Body: list.Result(r.s.Era.TypedResults)}, nil
}

// Catalog returns the merged list that the session sees. It merges again only if one of the lists
// has changed. It waits for a server until wait after the server began to start, or foldgate to read
// its list. causes are trace records that the reading of lists correlates to. missing has, by
// server, why a list could not be read.
func (s *Session) Catalog(ctx context.Context, wait time.Duration, k catalog.Kind, causes []string) (merged *catalog.Catalog, missing map[string]error) {
	st := s.rt.Settings()
	servers := st.Servers
	lists := make([]*catalog.List, len(servers))
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, srv := range servers {
		if lists[i] = s.cacheOf(srv).fresh(k); lists[i] != nil {
			continue
		}
		wg.Go(func() { lists[i], errs[i] = s.list(ctx, wait, srv, k, causes) })
	}
	wg.Wait()
	missing = map[string]error{}
	for i, err := range errs {
		if err != nil {
			missing[servers[i].Key] = err
		}
	}
	merged = s.group.merged[k].Load()
	if merged == nil || merged.Rules != st.Rules || !slices.Equal(merged.Lists, lists) {
		merged = st.Rules.Merge(k, lists)
		s.group.merged[k].Store(merged)
		s.rt.warn(k, merged)
	}
	return merged, missing
}

// maxWarned is how many faults of lists are remembered, and how many of one list are logged: servers choose
// the names in them.
const maxWarned = 1000

// warn logs the faults of a merged list, each once.
func (rt *Router) warn(k catalog.Kind, c *catalog.Catalog) {
	faults := 0
	warn := func(fault, text string, args ...any) {
		rt.mu.Lock()
		again := rt.warned[fault]
		if len(rt.warned) >= maxWarned && !again {
			clear(rt.warned)
		}
		rt.warned[fault] = true
		rt.mu.Unlock()
		if again {
			return
		}
		if faults++; faults <= maxWarned {
			rt.Log.Warn(text, args...)
		}
	}
	list := k.Method()
	for _, clash := range c.Clashes {
		if fault := list + " " + clash.Name; clash.First == clash.Second {
			warn(fault, "an upstream lists a name twice; the first item keeps it", "list", list, "name", clash.Name, "upstream", clash.First)
		} else {
			warn(fault, "two upstreams offer the same name; the first keeps it", "list", list, "name", clash.Name, "first", clash.First, "second", clash.Second)
		}
	}
	for _, u := range c.Omitted {
		name := rt.echo(u.Name)
		warn(list+" "+u.Server+" "+name+" "+u.Why, "an item of a list is not shown: the protocol does not allow it", "list", list, "upstream", u.Server, "name", name, "fault", u.Why)
	}
	if k == catalog.Tools {
		for _, f := range c.Rules.UnmatchedRules(c) {
			warn(f.Key, "a workflow's rule names a tool that there is not", "rule", f.Key, "fault", f.Msg)
		}
	}
	if more := faults - maxWarned; more > 0 {
		rt.Log.Warn("more faults of a list are not logged", "list", list, "faults", more)
	}
}

func (s *Session) lookup(ctx context.Context, k catalog.Kind, name string) (catalog.Entry, bool) {
	if e, ok := s.current(k, name); ok {
		return e, true
	}
	st := s.rt.Settings()
	if key, ok := st.Rules.OnlyOwner(name); ok && (k == catalog.Tools || k == catalog.Prompts) {
		l, err := s.list(ctx, listWait, st.Server(key), k, nil)
		if err != nil {
			return catalog.Entry{}, false
		}
		for _, raw := range l.Items {
			if shown, e, _, ok := st.Rules.Entry(k, key, l, raw); ok && shown == name {
				e.Held = l.Held[e.Name]
				return e, true
			}
		}
		return catalog.Entry{}, false
	}
	merged, _ := s.Catalog(ctx, listWait, k, nil)
	return merged.Lookup(name)
}

// current finds a name in the last merged list, if the owner's list has not changed since. So a
// call never waits for servers that are not its own.
func (s *Session) current(k catalog.Kind, name string) (catalog.Entry, bool) {
	c, st := s.group.merged[k].Load(), s.rt.Settings()
	if c == nil || c.Rules != st.Rules {
		return catalog.Entry{}, false
	}
	e, ok := c.Lookup(name)
	if !ok || e.Server == "" {
		return e, ok
	}
	i := slices.Index(st.Rules.Servers(), e.Server)
	return e, c.Lists[i] == s.cacheOf(st.Servers[i]).peek(k)
}

// list returns one list of one server as the session sees it.
func (s *Session) list(ctx context.Context, wait time.Duration, srv *upstream.Server, k catalog.Kind, causes []string) (*catalog.List, error) {
	now := srv.State(s.listing())
	if wait > 0 && now.Open {
		wait = max(wait, answerWait)
	}
	c := s.cacheOf(srv)
	return c.get(ctx, k, now.Began, wait, func() (*catalog.List, error) {
		ctx, cancel := context.WithTimeout(s.rt.lifetime, fetchLimit)
		defer cancel()
		l, err := s.readList(ctx, srv, k, causes)
		if err != nil {
			return nil, err
		}
		if l.Record != "" { // the server was asked
			srv.StoreList(ctx, k.Method(), s.scope.Group, c.hasChanged(k), l.Page(k))
		}
		return supply{s.rt, srv, s.scope.Group}.pin(ctx, k, l, true), nil
	})
}

// tell tells the hosts of a group that a list changed.
func (rt *Router) tell(g upstream.Group, method string) {
	for _, s := range rt.Sessions(g.Principal) {
		if g.Includes(s.scope.Group) {
			s.announce(method)
		}
	}
	rt.tellListens(g, method)
}

// readList reads all pages of a list. Each page is a call of foldgate's own, recorded and scrubbed
// like any other.
func (s *Session) readList(ctx context.Context, srv *upstream.Server, k catalog.Kind, causes []string) (*catalog.List, error) {
	scope := s.scope
	cn := srv.ConnectionIfOpen(scope)
	if cn == nil {
		scope = upstream.Scope{Group: s.scope.Group}
		cn = srv.ConnectionIfOpen(scope)
	}
	if cn == nil {
		scope = s.listing()
		var err error
		if cn, err = srv.ConnectionUnlessDown(ctx, scope); err != nil {
			return nil, err
		}
	}
	list := &catalog.List{Connection: srv.State(scope).Number}
	if cn.Info().Capability(k.Capability()) == nil {
		return list, nil
	}
	seen, size := []string{""}, 0
	for range maxPages {
		by := interceptor.Origin{Identity: s.identity(), Session: s.ID, Revision: cn.Info().Version, Correlates: causes}
		body, record, err := s.rt.readPage(ctx, by, srv, k.Method(), seen[len(seen)-1], func(context.Context) (conn.Conn, error) { return cn, nil })
		if k == catalog.Templates && isNoMethod(err) {
			return list, nil // many servers have resources and no templates
		}
		if err != nil {
			return nil, err
		}
		list.Record = record
		cursor := list.AddPage(body, k)
		if cursor == "" && !list.Cut {
			return list, nil
		}
		if !list.Cut && slices.Contains(seen, cursor) {
			srv.Log.Warn("upstream repeats a cursor; its list is cut there", "method", k.Method())
			return list, nil
		}
		seen = append(seen, cursor)
		if size += len(body); size > maxListBytes || list.Cut {
			break
		}
	}
	srv.Log.Warn("upstream's list is too long; it is cut", "method", k.Method(), "pages", len(seen)-1, "items", len(list.Items), "bytes", size)
	return list, nil
}

// isNoMethod reports whether an error is a server's answer that it does not know a method.
func isNoMethod(err error) bool {
	answer, ok := errors.AsType[*wire.AnswerError](err)
	return ok && wire.ErrorCode(answer.Raw) == wire.CodeMethodNotFound
}

// readPage reads one page of a server's list: the first one if cursor is "". It makes a call of foldgate's own, which is
// recorded and scrubbed like any other, and returns the id of its record. by says for whom the call is made.
func (rt *Router) readPage(ctx context.Context, by interceptor.Origin, srv *upstream.Server, method, cursor string, connect func(context.Context) (conn.Conn, error)) (body json.RawMessage, record string, err error) {
	params := json.RawMessage(`{}`)
	if cursor != "" {
		params = rawjson.Marshal(map[string]string{"cursor": cursor})
	}
	by.Direction, by.From = interceptor.Internal, "foldgate"
	c := &interceptor.Call{Origin: by, Target: interceptor.Target{Server: srv.Key, To: srv.Name, Method: method, Params: params, Forward: params}}
	res, err := rt.Chain(ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		cn, err := connect(ctx)
		if err != nil {
			return nil, unavailable(ctx, srv, err)
		}
		c.Outcome.Forwarded = true
		m, err := cn.Call(ctx, &conn.Request{Method: method, Params: withTraceparent(c)})
		if err != nil {
			return nil, callFault(ctx, srv, c, err)
		}
		return &interceptor.Result{Body: m.Result, Error: m.Error, Extra: m.Extra}, nil
	})
	if err == nil && res.Error != nil {
		err = fmt.Errorf("upstream %s: %s: %w", srv.Key, method, &wire.AnswerError{Raw: res.Error})
	}
	if err != nil {
		return nil, "", err
	}
	return res.Body, c.Outcome.Record, nil
}

// CheckHeaders refuses a modern tools/call with Mcp-Param headers that do not repeat its
// arguments. It implements [server.Router].
func (rt *Router) CheckHeaders(r *server.Request, h http.Header) *wire.Error {
	if r.Msg.Method != "tools/call" {
		return nil
	}
	rt.mu.Lock()
	lists := rt.lists[upstream.Group{Principal: r.Identity.Principal, Capabilities: wire.ReadCapabilities(r.Meta.ClientCapabilities)}]
	rt.mu.Unlock()
	if lists == nil {
		return nil
	}
	tools := lists.merged[catalog.Tools].Load()
	if tools == nil { // no list was asked for yet, so no host knows of a header
		return nil
	}
	name, _ := rawjson.GetString(r.Msg.Params, "name")
	e, _ := tools.For(rt.Settings().Config.Complete(r.Identity)).Lookup(name)
	return catalog.CheckHeaders(e.Headers, r.Msg.Params, h)
}
