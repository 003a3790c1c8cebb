package proxy

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// passage is the way of one upstream's messages to one host on stdio. Answers and
// questions go through the chain, each on a goroutine of its own, and would be
// overtaken by notifications that came after them: of a task whose id the host
// does not know yet, say. So a notification waits for what came before it, and
// what comes after it waits for the notification. Answers do not wait for each
// other. Its zero value is ready to use.
//
// On HTTP the reply ends its stream, so that what follows has another way, if any.
type passage struct {
	mu    sync.Mutex
	under []chan struct{} // answers and questions on their way
	lane  lane            // notifications that wait
}

// passage returns the way from u to s's host; nil where there is no order to keep.
func (s *session) passage(u *upstream.Server) *passage {
	if s.Transport != "stdio" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.passages[u.Key]
	if p == nil {
		p = &passage{}
		s.passages[u.Key] = p
	}
	return p
}

// departure is an answer or a question on its way to the host. Its zero value is
// of one that keeps no order.
type departure struct {
	p    *passage
	here chan struct{}   // closed by arrived
	turn <-chan struct{} // closed when the host has what came before; nil if it has
}

// waitCost is what it takes to know of one answer or question that it is waited for.
const waitCost = 8

// depart notes an answer or a question, from the reader. arrived must be called
// when the host has it, or never will.
func (p *passage) depart(g *Gateway) departure {
	d := departure{p: p, here: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	d.turn = p.lane.mark(g) // before a notification can wait for d
	p.under = append(p.under, d.here)
	return d
}

// arrived may be called more than once.
func (d departure) arrived() {
	if d.p == nil {
		return
	}
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if i := slices.Index(d.p.under, d.here); i >= 0 {
		d.p.under = slices.Delete(d.p.under, i, i+1)
		close(d.here)
	}
}

// wait returns when the host has what came before d, or ctx is done.
func (d departure) wait(ctx context.Context) {
	if d.turn == nil {
		return
	}
	select {
	case <-d.turn:
	case <-ctx.Done():
	}
}

// follow runs f, for a notification of that size, after what came before it: at
// once if all of that has arrived. Where too much waits already it does not.
func (s *session) follow(u *upstream.Server, size int, f func()) {
	p := s.passage(u)
	if p == nil {
		f()
		return
	}
	p.mu.Lock()
	before := slices.Clone(p.under)
	if len(before) == 0 && p.lane.empty() {
		p.mu.Unlock()
		f()
		return
	}
	took := p.lane.put(s.gw, size+waitCost*len(before), func() {
		for _, ch := range before {
			select {
			case <-ch:
			case <-s.ctx.Done():
			}
		}
		f()
	})
	p.mu.Unlock()
	if !took {
		u.Log.Debug("notification lost: too many wait for the host")
	}
}

// callInTurn makes the call c of fl on l, with these params. Its answer keeps
// its place among what u sends.
func (fl *inbound) callInTurn(ctx context.Context, c *interceptor.Call, u *upstream.Server, l conn.Conn, params json.RawMessage) (wire.Message, error) {
	r := &caller{fl: fl, u: u, l: l, passage: fl.s.passage(u)}
	m, err := l.Call(ctx, fl.request(fl.s.gw, c, u, r, params))
	if r.passage != nil {
		fl.departures = append(fl.departures, r.departure)
		r.departure.wait(ctx)
	}
	return m, err
}

// arrived says that the host has the answers of fl, or never will.
func (fl *inbound) arrived() {
	for _, d := range fl.departures {
		d.arrived()
	}
	fl.departures = nil
}
