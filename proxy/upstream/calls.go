package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// calls is the table of the pending calls: the server has not answered them.
type calls struct {
	cfg *Config

	mu     sync.Mutex // not held across a callback
	last   int64
	open   map[int64]*call
	tokens map[string]*call // by wire.TokenKey of the host's token; unused if the connection is shared
	using  int              // open calls for which somebody waits
	since  time.Time        // when the last of them ended
	closed error            // why no call may begin
}

func newCalls(cfg *Config) *calls {
	return &calls{cfg: cfg, open: map[int64]*call{}, tokens: map[string]*call{}, since: time.Now()}
}

type call struct {
	id      int64
	request *conn.Request
	// token is the host's progress token, nil if it asked for no progress.
	token json.RawMessage
	// watch means that it only listens for changes of lists: its connection may be closed as idle.
	watch bool
	// abort ends the call's own HTTP exchange when the response arrives on another stream. It is nil
	// without such an exchange, and guarded by calls.mu.
	abort context.CancelCauseFunc

	accepted atomic.Bool   // by an HTTP server: its status is 2xx
	done     chan struct{} // closed when response and err are set
	response wire.Message
	err      error

	mu   sync.Mutex // held while the receiver takes a message
	over bool       // the receiver takes no more messages
}

// begin enters a call. It returns the params to send: the host's own, except for a progress token
// that had to be made unique.
func (t *calls) begin(r *conn.Request) (*call, json.RawMessage, error) {
	c := &call{request: r, done: make(chan struct{})}
	c.watch = r.Method == wire.MethodListen && !bytes.Contains(r.Params, []byte("resourceSubscriptions"))
	// Looking for the token means reading all arguments. Most calls have none. Its key may be spelled with escapes.
	if bytes.Contains(r.Params, []byte("progressToken")) || bytes.Contains(r.Params, []byte(`\u00`)) {
		c.token, _ = rawjson.Get(r.Params, "_meta", "progressToken")
		if rawjson.KindOf(c.token) == rawjson.Null { // asks for no progress
			c.token = nil
		}
	}
	t.mu.Lock()
	if t.closed != nil {
		defer t.mu.Unlock()
		return nil, nil, t.closed
	}
	t.last++
	c.id = t.last
	t.open[c.id] = c
	if !c.watch {
		t.using++
	}
	replaced := c.token != nil && t.cfg.Host.Shared
	if c.token != nil && !replaced {
		t.tokens[wire.TokenKey(c.token)] = c
	}
	t.mu.Unlock()
	if replaced {
		return c, rawjson.Set(r.Params, c.idLiteral(), "_meta", "progressToken"), nil
	}
	return c, r.Params, nil
}

func (c *call) idLiteral() []byte { return strconv.AppendInt(nil, c.id, 10) }

// setAbort sets the abort of c. It returns false if c is over.
func (t *calls) setAbort(c *call, abort context.CancelCauseFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[c.id] != c {
		return false
	}
	c.abort = abort
	return true
}

// resolve ends the call with this id by a response or an error. own is the call on whose stream it
// came, if that is known. resolve returns false for an id that was never used.
func (t *calls) resolve(id int64, m wire.Message, err error, own *call) (known bool) {
	c, late := t.take(id)
	if c == nil {
		return late
	}
	switch {
	case m.Error != nil:
		m.Error = wire.ReadableError(m.Error)
	case err == nil:
		m = m.ReadableResult()
	}
	defer c.finish(m, err, own)
	if c.request.Receiver != nil && err == nil {
		c.request.Receiver.ResponseArrived(m)
	}
	return true
}

// take removes and returns the call with this id. Without such a call it returns nil, and late if
// the call has ended.
func (t *calls) take(id int64) (c *call, late bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c = t.open[id]
	if c == nil {
		return nil, id > 0 && id <= t.last
	}
	t.remove(c)
	return c, false
}

// remove takes an open call out of the table. The caller holds mu.
func (t *calls) remove(c *call) {
	delete(t.open, c.id)
	if !c.watch {
		t.using--
		t.since = time.Now()
	}
	if c.token != nil {
		if key := wire.TokenKey(c.token); t.tokens[key] == c {
			delete(t.tokens, key)
		}
	}
}

