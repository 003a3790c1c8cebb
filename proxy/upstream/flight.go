package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// flight is one call under way.
type flight struct {
	id   int64
	call *conn.Request
	// token is the host's progress token, nil where it asked for none.
	token json.RawMessage
	done  chan outcome // capacity 1
	// abort, if there is one, ends the wait on the call's own stream when the
	// outcome comes from elsewhere.
	abort context.CancelCauseFunc

	mu   sync.Mutex // held while Event runs, so that none runs after call returned
	over bool       // no more events
}

// outcome is what a call ends with.
type outcome struct {
	msg wire.Message
	err error
}

// event hands m to the caller. It returns false if the request has no caller.
// If the request is over, it drops m and returns true.
func (f *flight) event(m wire.Message) bool {
	if f.call.Caller == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		f.call.Caller.Message(m)
	}
	return true
}

// flights is the table of the calls under way on one link.
type flights struct {
	cfg *Config

	mu     sync.Mutex // guards what follows; never held across a callback
	last   int64
	open   map[int64]*flight
	tokens map[string]*flight // by tokenKey of the token as the upstream knows it
	dead   error              // why no call may begin
}

func newFlights(cfg *Config) *flights {
	return &flights{cfg: cfg, open: map[int64]*flight{}, tokens: map[string]*flight{}}
}

// begin enters a call and returns it with the params to send: the host's own,
// but for a progress token that had to be made unique.
func (t *flights) begin(c *conn.Request, abort context.CancelCauseFunc) (*flight, json.RawMessage, error) {
	f := &flight{call: c, done: make(chan outcome, 1), abort: abort}
	params := c.Params
	// Looking for the token means reading all arguments; most calls have none.
	if bytes.Contains(params, []byte("progressToken")) {
		f.token, _ = rawjson.Get(params, "_meta", "progressToken")
		if rawjson.KindOf(f.token) == rawjson.Null { // asks for nothing, and must not be made to
			f.token = nil
		}
	}
	t.mu.Lock()
	if t.dead != nil {
		t.mu.Unlock()
		return nil, nil, t.dead
	}
	t.last++
	f.id = t.last
	t.open[f.id] = f
	if f.token != nil {
		t.tokens[t.wireToken(f)] = f
	}
	t.mu.Unlock()
	if f.token != nil && t.cfg.Shared {
		params = rawjson.Set(params, f.idLiteral(), "_meta", "progressToken")
	}
	return f, params, nil
}

func (f *flight) idLiteral() []byte { return strconv.AppendInt(nil, f.id, 10) }

// wireToken returns the key of f's token as the upstream sees it.
func (t *flights) wireToken(f *flight) string {
	if t.cfg.Shared {
		return string(f.idLiteral())
	}
	return tokenKey(f.token)
}

// tokenKey makes equal tokens equal strings, however a string is escaped.
func tokenKey(lit []byte) string {
	if rawjson.KindOf(lit) == rawjson.String {
		return `"` + rawjson.Unquote(lit)
	}
	return string(lit)
}

// take removes the call with this id from the table. It returns nil where
// there is none; late says that there was one.
func (t *flights) take(id int64) (f *flight, late bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f = t.open[id]
	if f == nil {
		return nil, id > 0 && id <= t.last
	}
	delete(t.open, id)
	if f.token != nil {
		if key := t.wireToken(f); t.tokens[key] == f {
			delete(t.tokens, key)
		}
	}
	return f, false
}

// end removes f, after which it gets no events. It reports whether f was still
// open: if not, its outcome is in f.done or about to be.
func (t *flights) end(f *flight) bool {
	got, _ := t.take(f.id)
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	return got != nil
}

// resolve ends the call with this id, on whose stream own the outcome came if
// that is known. It returns false for an id never used.
func (t *flights) resolve(id int64, o outcome, own *flight) (known bool) {
	f, late := t.take(id)
	if f == nil {
		return late
	}
	if f.call.Caller != nil && o.err == nil {
		f.call.Caller.Answered()
	}
	f.finish(o, own)
	return true
}

// finish delivers the outcome of a call that is out of the table.
func (f *flight) finish(o outcome, own *flight) {
	f.done <- o
	if f.abort != nil && f != own {
		f.abort(o.err)
	}
}

// fail ends all calls with err, and every later one. The first err counts.
func (t *flights) fail(err error) {
	t.mu.Lock()
	if t.dead == nil {
		t.dead = err
	}
	open := t.open
	t.open, t.tokens = map[int64]*flight{}, map[string]*flight{}
	t.mu.Unlock()
	for _, f := range open {
		f.finish(outcome{err: err}, nil)
	}
}

// get returns the open call with this id, or nil.
func (t *flights) get(id int64) *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[id]
}

// sole returns the id of the only call under way, or 0.
func (t *flights) sole() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) == 1 {
		for id := range t.open {
			return id
		}
	}
	return 0
}

// ownID reads an id of ours from a message of the upstream. Some servers send
// integers back as strings. It returns 0 for what can't be one.
func ownID(lit []byte) int64 {
	if rawjson.KindOf(lit) == rawjson.String && len(lit) > 2 {
		lit = lit[1 : len(lit)-1]
	}
	id, err := strconv.ParseInt(string(lit), 10, 64)
	if err != nil || id < 0 {
		return 0
	}
	return id
}
