package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/upstream"

	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Gateway stands between hosts and upstreams. Make one with [New], serve with
// [Gateway.RunStdio] or [Gateway.RunHTTP], end it with [Gateway.Close]. All methods are safe for
// concurrent use.
type Gateway struct {
	cfg    config.Config
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // everything that background started

	counter    *budget.Counter
	scrubber   *scrub.Scrubber
	boundary   *interceptor.Boundary
	journal    *trace.Journal
	recorder   *interceptor.Recorder
	branches   *folding.Manager
	results    *results.Store
	batches    batches
	programs   *extract.Programs
	tokenMeter interceptor.TokenMeter

	traces    oteltrace.TracerProvider // nil: no spans
	meters    metric.MeterProvider     // nil: no metrics
	telemetry *interceptor.Telemetry   // nil: off
	// through runs a call down the chain of interceptors to h.
	through func(ctx context.Context, c *interceptor.Call, h interceptor.Handler) (*interceptor.Result, error)

	servers       *upstream.Set
	ups           []*upstream.Server // in the configuration's order
	byKey         map[string]*upstream.Server
	tenants       tenants
	menus         menus
	sessions      register
	listens       listeners
	parking       parking
	branchRecords *interceptor.BranchRecords
	flows         *flows   // nil without workflows
	lostSteps     []string // of workflows, that the last process was at when it died
}

// New makes a gateway from a valid configuration. It opens the state
// directory and loads the scrubbing rules, but starts no upstream.
func New(cfg config.Config, log *slog.Logger, options ...Option) (*Gateway, error) {
	if faults := cfg.Validate(); len(faults) > 0 {
		return nil, &config.Error{File: "configuration", Faults: faults}
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &Gateway{cfg: cfg, log: log, ctx: ctx, cancel: cancel, byKey: map[string]*upstream.Server{}, programs: extract.NewPrograms(len(cfg.Principals))}
	for _, o := range options {
		o(g)
	}
	if err := g.openEngines(); err != nil {
		cancel()
		return nil, errors.Join(err, g.closeEngines(ctx))
	}
	g.servers = upstream.NewSet(upstream.Options{
		Config: cfg, Log: g.log, Cleaner: cleaner{g.boundary},
		Shared: func(principal string) upstream.Owner { return sharedOwner{g, principal} },
	})
	g.ups = g.servers.Servers()
	for _, u := range g.ups {
		g.byKey[u.Key] = u
	}
	g.through = newChain(g)
	if err := g.watchState(); err != nil {
		err = errors.Join(err, g.closeEngines(ctx)) // before cancel: the state is closed in order
		cancel()
		return nil, err
	}
	if g.journal.Err() == nil { // else it could not be recorded
		g.journal.Settle()
	}
	if g.flows != nil {
		g.background(func() { g.flows.sweep(g.ctx) })
	}
	return g, nil
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
	if g.scrubber, err = scrub.New(scrub.Options{Rules: g.cfg.RulesFile(), Known: g.cfg.Tokens(), Timeout: time.Duration(g.cfg.Scrub.TimeoutMS) * time.Millisecond}); err != nil {
		return fmt.Errorf("scrub.rules: %w", err)
	}
	g.boundary = &interceptor.Boundary{Scrubber: g.scrubber, Policies: &g.cfg}
	g.log = slog.New(scrubLog{g.log.Handler(), g.boundary}) // from here on: nothing was logged before
	state, err := g.openState()
	if err != nil {
		return err
	}
	g.recorder = &interceptor.Recorder{
		Journal: g.journal, Scrub: g.scrubber, Payload: g.cfg.Trace.Payload == "scrubbed", Refuse: g.cfg.Trace.OnError == "refuse",
		Counter: g.counter.Name(), Log: g.log,
	}
	if err := g.openTelemetry(); err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	g.branchRecords = &interceptor.BranchRecords{
		Recorder: g.recorder, Counter: g.counter, Telemetry: g.telemetry, Dir: filepath.Join(state, "trace"),
	}
	g.tokenMeter = interceptor.TokenMeter{Counter: g.counter, ImageTokens: g.cfg.Budget.ImageTokens}
	if g.results, err = results.Open(filepath.Join(state, "results.db"), results.Config{
		Quota: int64(g.cfg.Results.QuotaMB) << 20, TTL: time.Duration(g.cfg.Results.TTLHours) * time.Hour, Strict: g.strict(),
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
	return g.openFlows()
}

// openBranches takes over the branches in repo, once they agree with the trace.
func (g *Gateway) openBranches(repo folding.Repository) (err error) {
	maxAge := time.Duration(g.cfg.Folding.MaxTimeoutSeconds) * time.Second
	if g.lostSteps, err = g.branchRecords.Recover(g.ctx, repo, maxAge); err != nil {
		return err
	}
	g.branches, err = folding.Open(g.ctx, g.cfg.Folding, folding.Options{
		Repository: repo, Count: g.counter.Count, OnEvent: g.branchRecords.Event, Log: g.log, Meters: g.meters, Traces: g.traces,
		Scrub: func(ctx context.Context, text string) (string, error) {
			clean, _, err := g.scrubber.Text(ctx, text)
			return clean, err
		},
	})
	return err
}

// openState opens the journal, and with it takes hold of a state directory,
// which it returns. Hosts start a stdio server as often as they like, so a
// second process on the same configuration gets a directory of its own below
// the first; a second HTTP server is a mistake and is told so.
func (g *Gateway) openState() (dir string, err error) {
	t := g.cfg.Trace
	for n := 1; n <= maxInstances; n++ {
		dir = config.InstanceDir(g.cfg.Path(g.cfg.StateDir), n)
		if err = os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("state_dir: %w", writable(err))
		}
		g.journal, err = trace.Open(filepath.Join(dir, "trace"), trace.Options{
			Sync: t.Sync, Interval: time.Duration(t.SyncIntervalMS) * time.Millisecond,
			RotateBytes: int64(t.RotateMB) << 20, Retain: trace.Retention{Files: t.RetainFiles}, Log: g.log,
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

// writable adds what to do to an error of a state directory that is not foldgate's.
func writable(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w; run foldgate as the user who owns state_dir, or set another", err)
	}
	return err
}

// maxInstances bounds how many processes may share one configuration.
const maxInstances = 64

// background runs f in a goroutine that Close waits for.
func (g *Gateway) background(f func()) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		f()
	}()
}

// warm connects every upstream, so that readiness can be told and the first
// list is quick. It returns when each is up or has failed, or ctx is done.
func (g *Gateway) warm(ctx context.Context) {
	var wg sync.WaitGroup
	for _, u := range g.ups {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, _ = u.Connection(ctx, upstream.Scope{Principal: g.anyone()}) // the fault is kept in u's status
		}()
	}
	wg.Wait()
}

// Close ends all sessions, force-returns their branches, ends the upstreams
// and their process groups, and closes the state. ctx bounds the whole.
func (g *Gateway) Close(ctx context.Context) error {
	for _, s := range g.sessions.list() {
		s.Close("shutdown")
	}
	g.parking.close()
	g.cancel()
	done := make(chan struct{})
	go func() { g.servers.Close(); g.wg.Wait(); close(done) }()
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
	if g.flows != nil {
		errs = append(errs, g.flows.engine.Close())
	}
	if g.journal != nil {
		errs = append(errs, g.journal.Close())
	}
	return errors.Join(errs...)
}
