package proxy

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A modern host on a legacy upstream. The upstream may ask its client
// something in the middle of a call; the modern era has no requests to hosts,
// but lets a call end with input_required and be made again with the answers.
// So the upstream's call is parked while the host gathers them, and the
// requestState that the host must repeat is the parking ticket.

// ticketPrefix marks a requestState of foldgate's own.
const ticketPrefix = "foldgate-parked:"

// parkLimit is how long a parked call waits for the host to come back.
const parkLimit = 10 * time.Minute

// maxOpen is how many questions one call may have open at its host.
const maxOpen = 100

// gatherDelay lets several questions of one call travel together.
const gatherDelay = 5 * time.Millisecond

// parked is a call to a legacy upstream that a modern host makes in rounds.
type parked struct {
	ticket, principal, method, name string
	number                          int // counts up; set by add
	up                              *upstream.Server
	first                           string // trace record of the first round
	cancel                          context.CancelCauseFunc
	expiry                          *time.Timer
	done                            chan struct{} // closed when the upstream has answered
	asked                           chan struct{} // capacity 1: there are new questions

	mu      sync.Mutex
	current *inbound // the round that is being served; nil between rounds
	latest  *inbound // the newest round
	result  wire.Message
	err     error
	next    int
	open    map[string]question
	over    bool // takes no more questions
}

// question is a request of the upstream that the host has not answered yet.
type question struct {
	l conn.Conn
	m wire.Message
	// guess: it came without saying for which call.
	guess bool
}

// sendParked sends c to a legacy upstream on behalf of a modern host.
func (g *Gateway) sendParked(ctx context.Context, fl *inbound, c *interceptor.Call, u *upstream.Server, l conn.Conn) (*interceptor.Result, error) {
	var p *parked
	if ticket, ok := rawjson.GetString(c.Target.Params, "requestState"); ok {
		if p = g.parking.find(ticket, c); p == nil {
			return nil, &interceptor.Refusal{Reason: "invalid", Code: "request_state_unknown", Status: 404,
				Message: "this requestState is unknown or expired; make the call again without requestState and inputResponses"}
		}
		c.Origin.Correlates = append(c.Origin.Correlates, p.first)
		p.resume(g.ctx, fl, c.Target.Forward)
	} else {
		g.raiseLevel(ctx, u, l, fl)
		p = g.park(fl, c, u, l)
	}
	for {
		select {
		case <-p.done:
		case <-p.asked:
			select { // a few more may be on their way
			case <-p.done:
			case <-time.After(gatherDelay):
			}
		case <-ctx.Done():
			p.cancel(context.Cause(ctx))
			g.unpark(p)
			return nil, context.Cause(ctx)
		}
		select {
		case <-p.done:
			g.unpark(p)
			if p.err != nil {
				return nil, callFault(ctx, u, c, p.err)
			}
			return toModern(c.Target.Method, resultOf(p.result)), nil
		default:
		}
		if res := p.inputRequired(); res != nil {
			if !g.parking.crowded(p.principal) {
				return res, nil
			}
			err := &interceptor.Refusal{Reason: "resource_limit", Code: "too_many_questions", Status: 429, RetryAfter: int(parkLimit.Seconds()),
				Message: fmt.Sprintf("%s asks for input, and %d calls wait for some already: answer those first; this one was cancelled", c.Target.Name, maxWaiting)}
			p.cancel(err)
			g.unpark(p)
			return nil, err
		}
	}
}

// park starts a call and keeps it.
func (g *Gateway) park(fl *inbound, c *interceptor.Call, u *upstream.Server, l conn.Conn) *parked {
	ctx, cancel := context.WithCancelCause(g.ctx)
	p := &parked{
		ticket: ticketPrefix + rand.Text(), principal: c.Origin.Principal, method: c.Target.Method, name: c.Target.Name, up: u, first: c.Outcome.Record,
		cancel: cancel, done: make(chan struct{}), asked: make(chan struct{}, 1), current: fl, latest: fl, open: map[string]question{},
	}
	p.expiry = time.AfterFunc(parkLimit, func() {
		cancel(fmt.Errorf("the host did not come back with the input within %s", parkLimit))
		g.unpark(p)
	})
	g.parking.add(p)
	fl.setParked(p)
	call := fl.request(g, c, u, parkedCaller{p, g, l}, stripReserved(c.Target.Forward))
	g.background(func() {
		defer cancel(nil)
		p.result, p.err = l.Call(ctx, call)
		close(p.done)
	})
	return p
}

// parkedCaller takes what the upstream sends over l during the parked call p.
type parkedCaller struct {
	p *parked
	g *Gateway
	l conn.Conn
}

// Message takes a notification or a request.
func (r parkedCaller) Message(m wire.Message) { r.p.event(r.g, r.l, m) }

// Answered does nothing: modern hosts have no order to keep.
func (r parkedCaller) Answered() {}

