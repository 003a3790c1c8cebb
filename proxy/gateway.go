package proxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/bridge"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/pins"
	"github.com/foldgate/foldgate/proxy/replicas"
	"github.com/foldgate/foldgate/proxy/router"
	"github.com/foldgate/foldgate/proxy/runner/llm"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
)

const (
	shutdownWait = 10 * time.Second // for branches to return, streams to end, servers to close
	sweepEvery   = time.Minute      // between looks for expired workflows, beside each call that opens one
)

// Gateway stands between hosts and upstream servers. Make one with [New], serve with
// [Gateway.RunStdio] or [Gateway.RunHTTP], end it with [Gateway.Close]. All methods are safe for
// concurrent use.
type Gateway struct {
	settings atomic.Pointer[settings] // in force

	// Of reloads; see WithSource and Reload.
	load        func() (config.Config, error)
	tried       string     // the hash of the file that was read last; guarded by reloading
	reloading   sync.Mutex // held while a configuration is put in force
	certificate atomic.Pointer[tls.Certificate]
	reloadFault atomic.Pointer[error]        // why the last reload failed; nil if it did not
	replicas    atomic.Pointer[replicas.Set] // nil before it serves, and without replicas
	http        *server.HTTP                 // nil before it serves; guarded by reloading
	served      atomic.Bool                  // hosts could reach it; see Close

	lifetime context.Context
	end      context.CancelFunc
	wg       sync.WaitGroup // goroutines of the gateway itself

	*engine.Engine // below the router; Close closes it

	// Parts.
	pins    *pins.Store // the definitions that servers gave
	servers *upstream.Set
	bridge  *bridge.Bridge
	router  *router.Router
}

// warmAfter is the time between the start and the loading of the vocabulary, unless a call needs it before.
const warmAfter = time.Second

// New makes a gateway from a valid configuration. It opens the state directory and loads the
// scrubbing rules, but starts no server.
func New(cfg config.Config, log *slog.Logger, options ...Option) (*Gateway, error) {
	if faults := cfg.Validate(); len(faults) > 0 {
		return nil, config.NewError("configuration", faults...)
	}
	g := &Gateway{tried: cfg.Sum}
	g.settings.Store(newSettings(cfg, nil, log)) // without servers, which openParts makes
	g.lifetime, g.end = context.WithCancel(context.Background())
	o := engine.Options{
		Start: cfg, Config: func() *config.Config { return &g.settings.Load().Config }, Limits: func() *interceptor.Limits { return g.settings.Load().Limits },
		Folding: func() *interceptor.FoldPolicy { return &g.settings.Load().folding }, Log: log,
	}
	for _, option := range options {
		option(g, &o)
	}
	if err := g.open(o); err != nil {
		g.end()
		return nil, err
	}
	g.Started()
	g.wg.Go(func() { // loading the vocabulary takes a while: the first call should not wait for it, nor the first list share the processors with it
		select {
		case <-time.After(warmAfter):
			g.Counter.Count("warm")
		case <-g.lifetime.Done():
		}
	})
	g.Recorder.Configuration(configured{Event: "start", Version: version.String(), Config: cfg.Sum})
	if g.Workflows != nil {
		g.wg.Go(func() { g.Workflows.Sweep(g.lifetime) })
		g.every(sweepEvery, func() { g.Workflows.Sweep(g.lifetime) })
	}
	again := false // after a change the lists are judged twice: one may have been on its way meanwhile
	told := ""
	g.every(watchEvery, func() {
		changed, events, err := g.pins.Refresh()
		if err == nil {
			told = ""
		} else if err.Error() != told {
			told = err.Error()
			g.Log.Error("what was approved before holds", "err", err)
		}
		if changed || again {
			g.router.Repin(events)
		}
		again = changed
	})
	return g, nil
}

// open opens the engine, then what routes messages.
func (g *Gateway) open(o engine.Options) (err error) {
	if g.Engine, err = engine.Open(g.lifetime, o); err != nil {
		return err
	}
	g.settings.Store(newSettings(g.Start, nil, g.Log)) // what the settings log is scrubbed, too
	if err = g.openLimits(g.settings.Load()); err == nil {
		err = g.openParts()
	}
	if err != nil {
		err = errors.Join(err, g.Engine.Abandon(g.lifetime))
	}
	if err == nil {
		g.tellOnlyRecords()
	}
	return err
}

