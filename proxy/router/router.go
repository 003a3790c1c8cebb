// Package router is the middle of the gateway. It takes the requests of hosts, finds the server
// that answers each, and runs it down the chain of layers. It takes what servers send of
// their own accord and hands it to the right host.
//
//	r := router.New(lifetime, router.Options{…})
//	session := r.Open(peer)               // a server opens one for each host session
//	pending := session.Begin(ctx, request)
//	reply := pending.Serve()
//
// # Locks
//
// Session.mu is held alone. listCache.mu, tasks.mu and the locks of upstream may be taken while Router.mu
// is held, and queue.mu while ordering.mu is. Pins and the journal are not used under Router.mu. No lock is
// held while a message is sent.
package router

import (
	"context"
	"slices"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/pins"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// Options configure a Router. All fields are required.
type Options struct {
	*engine.Engine // below the router, which does not close it
	// Settings returns the settings in force. Who needs several of them calls it once.
	Settings    func() *Settings
	Pins        *pins.Store
	Connections Connections
}

// Connections are those that groups share.
type Connections interface {
	// Groups returns the groups of principals that have any.
	Groups() []upstream.Group
	// Forget ends those of a group, unless one is open: then it returns false.
	Forget(upstream.Group) bool
}

// Settings are what a reload of the configuration replaces, all at once. They never change.
type Settings struct {
	Config  config.Config
	Rules   *catalog.Rules
	Servers []*upstream.Server  // one for each of Rules.Servers
	Limits  *interceptor.Limits // nil for none
}

// Server returns the server with that key, or nil.
func (st *Settings) Server(key string) *upstream.Server {
	if one := st.One(key); one != nil {
		return one[0]
	}
	return nil
}

// One returns the server with that key alone, in a list, or nil.
func (st *Settings) One(key string) []*upstream.Server {
	i := slices.IndexFunc(st.Servers, func(s *upstream.Server) bool { return s.Key == key })
	if i < 0 {
		return nil
	}
	return st.Servers[i : i+1]
}

// Router routes the messages of all sessions. All methods are safe for concurrent use.
type Router struct {
	Options
	lifetime context.Context
	wg       sync.WaitGroup // all goroutines of the router

	listens    sync.Map // the open *listen streams of hosts
	subscribed shares   // resources
	kept       shares   // bytes of requests that sessions keep

	mu       sync.Mutex
	sessions map[*Session]struct{} // all but those of single requests
	lists    map[upstream.Group]*groupLists
	warned   map[string]bool // faults of lists that the log has already, at most maxWarned
}

// New returns a router that works until lifetime ends.
func New(lifetime context.Context, o Options) *Router {
	return &Router{
		Options: o, lifetime: lifetime, subscribed: shares{most: maxAllSubscriptions}, kept: shares{most: maxAllKept},
		sessions: map[*Session]struct{}{}, lists: map[upstream.Group]*groupLists{}, warned: map[string]bool{},
	}
}

// Wait returns when all goroutines of the router have ended. They end with its lifetime.
func (rt *Router) Wait() { rt.wg.Wait() }
