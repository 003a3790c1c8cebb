package router

import (
	"context"
	"slices"
	"sync"

	"github.com/foldgate/foldgate/proxy/wire"
)

// Bounds of what may wait in a queue.
const (
	maxQueued = 16 << 20 // bytes
	queueCost = 512      // bytes that an entry takes beside its message
	waitCost  = 8        // bytes that it takes to wait for one ticket
)

// queue runs one function after the other in the background. Its zero value is
// ready to use.
type queue struct {
	mu      sync.Mutex
	entries []queued // the first is running
	size    int      // bytes of all entries
}

type queued struct {
	run  func()
	size int
}

// put runs f after everything that was put before it. It returns false if too
// much waits already: servers may take long to start, and hosts to read. One
// message is never too much.
func (q *queue) put(wg *sync.WaitGroup, size int, f func()) bool {
	size += queueCost
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) > 0 && q.size+size > maxQueued {
		return false
	}
	q.entries = append(q.entries, queued{f, size})
	q.size += size
	if len(q.entries) == 1 {
		wg.Go(q.drain)
	}
	return true
}

// drain runs the entries until none is left.
func (q *queue) drain() {
	for {
		q.mu.Lock()
		first := q.entries[0]
		q.mu.Unlock()
		first.run()
		q.mu.Lock()
		q.entries[0] = queued{} // frees the message
		q.entries, q.size = q.entries[1:], q.size-first.size
		done := len(q.entries) == 0
		q.mu.Unlock()
		if done {
			return
		}
	}
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) == 0
}

// ordering keeps the order of one server's messages to one host on stdio.
// Responses and server requests take the chain, each on a goroutine of its own, so a
// notification could overtake them. A notification therefore waits for those
// before it, and those after it wait for the notification. Responses do not
// wait for each other. The zero value is ready to use.
//
// HTTP needs no ordering: each response has a stream of its own.
type ordering struct {
	mu            sync.Mutex
	open          []chan struct{} // of the tickets that are not done
	notifications queue           // that wait
}

// order returns the order of a server's messages.
func (s *Session) order(server string) *ordering {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orderings[server] == nil {
		s.orderings[server] = &ordering{}
	}
	return s.orderings[server]
}

// ticket is the place of a response or server request in the order of messages. The
// zero value keeps no order.
type ticket struct {
	o      *ordering
	isDone chan struct{}
	turn   <-chan struct{} // closed once the host has all earlier messages; nil if it has
}

// ticket takes a place for a response or server request that has just arrived. done
// must be called when the host has it, or never will.
func (o *ordering) ticket(wg *sync.WaitGroup) ticket {
	t := ticket{o: o, isDone: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.notifications.empty() {
		turn := make(chan struct{})
		if o.notifications.put(wg, 0, func() { close(turn) }) {
			t.turn = turn
		}
	}
	o.open = append(o.open, t.isDone)
	return t
}

// done lets the notifications after the ticket go. The second call does nothing.
func (t *ticket) done() {
	if t.o == nil {
		return
	}
	t.o.mu.Lock()
	defer t.o.mu.Unlock()
	if i := slices.Index(t.o.open, t.isDone); i >= 0 {
		t.o.open = slices.Delete(t.o.open, i, i+1)
		close(t.isDone)
	}
}

// wait returns when the host has all messages before the ticket, or ctx is done.
func (t *ticket) wait(ctx context.Context) {
	if t.turn == nil {
		return
	}
	select {
	case <-t.turn:
	case <-ctx.Done():
	}
}

// inOrder runs f, which hands on a notification of that size, after all earlier
// messages. If none is under way it runs f at once. It returns false and drops f if
// too much waits already.
func (s *Session) inOrder(server string, size int, f func()) bool {
	if !s.Ordered() {
		f()
		return true
	}
	o := s.order(server)
	o.mu.Lock()
	before := slices.Clone(o.open)
	if len(before) == 0 && o.notifications.empty() {
		o.mu.Unlock()
		f()
		return true
	}
	defer o.mu.Unlock()
	return o.notifications.put(&s.rt.wg, size+waitCost*len(before), func() {
		for _, isDone := range before {
			select {
			case <-isDone:
			case <-s.lifetime.Done():
			}
		}
		f()
	})
}

// Message implements [conn.Receiver]: it takes messages that the server sends while it handles
// the request.
func (r *request) Message(m wire.Message) {
	r.s.received(source{r.server, r.conn, r, causeOf(r.call), false}, m)
}

// ResponseArrived implements [conn.Receiver]: the response takes its place in the order.
func (r *request) ResponseArrived(wire.Message) {
	if r.s.Ordered() {
		r.ticket = r.s.order(r.server).ticket(&r.s.rt.wg)
	}
}

// Sent implements [server.Pending]: the host has the response, or gets none.
func (r *request) Sent() {
	r.ticket.done()
	if r.s.greet != nil && r.Msg.Method == "initialize" {
		r.s.greet()
	}
}
