package router

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// A list that changes while it is fetched is fetched again afterwards, not at the same time: a
// server that announces changes without end can't make foldgate ask without end.
func TestOneFetchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hosts, wg sync.WaitGroup
		c := listCache{wg: &wg}
		var running, fetches atomic.Int64
		release := make(chan struct{})
		get := func() {
			l, err := c.get(t.Context(), catalog.Tools, time.Now(), time.Hour, func() (*catalog.List, error) {
				if running.Add(1) > 1 {
					t.Error("two fetches run at the same time")
				}
				defer running.Add(-1)
				fetches.Add(1)
				<-release
				return &catalog.List{}, nil
			})
			if err != nil || l != c.peek(catalog.Tools) {
				t.Errorf("get returned %p, %v, want the list that is kept", l, err)
			}
		}
		hosts.Go(get)
		synctest.Wait()
		for range 3 {
			c.forget([]catalog.Kind{catalog.Tools})
			hosts.Go(get)
			synctest.Wait()
		}
		close(release)
		hosts.Wait()
		wg.Wait()
		if n := fetches.Load(); n != 2 {
			t.Errorf("%d fetches, want one before the changes and one after", n)
		}
	})
}

// A server that announces a change of its list with each list has a list all the same.
func TestListThatAlwaysChanges(t *testing.T) {
	var wg sync.WaitGroup
	c := listCache{wg: &wg}
	fetches := 0
	l, err := c.get(t.Context(), catalog.Tools, time.Now(), time.Hour, func() (*catalog.List, error) {
		fetches++
		c.forget([]catalog.Kind{catalog.Tools})
		return &catalog.List{}, nil
	})
	if l == nil || err != nil || fetches != 2 || c.peek(catalog.Tools) != nil {
		t.Errorf("get returned %v, %v after %d fetches, kept is %v; want the second one, which is not kept", l, err, fetches, c.peek(catalog.Tools))
	}
	wg.Wait()
}

// A list that somebody was answered without is announced when it comes, once, and only then. Nobody waits
// for it longer than from when its fetch began.
func TestMissedLists(t *testing.T) {
	for name, k := range map[string]struct {
		hosts   []time.Duration // when each asks
		waits   []time.Duration // how long each waits
		after   time.Duration   // how long the fetch takes
		items   int
		changed int
	}{
		"in time":           {[]time.Duration{0, time.Second}, []time.Duration{3 * time.Second, 2 * time.Second}, 3 * time.Second, 1, 0},
		"late":              {[]time.Duration{0, time.Second, 5 * time.Second}, []time.Duration{4 * time.Second, 3 * time.Second, 0}, 6 * time.Second, 1, 1},
		"late and empty":    {[]time.Duration{0}, []time.Duration{4 * time.Second}, 6 * time.Second, 0, 0},
		"begun in the past": {[]time.Duration{-1}, []time.Duration{3 * time.Second}, 6 * time.Second, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var hosts, wg sync.WaitGroup
				changed := 0
				c := listCache{wg: &wg, changed: func(catalog.Kind) { changed++ }}
				start := time.Now()
				for i, at := range k.hosts {
					begun := start.Add(at)
					if at < 0 {
						at, begun = 0, start.Add(-time.Second)
					}
					hosts.Go(func() {
						time.Sleep(at)
						asked := time.Now()
						l, err := c.get(t.Context(), catalog.Tools, begun, 4*time.Second, func() (*catalog.List, error) {
							time.Sleep(k.after)
							return &catalog.List{Items: make([]json.RawMessage, k.items)}, nil
						})
						if waited := time.Since(asked); waited != k.waits[i] {
							t.Errorf("host %d waited %v, want %v", i, waited, k.waits[i])
						}
						if inTime := k.after <= 4*time.Second; inTime != (err == nil) || inTime != (l != nil) {
							t.Errorf("host %d got %v, %v", i, l, err)
						}
					})
				}
				hosts.Wait()
				wg.Wait()
				if changed != k.changed {
					t.Errorf("announced %d times, want %d", changed, k.changed)
				}
				if c.missed != [catalog.Kinds]bool{} {
					t.Errorf("still to announce: %v", c.missed)
				}
			})
		})
	}
}

// sharedGroups are groups that have connections; those of busy are open.
type sharedGroups struct {
	all  map[upstream.Group]bool
	busy map[upstream.Group]bool
}

func (c *sharedGroups) Groups() []upstream.Group { return slices.Collect(maps.Keys(c.all)) }

func (c *sharedGroups) Forget(g upstream.Group) bool {
	if !c.busy[g] {
		delete(c.all, g)
	}
	return !c.busy[g]
}

