package proxy

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/proxy/wire"
)

// What a host sends while an upstream takes its time waits in order, but not
// without end: the memory is everybody's.
func TestNotificationsDoNotPileUp(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	const size = 1 << 20
	waiting := func() int {
		r.s.notes.mu.Lock()
		defer r.s.notes.mu.Unlock()
		return len(r.s.notes.all)
	}
	slow := make(chan struct{})
	r.s.notes.put(r.g, 0, func() { <-slow })
	var all sync.WaitGroup
	var order []int
	n := 0
	for ; n < 10*maxAside/size; n++ {
		all.Add(1)
		i := n
		if !r.s.notes.put(r.g, size, func() { defer all.Done(); order = append(order, i) }) {
			all.Done()
			break
		}
	}
	if n < maxAside/size-1 || n > maxAside/size {
		t.Errorf("%d messages of 1 MiB wait, want %d MiB", n, maxAside>>20)
	}
	before := waiting()
	m := wire.Message{Method: "x/large", Params: json.RawMessage(`{"x":"` + strings.Repeat("x", size) + `"}`)}
	m.Raw = m.Encode()
	r.s.Notify(m)
	if after := waiting(); after != before {
		t.Errorf("a notification waits beside %d", before)
	}
	close(slow)
	all.Wait() // what waited is done, and has made room
	all.Add(1)
	if !r.s.notes.put(r.g, size, all.Done) || len(order) != n {
		t.Errorf("after %d of %d messages there is no room", len(order), n)
	}
	if !slices.IsSorted(order) {
		t.Errorf("the messages went out in the order %v", order)
	}
	all.Wait()
}
