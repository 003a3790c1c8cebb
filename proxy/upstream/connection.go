package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// connection is the part that all connections share: it sends requests, resolves their responses,
// and hands on the requests and notifications of the server. It ends once, for a reason, and waits
// for the goroutines that it started.
type connection struct {
	*calls    // also says whether the connection is idle; see [idler]
	cfg       *Config
	transport transport
	queues    bool // the transport never blocks
	info      atomic.Pointer[conn.Info]
	warnings  rateLimitedLog
	skipped   keyBlock               // lines that are no messages
	noise     atomic.Pointer[string] // the first of them, for an error; nil for none
	asides    atomic.Int64           // messages that no caller waits for, on their way

	lifetime context.Context // its cause is conn.ErrClosed after a plain close
	end      context.CancelCauseFunc
	mu       sync.Mutex // orders Go and lose
	group    sync.WaitGroup
}

type transport interface {
	// send sends m. If m is a request, c is its call. A transport that reads the response itself
	// returns when c is resolved. An error means that the server did not get m or that the response
	// was lost, unless ctx ended. When the connection ends, send gives up only the requests of calls.
	send(ctx context.Context, m wire.Message, c *call) error
}

// init prepares a connection in place, since it must not be copied.
func (s *connection) init(cfg *Config, t transport) {
	s.cfg, s.transport, s.calls = cfg, t, newCalls(cfg)
	s.setInfo(conn.Info{})
	s.lifetime, s.end = context.WithCancelCause(context.Background())
}

// Info returns the server's description of itself.
func (s *connection) Info() conn.Info { return *s.info.Load() }

func (s *connection) setInfo(i conn.Info) { s.info.Store(&i) }

// Call sends a request and waits for the response.
func (s *connection) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	if ctx.Err() != nil {
		return wire.Message{}, context.Cause(ctx)
	}
	c, params, err := s.calls.begin(r)
	if err != nil {
		return wire.Message{}, err
	}
	if s.Info().Modern() {
		params = completeMeta(params, s.cfg.Capabilities)
	}
	err = s.transport.send(ctx, wire.Message{ID: c.idLiteral(), Method: r.Method, Params: params, Extra: r.Extra}, c)
	if err == nil || ctx.Err() != nil {
		select {
		case <-c.done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if !s.calls.abandon(c) { // it has a response, also if ctx ended meanwhile
		<-c.done
		return c.response, c.err
	}
	if ctx.Err() != nil {
		s.cancelled(c, err)
	}
	return wire.Message{}, err
}

// cancelled tells the server that a call is cancelled. The protocol forbids this for initialize.
func (s *connection) cancelled(c *call, because error) {
	if c.request.Method != wire.MethodInitialize {
		s.aside(wire.Message{Method: wire.MethodCancelled, Params: wire.CancelledParams(c.idLiteral(), because.Error())})
	}
}

// Send sends a notification or an answer while its caller waits.
func (s *connection) Send(ctx context.Context, m wire.Message) error {
	if err := s.fault(); err != nil {
		return err
	}
	if m.IsResponse() {
		m.Params = nil
	} else {
		m.ID, m.Result, m.Error = nil, nil, nil
	}
	ctx, cancel := s.context(ctx)
	defer cancel()
	return s.transport.send(ctx, m, nil)
}

// context returns a context that ends with the connection, too.
func (s *connection) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(s.lifetime, func() { cancel(s.fault()) })
	return ctx, func() { stop(); cancel(nil) }
}

const (
	// sendTimeout bounds the sending of a message for which no caller waits.
	sendTimeout = 5 * time.Second
	// maxAsides is how many of them may wait. Then answers are dropped: a server may send requests that
	// foldgate refuses faster than it takes the answers.
	maxAsides = 1000
)