// Groups that are not in use are forgotten, with the connections that were made for them again after that.
// Those with a session, a task or an open connection stay.
func TestGroupsAreForgotten(t *testing.T) {
	c := &sharedGroups{map[upstream.Group]bool{}, map[upstream.Group]bool{}}
	rt := New(t.Context(), Options{Engine: logging(slog.DiscardHandler), Connections: c})
	group := func(n int) upstream.Group { return upstream.Group{Principal: fmt.Sprint("user", n)} }
	join := func(n int) *groupLists { // a session that begins and ends
		p := rt.groupFor(group(n))
		c.all[group(n)] = true
		p.sessions--
		p.used = time.Unix(int64(n), 0)
		return p
	}
	join(0).sessions++
	join(1).tasks.byID = map[string]task{"t": {server: "up", until: time.Now().Add(time.Hour)}}
	join(2)
	c.busy[group(2)] = true
	for n := 3; n < 3*maxGroups; n++ {
		join(n)
		c.all[group(max(3, n-maxGroups))] = true // a list that was read for longer than its group lasted
	}
	if n := len(rt.lists); n > maxGroups {
		t.Errorf("%d groups have lists", n)
	}
	if n := len(c.all); n > 2*maxGroups {
		t.Errorf("%d groups have connections", n)
	}
	for n := range 3 {
		if rt.lists[group(n)] == nil || !c.all[group(n)] {
			t.Errorf("group %d is forgotten while it is in use", n)
		}
	}
}

// A change of a list is noted without Router.mu, which each session needs: the stored lists of all groups
// may have to be read and judged.
func TestStoredListsAreJudgedWithoutTheLock(t *testing.T) {
	cfg, log := config.Default(), slog.New(slog.DiscardHandler)
	cfg.StateDir, cfg.Pins = t.TempDir(), "off"
	cfg.Upstreams = map[string]*config.Upstream{"up": {Command: []string{"fake"}}}
	set := upstream.NewSet(upstream.Options{Config: cfg, Log: log, CleanJSON: func(_ context.Context, page []byte) ([]byte, error) { return page, nil }})
	st := &Settings{Config: cfg, Servers: set.Servers(cfg, nil)}
	srv, g := st.Servers[0], upstream.Group{Principal: "user"}
	srv.StoreList(t.Context(), "tools/list", g, false, []byte(`{"tools":[{"name":"echo"}]}`))
	var rt *Router
	judged := 0
	off := &interceptor.Boundary{Policy: func(string) interceptor.ScrubPolicy { return interceptor.ScrubPolicy{ToHost: interceptor.Off} }}
	rt = New(t.Context(), Options{Engine: &engine.Engine{Options: engine.Options{Log: log}, Boundary: off, Recorder: &interceptor.Recorder{}}, Settings: func() *Settings {
		if !rt.mu.TryLock() {
			t.Error("the settings are read under Router.mu")
			return st
		}
		defer rt.mu.Unlock()
		judged++
		return st
	}})
	lists := rt.groupFor(g)
	rt.listChanged(srv, upstream.Group{Principal: "other"}, nil, catalog.Tools.Changed())
	if c, ok := lists.caches.Load(srv); !ok || c.(*listCache).peek(catalog.Tools) != nil || judged == 0 {
		t.Errorf("the stored list was judged %d times, and is there: %v; want it judged and forgotten", judged, ok)
	}
}

// A fault of a list is logged once, and what is remembered for that has a bound.
func TestFaultsOfListsAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	rt := New(t.Context(), Options{Engine: logging(slog.NewTextHandler(&log, nil))})
	warn := func(from, n int) (logged int) {
		log.Reset()
		merged := &catalog.Catalog{Rules: &catalog.Rules{}}
		for i := range n {
			merged.Clashes = append(merged.Clashes, catalog.Clash{Name: fmt.Sprint("name", from+i), First: "a", Second: "b"})
		}
		rt.warn(catalog.Prompts, merged)
		return strings.Count(log.String(), "\n")
	}
	if got := warn(0, 3); got != 3 || !strings.Contains(log.String(), "list=prompts/list name=name2 first=a second=b") {
		t.Errorf("%d faults are logged, want 3: %s", got, &log)
	}
	if got := warn(0, 4); got != 1 {
		t.Errorf("%d faults are logged, want the new one", got)
	}
	if got := warn(4, maxWarned-4); got != maxWarned-4 || len(rt.warned) != maxWarned {
		t.Errorf("%d faults are logged, %d remembered, want %d and %d", got, len(rt.warned), maxWarned-4, maxWarned)
	}
	if got := warn(0, maxWarned); got != 0 {
		t.Errorf("%d faults are logged again", got)
	}
	if got := warn(maxWarned, 5*maxWarned); got != maxWarned+1 || !strings.Contains(log.String(), "faults=4000") {
		t.Errorf("%d lines are logged of 5 times %d faults, want %d, and their count", got, maxWarned, maxWarned)
	}
	if n := len(rt.warned); n > maxWarned {
		t.Errorf("%d faults are remembered, want at most %d", n, maxWarned)
	}
}

// logging is an engine that can only log.
func logging(h slog.Handler) *engine.Engine {
	return &engine.Engine{Options: engine.Options{Log: slog.New(h)}}
}
