package upstream

import (
	"context"
	"errors"
	"sync"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// view is a shared connection as one legacy session sees it. It outlives the connection, and uses the
// next one when that is lost. It ends with the session.
type view struct {
	shared *reconnector
	seen   conn.Conn // the view, translated for the host
	ready  sync.Once
	once   sync.Once
	done   chan struct{}
}

// view returns the view of a connection that others share, too.
func (cs *Connections) view(r *reconnector) conn.Conn {
	cs.mu.Lock()
	v := cs.views[r.server]
	if v == nil {
		v = &view{shared: r, done: make(chan struct{})}
		v.seen, _ = r.server.set.options.Bridge(r.server.Key, conn.Host{View: true, Initialize: cs.initialize}, v, handler{cs.owner, r.server, &v.seen})
		if cs.enter(r.server) {
			cs.views[r.server] = v
		} else {
			_ = v.Close()
		}
	}
	cs.mu.Unlock()
	v.ready.Do(func() { cs.owner.Opened(r.server, v.seen, r.server.again) })
	return v.seen
}

// Call implements [conn.Conn]. A connection that was closed as idle did nothing for the call.
func (v *view) Call(ctx context.Context, r *conn.Request) (m wire.Message, err error) {
	for range 2 {
		var c conn.Conn
		if c, err = v.shared.connection(ctx); err != nil {
			if v.shared.server.Gone() != nil {
				_ = v.Close()
			}
			return m, err
		}
		if m, err = c.Call(ctx, r); !errors.Is(err, conn.ErrSessionGone) {
			break
		}
	}
	return m, err
}

// Send implements [conn.Conn].
func (v *view) Send(ctx context.Context, m wire.Message) error {
	c, err := v.shared.connection(ctx)
	if err != nil {
		return err
	}
	return c.Send(ctx, m)
}

// Info implements [conn.Conn].
func (v *view) Info() conn.Info { return v.shared.said() }

// Done implements [conn.Conn].
func (v *view) Done() <-chan struct{} { return v.done }

// Err implements [conn.Conn].
func (v *view) Err() error { return nil }

// Close ends the view, not the connection.
func (v *view) Close() error {
	v.once.Do(func() { close(v.done) })
	return nil
}
