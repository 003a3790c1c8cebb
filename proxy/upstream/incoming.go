package upstream

import (
	"bytes"
	"log/slog"
	"sync/atomic"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// incoming is what all links do with what the upstream sends.
type incoming struct {
	cfg     *Config
	flights *flights
	refuse  func(wire.Message) // sends an error response; must not block
	state   atomic.Pointer[conn.Info]
	meta    *ownMeta // for modern requests
	noise   noise
}

// init prepares an incoming in place: it must not be copied.
func (in *incoming) init(cfg *Config, refuse func(wire.Message)) {
	in.cfg, in.refuse = cfg, refuse
	in.flights, in.meta = newFlights(cfg), newOwnMeta(wire.VersionModern)
}

func (in *incoming) Info() conn.Info {
	if p := in.state.Load(); p != nil {
		return *p
	}
	return conn.Info{}
}

func (in *incoming) settle(i conn.Info) { in.state.Store(&i) }

// receive takes one complete message that came on the stream of the call own,
// or on one that is nobody's own. Of borrowed bytes it keeps copies.
func (in *incoming) receive(raw []byte, borrowed bool, own *flight) {
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
			m = ownResponse(m)
		}
		in.respond(m, own)
	case m.IsRequest() && in.Info().Modern(): // the modern era has no requests of servers
		in.warn("request of an upstream of the modern era ignored", "method", m.Method)
	default:
		if borrowed {
			m, _ = wire.ParseMessage(bytes.Clone(raw)) // it parsed a moment ago
		}
		in.flights.route(m, own, in.Info().Modern())
	}
}

// take receives the message of an event, if it carries one.
func (in *incoming) take(ev streamEvent, own *flight) {
	switch {
	case ev.name != "" && ev.name != "message":
	case ev.data.tail != nil:
		in.unreadable(ev.data.head, ev.data.tail, tooLarge(ev.data.size, in.cfg.MaxMessage), own)
	default:
		oneLine(ev.data.head)
		in.receive(ev.data.head, false, own)
	}
}

// batch takes an array of messages, which 2025-03-26 allows.
func (in *incoming) batch(raw []byte, own *flight) bool {
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

// ownResponse copies what callers need of a response in borrowed bytes.
func ownResponse(m wire.Message) wire.Message {
	m.Raw = nil
	m.ID, m.Result, m.Error = bytes.Clone(m.ID), bytes.Clone(m.Result), bytes.Clone(m.Error)
	return m
}

func (in *incoming) respond(m wire.Message, own *flight) {
	id := ownID(m.ID)
	if id == 0 && m.Error != nil { // a null id: the upstream could not read it
		id = in.suspect(own)
	}
	if id == 0 || !in.flights.resolve(id, outcome{msg: m}, own) {
		in.warn("response to no request of ours dropped", "id", in.cfg.clip(m.ID))
	}
}

// suspect returns the id of the call that a message without id must belong to,
// or 0 where there are several.
func (in *incoming) suspect(own *flight) int64 {
	if own != nil {
		return own.id
	}
	return in.flights.sole()
}

// unreadable deals with a message of which only the ends, or not even those,
// make sense: the call it answers fails with err, a request is refused, and
// anything else is noise to be logged.
func (in *incoming) unreadable(head, tail []byte, err error, own *flight) {
	f := fragment{}
	if rawjson.KindOf(head) == rawjson.Object {
		f = salvage(head, tail)
	}
	id := ownID(f.id)
	if f.id == nil && tail != nil {
		id = in.suspect(own)
	}
	switch {
	case f.method != "" && f.id != nil:
		in.warn("request of upstream refused", "method", f.method, "because", err)
		in.refuse(errorMessage(f.id, wire.CodeInvalidRequest, err.Error()))
	case f.method != "":
		in.warn("notification of upstream dropped", "method", f.method, "because", err)
	case id != 0 && in.flights.resolve(id, outcome{err: err}, own):
	default:
		in.warn("not a message, skipped", "line", in.cfg.clip(head), "because", err)
	}
}

func (in *incoming) warn(msg string, args ...any) {
	in.noise.log(in.cfg.Log, slog.LevelWarn, msg, args...)
}