// tellOnlyRecords logs that the policy in force refuses nothing.
func (g *Gateway) tellOnlyRecords() {
	if f, ok := g.settings.Load().Config.OnlyRecords(); ok {
		g.Log.Warn("the policy only records", "because", f.Error())
	}
}

// openLimits makes the limits of st. Limits that are in force already stay as they are.
func (g *Gateway) openLimits(st *settings) (err error) {
	if now := g.settings.Load(); now != st && reflect.DeepEqual(now.Config.Budgets, st.Config.Budgets) {
		st.Limits = now.Limits
		return nil
	}
	st.Limits, err = g.NewLimits(st.Config.Budgets)
	return err
}

// openParts makes what routes messages, from the servers inwards.
func (g *Gateway) openParts() error {
	g.bridge = bridge.New(g.lifetime, g.Replica, g.Log)
	g.servers = upstream.NewSet(upstream.Options{
		Config: g.Start, Log: g.Log, CleanText: g.Boundary.Text, CleanJSON: g.cleanJSON, Bridge: g.bridge.Wrap,
		TokenOf:   func(issuer, principal string) string { return g.settings.Load().access.Auth.TokenOf(issuer, principal) },
		LoginTold: func(e upstream.LoginEvent) { recordLogin(g.Recorder, e, "") },
	})
	g.settings.Load().Servers = g.servers.Servers(g.Start, nil)
	g.pins = pins.Open(g.Start.StatePath(), func(raw []byte) ([]byte, error) { return g.cleanJSON(g.lifetime, raw) })
	g.router = router.New(g.lifetime, router.Options{
		Engine: g.Engine, Settings: func() *router.Settings { return &g.settings.Load().Settings }, Pins: g.pins, Connections: g.servers,
	})
	g.servers.Shared = g.router.Shared
	g.Tools.SetModels(llm.Open, g.Chain)
	return g.watchState()
}

// every calls f at intervals, in a goroutine, until the gateway closes.
func (g *Gateway) every(interval time.Duration, f func()) {
	g.wg.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f()
			case <-g.lifetime.Done():
				return
			}
		}
	})
}

// cleanJSON takes the secrets out of what a server says of itself.
func (g *Gateway) cleanJSON(ctx context.Context, raw []byte) ([]byte, error) {
	m := interceptor.Message{Body: raw, Always: true}
	g.Boundary.ToHost(ctx, &m)
	return m.Body, m.Err
}

// warm connects servers, so that readiness can be told and the first list is quick. It does not wait.
func (g *Gateway) warm(servers []*upstream.Server) {
	principal := anyone(&g.settings.Load().Config)
	for _, srv := range servers {
		g.wg.Go(func() {
			_, _ = srv.Connection(g.lifetime, upstream.Scope{Group: upstream.Group{Principal: principal, Capabilities: srv.Hosts()}}) // Status has the fault
		})
	}
}

// anyone returns a principal for work of foldgate's own: checking and warming up.
func anyone(c *config.Config) string {
	if names := c.PrincipalNames(); len(names) > 0 {
		return names[0]
	}
	return interceptor.LocalPrincipal
}

// Close ends all sessions and returns their branches by force, ends the servers and their process
// groups, and closes the state. If the gateway never served a host, the branches of the previous
// process stay active. ctx bounds the whole.
func (g *Gateway) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var closing sync.WaitGroup
		for _, s := range g.router.Sessions("") { // together: each may wait for the ends of its branches to be stored
			closing.Go(func() { s.Close(server.Shutdown) })
		}
		closing.Wait()
		g.reloading.Lock() // a reload under way ends first
		g.end()
		g.reloading.Unlock()
		g.servers.Close()
		g.wg.Wait()
		g.bridge.Wait()
		g.router.Wait()
		g.Tools.Close()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		g.Log.Warn("shutdown did not finish in time")
		g.end()
	}
	if !g.served.Load() {
		return g.Abandon(ctx)
	}
	return g.Engine.Close(ctx)
}

