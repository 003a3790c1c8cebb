package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/bridge"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/router"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/tools"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	maxInstances = 64               // processes that may share one configuration
	shutdownWait = 10 * time.Second // for branches to return, streams to end, servers to close
	sweepEvery   = time.Minute      // between looks for expired workflows, beside each call that opens one
)

// Gateway stands between hosts and upstream servers. Make one with [New], serve with
// [Gateway.RunStdio] or [Gateway.RunHTTP], end it with [Gateway.Close]. All methods are safe for
// concurrent use.
type Gateway struct {
	cfg      config.Config            // at the start: for what no reload changes
	settings atomic.Pointer[settings] // in force
	dir      string                   // the state directory of this process
	log      *slog.Logger

	// Of reloads; see WithSource and Reload.
	load        func() (config.Config, error)
	tried       string     // the hash of the file that was read last; guarded by reloading
	reloading   sync.Mutex // held while a configuration is put in force
	certificate atomic.Pointer[tls.Certificate]
	reloadFault atomic.Pointer[error] // why the last reload failed; nil if it did not
	http        *server.HTTP          // nil before it serves; guarded by reloading

	lifetime context.Context
	end      context.CancelFunc
	wg       sync.WaitGroup // goroutines of the gateway itself

	// Engines, in the order in which they are opened. Close closes them.
	counter    *budget.Counter
	scrubber   *scrub.Scrubber
	boundary   *interceptor.Boundary
	journal    *trace.Journal
	recorder   *interceptor.Recorder
	tokenMeter interceptor.TokenMeter
	results    *results.Store
	limitStore limits.Store // nil as long as there are no limits
	branches   *folding.Manager
	workflows  *interceptor.Workflows // nil without workflows
	lostSteps  []string               // steps of workflows that a process left when it died
	records    *interceptor.BranchRecords

	// Telemetry: nil if it is off.
	traces    oteltrace.TracerProvider
	meters    metric.MeterProvider
	telemetry *interceptor.Telemetry

	// Parts.
	servers *upstream.Set
	bridge  *bridge.Bridge
	tools   *tools.Tools
	router  *router.Router
}

// New makes a gateway from a valid configuration. It opens the state directory and loads the
// scrubbing rules, but starts no server.
func New(cfg config.Config, log *slog.Logger, options ...Option) (*Gateway, error) {
	if faults := cfg.Validate(); len(faults) > 0 {
		return nil, &config.Error{File: "configuration", Faults: faults}
	}
	g := &Gateway{cfg: cfg, log: log, tried: cfg.Sum}
	g.settings.Store(newSettings(cfg, nil, log)) // without servers, which openParts makes
	g.lifetime, g.end = context.WithCancel(context.Background())
	for _, o := range options {
		o(g)
	}
	err := g.openEngines()
	if err == nil {
		err = g.openParts()
	}
	if err != nil {
		err = errors.Join(err, g.closeEngines(g.lifetime)) // before end: the state is closed in order
		g.end()
		return nil, err
	}
	if g.journal.Err() == nil { // else it could not be recorded
		g.journal.Settle()
	}
	g.wg.Go(func() { g.counter.Count("warm") }) // loading the vocabulary takes a while: the first call should not wait for it
	g.recorder.Configuration(configured{Event: "start", Version: version.String(), Config: cfg.Sum})
	if g.workflows != nil {
		g.wg.Go(g.sweepWorkflows)
	}
	return g, nil
}

// openParts makes what routes messages, from the servers inwards.
func (g *Gateway) openParts() error {
	g.bridge = bridge.New(g.lifetime, g.log)
	g.servers = upstream.NewSet(upstream.Options{
		Config: g.cfg, Log: g.log, CleanText: g.boundary.Text, CleanJSON: g.cleanJSON, Bridge: g.bridge.Wrap,
	})
	g.settings.Load().Servers = g.servers.Servers(g.cfg, nil)
	g.tools = tools.New(g.lifetime, tools.Options{
		Config: func() *config.Config { return &g.settings.Load().Config }, Branches: g.branches, Limits: g.limits, Results: g.results, Counter: g.counter, Programs: extract.NewPrograms(2 * g.cfg.PrincipalCount()),
		Boundary: g.boundary, Records: g.records, Log: g.log,
	})
	g.router = router.New(g.lifetime, router.Options{
		Settings: func() *router.Settings { return &g.settings.Load().Settings }, Chain: newChain(g), Boundary: g.boundary, Recorder: g.recorder,
		Branches: g.branches, Tokens: g.tokenMeter, Tools: g.tools, Instructions: tools.Instructions, Telemetry: g.telemetry, Log: g.log,
	})
	g.servers.Shared = g.router.Shared
	g.tools.SetRouter(g.router)
	return g.watchState()
}

