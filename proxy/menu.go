package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"

	"github.com/foldgate/foldgate/proxy/upstream"
)

// menu is one merged list as a host sees it, and the way back from the names
// shown to their owners. It never changes.
type menu struct {
	// legacy and modern are the list result in the forms of the two eras.
	legacy, modern json.RawMessage
	entries        map[string]entry
	order          []string // the shown names, as listed
	// clashes are the names that two upstreams offer; the first keeps it.
	clashes []Clash
	// missing are the upstreams that could not be asked.
	missing map[string]error
	// from are the listings it was made of, in the order of the upstreams.
	from []*listing
}

// entry is who owns a shown name.
type entry struct {
	up  *upstream.Server // nil for foldgate's own tools
	own string           // the name as the upstream knows it
	// injected: foldgate added branch_id to the tool's schema, so it must be
	// taken out of the arguments again.
	injected bool
	params   []paramHeader // of a tool
	flow     *flowEntry    // of a tool that a workflow's rule names
	// shown is the item as hosts see it, raw as the upstream sent it.
	shown, raw json.RawMessage
}

// listWait bounds how long a list waits for an upstream that is starting; what
// comes later is announced with list_changed.
const listWait = 10 * time.Second

// menu returns the merged list that s sees. It is made anew only when one of
// the lists that it is made of has changed.
func (g *Gateway) menu(ctx context.Context, s *session, k listKind, modern bool, causes []string) *menu {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	from := make([]*listing, len(g.ups))
	errs := make([]error, len(g.ups))
	var wg sync.WaitGroup
	for i, u := range g.ups {
		wg.Add(1)
		go func() {
			defer wg.Done()
			from[i], errs[i] = g.listOf(ctx, s, u, k, modern, causes)
		}()
	}
	wg.Wait()
	missing := map[string]error{}
	for i, err := range errs {
		if err != nil {
			missing[g.ups[i].Key] = err
		}
	}
	g.menus.mu.Lock()
	defer g.menus.mu.Unlock()
	last := g.menus.of(s.Principal)
	if m := last[k]; m != nil && slices.Equal(m.from, from) {
		return m
	}
	m := g.merge(k, from)
	m.missing = missing
	g.menus.warn(g.log, k, m.clashes)
	if k == listTools {
		g.menus.warnRules(g.log, g.unmatched(m))
	}
	last[k] = m
	return m
}

// lookup finds who owns a name that s sees.
func (g *Gateway) lookup(fl *inbound, k listKind, name string) (entry, bool) {
	if e, ok := g.current(fl.s, k, name); ok {
		return e, true
	}
	if u := g.byPrefix(name); u != nil && (k == listTools || k == listPrompts) {
		ctx, cancel := context.WithTimeout(fl.ctx, listWait)
		defer cancel()
		l, err := g.listOf(ctx, fl.s, u, k, fl.modern, nil)
		if err != nil {
			return entry{}, false
		}
		for _, raw := range l.items {
			if shown, e, ok := g.entry(u, k, raw); ok && shown == name {
				return e, true
			}
		}
		return entry{}, false
	}
	e, ok := g.menu(fl.ctx, fl.s, k, fl.modern, nil).entries[name]
	return e, ok
}

// byPrefix returns the only upstream whose names may look like this one; nil
// where there are several, or none.
func (g *Gateway) byPrefix(name string) (found *upstream.Server) {
	for _, u := range g.ups {
		if u.Prefix != "" && !strings.HasPrefix(name, u.Prefix+"__") {
			continue
		}
		if found != nil || u.Prefix == "" {
			return nil
		}
		found = u
	}
	return found
}

// current finds a name in the last merged list, if its owner still says what it
// said then. So a call never waits for upstreams that are not its own.
func (g *Gateway) current(s *session, k listKind, name string) (entry, bool) {
	m := g.menus.latest(s.Principal, k)
	if m == nil {
		return entry{}, false
	}
	e, ok := m.entries[name]
	if !ok || e.up == nil {
		return e, ok
	}
	return e, m.from[slices.Index(g.ups, e.up)] == s.view(e.up).peek(k)
}

