package upstream

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// streamConn is what connections share that have one stream in each direction:
// a child process's pipes, or the old HTTP+SSE pair.
type streamConn struct {
	receiver
	life
	transport transport
}

// transport sends messages on the stream.
type transport interface {
	// send sends the message that build appends to a buffer. A fault means that
	// the server did not get it, unless ctx ended.
	send(ctx context.Context, build func([]byte) []byte) error
	// aside runs a function that sends a message without making its caller wait.
	aside(func())
}

func (s *streamConn) init(cfg *Config, t transport) {
	s.receiver.init(cfg, s)
	s.life.init()
	s.transport = t
}

// Call sends a request and waits for the response.
func (s *streamConn) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	if ctx.Err() != nil {
		return wire.Message{}, context.Cause(ctx)
	}
	c, params, err := s.pending.begin(r, nil)
	if err != nil {
		return wire.Message{}, err
	}
	if s.Info().Modern() {
		params = completeMeta(params)
	}
	err = s.transport.send(ctx, func(b []byte) []byte {
		var id [20]byte
		return appendRequest(b, strconv.AppendInt(id[:0], c.id, 10), r.Method, params, r.Extra)
	})
	if err == nil || ctx.Err() != nil {
		select {
		case o := <-c.done:
			return o.msg, o.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if !s.pending.abandon(c) { // the answer was faster after all
		o := <-c.done
		return o.msg, o.err
	}
	if ctx.Err() != nil && r.Method != wire.MethodInitialize { // which must not be cancelled
		s.transport.aside(func() {
			_ = s.Notify(context.WithoutCancel(ctx), cancelled(c.id, err)) // the caller has left
		})
	}
	return wire.Message{}, err
}

// Notify sends a notification.
func (s *streamConn) Notify(ctx context.Context, m wire.Message) error {
	return s.transport.send(ctx, func(b []byte) []byte { return appendRequest(b, nil, m.Method, m.Params, m.Extra) })
}

// Reply answers a request of the server.
func (s *streamConn) Reply(ctx context.Context, m wire.Message) error {
	return s.transport.send(ctx, func(b []byte) []byte { return appendReply(b, m) })
}

func (s *streamConn) refuse(m wire.Message) {
	s.transport.aside(func() { _ = s.Reply(context.Background(), m) }) // a lost connection needs no refusal
}

// cancelled returns the notification that cancels a request of ours.
func cancelled(id int64, cause error) wire.Message {
	p := append([]byte(`{"requestId":`), strconv.FormatInt(id, 10)...)
	p = rawjson.AppendQuote(append(p, `,"reason":`...), cause.Error())
	return wire.Message{Method: wire.MethodCancelled, Params: append(p, '}')}
}

// appendRequest appends a request to dst as one line without its end. With a nil
// id it is a notification.
func appendRequest(dst []byte, id []byte, method string, params json.RawMessage, extra []byte) []byte {
	start := len(dst)
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if id != nil {
		dst = append(append(dst, `,"id":`...), id...)
	}
	dst = rawjson.AppendQuote(append(dst, `,"method":`...), method)
	if len(params) > 0 {
		dst = append(append(dst, `,"params":`...), params...)
	}
	dst = append(append(dst, extra...), '}')
	wire.OneLine(dst[start:])
	return dst
}

// appendReply appends the response m as one line without its end.
func appendReply(dst []byte, m wire.Message) []byte {
	m.Method, m.Params = "", nil
	start := len(dst)
	dst = m.Append(dst)
	wire.OneLine(dst[start:])
	return dst
}

// life is the life of a connection: it ends once, for a reason, and waits for the
// goroutines that the connection started.
type life struct {
	lifetime context.Context // its cause is conn.ErrClosed after a plain close
	end      context.CancelCauseFunc
	mu       sync.Mutex // orders Go and terminate
	group    sync.WaitGroup
}

func (l *life) init() { l.lifetime, l.end = context.WithCancelCause(context.Background()) }

// terminate ends the life. It returns false if it had ended before. reason is
// nil for a plain close.
func (l *life) terminate(reason error) bool {
	if reason == nil {
		reason = conn.ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.lifetime.Err() == nil
	l.end(reason)
	return first
}

// Go runs f in a goroutine that wait waits for. It returns false if the life is
// over.
func (l *life) Go(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lifetime.Err() != nil {
		return false
	}
	l.group.Go(f)
	return true
}

func (l *life) wait() { l.group.Wait() }

// Done is closed when the connection is closed or lost.
func (l *life) Done() <-chan struct{} { return l.lifetime.Done() }

// Err returns why the connection was lost.
func (l *life) Err() error {
	if err := l.fault(); err != conn.ErrClosed {
		return err
	}
	return nil
}

// fault returns what calls on an ended connection return; nil before its end.
func (l *life) fault() error { return context.Cause(l.lifetime) }

// context returns a context that ends with l, too.
func (l *life) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(l.lifetime, func() { cancel(conn.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}
