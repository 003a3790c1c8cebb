package router

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/catalog"
)

// A list that changes while it is fetched is fetched again afterwards, not at the same time: a
// server that announces changes without end can't make foldgate ask without end.
func TestOneFetchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c listCache
		var hosts, wg sync.WaitGroup
		var running, fetches atomic.Int64
		release := make(chan struct{})
		get := func() {
			l, err := c.get(t.Context(), time.Hour, &wg, catalog.Tools, time.Now(), func() (*catalog.List, error) {
				if running.Add(1) > 1 {
					t.Error("two fetches run at the same time")
				}
				defer running.Add(-1)
				fetches.Add(1)
				<-release
				return &catalog.List{}, nil
			}, func() {})
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
				var c listCache
				var hosts, wg sync.WaitGroup
				changed := 0
				start := time.Now()
				for i, at := range k.hosts {
					begun := start.Add(at)
					if at < 0 {
						at, begun = 0, start.Add(-time.Second)
					}
					hosts.Go(func() {
						time.Sleep(at)
						asked := time.Now()
						l, err := c.get(t.Context(), 4*time.Second, &wg, catalog.Tools, begun, func() (*catalog.List, error) {
							time.Sleep(k.after)
							return &catalog.List{Items: make([]json.RawMessage, k.items)}, nil
						}, func() { changed++ })
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
				if missed := c.took(); len(missed) > 0 {
					t.Errorf("still to announce: %v", missed)
				}
			})
		})
	}
}
