package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// duplex is what links have in common whose messages all travel on one stream
// in each direction: a child's pipes, or the old HTTP+SSE pair.
type duplex struct {
	cfg     *linkConfig
	flights *flights
	// send queues one message, given as a function that appends it to a
	// buffer. It does not wait for the upstream.
	send func(build func([]byte) []byte) error

	state atomic.Pointer[linkInfo]
	meta  *ownMeta // for modern requests
}

func newDuplex(cfg *linkConfig) duplex {
	return duplex{cfg: cfg, flights: newFlights(cfg), meta: newOwnMeta(versionModern)}
}

func (d *duplex) info() linkInfo {
	if p := d.state.Load(); p != nil {
		return *p
	}
	return linkInfo{}
}

func (d *duplex) settle(i linkInfo) { d.state.Store(&i) }

func (d *duplex) call(ctx context.Context, c *linkCall) (Message, error) {
	if ctx.Err() != nil {
		return Message{}, context.Cause(ctx)
	}
	f, params, err := d.flights.begin(c)
	if err != nil {
		return Message{}, err
	}
	if d.info().Modern() {
		params = d.meta.complete(params)
	}
	err = d.send(func(b []byte) []byte {
		var id [20]byte
		return appendRequest(b, strconv.AppendInt(id[:0], f.id, 10), c.Method, params, c.Extra)
	})
	if err != nil {
		d.flights.end(f)
		return Message{}, err
	}
	select {
	case o := <-f.done:
		return o.msg, o.err
	case <-ctx.Done():
	}
	if !d.flights.end(f) { // the answer was faster after all
		o := <-f.done
		return o.msg, o.err
	}
	cause := context.Cause(ctx)
	if c.Method != methodInitialize { // which must not be cancelled
		_ = d.notify(context.WithoutCancel(ctx), methodCancelled, cancelParams(f.id, cause))
	}
	return Message{}, cause
}

// cancelParams are the params of notifications/cancelled.
func cancelParams(id int64, cause error) json.RawMessage {
	p := append([]byte(`{"requestId":`), strconv.FormatInt(id, 10)...)
	return append(rawjson.AppendQuote(append(p, `,"reason":`...), cause.Error()), '}')
}

func (d *duplex) notify(_ context.Context, method string, params json.RawMessage) error {
	return d.send(func(b []byte) []byte { return appendRequest(b, nil, method, params, nil) })
}

func (d *duplex) reply(_ context.Context, m Message) error {
	m.Method, m.Params = "", nil
	return d.send(func(b []byte) []byte {
		start := len(b)
		b = append(b, m.Encode()...)
		oneLine(b[start:])
		return b
	})
}

// receive takes one complete message. Of borrowed bytes it keeps copies.
func (d *duplex) receive(raw []byte, borrowed bool) {
	raw = rawjson.Trim(raw)
	if len(raw) == 0 {
		return
	}
	if raw[0] == '[' && d.batch(raw) {
		return
	}
	m, err := ParseMessage(raw)
	switch {
	case err != nil:
		d.unreadable(raw, nil, badMessage(raw, err))
	case m.IsResponse():
		if borrowed {
			m = ownResponse(m)
		}
		d.respond(m)
	default:
		if borrowed {
			m, _ = ParseMessage(bytes.Clone(raw)) // it parsed a moment ago
		}
		d.flights.route(m, nil, d.info().Modern())
	}
}

// batch takes an array of messages, which 2025-03-26 allows.
func (d *duplex) batch(raw []byte) bool {
	if !rawjson.Valid(raw, maxDepth+1) {
		return false
	}
	return rawjson.Elements(raw, func(v []byte) bool {
		if rawjson.KindOf(v) == rawjson.Object {
			d.receive(bytes.Clone(v), false)
		}
		return true
	})
}

// ownResponse copies what callers need of a response in borrowed bytes.
func ownResponse(m Message) Message {
	m.Raw = nil
	m.ID, m.Result, m.Error = bytes.Clone(m.ID), bytes.Clone(m.Result), bytes.Clone(m.Error)
	return m
}

func (d *duplex) respond(m Message) {
	id := ownID(m.ID)
	if id == 0 && m.Error != nil { // a null id: the upstream could not read it
		id = d.flights.sole()
	}
	if id == 0 || !d.flights.resolve(id, outcome{msg: m}) {
		d.cfg.Log.Warn("response to no request of ours dropped", "id", clip(m.ID))
	}
}

// unreadable deals with a message of which only the ends, or not even those,
// make sense: the call it answers fails with err, a request is refused, and
// anything else is noise to be logged.
func (d *duplex) unreadable(head, tail []byte, err error) {
	f := fragment{}
	if rawjson.KindOf(head) == rawjson.Object {
		f = salvage(head, tail)
	}
	switch {
	case f.method != "" && f.id != nil:
		d.cfg.Log.Warn("request of upstream refused", "method", f.method, "because", err)
		refusal := errorReply(f.id, codeInvalidRequest, err.Error())
		_ = d.send(func(b []byte) []byte { return append(b, refusal...) }) // a dead link needs no refusal
	case f.method != "":
		d.cfg.Log.Warn("notification of upstream dropped", "method", f.method, "because", err)
	case f.id == nil && tail != nil && d.flights.sole() != 0:
		d.flights.resolve(d.flights.sole(), outcome{err: err})
	case f.id != nil && d.flights.resolve(ownID(f.id), outcome{err: err}):
	default:
		d.cfg.Log.Warn("not a message, skipped", "line", clip(head), "because", err)
	}
}

// clip shortens foreign bytes for the log.
func clip(b []byte) string {
	const most = 200
	if len(b) > most {
		return fmt.Sprintf("%q… (%d bytes)", b[:most], len(b))
	}
	return fmt.Sprintf("%q", b)
}
