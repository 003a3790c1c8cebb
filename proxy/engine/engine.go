// Package engine is everything below the router: the state on disk, what works on it, and the chain of
// layers. A gateway runs the calls of its hosts down the chain. The middleware of interceptor/gosdk runs
// the calls of the server that it is part of.
package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
	"github.com/foldgate/foldgate/internal/replicaid"
	"github.com/foldgate/foldgate/internal/sqlitedb"
	"github.com/foldgate/foldgate/internal/steadyclock"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/tools"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Features are what the chain does, each by a layer or some. The zero value is all of them.
type Features uint8

// The features. Each works without the others.
const (
	Scrub Features = 1 << iota // removes secrets
	Meter                      // counts tokens, and keeps branches and limits within theirs
	Fold                       // replaces large results with previews
	Trace                      // records calls
)

// Has reports whether f has any of others.
func (f Features) Has(others Features) bool { return f == 0 || f&others != 0 }

// Options configure an [Engine]. The functions return what is in force: a reload may change it.
type Options struct {
	Start    config.Config // for what no reload changes
	Config   func() *config.Config
	Folding  func() *interceptor.FoldPolicy
	Limits   func() *interceptor.Limits // nil for none
	Features Features
	Log      *slog.Logger             // the engine logs to it without secrets
	Traces   oteltrace.TracerProvider // nil for none
	Meters   metric.MeterProvider     // nil for none
}

// Engine has the state of a process and what works on it: the tokenizer, the scrubber, the journal, branches,
// stored results, limits, workflows. The fields are in the order in which they are opened. If Scrub is the
// only feature, those that need the state directory are nil.
type Engine struct {
	Options
	Counter    *budget.Counter
	Scrubber   *scrub.Scrubber
	Boundary   *interceptor.Boundary
	Dir        string // the state directory of this process
	clock      *steadyclock.Clock
	Replica    string // the name of this process among replicas, "" if it is not one
	Journal    *trace.Journal
	Recorder   *interceptor.Recorder
	Telemetry  *interceptor.Telemetry // nil if it is off
	Records    *interceptor.BranchRecords
	Tokens     interceptor.TokenMeter
	Results    *results.Store
	Branches   *folding.Manager
	Workflows  *interceptor.Workflows // nil without workflows
	Tools      *tools.Tools
	Chain      interceptor.Chain   // of the layers
	limitStore limits.Store        // nil as long as there are no limits
	reserves   *limits.ReserveFile // of this process; likewise
	lostSteps  []string            // steps of workflows that a process left when it died
}

// Open opens the state of a valid configuration. Call Started once the rest of the start has succeeded, too. The
// engine works until lifetime ends; Close must be called after that, or Abandon.
func Open(lifetime context.Context, o Options) (*Engine, error) {
	e := &Engine{Options: o}
	if err := e.open(lifetime); err != nil {
		return nil, errors.Join(err, e.Abandon(lifetime))
	}
	e.Chain = e.newChain()
	return e, nil
}