// aside sends a message without making its caller wait. Close waits until it is sent: a server that
// misses the cancellation of a call would go on working.
func (s *connection) aside(m wire.Message) {
	if s.queues {
		_ = s.transport.send(context.Background(), m, nil) // a lost connection needs no message
		return
	}
	if s.asides.Add(1) > maxAsides && m.IsResponse() {
		s.asides.Add(-1)
		s.cfg.Log.Debug("answer to upstream dropped: too many wait")
		return
	}
	s.Go(func() {
		defer s.asides.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
		defer cancel()
		err := s.transport.send(ctx, m, nil)
		if err != nil && m.Method == wire.MethodCancelled && ctx.Err() == nil {
			// It may have got the network connection of a request that net/http cancelled a moment later.
			err = s.transport.send(ctx, m, nil)
		}
		if err != nil {
			s.cfg.Log.Debug("message to upstream lost", "err", err)
		}
	})
}

// Go runs f in a goroutine that Close waits for. It returns false if the connection has ended.
func (s *connection) Go(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault() != nil {
		return false
	}
	s.group.Go(f)
	return true
}

// lose ends the connection and its pending calls. reason is nil for a plain close, in which the
// server is told that the calls are cancelled. Only the first call of lose has an effect.
func (s *connection) lose(reason error) {
	if reason == nil {
		reason = cmp.Or(s.fault(), conn.ErrClosed) // its owner closes a lost connection, too
		for _, c := range s.calls.fail(reason) {
			s.cancelled(c, reason)
		}
	}
	s.mu.Lock()
	s.end(reason)
	s.mu.Unlock()
	s.calls.fail(s.fault())
}

// Done is closed when the connection is closed or lost.
func (s *connection) Done() <-chan struct{} { return s.lifetime.Done() }

// Err returns why the connection was lost.
func (s *connection) Err() error {
	if err := s.fault(); err != conn.ErrClosed {
		return err
	}
	return nil
}

// explain adds to the error of a handshake what the server sent that is no message.
func (s *connection) explain(err error) error {
	if text := s.noise.Load(); text != nil {
		return fmt.Errorf("%w; it sent what is no message: %s", err, *text)
	}
	return err
}

// fault returns the error of calls on an ended connection. It is nil before the end.
func (s *connection) fault() error { return context.Cause(s.lifetime) }

// receive takes one complete message. own is the call on whose stream it came, nil if the stream
// belongs to no call. receive copies what it keeps of borrowed bytes. A panic ends the connection, not
// the process.
func (s *connection) receive(raw []byte, borrowed bool, own *call) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("panic while reading from an upstream", "panic", p, "stack", string(debug.Stack()))
			s.lose(fmt.Errorf("%w: internal error", conn.ErrClosed))
		}
	}()
	raw = wire.Trim(raw)
	if len(raw) == 0 {
		return
	}
	if raw[0] == '[' && s.batch(raw, own) {
		return
	}
	m, err := wire.ParseMessage(raw)
	switch {
	case err != nil:
		if raw = s.several(raw, own); len(raw) > 0 {
			s.unreadable(raw, nil, fmt.Errorf("%w: %w", errUnreadable, err), own)
		}
	case m.IsResponse():
		if borrowed {
			m.Raw = nil
			m.ID, m.Result, m.Error = bytes.Clone(m.ID), bytes.Clone(m.Result), bytes.Clone(m.Error)
		}
		id := wire.OwnID(m.ID)
		if id == 0 && m.Error != nil { // a null id: the server could not read it
			id = s.calls.suspect(own)
		}
		if id == 0 || !s.calls.resolve(id, m, nil, own) {
			s.warn("response to no request of ours dropped", "id", s.cfg.clip(m.ID))
		}
	case m.IsRequest() && m.Method == "ping": // about the connection, in any state of it
		s.aside(wire.Message{ID: bytes.Clone(m.ID), Result: json.RawMessage(`{}`)})
	case m.IsRequest() && s.Info().Modern(): // modern servers make no requests
		s.refused(m.Method, conn.RuleEra, errAsks, own)
	default:
		if borrowed {
			m, _ = wire.ParseMessage(bytes.Clone(raw)) // it parsed a moment ago
		}
		s.calls.route(m, own, s.Info().Modern())
	}
}

