// Package bridge translates between the two eras of MCP. A translated connection
// is a [conn.Conn] around a connection, so its users see a server that speaks
// their own era.
//
// Up to revision 2025-11-25 (the legacy era) a server may send requests to its
// client in the middle of a call. From 2026-07-28 on (the modern era) a call ends
// with input_required instead, and the client makes it again with the answers.
//
//	b := bridge.New(lifetime, log)
//	c, h = b.Wrap("files", conn.Host{Principal: "local", Modern: true}, c, h)
//
// # Where what is
//
//	bridge.go     choosing a translation, limits
//	suspend.go    modern hosts on a legacy server: suspended calls
//	levels.go     the log level of each modern request on a legacy connection
//	rounds.go     a legacy host on a modern server: calls in rounds
//
// # Locks
//
// Bridge.mu may be held when a suspendedCall.mu is taken, never the other way
// round. No lock is held while a message is handed on.
package bridge

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
)

// Limits of translated calls. docs/wire.md lists them.
const (
	// suspendedFor is how long a suspended call waits for the host to come back.
	suspendedFor = 10 * time.Minute
	// maxSuspended is how many calls of one principal may wait for its hosts.
	maxSuspended = 1000
	// maxQuestions is how many questions one call may have open.
	maxQuestions = 100
	// maxRefusing is how many questions of one connection may be refused at once.
	maxRefusing = 1000
	// maxRounds is how often a modern server may ask for input in one call.
	maxRounds = 16
	// coalesceDelay lets several questions of one call travel together.
	coalesceDelay = 5 * time.Millisecond
	// asideTimeout bounds requests that foldgate makes on its own account.
	asideTimeout = 5 * time.Second
)

// Bridge holds the suspended calls of all connections. All methods are safe for
// concurrent use.
type Bridge struct {
	lifetime context.Context
	log      *slog.Logger
	wg       sync.WaitGroup

	mu     sync.Mutex
	calls  map[string]*suspendedCall // by request state
	number int                       // of the newest
}

// New returns a bridge. Close ends what it started.
func New(lifetime context.Context, log *slog.Logger) *Bridge {
	return &Bridge{lifetime: lifetime, log: log, calls: map[string]*suspendedCall{}}
}

// Wrap returns the connection to a server as a server of the hosts' era. h takes
// what the server sends outside any request, and the returned handler must take
// it from the server. If both sides speak the same era, Wrap returns c and h.
func (b *Bridge) Wrap(server string, host conn.Host, c conn.Conn, h conn.Handler) (conn.Conn, conn.Handler) {
	log := b.log.With("upstream", server)
	switch {
	case host.Modern && !c.Info().Modern():
		w := &legacyServer{
			Conn: c, b: b, principal: host.Principal, hosts: h, log: log, level: noLevel,
			serving: map[*request]struct{}{}, listeners: map[*listener]struct{}{},
		}
		return w, w
	case !host.Modern && c.Info().Modern():
		w := &modernServer{
			Conn: c, b: b, initialize: host.Initialize, host: h, log: log,
			answers: map[string]chan answer{}, following: map[string]context.CancelFunc{},
		}
		return w, h
	}
	return c, h
}

// Wait returns when all goroutines of the bridge have ended. They end with its
// lifetime.
func (b *Bridge) Wait() { b.wg.Wait() }