// event takes what the upstream sends during the call.
func (p *parked) event(g *Gateway, l conn.Conn, m wire.Message) {
	if m.IsRequest() {
		p.ask(g, question{l: l, m: m})
		return
	}
	if m.Method == wire.MethodCancelled {
		p.withdraw(l, m.Params)
		return
	}
	p.mu.Lock()
	fl := p.current
	p.mu.Unlock()
	if fl == nil || !wantsLog(fl, m) {
		return
	}
	if m.Method == wire.MethodProgress { // of the first round; this one may have another token, or none
		token, ok := rawjson.Get(fl.ex.Msg.Params, "_meta", "progressToken")
		if !ok {
			return
		}
		m = m.WithParams(rawjson.Set(m.Params, token, "progressToken"))
	}
	g.fromCall(fl, p.up, l, m)
}

// ask keeps a question for the host, or declines it where the host can't. One
// that came for another call and finds this one over goes on to a third.
func (p *parked) ask(g *Gateway, q question) {
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		p.passOn(g, q)
		return
	}
	can, code, why := hostCan(p.latest.ex.Msg.Params, q.m), wire.CodeMethodNotFound, "the host does not support "+q.m.Method
	if can && len(p.open) >= maxOpen {
		can, code, why = false, wire.CodeInternal, fmt.Sprintf("%d questions of this call are under way: wait for their answers first", maxOpen)
	}
	if can {
		p.next++
		p.open[fmt.Sprintf("r%d", p.next)] = q
	}
	p.mu.Unlock()
	if !can {
		at := func() conn.Conn { return q.l }
		g.answering(&g.tenants.of(p.up, p.principal).answering, p.up, at, q.m, func() func(conn.Conn) {
			return func(l conn.Conn) { g.refuse(l, q.m, code, why) }
		})
		return
	}
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

// hostCan reports whether a modern request declares the capability that an
// upstream's request needs.
func hostCan(params json.RawMessage, m wire.Message) bool {
	need := map[string]string{"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}[m.Method]
	if need == "" {
		return false
	}
	has, ok := rawjson.Get(params, "_meta", wire.MetaClientCapabilities, need)
	if mode, _ := rawjson.GetString(m.Params, "mode"); ok && mode == "url" {
		_, ok = rawjson.Get(has, "url")
	}
	return ok
}

// inputRequired ends a round with the open questions; nil if there are none.
func (p *parked) inputRequired() *interceptor.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) == 0 {
		return nil
	}
	p.current = nil
	out := []byte(`{"resultType":"input_required","inputRequests":{`)
	for i, key := range slices.Sorted(maps.Keys(p.open)) {
		if i > 0 {
			out = append(out, ',')
		}
		q := p.open[key]
		out = append(rawjson.AppendQuote(out, key), `:{"method":`...)
		out = rawjson.AppendQuote(out, q.m.Method)
		if q.m.Params != nil {
			out = append(append(out, `,"params":`...), q.m.Params...)
		}
		out = append(out, '}')
	}
	out = append(out, `},"requestState":`...)
	out = rawjson.AppendQuote(out, p.ticket)
	return &interceptor.Result{Body: append(out, '}')}
}

// resume starts a further round: the host's answers go to the upstream.
func (p *parked) resume(ctx context.Context, fl *inbound, params json.RawMessage) {
	fl.setParked(p)
	responses, _ := rawjson.Get(params, "inputResponses")
	p.mu.Lock()
	p.current, p.latest = fl, fl
	type pair struct {
		q question
		r json.RawMessage
	}
	var pairs []pair
	rawjson.Members(responses, func(m rawjson.Member) bool {
		if q, ok := p.open[m.Name()]; ok {
			delete(p.open, m.Name())
			pairs = append(pairs, pair{q, m.Value})
		}
		return true
	})
	left := len(p.open)
	p.mu.Unlock()
	for _, x := range pairs {
		_ = x.q.l.Reply(ctx, wire.Message{ID: x.q.m.ID, Result: x.r})
	}
	if left > 0 {
		select { // ask again for what is missing
		case p.asked <- struct{}{}:
		default:
		}
	}
}

func (fl *inbound) setParked(p *parked) {
	fl.s.mu.Lock()
	fl.parked = p
	fl.s.mu.Unlock()
}

// askParked gives an upstream's request to the parked call that fl is a round of.
func (fl *inbound) askParked(u *upstream.Server, l conn.Conn, m wire.Message) {
	fl.s.mu.Lock()
	p := fl.parked
	fl.s.mu.Unlock()
	if p != nil {
		p.ask(fl.s.gw, question{l: l, m: m})
		return
	}
	u.Log.Warn("request of an upstream of the modern era ignored", "method", m.Method)
}

// toModern gives a legacy result what the modern era demands of it.
func toModern(method string, res *interceptor.Result) *interceptor.Result {
	if res.Error != nil {
		return res
	}
	body := res.Body
	if _, ok := rawjson.Get(body, "resultType"); !ok && rawjson.KindOf(body) == rawjson.Object {
		body = rawjson.Set(body, []byte(`"complete"`), "resultType")
	}
	if method == "resources/read" {
		body = rawjson.Set(rawjson.Set(body, []byte("0"), "ttlMs"), []byte(`"private"`), "cacheScope")
	}
	return &interceptor.Result{Body: body, Extra: res.Extra}
}