func (e *Engine) open(lifetime context.Context) (err error) {
	cfg := &e.Start
	if e.Counter, err = cfg.Budget.Counter(); err != nil {
		return err
	}
	if e.Scrubber, err = NewScrubber(*cfg); err != nil {
		return err
	}
	e.Boundary = &interceptor.Boundary{Scrubber: e.Scrubber, Policy: e.scrubPolicy}
	e.Log = slog.New(scrubLog{e.Log.Handler(), e.Boundary}) // nothing was logged before
	e.Tokens = interceptor.TokenMeter{Counter: e.Counter, ImageTokens: cfg.Budget.ImageTokens}
	if !e.Features.Has(Meter | Fold | Trace) {
		return nil
	}
	if e.Journal, e.clock, e.Dir, err = openState(*cfg, cfg.Listen == "", e.Log); err != nil {
		return err
	}
	if cfg.Replicated() {
		if e.Replica, err = replicaName(e.Dir); err != nil {
			return fmt.Errorf("state_dir: %w", writable(err))
		}
	}
	e.Recorder = &interceptor.Recorder{
		Journal: e.Journal, Boundary: e.Boundary, Payload: cfg.Trace.Payload == "scrubbed", Refuse: cfg.Trace.OnError == "refuse",
		Counter: e.Counter.Name(), Log: e.Log, Team: func(principal string) string { return e.Config().Identity(principal).Team },
	}
	if e.Traces != nil || e.Meters != nil {
		if e.Telemetry, err = interceptor.NewTelemetry(e.Traces, e.Meters, tools.Has); err != nil {
			return fmt.Errorf("telemetry: %w", err)
		}
		e.Telemetry.ByPrincipal, e.Telemetry.Short = cfg.Budgets.MetricsByPrincipal, e.Recorder.Short
	}
	e.Records = &interceptor.BranchRecords{
		Recorder: e.Recorder, Counter: e.Counter, Telemetry: e.Telemetry,
		Several: func() bool { return e.Config().PrincipalCount() > 1 },
	}
	branches, stored := filepath.Join(e.Dir, "foldgate.db"), filepath.Join(e.Dir, "results.db")
	warnLost(e.Log, stored, branches+".lock", "stored results", restore)
	warnLost(e.Log, branches, branches+".progress", "branches", restore)
	if e.Results, err = results.Open(stored, results.Config{
		Quota: int64(cfg.Results.QuotaMB) << 20, TTL: time.Duration(cfg.Results.TTLHours) * time.Hour,
		Strict: cfg.Folding.SessionValidation == folding.ValidationStrict, Replica: e.Replica, Now: e.clock.Stamp, Steady: e.clock.Now,
	}); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	repo, err := folding.OpenSQLite(branches)
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if err := e.openBranches(lifetime, repo); err != nil {
		return errors.Join(err, repo.Close())
	}
	if err := e.openWorkflows(lifetime); err != nil {
		return err
	}
	e.Tools = tools.New(lifetime, tools.Options{
		Config: e.Config, Branches: e.Branches, Limits: e.Limits, Results: e.Results, Counter: e.Counter, Programs: extract.NewPrograms(2 * cfg.PrincipalCount()),
		Boundary: e.Boundary, Records: e.Records, Log: e.Log,
	})
	return nil
}

// Started says that what a killed process left has its end. Until then each start looks for it again, by the time that
// the clock of that process stored.
func (e *Engine) Started() {
	if e.Journal == nil {
		return
	}
	if e.Journal.Err() == nil { // else it could not be recorded
		e.Journal.Settle()
	}
	e.clock.Keep()
}

// scrubPolicy returns the policy of a server for secrets.
func (e *Engine) scrubPolicy(server string) interceptor.ScrubPolicy {
	if !e.Features.Has(Scrub) {
		return interceptor.ScrubPolicy{ToHost: interceptor.Off, ToServer: interceptor.Off}
	}
	return e.Config().ScrubPolicy(server)
}

// NewScrubber returns a scrubber for a configuration. The error is a [*config.Error].
func NewScrubber(c config.Config) (*scrub.Scrubber, error) {
	s, err := scrub.New(scrub.Options{Rules: c.RulesFile(), Known: c.Secrets(), Timeout: time.Duration(c.Scrub.TimeoutMS) * time.Millisecond})
	if err != nil {
		return nil, config.NewError(cmp.Or(c.File, "configuration"), config.Fault{Key: "scrub.rules", Msg: err.Error() + "; correct the file, or remove the key"})
	}
	return s, nil
}

// replicaFile has the name of a replica, in its state directory.
const replicaFile = "replica"

// ReservesFile has what the limits of a process have reserved, in its state directory.
const ReservesFile = "reserves"