// merge puts the listings of all upstreams together.
func (g *Gateway) merge(k listKind, from []*listing) *menu {
	m := &menu{entries: map[string]entry{}, from: from}
	var items [][]byte
	if k == listTools {
		for _, t := range ownTools {
			items = append(items, t.definition)
			m.entries[t.name] = entry{own: t.name, raw: t.definition, shown: t.definition}
			m.order = append(m.order, t.name)
		}
	}
	for i, l := range from {
		if l == nil {
			continue
		}
		u := g.ups[i]
		for _, raw := range l.items {
			shown, e, ok := g.entry(u, k, raw)
			if !ok {
				continue
			}
			if first, taken := m.entries[shown]; taken {
				c := Clash{Name: shown, First: "foldgate", Second: u.Key}
				if first.up != nil {
					c.First = first.up.Key
				}
				m.clashes = append(m.clashes, c)
				continue
			}
			m.entries[shown] = e
			m.order = append(m.order, shown)
			items = append(items, e.shown)
		}
	}
	m.render(k, items, len(g.cfg.Principals) > 0)
	return m
}

// entry makes an entry of an item of u's list; ok is false for one that is not
// shown.
func (g *Gateway) entry(u *upstream.Server, k listKind, raw json.RawMessage) (shown string, e entry, ok bool) {
	own, ok := rawjson.GetString(raw, kinds[k].id)
	if !ok || (k == listTools && !u.Config.Tools.Shows(own)) {
		return "", entry{}, false
	}
	e = entry{up: u, own: own, raw: raw, shown: raw}
	shown = own
	if k == listTools || k == listPrompts {
		if shown = shownName(u.Prefix, own); shown != own {
			e.shown = rawjson.Set(e.shown, rawjson.Quote(shown), "name")
		}
	}
	if k == listTools {
		e.params = paramHeaders(raw)
		e.shown, e.injected = injectBranch(e.shown)
		e.shown, e.flow = g.injectFlow(e.shown, u, own)
		if !g.cfg.Results.Rule(shown).Off { // a folded result has no structured content, and some hosts insist
			e.shown = rawjson.Delete(e.shown, "outputSchema")
		}
	}
	return shown, e, true
}

// render writes the list result in the forms of both eras. private says that
// the list may be no other principal's.
func (m *menu) render(k listKind, items [][]byte, private bool) {
	out := append([]byte(`{"`+kinds[k].field+`":[`), bytes.Join(items, []byte(","))...)
	out = append(out, ']')
	scope, ttl, sole := "public", -1, soleListing(m.from)
	if private {
		scope = "private"
	}
	for _, l := range m.from {
		if l == nil {
			ttl = 0 // an upstream is missing: ask again
			continue
		}
		own := 0
		for _, r := range l.rest {
			switch {
			case r.Is("cacheScope") && rawjson.Unquote(r.Value) == "private":
				scope = "private"
			case r.Is("ttlMs"):
				own, _ = strconv.Atoi(string(r.Value))
			}
		}
		if ttl < 0 || own < ttl {
			ttl = own
		}
	}
	if sole != nil {
		for _, r := range sole.rest {
			switch r.Name() {
			case "cacheScope", "ttlMs", "resultType":
			default:
				out = append(append(append(append(out, ','), r.Key...), ':'), r.Value...)
			}
		}
	}
	m.legacy = append(bytes.Clone(out), '}')
	out = append(out, `,"resultType":"complete","ttlMs":`...)
	out = strconv.AppendInt(out, int64(max(ttl, 0)), 10)
	m.modern = append(append(append(out, `,"cacheScope":"`...), scope...), `"}`...)
}

// soleListing returns the one listing where there is just one upstream: then
// the members beside the items are its own to say.
func soleListing(from []*listing) *listing {
	if len(from) == 1 {
		return from[0]
	}
	return nil
}
