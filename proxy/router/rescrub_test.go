package router

import (
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/catalog"
)

// A list that was fetched by the rules of before a reload is not kept after it.
func TestFetchDuringReload(t *testing.T) {
	var wg sync.WaitGroup
	c := &listCache{wg: &wg}
	begun, end := make(chan bool), make(chan bool)
	fetches := 0
	got := make(chan *catalog.List, 1)
	go func() {
		l, err := c.get(t.Context(), catalog.Tools, time.Now(), time.Minute, func() (*catalog.List, error) {
			if fetches++; fetches == 1 {
				begun <- true
				<-end
			}
			return &catalog.List{Record: []string{"", "old", "new"}[fetches]}, nil
		})
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	<-begun
	c.rescrub()
	end <- true
	if l := <-got; l == nil || l.Record != "new" {
		t.Errorf("the list is %+v, want that of a fetch after the reload", l)
	}
	wg.Wait()
}
