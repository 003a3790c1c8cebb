package folding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/budget"
)

// Options are what a [Manager] needs of others. Count and Scrub are required.
type Options struct {
	// Repository keeps the branches; nil means [NewMemory]. The Manager closes
	// it once Open has succeeded.
	Repository Repository
	// Count returns the tokens of a text.
	Count func(string) int
	// Scrub removes secrets. Where it returns an error or panics, the text it
	// was given goes nowhere.
	Scrub func(context.Context, string) (string, error)
	// Sessions overrides Config.SessionValidation.
	Sessions SessionValidator
	// Now is the clock; nil means time.Now. Deadlines are compared with it on
	// every operation; a timer of package time only makes sure that a branch
	// nobody touches ends too.
	Now func() time.Time
	// OnEvent is told what happens to branches, outside all locks, one event
	// at a time, in order. The operation that caused an event returns after it
	// was delivered. OnEvent must not call the Manager, which may be waiting
	// for it.
	OnEvent func(Event)
	// Meters and Traces take metrics and spans; nil means none.
	Meters metric.MeterProvider
	Traces trace.TracerProvider
	// Log gets what no caller can be told; nil means none.
	Log *slog.Logger
}

// Manager keeps the branches of one process. All methods are safe for
// concurrent use. Make one with [Open].
type Manager struct {
	cfg  Config
	opts Options
	log  *slog.Logger
	w    *writer

	telemetry *telemetry

	wake chan struct{} // tells the reaper of an earlier deadline
	quit chan struct{} // ends the reaper
	done chan struct{} // closed when the reaper has ended

	publishing sync.Mutex // held while events are delivered
	lateReturn sync.Mutex // held while a late return looks and writes

	mu       sync.Mutex // guards what follows
	closed   bool
	seq      uint64
	live     map[string]*branch // created or active
	sessions map[sessionKey]map[*branch]struct{}
	joined   map[sessionKey]*branch // what threads were handed, see Join
	quotas   map[sessionKey]*quota
	next     time.Time // no live branch is due before; zero if none lives
	events   []Event
}

// Open loads what was active when the process last ended and starts the
// Manager. Such branches go on until their deadline; those that passed it
// meanwhile end now; calls that were in flight are counted as lost. Close the
// Manager to release it.
func Open(ctx context.Context, cfg Config, opts Options) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if opts.Count == nil {
		return nil, errors.New("folding: Options.Count is missing: budgets need a counter")
	}
	if opts.Scrub == nil {
		return nil, hiding(nil, ErrScrubbingFailed, "folding: Options.Scrub is missing: nothing may return unscrubbed")
	}
	if opts.Repository == nil {
		opts.Repository = NewMemory()
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Sessions == nil {
		opts.Sessions = Permissive{}
		if cfg.SessionValidation == ValidationStrict {
			opts.Sessions = Strict{}
		}
	}
	telemetry, err := newTelemetry(opts.Meters, opts.Traces)
	if err != nil {
		return nil, fmt.Errorf("folding metrics: %w", err)
	}
	active, err := opts.Repository.Active(ctx)
	if err != nil {
		return nil, fmt.Errorf("load active branches: %w", err)
	}
	m := &Manager{
		cfg: cfg, opts: opts, log: opts.Log, telemetry: telemetry,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		live:     map[string]*branch{},
		sessions: map[sessionKey]map[*branch]struct{}{},
		joined:   map[sessionKey]*branch{},
		quotas:   map[sessionKey]*quota{},
	}
	m.w = newWriter(opts.Repository, opts.Log)
	m.mu.Lock()
	m.recover(active)
	stored := m.w.barrier()
	m.unlock()
	if err := stored.wait(); err != nil {
		m.w.close()
		return nil, fmt.Errorf("take over active branches: %w", err)
	}
	go m.reap()
	return m, nil
}

// recover takes over the branches of an earlier process. m.mu is held.
func (m *Manager) recover(active []Branch) {
	now := m.now()
	slices.SortStableFunc(active, func(a, b Branch) int { return cmp.Compare(a.Depth, b.Depth) })
	for _, rec := range active {
		ledger, err := budget.NewLedger(rec.BudgetTotal, rec.BudgetUsed)
		if err != nil {
			m.log.Error("stored branch has an impossible budget; it is closed", "branch_id", rec.ID, "error", err)
			ledger, _ = budget.NewLedger(max(rec.BudgetTotal, 1), max(rec.BudgetTotal, 1))
		}
		rec.Activity.Lost += rec.Activity.InFlight
		rec.Activity.InFlight = 0
		rec.Status = StatusActive
		parent, limits := m.live[rec.ParentID], sessionKey{principal: rec.Principal, session: rec.Origin}
		if parent != nil {
			limits = parent.limits
		}
		b := m.add(rec, ledger, parent, limits, "") // its connection ended with that process
		m.save(b)
		m.emit(EventRecovered, now, b.snapshot(), nil)
	}
	m.expire(now)
	for _, b := range inOrder(m.all()) {
		switch {
		case b.Status.Terminal():
		case b.ParentID != "" && b.parent == nil:
			m.finish(b, outcome{status: StatusFailed, reason: ReasonParentEnded}, now)
		case b.ledger.Balance().Exhausted():
			m.exhaust(b, now)
		}
	}
}

// Close ends all branches with ReasonShutdown, writes what is left and closes
// the repository. ctx and Config.SessionCleanupSeconds bound it; an error says
// that something may not have been stored. Later operations fail with
// ErrClosed. Close is idempotent.
func (m *Manager) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cleanupTime())
	defer cancel()
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	now := m.tick()
	m.closed = true
	m.finishAll(m.all(), outcome{status: StatusFailed, reason: ReasonShutdown}, now)
	m.unlock()
	close(m.quit)
	<-m.done
	stopped := make(chan struct{})
	go func() {
		m.w.close()
		close(stopped)
	}()
	select {
	case <-stopped:
		return m.opts.Repository.Close()
	case <-ctx.Done():
		return hiding(ctx.Err(), ErrStorage, "the repository did not take the last changes in time")
	}
}

func (m *Manager) cleanupTime() time.Duration {
	return time.Duration(m.cfg.SessionCleanupSeconds) * time.Second
}

// now returns the time as it is stored.
func (m *Manager) now() time.Time { return m.opts.Now().UTC().Truncate(time.Microsecond) }

// tick ends what is due and returns the time. m.mu is held. Every operation
// begins with it, so that none sees a branch past its deadline.
func (m *Manager) tick() time.Time {
	now := m.now()
	m.expire(now)
	return now
}