// finish ends a call that is out of the table.
func (c *call) finish(m wire.Message, err error, own *call) {
	c.response, c.err = m, err
	close(c.done)
	if c.abort != nil && c != own {
		c.abort(err)
	}
}

// abandon removes c. Its receiver takes no messages from then on. abandon reports whether c was
// still pending: if not, c.done is closed or about to be.
func (t *calls) abandon(c *call) bool {
	got, _ := t.take(c.id)
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	return got != nil
}

// fail ends all calls with err, and every later one, and returns the calls that it ended. The first
// err counts. If the server forgot the session, a request that is on its way goes on: the server may be working on
// it, and says in the HTTP exchange of the request whether it did something.
func (t *calls) fail(err error) (ended map[int64]*call) {
	gone := errors.Is(err, conn.ErrSessionGone)
	t.mu.Lock()
	if t.closed == nil {
		t.closed = err
	}
	ended = map[int64]*call{}
	for id, c := range t.open {
		if !gone || c.abort == nil || c.accepted.Load() {
			ended[id] = c
			t.remove(c)
		}
	}
	t.mu.Unlock()
	for _, c := range ended {
		because := err
		if gone && c.accepted.Load() {
			because = errForgotten
		}
		c.finish(wire.Message{}, because, nil)
	}
	return ended
}

// idle returns since when nobody waits for a call. ok is false if somebody does.
func (t *calls) idle() (since time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.since, t.using == 0
}

// retire ends the table unless somebody waits for a call. A later call fails with conn.ErrSessionGone,
// since the server did nothing for it.
func (t *calls) retire() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.using > 0 || t.closed != nil {
		return false
	}
	t.closed = errRetired
	return true
}

func (t *calls) get(id int64) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[id]
}

// suspect returns the id of the call that a message without an id must belong to: own, else the
// only pending call. It returns 0 if there are several, or if several principals share the connection.
func (t *calls) suspect(own *call) int64 {
	if own != nil {
		return own.id
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) == 1 && !t.cfg.Host.Everyone {
		for id := range t.open {
			return id
		}
	}
	return 0
}

// route hands a request or notification of the server to the receiver that it belongs to: by
// progress token, by subscription, else own (the call on whose stream it came, nil if that is
// unknown), else to the Handler.
func (t *calls) route(m wire.Message, own *call, modern bool) {
	switch {
	case m.IsRequest():
	case m.Method == wire.MethodProgress:
		c, forward := t.progress(&m)
		if !forward {
			return
		}
		if c != nil {
			own = c
		}
	case modern && m.Method == wire.MethodCancelled && own == nil:
		// A modern server makes no requests, so the id is ours: a stdio server ends a subscription
		// by cancelling it.
		id, _ := rawjson.Get(m.Params, "requestId")
		reason, _ := rawjson.GetString(m.Params, "reason")
		if c := t.get(wire.OwnID(id)); c != nil && c.request.Method == wire.MethodListen {
			t.resolve(c.id, wire.Message{}, fmt.Errorf("%w: %q", errListenEnded, reason), nil)
		}
		return
	case modern:
		if c := t.subscription(m); c != nil {
			own = c
		}
	}
	if own == nil || own.request.Receiver == nil {
		t.cfg.Handler.Unsolicited(m)
		return
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	if !own.over {
		own.request.Receiver.Message(m)
	}
}

// progress returns the call to which a progress notification belongs, and gives the host its own
// token back. forward is false for a token of ours of a call that is over.
func (t *calls) progress(m *wire.Message) (c *call, forward bool) {
	lit, ok := rawjson.Get(m.Params, "progressToken")
	if !ok {
		return nil, true
	}
	if !t.cfg.Host.Shared {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.tokens[wire.TokenKey(lit)], true
	}
	if c = t.get(wire.OwnID(lit)); c == nil || c.token == nil {
		return nil, false
	}
	*m = m.WithParams(rawjson.Set(m.Params, c.token, "progressToken"))
	return c, true
}

// subscription returns the subscriptions/listen that a notification belongs to, nil if that is none.
func (t *calls) subscription(m wire.Message) *call {
	lit, ok := rawjson.Get(m.Params, "_meta", wire.MetaSubscriptionID)
	if !ok {
		return nil
	}
	c := t.get(wire.OwnID(lit))
	if c == nil || c.request.Method != wire.MethodListen {
		return nil
	}
	return c
}
