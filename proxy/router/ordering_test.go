package router

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/wire"
)

// stdioSession is a session on stdio that has nothing behind it.
func stdioSession(t *testing.T) *Session {
	rt := New(t.Context(), Options{Engine: logging(slog.DiscardHandler)})
	t.Cleanup(rt.Wait)
	s := &Session{Peer: server.Peer{Transport: "stdio", Era: wire.Legacy}, rt: rt, tasks: &tasks{}, orderings: map[string]*ordering{}}
	s.lifetime, s.cancel = context.WithCancelCause(t.Context())
	return s
}

// The tickets that a notification waits for count for the memory that keeps it.
func TestWaitingNotificationsAreBounded(t *testing.T) {
	const responses = 1000
	s := stdioSession(t)
	o := s.order("up")
	tickets := make([]ticket, responses)
	for i := range tickets {
		tickets[i] = o.ticket(&s.rt.wg)
	}
	var passed atomic.Int64
	for range 10_000 {
		s.inOrder("up", 0, func() { passed.Add(1) })
	}
	for _, ticket := range tickets {
		ticket.done()
	}
	s.rt.Wait()
	if n := passed.Load(); n == 0 || n > maxQueued/(waitCost*responses) {
		t.Errorf("%d notifications wait for %d responses each, want at most %d", n, responses, maxQueued/(waitCost*responses))
	}
}

// The notifications of a host wait in order while a server takes its time, but
// not without end.
func TestQueueIsBounded(t *testing.T) {
	const size = 1 << 20
	var wg sync.WaitGroup
	var q queue
	slow := make(chan struct{})
	q.put(&wg, 0, func() { <-slow })
	var order []int
	n := 0
	for ; n < 10*maxQueued/size; n++ {
		i := n
		if !q.put(&wg, size, func() { order = append(order, i) }) {
			break
		}
	}
	if n < maxQueued/size-1 || n > maxQueued/size {
		t.Errorf("%d messages of 1 MiB wait, want %d MiB", n, maxQueued>>20)
	}
	close(slow)
	wg.Wait()
	ran := false
	if !q.put(&wg, size, func() { ran = true }) {
		t.Error("an empty queue has no room")
	}
	wg.Wait()
	if !ran || len(order) != n || !slices.IsSorted(order) {
		t.Errorf("of %d messages %v went out, the next %t", n, order, ran)
	}
}

// A notification over the bound is dropped and logged.
func TestNotificationOverTheBoundIsDropped(t *testing.T) {
	s := stdioSession(t)
	slow := make(chan struct{})
	s.outgoing.put(&s.rt.wg, maxQueued, func() { <-slow })
	if s.outgoing.put(&s.rt.wg, len(strings.Repeat("x", maxQueued)), func() { t.Error("it was sent") }) {
		t.Error("a second message of the whole size waits")
	}
	close(slow)
	s.rt.Wait()
}

// The order does not depend on how long each step takes.
func TestOrderUnderLoad(t *testing.T) {
	s := stdioSession(t)
	var mu sync.Mutex
	var got []int
	for i := range 200 {
		if i%3 == 0 { // a response that takes a while
			ticket := s.order("up").ticket(&s.rt.wg)
			s.rt.wg.Go(func() {
				ticket.wait(t.Context())
				for range i % 7 {
					runtime.Gosched()
				}
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
				ticket.done()
			})
			continue
		}
		s.inOrder("up", 10, func() {
			mu.Lock()
			got = append(got, i)
			mu.Unlock()
		})
	}
	s.rt.Wait()
	if len(got) != 200 || !slices.IsSorted(got) {
		t.Errorf("the messages went out as %v", got)
	}
}
