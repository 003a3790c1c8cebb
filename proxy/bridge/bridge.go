// Package bridge translates between the two eras of MCP. A translated connection is a [conn.Conn]
// around a connection, so its users see a server that speaks their own era.
//
// Up to revision 2025-11-25 (the legacy era) a server may send requests to its client in the middle
// of a call. From 2026-07-28 on (the modern era) a call ends with input_required instead, and the
// client makes it again with the answers.
//
// # Locks
//
// suspendedCall.delivery and Bridge.mu may be held when a suspendedCall.mu is taken, never the
// other way round. Of the three, only delivery is held while a message is handed on.
package bridge

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Limits of translated calls. docs/wire.md lists them.
const (
	// suspendedFor is how long a suspended call waits for the host to come back.
	suspendedFor = 10 * time.Minute
	// maxSuspended is how many calls of one principal may wait for its hosts, and maxSuspendedBytes how large their params may be
	// together, if they are several.
	maxSuspended      = 1000
	maxSuspendedBytes = 64 << 20
	// maxRequests is how many requests of the server one call may have open.
	maxRequests = 100
	// maxRequestBytes is how large they may be together, if they are several.
	maxRequestBytes = 16 << 20
	// maxReplies is how many requests of one connection foldgate itself answers at once.
	maxReplies = 1000
	// maxRounds is how often a modern server may ask for input in one call.
	maxRounds = 16
	// coalesceDelay lets several requests of one call travel together.
	coalesceDelay = 5 * time.Millisecond
	// asideTimeout bounds requests that foldgate makes on its own account.
	asideTimeout = 5 * time.Second
)

// Bridge holds the suspended calls of all connections. All methods are safe for concurrent use.
type Bridge struct {
	lifetime context.Context
	replica  string
	log      *slog.Logger
	wg       sync.WaitGroup

	mu     sync.Mutex
	calls  map[string]*suspendedCall // by request state
	number int                       // of the newest
}

// New returns a bridge. Its goroutines end with lifetime. replica is the name of this gateway among
// replicas, which request states have; "" without replicas.
func New(lifetime context.Context, replica string, log *slog.Logger) *Bridge {
	return &Bridge{lifetime: lifetime, replica: replica, log: log, calls: map[string]*suspendedCall{}}
}

// Wrap returns the connection to a server as a server of the hosts' era. h takes the messages that
// the server sends outside any request; the returned handler must take it from the server. Hosts on
// a connection of their own that speak the server's era need no translation: Wrap returns c and h.
func (b *Bridge) Wrap(server string, host conn.Host, c conn.Conn, h conn.Handler) (conn.Conn, conn.Handler) {
	log := b.log.With("upstream", server)
	shared := func() sharedConn {
		return sharedConn{Conn: c, Handler: h, everyone: host.Everyone, serving: map[*conn.Request]struct{}{}}
	}
	switch modern := c.Info().Modern() || host.View; {
	case host.Shared && modern:
		w := shared()
		return &w, &w
	case host.Shared:
		w := &legacyServer{
			sharedConn: shared(), b: b, key: server, log: log, level: noLevel, listening: map[*conn.Request]string{},
		}
		return w, w
	case modern:
		w := &modernServer{
			Conn: c, b: b, initialize: host.Initialize, host: h, log: log,
			answers: map[string]chan wire.Message{}, following: map[string]*subscription{},
		}
		return w, h
	}
	return c, h
}

// Wait returns when all goroutines of the bridge have ended, and stops the timers of suspended
// calls. The bridge is not used any more.
func (b *Bridge) Wait() {
	b.wg.Wait()
	b.find(func(call *suspendedCall) bool { return call.expiry.Stop() })
}
