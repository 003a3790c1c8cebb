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

// Listen keeps a subscriptions/listen open for as long as ctx lasts, or until the server refuses
// it. It returns the server's refusal, nil if there is none. open returns the connection for each
// attempt; the pause between attempts grows while they fail, or end soon. again means that the subscription has stood before, on another connection.
//
// listened takes one notification, and must not block. stands is called when the server acknowledges
// the subscription; after is true after a break: its subject may have changed meanwhile.
func Listen(
	ctx context.Context, open func(context.Context) (Conn, error), notifications json.RawMessage, again bool, log *slog.Logger,
	listened func(wire.Message), stands func(after bool),
) (refused json.RawMessage) {
	s := &stream{listened: listened, acknowledged: stands, stood: again}
	pause := backoff.Backoff{First: 500 * time.Millisecond, Max: 30 * time.Second}
	params := append(append([]byte(`{"notifications":`), notifications...), '}')
	for fails := 0; ctx.Err() == nil; fails++ {
		c, err := open(ctx)
		if err == nil {
			var m wire.Message
			if m, err = c.Call(ctx, &Request{Method: wire.MethodListen, Params: params, Receiver: s}); err == nil && m.Error != nil {
				log.Debug("subscription refused", "to", string(notifications), "err", &wire.AnswerError{Raw: m.Error})
				return m.Error
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		log.Debug("subscription ended", "to", string(notifications), "err", err)
		if at := s.stands.Swap(nil); at != nil && time.Since(*at) >= backoff.Steady {
			fails = 0
		}
		if pause.Wait(ctx, fails) != nil {
			return nil
		}
	}
	return nil
}

// ListenOn is Listen on one connection. It ends with the connection.
func ListenOn(ctx context.Context, c Conn, notifications json.RawMessage, again bool, log *slog.Logger, listened func(wire.Message), stands func(after bool)) (refused json.RawMessage) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-c.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	refused = Listen(ctx, func(context.Context) (Conn, error) { return c, nil }, notifications, again, log, listened, stands)
	cancel()
	watch.Wait()
	return refused
}

// stream takes the messages of one listen after the other.
type stream struct {
	listened     func(wire.Message)
	acknowledged func(after bool)
	stood        bool
	stands       atomic.Pointer[time.Time] // since when; nil if it does not
}

// Message implements [Receiver].
func (s *stream) Message(m wire.Message) {
	if m.Method != wire.MethodAcknowledged {
		s.listened(m)
		return
	}
	s.acknowledged(s.stood)
	s.stood = true
	now := time.Now()
	s.stands.Store(&now)
}

// Answered implements [Receiver]: the subscription is over.
func (s *stream) Answered(wire.Message) {}
