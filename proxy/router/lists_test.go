package router

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
			l, err := c.get(t.Context(), &wg, catalog.Tools, func() (*catalog.List, error) {
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