// openEngines makes everything that stands below the chain.
func (g *Gateway) openEngines() error {
	var err error
	if g.counter, err = budget.NewCounter(g.cfg.Budget.Encoding); err != nil {
		return fmt.Errorf("budget.encoding: %w", err)
	}
	if g.counter, err = g.counter.WithScale(g.cfg.Budget.Scale); err != nil {
		return fmt.Errorf("budget.scale: %w", err)
	}
	if g.scrubber, err = newScrubber(g.cfg); err != nil {
		return err
	}
	policy := func(server string) interceptor.ScrubPolicy { return g.settings.Load().Config.ScrubPolicy(server) }
	g.boundary = &interceptor.Boundary{Scrubber: g.scrubber, Policy: policy}
	g.log = slog.New(scrubLog{g.log.Handler(), g.boundary}) // from here on: nothing was logged before
	state, err := g.openState()
	if err != nil {
		return err
	}
	g.dir = state
	g.recorder = &interceptor.Recorder{
		Journal: g.journal, Boundary: g.boundary, Payload: g.cfg.Trace.Payload == "scrubbed", Refuse: g.cfg.Trace.OnError == "refuse",
		Counter: g.counter.Name(), Log: g.log, Team: func(principal string) string { return g.settings.Load().Config.Identity(principal).Team },
	}
	if g.traces != nil || g.meters != nil {
		if g.telemetry, err = interceptor.NewTelemetry(g.traces, g.meters, tools.Has); err != nil {
			return fmt.Errorf("telemetry: %w", err)
		}
		g.telemetry.ByPrincipal = g.cfg.Budgets.MetricsByPrincipal
	}
	g.records = &interceptor.BranchRecords{
		Recorder: g.recorder, Counter: g.counter, Telemetry: g.telemetry, Dir: filepath.Join(state, "trace"),
		Several: func() bool { return g.settings.Load().Config.PrincipalCount() > 1 },
	}
	g.tokenMeter = interceptor.TokenMeter{Counter: g.counter, ImageTokens: g.cfg.Budget.ImageTokens}
	if err := g.openLimits(g.settings.Load()); err != nil {
		return err
	}
	if g.results, err = results.Open(filepath.Join(state, "results.db"), results.Config{
		Quota: int64(g.cfg.Results.QuotaMB) << 20, TTL: time.Duration(g.cfg.Results.TTLHours) * time.Hour,
		Strict: g.cfg.Folding.SessionValidation == folding.ValidationStrict,
	}); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	repo, err := folding.OpenSQLite(filepath.Join(state, "foldgate.db"))
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if err := g.openBranches(repo); err != nil {
		return errors.Join(err, repo.Close())
	}
	return g.openWorkflows()
}

// openLimits makes the limits of st, if it has any, and opens their store with the first. All
// processes on the state directory share the counts. Limits that are in force already stay as they
// are.
func (g *Gateway) openLimits(st *settings) (err error) {
	b := st.Config.Budgets
	if now := g.settings.Load(); now != st && reflect.DeepEqual(now.Config.Budgets, b) {
		st.Limits = now.Limits
		return nil
	}
	if len(b.Limits) == 0 {
		return nil
	}
	if g.limitStore == nil {
		if g.limitStore, err = openLimitStore(g.cfg); err != nil {
			return err
		}
	}
	all, err := limits.New(b.Limits, g.limitStore, limits.Options{
		Allow: b.OnError == "allow", Wait: time.Duration(b.WaitMS) * time.Millisecond, Log: g.log,
		Notify: func(x limits.Crossing) {
			g.recorder.Crossed(x)
			g.telemetry.Crossed(x)
		},
	})
	if err != nil {
		return fmt.Errorf("budgets.limits: %w", err)
	}
	st.Limits = &interceptor.Limits{Limits: all, Shown: func(server, tool string) string { return g.settings.Load().shown(server, tool) }, Stateless: wire.VersionModern}
	return nil
}

