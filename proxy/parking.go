package proxy

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// parking is the set of parked calls. Its zero value is ready to use.
type parking struct {
	mu   sync.Mutex
	all  map[string]*parked
	last int // number of the newest
}

func (k *parking) add(p *parked) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[string]*parked{}
	}
	k.last++
	p.number = k.last
	k.all[p.ticket] = p
}

// find returns the call that a ticket belongs to: same principal, same call.
func (k *parking) find(ticket string, c *interceptor.Call) *parked {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.all[ticket]; p != nil && p.principal == c.Origin.Principal && p.method == c.Target.Method && p.name == c.Target.Name {
		return p
	}
	return nil
}

// maxWaiting is how many calls of one principal may wait for its hosts' input.
const maxWaiting = 1000

// crowded reports whether more calls of a principal wait for input than may: a
// host that never comes back leaves each of its calls for as long as parkLimit.
func (k *parking) crowded(principal string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	waiting := 0
	for _, p := range k.all {
		if p.principal != principal {
			continue
		}
		p.mu.Lock()
		if p.current == nil {
			waiting++
		}
		p.mu.Unlock()
	}
	return waiting > maxWaiting
}

// suited returns the parked call of the tenant that gets the question m, which came
// without saying for which call: of those whose host can answer, first the ones
// that are being served, then the one with the fewest questions open, then the
// oldest. The answer goes back to the question, whichever call carried it.
func (k *parking) suited(st *tenant, m wire.Message) (found *parked) {
	k.mu.Lock()
	defer k.mu.Unlock()
	least := [3]int{}
	for _, p := range k.all {
		p.mu.Lock()
		fits := p.up == st.up && p.principal == st.principal && hostCan(p.latest.ex.Msg.Params, m)
		rank := [3]int{0, len(p.open), p.number}
		if p.current == nil {
			rank[0] = 1
		}
		p.mu.Unlock()
		if fits && (found == nil || slices.Compare(rank[:], least[:]) < 0) {
			found, least = p, rank
		}
	}
	return found
}

// withdraw drops the question that an upstream took back over the tenant's link.
func (k *parking) withdraw(st *tenant, params json.RawMessage) {
	l := st.conn()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.all {
		p.withdraw(l, params)
	}
}

// withdraw drops the question that l took back, if the host has not answered it.
func (p *parked) withdraw(l conn.Conn, params json.RawMessage) {
	id, _ := rawjson.Get(params, "requestId")
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.open, func(_ string, q question) bool { return q.l == l && string(q.m.ID) == string(id) })
}

// unpark forgets a call that is over. Questions that it carried for others find
// another call; those of its own need no answer any more.
func (g *Gateway) unpark(p *parked) {
	g.parking.remove(p)
	p.mu.Lock()
	open := p.open
	p.open, p.over = map[string]question{}, true
	p.mu.Unlock()
	for _, q := range open {
		p.passOn(g, q)
	}
}

// passOn finds another call for a question that p, which is not parked any
// more, carried for one.
func (p *parked) passOn(g *Gateway, q question) {
	if q.guess {
		g.background(func() { g.answerShared(g.tenants.of(p.up, p.principal), q.l, q.m) })
	}
}

func (k *parking) remove(p *parked) {
	p.expiry.Stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, p.ticket)
}

// close ends all parked calls.
func (k *parking) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.all {
		p.expiry.Stop()
		p.cancel(errSessionClosed)
	}
	k.all = nil
}