// NewLimits makes the limits of b, and opens their store with the first. It returns nil if there are
// none. All processes on the state directory share the counts.
func (e *Engine) NewLimits(b config.Budgets) (_ *interceptor.Limits, err error) {
	if len(b.Limits) == 0 {
		return nil, nil
	}
	if e.limitStore == nil { // before the file of the reserves, which is the sign of an earlier store
		if e.limitStore, err = OpenLimitStore(e.Start, e.Log, e.clock.Now); err != nil {
			return nil, err
		}
	}
	if e.reserves == nil {
		if e.reserves, err = limits.OpenReserveFile(filepath.Join(e.Dir, ReservesFile), storeName(&e.Start)); err != nil {
			return nil, fmt.Errorf("state_dir: %w", writable(err))
		}
	}
	all, err := limits.New(b.Limits, e.limitStore, limits.Options{
		Allow: b.OnError == "allow", Wait: time.Duration(b.WaitMS) * time.Millisecond, Log: e.Log, Reserves: e.reserves,
		Notify: func(x limits.Crossing) {
			e.Recorder.Crossed(x)
			e.Telemetry.Crossed(x)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("budgets.limits: %w", err)
	}
	return &interceptor.Limits{Limits: all, Shown: func(server, tool string) string { return e.Config().ShownName(server, tool) }, Stateless: wire.VersionModern}, nil
}

// storeName names the store of the limits of a configuration in ledgers.
func storeName(c *config.Config) string {
	sum := sha256.Sum256([]byte(string(c.Store.URL) + "\x00" + c.Store.Prefix))
	return hex.EncodeToString(sum[:])
}

// OpenLimitStore opens the store in which the limits of a configuration count. The log gets a warning
// if the counts of an earlier start are lost. steady is as of [limits.OpenSQLite].
func OpenLimitStore(c config.Config, log *slog.Logger, steady func() time.Time) (limits.Store, error) {
	if c.Store.URL != "" {
		return limits.OpenRedis(string(c.Store.URL), c.Store.Prefix)
	}
	file, reserves := filepath.Join(c.StatePath(), "budgets.db"), filepath.Join(c.StatePath(), ReservesFile)
	if limits.ReserveFileIsOf(reserves, storeName(&c)) { // with Redis, foldgate makes no such database
		warnLost(log, file, reserves, "counts of limits", `run "foldgate budgets rebuild"`)
	}
	store, err := limits.OpenSQLite(file, log, steady)
	if err != nil {
		err = fmt.Errorf("state_dir: %w", err)
	}
	return store, err
}

// FoldPolicy returns the thresholds and rules of a configuration.
func FoldPolicy(c *config.Config) interceptor.FoldPolicy {
	return interceptor.FoldPolicy{
		MainThreshold: c.Results.MainThreshold, BranchFraction: c.Results.BranchFraction, PreviewTokens: c.Results.PreviewTokens,
		Rule: func(server, tool string) interceptor.FoldRule { return c.Results.Rule(c.ShownName(server, tool)) }, // the configuration has the names hosts see
	}
}

// schemas are those of the databases in a state directory.
var schemas = map[string]sqlitedb.Options{
	"foldgate.db": folding.Schema, "results.db": results.Schema, "budgets.db": limits.Schema, "workflows.db": workflow.Schema,
}

// ExamineDatabase returns why foldgate would refuse a database in a state directory; see [sqlitedb.Examine].
func ExamineDatabase(ctx context.Context, file string) error {
	return sqlitedb.Examine(ctx, file, schemas[filepath.Base(file)])
}

// openBranches takes over the branches in repo, once they agree with the trace.
func (e *Engine) openBranches(lifetime context.Context, repo folding.Repository) (err error) {
	cfg := &e.Start
	maxAge := time.Duration(cfg.Folding.MaxTimeoutSeconds) * time.Second
	if e.lostSteps, err = e.Records.Reconcile(lifetime, repo, maxAge, e.clock.Known()); err != nil {
		return err
	}
	e.Branches, err = folding.Open(lifetime, cfg.Folding, folding.Options{
		Repository: repo, Count: e.Counter.Count, OnEvent: e.Records.Event, Log: e.Log, Meters: e.Meters, Traces: e.Traces,
		Principals: cfg.PrincipalCount(), Replica: e.Replica, Now: e.clock.Stamp, Steady: e.clock.Now,
		Scrub: func(ctx context.Context, text string) (string, error) {
			clean, _, err := e.Scrubber.Text(ctx, text)
			return clean, err
		},
	})
	return err
}

// openWorkflows makes the workflow layer. All processes on the state directory share its store, so
// that a handle is valid in each of them.
func (e *Engine) openWorkflows(lifetime context.Context) error {
	if len(e.Start.Workflows) == 0 {
		return nil
	}
	engine, err := workflow.Open(filepath.Join(e.Start.StatePath(), "workflows.db"), e.clock.Stamp, e.clock.Now)
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	e.Workflows = &interceptor.Workflows{Engine: engine, Recorder: e.Recorder, Log: e.Log}
	if err := engine.Interrupt(lifetime, e.lostSteps); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

const maxInstances = 64 // processes that may share one configuration

// lockWait is longer than [Record] holds the lock of a journal. Somebody may open a record at the console
// while an HTTP server starts.
const lockWait = 2 * time.Second

// openState opens the journal, and with it takes a state directory, which it returns. Hosts start a
// stdio server as often as they like, so a second process on the same configuration gets a directory
// of its own below the first, if several may run. A second HTTP server is a mistake, and the error says so.
func openState(c config.Config, several bool, log *slog.Logger) (j *trace.Journal, clock *steadyclock.Clock, dir string, err error) {
	t, root := c.Trace, c.StatePath()
	for n := 1; n <= maxInstances; n++ {
		dir = config.InstanceDir(root, n)
		_, isNew := os.Stat(root)
		if err = os.MkdirAll(dir, 0o700); err != nil {
			return nil, nil, "", fmt.Errorf("state_dir: %w", writable(err))
		}
		if isNew != nil { // it is often made in somebody's repository, and holds what servers have sent
			if err = os.WriteFile(filepath.Join(root, ".gitignore"), []byte("*\n"), 0o600); err != nil {
				return nil, nil, "", fmt.Errorf("state_dir: %w", writable(err))
			}
		}
		if err = cmp.Or(regularFiles(root), regularFiles(dir)); err != nil {
			return nil, nil, "", fmt.Errorf("state_dir: %w", err)
		}
		if records, _ := filepath.Glob(filepath.Join(dir, "trace", "*.json*")); len(records) == 0 { // else the journal knows what is missing
			warnLost(log, filepath.Join(dir, "trace", "head.json"), filepath.Join(dir, "foldgate.db"), "records", restore)
		}
		clock = openClock(dir, clock, log)
		for began := time.Now(); ; time.Sleep(lockWait / 40) {
			j, err = trace.Open(filepath.Join(dir, "trace"), trace.Options{
				Sync: t.Sync, Interval: time.Duration(t.SyncIntervalMS) * time.Millisecond,
				RotateBytes: int64(t.RotateMB) << 20, RetainFiles: t.RetainFiles,
				RetainAge: time.Duration(t.RetainDays) * 24 * time.Hour, Steady: clock.Now, Log: log,
			})
			if several || !errors.Is(err, trace.ErrInUse) || time.Since(began) > lockWait {
				break
			}
		}
		if !errors.Is(err, trace.ErrInUse) || !several {
			break
		}
	}
	if err != nil {
		return nil, nil, "", fmt.Errorf("trace: %w", writable(err))
	}
	if dir != root {
		log.Info("another gateway uses the state directory, so this one has its own; their branches are not shared", "state_dir", root, "own", dir)
	}
	return j, clock, dir, nil
}

// openClock opens the clock for what ends or is deleted by age. Without its file it is what another process on the
// configuration has, or else the machine's clock was right when the last record was written.
func openClock(dir string, other *steadyclock.Clock, log *slog.Logger) *steadyclock.Clock {
	var known time.Time
	if other != nil {
		known = other.Now()
	} else if info, err := os.Stat(filepath.Join(dir, "trace", "head.json")); err == nil {
		known = info.ModTime()
	}
	return steadyclock.Open(filepath.Join(dir, steadyclock.File), known, log)
}

// Record writes records of a command to the trace of a configuration: if gateways run, to one of its own.
func Record(c config.Config, write func(*interceptor.Recorder)) error {
	s, err := NewScrubber(c)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler) // the error says it
	j, _, _, err := openState(c, true, log)
	if err != nil {
		return err
	}
	write(&interceptor.Recorder{
		Journal: j, Boundary: &interceptor.Boundary{Scrubber: s, Policy: c.ScrubPolicy}, Payload: c.Trace.Payload == "scrubbed", Log: log,
		Team: func(principal string) string { return c.Identity(principal).Team },
	})
	return errors.Join(j.Err(), j.Close())
}

// replicaName returns the name of the replica with that state directory, which it keeps for ever: the
// ids of its branches and results have it.
func replicaName(dir string) (string, error) {
	file := filepath.Join(dir, replicaFile)
	text, err := os.ReadFile(file)
	if name := strings.TrimSpace(string(text)); err == nil && replicaid.Valid(name) {
		return name, nil
	} else if err == nil && name != "" {
		return "", fmt.Errorf("%s has %.40q instead of the name of a replica: delete it", file, name)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	name := replicaid.NewName()
	return name, os.WriteFile(file, []byte(name+"\n"), 0o600)
}

// regularFiles returns an error if a pipe, a socket or a device has the place of a state file:
// opening one could wait for ever.
func regularFiles(dir string) error {
	for _, names := range []string{"*.db*", "*.json*", ReservesFile, replicaFile, "trace/*"} {
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

const restore = "restore it from a backup if you did not remove it"

// warnLost logs that a file is gone or empty that an earlier start has made. later is a file that
// foldgate makes after it, content what it has.
func warnLost(log *slog.Logger, file, later, content, remedy string) {
	if _, err := os.Stat(later); err != nil {
		return
	}
	if info, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		log.Warn("a file of the state directory is gone or empty, so foldgate begins without the "+content+" it had: "+remedy, "file", file)
	}
}

// writable adds the remedy to an error of a state directory that foldgate can't write.
func writable(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w; make room on the disk, or set state_dir to another", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w; mount it for writing, or set state_dir to another", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; run foldgate as the user who owns state_dir, or set another", err)
	case errors.As(err, new(*os.PathError)):
		return fmt.Errorf("%w; set state_dir to a directory that you can write", err)
	}
	return err
}

// Close ends the branches by force and closes the state. ctx bounds the branches and the limits.
func (e *Engine) Close(ctx context.Context) error { return e.close(ctx, (*folding.Manager).Close) }

// Abandon closes the state after a start that failed. The branches of the previous process stay
// active for the next start. ctx is as in Close.
func (e *Engine) Abandon(ctx context.Context) error { return e.close(ctx, (*folding.Manager).Leave) }

func (e *Engine) close(ctx context.Context, branches func(*folding.Manager, context.Context) error) error {
	var errs []error
	if e.Branches != nil {
		errs = append(errs, branches(e.Branches, ctx))
	}
	if e.Results != nil {
		errs = append(errs, e.Results.Close())
	}
	if e.limitStore != nil {
		if l := e.Limits(); l != nil {
			l.Close(ctx)
		}
		errs = append(errs, e.limitStore.Close())
	}
	if e.reserves != nil {
		errs = append(errs, e.reserves.Close())
	}
	if e.Workflows != nil {
		errs = append(errs, e.Workflows.Engine.Close())
	}
	if e.Recorder != nil {
		e.Recorder.Flush()
	}
	if e.Journal != nil {
		e.clock.Close() // while the journal's lock is held
		errs = append(errs, e.Journal.Close())
	}
	return errors.Join(errs...)
}