// limits returns the limits in force, nil for none.
func (g *Gateway) limits() *interceptor.Limits { return g.settings.Load().Limits }

// openBranches takes over the branches in repo, once they agree with the trace.
func (g *Gateway) openBranches(repo folding.Repository) (err error) {
	maxAge := time.Duration(g.cfg.Folding.MaxTimeoutSeconds) * time.Second
	if g.lostSteps, err = g.records.Recover(g.lifetime, repo, maxAge); err != nil {
		return err
	}
	g.branches, err = folding.Open(g.lifetime, g.cfg.Folding, folding.Options{
		Repository: repo, Count: g.counter.Count, OnEvent: g.records.Event, Log: g.log, Meters: g.meters, Traces: g.traces,
		Principals: g.cfg.PrincipalCount(),
		Scrub: func(ctx context.Context, text string) (string, error) {
			clean, _, err := g.scrubber.Text(ctx, text)
			return clean, err
		},
	})
	return err
}

// openWorkflows makes the workflow layer. All processes on the state directory share its store, so
// that a handle is valid in each of them.
func (g *Gateway) openWorkflows() error {
	if len(g.cfg.Workflows) == 0 {
		return nil
	}
	engine, err := workflow.Open(filepath.Join(g.cfg.StatePath(), "workflows.db"), time.Now)
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	g.workflows = &interceptor.Workflows{Engine: engine, Recorder: g.recorder, Boundary: g.boundary, Log: g.log}
	if err := engine.Interrupt(g.lifetime, g.lostSteps); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

// sweepWorkflows ends expired workflows until the gateway closes.
func (g *Gateway) sweepWorkflows() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		g.workflows.Sweep(g.lifetime)
		select {
		case <-tick.C:
		case <-g.lifetime.Done():
			return
		}
	}
}

// openState opens the journal, and with it takes a state directory, which it returns. Hosts start a
// stdio server as often as they like, so a second process on the same configuration gets a directory
// of its own below the first. A second HTTP server is a mistake, and the error says so.
func (g *Gateway) openState() (dir string, err error) {
	t := g.cfg.Trace
	for n := 1; n <= maxInstances; n++ {
		dir = config.InstanceDir(g.cfg.StatePath(), n)
		if err = os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("state_dir: %w", writable(err))
		}
		if err = cmp.Or(regularFiles(g.cfg.StatePath()), regularFiles(dir)); err != nil {
			return "", fmt.Errorf("state_dir: %w", err)
		}
		g.journal, err = trace.Open(filepath.Join(dir, "trace"), trace.Options{
			Sync: t.Sync, Interval: time.Duration(t.SyncIntervalMS) * time.Millisecond,
			RotateBytes: int64(t.RotateMB) << 20, RetainFiles: t.RetainFiles, Log: g.log,
		})
		if !errors.Is(err, trace.ErrInUse) || g.cfg.Listen != "" {
			break
		}
		g.journal = nil
	}
	if err != nil {
		g.journal = nil
		return "", fmt.Errorf("trace: %w", writable(err))
	}
	return dir, nil
}

// regularFiles returns an error if a pipe, a socket or a device has the place of a state file:
// opening one could wait for ever.
func regularFiles(dir string) error {
	for _, names := range []string{"*.db*", "*.json*", "trace/*"} {
		found, _ := fs.Glob(os.DirFS(dir), names) // the pattern is valid
		for _, name := range found {
			name = filepath.Join(dir, name)
			if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
				return fmt.Errorf("%s is not a regular file (%s): remove it, or set another state_dir", name, info.Mode().Type())
			}
		}
	}
	return nil
}

// writable adds the remedy to an error of a state directory that foldgate can't write.
func writable(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w; run foldgate as the user who owns state_dir, or set another", err)
	}
	return err
}

// cleanJSON takes the secrets out of what a server says of itself.
func (g *Gateway) cleanJSON(ctx context.Context, raw []byte) ([]byte, error) {
	m := interceptor.Message{Body: raw, Always: true}
	g.boundary.Inbound(ctx, &m)
	return m.Body, m.Err
}

// warm connects servers, so that readiness can be told and the first list is quick. It does not wait.
func (g *Gateway) warm(servers []*upstream.Server) {
	for _, srv := range servers {
		g.wg.Go(func() {
			_, _ = srv.Connection(g.lifetime, upstream.Scope{Principal: g.anyone()}) // Status has the fault
		})
	}
}

