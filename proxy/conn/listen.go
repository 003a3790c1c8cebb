package conn

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Listener keeps a subscriptions/listen open at a server, over as many connections as it takes.
type Listener struct {
	Notifications json.RawMessage // that it asks for
	Log           *slog.Logger
	// Listened takes one notification, and must not block.
	Listened func(wire.Message)
	// Acknowledged is called when the server acknowledges the subscription. again is true if it has stood
	// before: its subject may have changed meanwhile.
	Acknowledged func(again bool)
	// Stood means that the subscription has stood before. It is set when the server acknowledges it.
	Stood bool

	since atomic.Pointer[time.Time] // it stands; nil if it does not
}

// Keep keeps the subscription for as long as ctx lasts, or until the server refuses it. It returns the
// server's refusal, nil if there is none. open returns the connection for each attempt; the pause between
// attempts grows while they fail, or end soon.
func (l *Listener) Keep(ctx context.Context, open func(context.Context) (Conn, error)) (refused json.RawMessage) {
	pause := backoff.Backoff{First: 500 * time.Millisecond, Max: 30 * time.Second}
	params := append(append([]byte(`{"notifications":`), l.Notifications...), '}')
	for fails := 0; ctx.Err() == nil; fails++ {
		c, err := open(ctx)
		if err == nil {
			var m wire.Message
			if m, err = c.Call(ctx, &Request{Method: wire.MethodListen, Params: params, Receiver: l}); err == nil && m.Error != nil {
				l.Log.Debug("subscription refused", "to", string(l.Notifications), "err", &wire.AnswerError{Raw: m.Error})
				return m.Error
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		l.Log.Debug("subscription ended", "to", string(l.Notifications), "err", err)
		if at := l.since.Swap(nil); at != nil && time.Since(*at) >= backoff.Steady {
			fails = 0
		}
		if pause.Wait(ctx, fails) != nil {
			return nil
		}
	}
	return nil
}

// KeepOn is Keep on one connection. It ends with the connection.
func (l *Listener) KeepOn(ctx context.Context, c Conn) (refused json.RawMessage) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-c.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	refused = l.Keep(ctx, func(context.Context) (Conn, error) { return c, nil })
	cancel()
	watch.Wait()
	return refused
}

// Message implements [Receiver].
func (l *Listener) Message(m wire.Message) {
	if m.Method != wire.MethodAcknowledged {
		l.Listened(m)
		return
	}
	l.Acknowledged(l.Stood)
	l.Stood = true
	l.since.Store(new(time.Now()))
}

// ResponseArrived implements [Receiver]: the subscription is over.
func (l *Listener) ResponseArrived(wire.Message) {}