// RunStdio serves one host on in and out until it leaves or ctx is done. out carries nothing but
// protocol.
func (g *Gateway) RunStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	g.served.Store(true)
	return server.ServeStdio(ctx, g.router, in, out, g.Log)
}

// RunHTTP serves hosts on the configured address until ctx is done, then lets calls in flight
// finish. ready is told the address once the gateway listens on it.
func (g *Gateway) RunHTTP(ctx context.Context, ready func(net.Addr)) error {
	ln, err := server.Listen(ctx, g.Start.Listen)
	if err != nil {
		return err
	}
	plain := ln
	if g.Start.Secure() {
		cert, err := readCertificate(g.Start)
		if err != nil {
			return errors.Join(err, ln.Close())
		}
		g.certificate.Store(cert)
		// HTTP/1.1 only: the limits on slow readers are limits on connections.
		ln = tls.NewListener(ln, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.certificate.Load(), nil }, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	} else if g.Start.Exposed() {
		g.Log.Warn("other machines can reach this address, and tokens and results cross the network as plain text: set tls, or let a proxy that speaks TLS stand in front of a loopback address", "listen", g.Start.Listen)
	}
	set, peers, err := g.openReplicas(ctx)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	e := server.NewHTTP(g.router, server.HTTPOptions{
		Log: g.Log, Access: func() *server.Access { return &g.settings.Load().access },
		Ready: g.ready, Control: g.controlOf, Replicas: set,
	})
	grace := shutdownWait
	if set != nil {
		g.replicas.Store(set)
		set.Serve(peers, e)
		defer g.leave(set)
		if err := set.Join(ctx); err != nil {
			return errors.Join(err, ln.Close())
		}
		ctx, grace = g.drained(ctx, set, plain), replicaGrace
	}
	g.served.Store(true)
	ready(plain.Addr())
	g.reloading.Lock()
	g.http = e
	g.reloading.Unlock()
	g.warm(g.settings.Load().Servers)
	g.wg.Go(func() {
		if err := control.Serve(g.lifetime, g.Dir, g.controlSocket(), g.Log); err != nil {
			g.Log.Warn("this gateway takes no commands of its operator", "err", err)
		}
	})
	if g.load != nil && g.Start.File != "" {
		g.watch()
	}
	return server.Serve(ctx, ln, e, e.Handler(), grace)
}

// limitsFault returns why the store of the limits can't be reached, nil if it can or there are no limits.
func (g *Gateway) limitsFault() error {
	if l := g.settings.Load().Limits; l != nil {
		return l.Err()
	}
	return nil
}

// ready returns the answer of /readyz. One server that is down does not make the gateway unready:
// the others still serve.
func (g *Gateway) ready() (ok bool, body []byte) {
	type state struct {
		State string `json:"state"`
		Error string `json:"error,omitempty"`
	}
	out := struct {
		Status    string           `json:"status"`
		Upstreams map[string]state `json:"upstreams"`
		Trace     string           `json:"trace,omitempty"`
		Config    string           `json:"config,omitempty"` // why it was not reloaded
		Limits    string           `json:"limits,omitempty"` // why their store can't be reached
		Replicas  *replicas.Status `json:"replicas,omitempty"`
	}{Status: "ready", Upstreams: map[string]state{}}
	for _, srv := range g.settings.Load().Servers {
		name, fault := srv.PublicStatus()
		st := state{State: name}
		if fault != nil {
			st.Error = g.Boundary.Text(fault.Error())
			out.Status = "degraded"
		}
		out.Upstreams[srv.Key] = st
	}
	if fault := g.reloadFault.Load(); fault != nil {
		out.Status, out.Config = "degraded", (*fault).Error()
	}
	if err := g.limitsFault(); err != nil {
		out.Status, out.Limits = "degraded", err.Error()
	}
	ok = true
	if err := g.Journal.Err(); err != nil {
		out.Status, out.Trace = "degraded", err.Error()
		if g.Start.Trace.OnError == "refuse" {
			out.Status, ok = "unready", false
		}
	}
	if set := g.replicas.Load(); set != nil {
		st := set.Status()
		if out.Replicas = &st; st.State != replicas.Up {
			out.Status, ok = st.State, false
		}
	}
	body, _ = json.Marshal(out)
	return ok, body
}