// anyone returns a principal for work of foldgate's own: checking and warming up.
func (g *Gateway) anyone() string {
	if names := g.settings.Load().Config.PrincipalNames(); len(names) > 0 {
		return names[0]
	}
	return server.LocalPrincipal
}

// Close ends all sessions and returns their branches by force, ends the servers and their process
// groups, and closes the state. ctx bounds the whole.
func (g *Gateway) Close(ctx context.Context) error {
	for _, s := range g.router.Sessions("") {
		s.Close("shutdown")
	}
	g.reloading.Lock() // a reload under way ends first
	g.end()
	g.reloading.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.servers.Close()
		g.wg.Wait()
		g.bridge.Wait()
		g.router.Wait()
		_ = g.tools.Close() // it has no errors
	}()
	select {
	case <-done:
	case <-ctx.Done():
		g.log.Warn("shutdown did not finish in time")
	}
	return g.closeEngines(ctx)
}

func (g *Gateway) closeEngines(ctx context.Context) error {
	var errs []error
	if g.branches != nil {
		errs = append(errs, g.branches.Close(ctx))
	}
	if g.results != nil {
		errs = append(errs, g.results.Close())
	}
	if g.limitStore != nil {
		if l := g.limits(); l != nil {
			l.Close(ctx)
		}
		errs = append(errs, g.limitStore.Close())
	}
	if g.workflows != nil {
		errs = append(errs, g.workflows.Engine.Close())
	}
	if g.journal != nil {
		errs = append(errs, g.journal.Close())
	}
	return errors.Join(errs...)
}

// RunStdio serves one host on in and out until it leaves or ctx is done. out carries nothing but
// protocol.
func (g *Gateway) RunStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	return server.ServeStdio(ctx, g.router, in, out, g.log)
}

// RunHTTP serves hosts on the configured address until ctx is done, then lets calls in flight
// finish. ready is told the address once the gateway listens on it.
func (g *Gateway) RunHTTP(ctx context.Context, ready func(net.Addr)) error {
	ln, err := server.Listen(ctx, g.cfg.Listen)
	if err != nil {
		return err
	}
	addr := ln.Addr()
	if g.cfg.Secure() {
		cert, err := readCertificate(g.cfg)
		if err != nil {
			return errors.Join(err, ln.Close())
		}
		g.certificate.Store(cert)
		// HTTP/1.1 only: the limits on slow readers are limits on connections.
		ln = tls.NewListener(ln, &tls.Config{GetCertificate: g.currentCertificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	} else if g.cfg.Exposed() {
		g.log.Warn("other machines can reach this address, and tokens and results cross the network as plain text: set tls, or let a proxy that speaks TLS stand in front of a loopback address", "listen", g.cfg.Listen)
	}
	e := server.NewHTTP(g.router, server.HTTPOptions{
		Log: g.log, Access: func() *server.Access { return &g.settings.Load().access },
		Ready: g.ready, CheckParams: g.router.CheckHeaders,
	})
	ready(addr)
	g.reloading.Lock()
	g.http = e
	g.reloading.Unlock()
	g.warm(g.settings.Load().Servers)
	g.wg.Go(func() {
		if err := control.Serve(g.lifetime, g.dir, operator{g}, g.log); err != nil {
			g.log.Warn("this gateway takes no commands of its operator", "err", err)
		}
	})
	if g.load != nil && g.cfg.File != "" {
		g.wg.Go(g.watch)
	}
	return server.Serve(ctx, ln, e, e.Handler(), shutdownWait)
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
	}{Status: "ready", Upstreams: map[string]state{}}
	for _, srv := range g.settings.Load().Servers {
		name, fault := srv.Status()
		st := state{State: name}
		if fault != nil {
			st.Error = g.boundary.Text(fault.Error())
			out.Status = "degraded"
		}
		out.Upstreams[srv.Key] = st
	}
	if fault := g.reloadFault.Load(); fault != nil {
		out.Status, out.Config = "degraded", (*fault).Error()
	}
	ok = true
	if err := g.journal.Err(); err != nil {
		out.Status, out.Trace, ok = "unready", err.Error(), g.cfg.Trace.OnError != "refuse"
	}
	body, _ = json.Marshal(out)
	return ok, body
}