// batch takes an array of messages, which revision 2025-03-26 allows.
func (s *connection) batch(raw []byte, own *call) bool {
	if !rawjson.Valid(raw, wire.MaxDepth+1) {
		return false
	}
	for v := range rawjson.Elements(raw) {
		if rawjson.KindOf(v) == rawjson.Object {
			s.receive(bytes.Clone(v), false, own)
		}
	}
	return true
}

// several takes the messages of a line that holds more than one value. It returns the rest that can't
// be read: all of any other line.
func (s *connection) several(raw []byte, own *call) (rest []byte) {
	lines := json.NewDecoder(bytes.NewReader(raw))
	for rest = raw; len(rest) > 0; rest = wire.Trim(raw[lines.InputOffset():]) {
		var m json.RawMessage
		if raw[0] != '{' || lines.Decode(&m) != nil || len(m) == len(raw) {
			break
		}
		s.receive(m, false, own)
	}
	return rest
}

// unreadable takes a message that can't be read, or only its ends. A response fails its call with
// err, a request is refused, anything else is logged.
func (s *connection) unreadable(head, tail []byte, err error, own *call) {
	lit, method := wire.Salvage(wire.Trim(head), tail)
	id := wire.OwnID(lit)
	if lit == nil && tail != nil {
		id = s.calls.suspect(own)
	}
	switch {
	case method != "":
		s.refused(method, conn.RuleUnreadable, err, own)
		if lit != nil {
			e := &wire.Error{Code: wire.CodeInvalidRequest, Message: err.Error()}
			s.aside(wire.Message{ID: lit, Error: e.JSON()})
		}
	case id != 0 && s.calls.resolve(id, wire.Message{}, err, own):
	default:
		text := redactedKey
		if !s.skipped.holds(head) {
			text = s.cfg.clip(head)
		}
		s.noise.CompareAndSwap(nil, &text)
		s.warn("not a message, skipped", "line", text, "because", err)
	}
}

var errAsks = errors.New("a server of the modern era makes no requests, it asks with input_required")

// refused logs and reports a message that goes to no host.
func (s *connection) refused(method, rule string, because error, own *call) {
	s.warn("message of upstream refused", "method", method, "because", because)
	r := conn.Undelivered{Message: wire.Message{Method: method}, Rule: rule, Text: because.Error()}
	if own != nil {
		r.Call = own.request.Call
	}
	s.cfg.Handler.Undelivered(r)
}

// tooLarge returns the fault of a message of size bytes. size <= 0 means that it was not read to
// its end.
func tooLarge(size, max int) error {
	if size <= 0 {
		return fmt.Errorf("%w: more than the %d bytes allowed", errUnreadable, max)
	}
	return fmt.Errorf("%w: %d bytes are more than the %d allowed", errUnreadable, size, max)
}

func (s *connection) warn(msg string, args ...any) {
	s.warnings.log(s.cfg.Log, slog.LevelWarn, msg, args...)
}

// maxLogLines is the number of lines a second that one source of a connection logs.
const maxLogLines = 50

// rateLimitedLog passes a bounded number of lines a second on to the log, so that a chatty or
// broken server does not fill it.
type rateLimitedLog struct {
	mu      sync.Mutex // guards what follows
	begin   time.Time
	lines   int
	dropped int
}

// log passes a line on, unless there were too many in this second.
func (n *rateLimitedLog) log(log *slog.Logger, level slog.Level, msg string, args ...any) {
	n.mu.Lock()
	dropped := 0
	if now := time.Now(); now.Sub(n.begin) >= time.Second {
		dropped, n.begin, n.lines, n.dropped = n.dropped, now, 0, 0
	}
	n.lines++
	skip := n.lines > maxLogLines
	if skip {
		n.dropped++
	}
	n.mu.Unlock()
	if dropped > 0 {
		log.Warn("lines of upstream not logged", "lines", dropped)
	}
	if !skip {
		log.Log(context.Background(), level, msg, args...)
	}
}
