package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync/atomic"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// receiver is what all connections do with what the server sends.
type receiver struct {
	cfg     *Config
	pending *pending
	refuser refuser
	info    atomic.Pointer[conn.Info]
	log     rateLimitedLog
}

// refuser answers a request of the server with an error. It must not block.
type refuser interface{ refuse(wire.Message) }

// init prepares a receiver in place, since it must not be copied.
func (in *receiver) init(cfg *Config, r refuser) {
	in.cfg, in.pending, in.refuser = cfg, newPending(cfg), r
}

// Info returns what the server said of itself.
func (in *receiver) Info() conn.Info {
	if p := in.info.Load(); p != nil {
		return *p
	}
	return conn.Info{}
}

func (in *receiver) setInfo(i conn.Info) { in.info.Store(&i) }

// receive takes one complete message. own is the call on whose stream it came,
// nil if the stream belongs to no call. receive copies what it keeps of borrowed
// bytes.
func (in *receiver) receive(raw []byte, borrowed bool, own *call) {
	raw = rawjson.Trim(raw)
	if len(raw) == 0 {
		return
	}
	if raw[0] == '[' && in.batch(raw, own) {
		return
	}
	m, err := wire.ParseMessage(raw)
	switch {
	case err != nil:
		in.unreadable(raw, nil, badMessage(raw, err), own)
	case m.IsResponse():
		if borrowed {
			m.Raw = nil
			m.ID, m.Result, m.Error = bytes.Clone(m.ID), bytes.Clone(m.Result), bytes.Clone(m.Error)
		}
		id := ownID(m.ID)
		if id == 0 && m.Error != nil { // a null id: the server could not read it
			id = in.pending.suspect(own)
		}
		if id == 0 || !in.pending.resolve(id, outcome{msg: m}, own) {
			in.warn("response to no request of ours dropped", "id", in.cfg.clip(m.ID))
		}
	case m.IsRequest() && in.Info().Modern(): // modern servers make no requests
		in.warn("request of an upstream of the modern era ignored", "method", m.Method)
	default:
		if borrowed {
			m, _ = wire.ParseMessage(bytes.Clone(raw)) // it parsed a moment ago
		}
		in.pending.route(m, own, in.Info().Modern())
	}
}

// batch takes an array of messages, which revision 2025-03-26 allows.
func (in *receiver) batch(raw []byte, own *call) bool {
	if !rawjson.Valid(raw, wire.MaxDepth+1) {
		return false
	}
	return rawjson.Elements(raw, func(v []byte) bool {
		if rawjson.KindOf(v) == rawjson.Object {
			in.receive(bytes.Clone(v), false, own)
		}
		return true
	})
}

// receiveEvent takes the message of an event, if it carries one.
func (in *receiver) receiveEvent(ev streamEvent, own *call) {
	switch {
	case ev.name != "" && ev.name != "message":
	case ev.data.Tail != nil:
		in.unreadable(ev.data.Head, ev.data.Tail, tooLarge(ev.data.Size, in.cfg.MaxMessage), own)
	default:
		wire.OneLine(ev.data.Head)
		in.receive(ev.data.Head, false, own)
	}
}

// unreadable takes a message that can't be read, or only its ends. A response
// fails its call with err, a request is refused, anything else is logged.
func (in *receiver) unreadable(head, tail []byte, err error, own *call) {
	f := fragment{}
	if rawjson.KindOf(head) == rawjson.Object {
		f = salvage(head, tail)
	}
	id := ownID(f.id)
	if f.id == nil && tail != nil {
		id = in.pending.suspect(own)
	}
	switch {
	case f.method != "" && f.id != nil:
		in.warn("request of upstream refused", "method", f.method, "because", err)
		e := &wire.Error{Code: wire.CodeInvalidRequest, Message: err.Error()}
		in.refuser.refuse(wire.Message{ID: f.id, Error: e.JSON()})
	case f.method != "":
		in.warn("notification of upstream dropped", "method", f.method, "because", err)
	case id != 0 && in.pending.resolve(id, outcome{err: err}, own):
	default:
		in.warn("not a message, skipped", "line", in.cfg.clip(head), "because", err)
	}
}

func (in *receiver) warn(msg string, args ...any) {
	in.log.log(in.cfg.Log, slog.LevelWarn, msg, args...)
}

// fragment is the readable part of a message that can't be read as a whole.
type fragment struct {
	id     []byte // the id's literal, nil if not found
	method string // "" for a response, or if not found
}

// idAtEnd matches an id that follows the large member of a message.
var idAtEnd = regexp.MustCompile(`,\s*"id"\s*:\s*("[^"\\]*"|-?\d+)\s*(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*)*\}\s*$`)

// salvage reads the id and the method from the first bytes of a message and, if
// they are not the whole, from the last ones.
func salvage(head, tail []byte) fragment {
	var f fragment
	rawjson.Members(head, func(m rawjson.Member) bool {
		switch {
		case m.Is("id") && len(m.Value) > 0:
			f.id = bytes.Clone(m.Value)
		case m.Is("method"):
			f.method = rawjson.Unquote(m.Value)
		}
		return true
	})
	if f.id == nil && tail != nil {
		if m := idAtEnd.FindSubmatch(tail); m != nil {
			f.id = bytes.Clone(m[1])
		}
	}
	return f
}

// tooLarge returns the fault of a message of size bytes. size <= 0 means that it
// was not read to its end.
func tooLarge(size, max int) error {
	if size <= 0 {
		return fmt.Errorf("%w: more than the %d bytes allowed", errUnreadable, max)
	}
	return fmt.Errorf("%w: %d bytes are more than the %d allowed", errUnreadable, size, max)
}

// badMessage returns the fault of a complete message that does not parse.
func badMessage(raw []byte, err error) error {
	if errors.Is(err, wire.ErrNotJSON) && rawjson.Depth(raw) > wire.MaxDepth {
		return fmt.Errorf("%w: nests deeper than %d levels", errUnreadable, wire.MaxDepth)
	}
	return fmt.Errorf("%w: %w", errUnreadable, err)
}
