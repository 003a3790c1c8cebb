package upstream

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// duplex is what links have in common whose messages all travel on one stream
// in each direction: a child's pipes, or the old HTTP+SSE pair.
type duplex struct {
	incoming
	// send passes one message on, given as a function that appends it to a
	// buffer. An error means that the upstream did not get it, unless ctx ended.
	send func(ctx context.Context, build func([]byte) []byte) error
	// async runs a function that sends something without making its caller wait.
	async func(func())
}

func (d *duplex) Call(ctx context.Context, c *conn.Request) (wire.Message, error) {
	if ctx.Err() != nil {
		return wire.Message{}, context.Cause(ctx)
	}
	f, params, err := d.flights.begin(c, nil)
	if err != nil {
		return wire.Message{}, err
	}
	if d.Info().Modern() {
		params = d.meta.complete(params)
	}
	err = d.send(ctx, func(b []byte) []byte {
		var id [20]byte
		return appendRequest(b, strconv.AppendInt(id[:0], f.id, 10), c.Method, params, c.Extra)
	})
	if err != nil && ctx.Err() == nil {
		if d.flights.end(f) {
			return wire.Message{}, err
		}
		o := <-f.done
		return o.msg, o.err
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
	if c.Method != wire.MethodInitialize { // which must not be cancelled
		d.async(func() {
			_ = d.Notify(context.WithoutCancel(ctx), wire.Message{Method: wire.MethodCancelled, Params: cancelParams(f.id, cause)}) // nobody waits for it
		})
	}
	return wire.Message{}, cause
}

// cancelParams are the params of notifications/cancelled.
func cancelParams(id int64, cause error) json.RawMessage {
	p := append([]byte(`{"requestId":`), strconv.FormatInt(id, 10)...)
	return append(rawjson.AppendQuote(append(p, `,"reason":`...), cause.Error()), '}')
}

func (d *duplex) Notify(ctx context.Context, m wire.Message) error {
	return d.send(ctx, func(b []byte) []byte { return appendRequest(b, nil, m.Method, m.Params, m.Extra) })
}

func (d *duplex) Reply(ctx context.Context, m wire.Message) error {
	return d.send(ctx, func(b []byte) []byte { return appendReply(b, m) })
}

// appendReply appends the response m as one line without its newline.
func appendReply(dst []byte, m wire.Message) []byte {
	m.Method, m.Params = "", nil
	start := len(dst)
	dst = m.Append(dst)
	oneLine(dst[start:])
	return dst
}

// sendRefusal answers a request of the upstream that could not be read.
func (d *duplex) sendRefusal(m wire.Message) {
	d.async(func() { _ = d.Reply(context.Background(), m) }) // a dead link needs no refusal
}
