package folding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/budget"
)

// Options are the dependencies of a [Manager]. Repository, Count and Scrub are required.
type Options struct {
	// Repository stores the branches. The Manager closes it if Open succeeds.
	Repository Repository
	// Count returns the tokens of a text.
	Count func(string) int
	// Scrub removes secrets from a text. If it fails or panics, the text is withheld.
	Scrub func(context.Context, string) (string, error)
	// Now is the clock; nil means time.Now. Steady is one that does not jump, for deadlines and ages; nil means Now.
	// Every operation compares deadlines with it. A timer only ensures that unused branches end, too.
	Now, Steady func() time.Time
	// OnEvent receives the events of branches, one at a time and in order. It returns before the
	// operation that caused the event does. It must not call the Manager, which may be waiting
	// for it.
	OnEvent func(Event)
	// Meters and Traces receive metrics and spans; nil means none.
	Meters metric.MeterProvider
	Traces trace.TracerProvider
	// Principals is the number of configured principals. If there are several, none takes more than
	// half of what the others leave of Config.MaxConcurrentPerInstance, but each may take one.
	Principals int
	// Replica is the name of this process among replicas; ids have it. "" means that there is one process.
	// A replica leaves its branches active when it is shut down: it continues them at its next start.
	Replica string
	// Log receives the begin and the end of each branch, without its texts, and errors that can't
	// be returned; nil means none.
	Log *slog.Logger
}

// Manager keeps the branches of one process. Make one with [Open]. It is safe for concurrent use.
type Manager struct {
	limits    atomic.Pointer[limits]
	opts      Options
	log       *slog.Logger
	w         *writer
	telemetry *telemetry
	began     time.Time // with a monotonic clock

	wake chan struct{} // tells the expiry loop of an earlier deadline
	quit chan struct{} // ends the expiry loop
	done chan struct{} // closed when the expiry loop has ended

	finished   sync.Mutex // held from the look at a finished branch to its change
	publishing sync.Mutex // held while events are delivered

	mu       sync.Mutex // guards the fields below and all live branches
	closed   bool
	seq      uint64
	live     map[string]*branch // created or active
	sessions map[sessionKey]map[*branch]struct{}
	joined   map[sessionKey]*branch // by thread, see Join
	made     map[string][]creation  // rated creations of the last minute, by principal; oldest first
	next     time.Time              // no live branch is due before this and before until; zero if none lives
	until    time.Duration          // as branch.until
	events   []Event                // not delivered yet
}

// limits are what Configure changes.
type limits struct {
	Config
	several bool // principals
}

// Configure sets the limits of branches that are created from now on, and the number of principals.
// Open branches keep theirs. It fails on an impossible configuration, without an effect.
func (m *Manager) Configure(cfg Config, principals int) error {
	if err := cfg.Validate().Err(); err != nil {
		return err
	}
	m.limits.Store(&limits{cfg, principals > 1})
	return nil
}

func (m *Manager) config() *Config { return &m.limits.Load().Config }

// branch is a live branch. Its fields are guarded by Manager.mu.
type branch struct {
	Branch   // BudgetUsed is stale: see used
	seq      uint64
	parent   *branch
	children map[*branch]struct{}
	leases   map[*Lease]struct{}
	balance  *budget.Balance
	quota    sessionKey // the session against whose limits it counts
	thread   string     // that created it, or ""
	// unattended is as in CreateRequest.
	unattended bool
	joined     []sessionKey  // the threads that joined it
	holders    int           // leases that hold all that was left
	freed      chan struct{} // closed and replaced when a holder lets go
	changes    int           // of tokens and calls
	// until is the deadline in the time since Manager.began: a clock that is set back does not prolong the branch.
	until time.Duration

	saving sync.Mutex // held during a write of tokens and calls, before Manager.mu; guards saved
	saved  int        // changes that are durable
}

// sessionKey is a session of one principal or, with a thread, one thread of it. Sessions of two
// principals are different even if their names are the same.
type sessionKey struct {
	principal, session, thread string
}

// creation is the creation of a branch against the limits of a session.
type creation struct {
	session string
	at      time.Time
}

// key returns the key of the caller's branches: its thread or, without one, its session.
func (c Caller) key() sessionKey { return sessionKey{c.Principal, c.Session, c.Thread} }

// Open starts a Manager with the branches that were active when the previous process ended. They
// go on until their deadline; those past it end now. Calls that were running count as lost.
func Open(ctx context.Context, cfg Config, opts Options) (*Manager, error) {
	if err := cfg.Validate().Err(); err != nil {
		return nil, err
	}
	switch {
	case opts.Repository == nil:
		return nil, errors.New("folding: Options.Repository is missing: branches need a place")
	case opts.Count == nil:
		return nil, errors.New("folding: Options.Count is missing: budgets need a counter")
	case opts.Scrub == nil:
		return nil, Errorf(ErrScrubbingFailed, "folding: Options.Scrub is missing: nothing may return unscrubbed")
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Steady == nil {
		opts.Steady = opts.Now
	}
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	telemetry, err := newTelemetry(opts.Meters, opts.Traces)
	if err != nil {
		return nil, fmt.Errorf("folding metrics: %w", err)
	}
	active, err := opts.Repository.Active(ctx)
	if err != nil {
		return nil, fmt.Errorf("load active branches: %w", err)
	}
	m := &Manager{
		opts: opts, log: opts.Log, telemetry: telemetry, began: time.Now(), w: newWriter(opts.Repository, opts.Log),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		live:     map[string]*branch{},
		sessions: map[sessionKey]map[*branch]struct{}{},
		joined:   map[sessionKey]*branch{},
		made:     map[string][]creation{},
	}
	m.limits.Store(&limits{cfg, opts.Principals > 1})
	m.mu.Lock()
	m.recover(active)
	recovered, stored := slices.Collect(maps.Values(m.live)), m.w.barrier()
	m.unlock()
	err = stored.wait()
	for _, b := range recovered {
		err = cmp.Or(err, m.save(b))
	}
	if err != nil {
		m.w.close()
		return nil, fmt.Errorf("take over active branches: %w", err)
	}
	go m.expiryLoop()
	return m, nil
}

// recover takes over the branches of the previous process. m.mu is held.
func (m *Manager) recover(active []Branch) {
	now := m.clock()
	slices.SortStableFunc(active, func(a, b Branch) int { return cmp.Compare(a.Depth, b.Depth) })
	for _, rec := range active {
		balance, err := budget.NewBalance(rec.BudgetTotal, rec.BudgetUsed)
		if err != nil {
			m.log.Error("stored branch has an impossible budget; it is closed", "branch_id", rec.ID, "error", err)
			balance, _ = budget.NewBalance(max(rec.BudgetTotal, 1), max(rec.BudgetTotal, 1))
		}
		rec.Activity.Lost += rec.Activity.InFlight
		rec.Activity.InFlight = 0
		rec.Status = StatusActive
		parent, quota := m.live[rec.ParentID], sessionKey{principal: rec.Principal, session: rec.Origin}
		if parent != nil {
			quota = parent.quota
		}
		b := m.add(rec, balance, parent, quota, "") // the thread ended with its connection
		b.changes++
		m.emit(Event{Kind: EventRecovered, Branch: b.snapshot()})
	}
	m.expire(now)
	for _, b := range inOrder(maps.Values(m.live)) {
		switch {
		case b.Status.Terminal(): // ended with its parent
		case b.ParentID != "" && b.parent == nil:
			m.finish(b, outcome{reason: ReasonParentEnded}, now)
		case b.balance.Remaining() == 0:
			m.exhaust(b, now)
		}
	}
}

// maxSleep bounds the sleep of the expiry loop, since timers stand still while a machine is
// suspended and the clock does not.
const maxSleep = 30 * time.Second

// forgetBatch is the number of branches that one transaction deletes. It is small because new branches
// wait for it.
const forgetBatch = 64

// expiryLoop ends branches at their deadline and forgets old ones, until Close.
func (m *Manager) expiryLoop() {
	defer close(m.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var cleaned time.Time
	for {
		select {
		case <-m.quit:
			return
		case <-m.wake:
		case <-timer.C:
		}
		m.mu.Lock()
		m.now()
		now, sleep := m.steady(), maxSleep
		if !m.next.IsZero() {
			sleep = min(sleep, m.next.Sub(now), m.until-time.Since(m.began))
		}
		m.unlock()
		if now.Sub(cleaned).Abs() >= time.Minute { // it goes back once a step back counts
			if m.cleanUp(now) {
				cleaned = now
			} else {
				sleep = 0 // the rest comes after the writes that wait
			}
		}
		timer.Reset(sleep)
	}
}

// cleanUp forgets old creations and one batch of branches past their retention. It returns false if
// there are more.
func (m *Manager) cleanUp(now time.Time) bool {
	m.mu.Lock()
	for principal, made := range m.made {
		if m.made[principal] = lastMinute(made, m.clock()); len(m.made[principal]) == 0 {
			delete(m.made, principal)
		}
	}
	m.mu.Unlock()
	latest := m.clock().Add(time.Minute) // a branch that ends meanwhile is none of a time to come
	n, err := m.opts.Repository.Forget(context.Background(), now.Add(-m.config().Retention), latest, forgetBatch)
	if err != nil {
		m.log.Error("finished branches were not deleted", "error", err)
	}
	return n < forgetBatch
}

// Close ends all branches with ReasonShutdown, unless Options.Replica is set, stores that and closes
// the repository. It returns an error if that takes longer than ctx or Config.SessionCleanupSeconds
// allow: then something may not be stored. Later operations fail with [ErrClosed]. A second Close
// does nothing.
func (m *Manager) Close(ctx context.Context) error { return m.close(ctx, m.opts.Replica == "") }

// Leave does as Close, but leaves the branches active: the next [Open] continues them. It is for a
// process that fails to start.
func (m *Manager) Leave(ctx context.Context) error { return m.close(ctx, false) }

func (m *Manager) close(ctx context.Context, finish bool) error {
	ctx, cancel := context.WithTimeout(ctx, m.cleanupTime())
	defer cancel()
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	now := m.now()
	m.closed = true
	if finish {
		m.finishAll(maps.Values(m.live), outcome{reason: ReasonShutdown}, now)
	}
	m.unlock()
	close(m.quit)
	stopped := make(chan struct{})
	go func() { // the expiry loop and the writer wait for the repository, Close only as long as ctx
		<-m.done
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
	return time.Duration(m.config().SessionCleanupSeconds) * time.Second
}

// now returns the time after it has ended the branches that are due. Every operation begins with
// it, so that none sees a branch past its deadline. m.mu is held.
func (m *Manager) now() time.Time {
	now := m.clock()
	m.expire(now)
	return now
}

// clock returns the time with the precision of the repository.
func (m *Manager) clock() time.Time { return m.opts.Now().UTC().Truncate(time.Microsecond) }

// steady is clock for deadlines and ages.
func (m *Manager) steady() time.Time { return m.opts.Steady().UTC().Truncate(time.Microsecond) }

// TimeLeft returns the time until an active branch ends, 0 for another.
func (m *Manager) TimeLeft(id string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.live[id]; b != nil {
		return max(m.left(b), 0)
	}
	return 0
}

// left returns the time until the deadline of b. m.mu is held.
func (m *Manager) left(b *branch) time.Duration {
	return min(b.ExpiresAt.Sub(m.steady()), b.until-time.Since(m.began))
}

// add makes rec a live branch. m.mu is held.
func (m *Manager) add(rec Branch, balance *budget.Balance, parent *branch, quota sessionKey, thread string) *branch {
	m.seq++
	b := &branch{
		Branch: rec, seq: m.seq, parent: parent, balance: balance, quota: quota, thread: thread,
		children: map[*branch]struct{}{}, leases: map[*Lease]struct{}{}, freed: make(chan struct{}),
		until: time.Since(m.began) + min(rec.ExpiresAt.Sub(m.steady()), rec.ExpiresAt.Sub(rec.CreatedAt)),
	}
	m.live[b.ID] = b
	if parent != nil {
		parent.children[b] = struct{}{}
	}
	for _, key := range b.keys() {
		if m.sessions[key] == nil {
			m.sessions[key] = map[*branch]struct{}{}
		}
		m.sessions[key][b] = struct{}{}
	}
	if m.schedule(b) {
		signal(m.wake)
	}
	return b
}

// schedule makes the next look at deadlines early enough for b. It reports whether that is earlier than before. m.mu is held.
func (m *Manager) schedule(b *branch) (earlier bool) {
	first := m.next.IsZero()
	if first || b.ExpiresAt.Before(m.next) {
		m.next, earlier = b.ExpiresAt, true
	}
	if first || b.until < m.until {
		m.until, earlier = b.until, true
	}
	return earlier
}

// remove undoes add. m.mu is held.
func (m *Manager) remove(b *branch) {
	delete(m.live, b.ID)
	if b.parent != nil {
		delete(b.parent.children, b)
	}
	for _, key := range b.keys() {
		delete(m.sessions[key], b)
		if len(m.sessions[key]) == 0 {
			delete(m.sessions, key)
		}
	}
	for _, key := range b.joined {
		delete(m.joined, key)
	}
	if len(m.live) == 0 {
		m.next = time.Time{}
	}
}

// keys returns the keys of Manager.sessions for b; some may be equal.
func (b *branch) keys() []sessionKey {
	keys := []sessionKey{{principal: b.Principal, session: b.Session}}
	if b.Origin != "" {
		keys = append(keys, sessionKey{principal: b.Principal, session: b.Origin}, sessionKey{b.Principal, b.Origin, b.thread})
	}
	return keys
}

// snapshot returns a copy of b as it is now. Manager.mu is held.
func (b *branch) snapshot() Branch {
	out := b.Branch
	out.BudgetUsed = b.used()
	if !out.Status.Terminal() {
		out.Activity.InFlight = len(b.leases)
	}
	return out
}

// used returns the tokens that the branch has used. Manager.mu is held.
func (b *branch) used() int {
	if b.Status.Terminal() {
		return b.BudgetUsed
	}
	return b.balance.Used()
}

// save returns when the tokens and calls of b are durable as they are now, or its end is. Calls that
// wait for each other share a write. A nil b has nothing to save.
func (m *Manager) save(b *branch) error {
	if b == nil {
		return nil
	}
	b.saving.Lock()
	defer b.saving.Unlock()
	m.mu.Lock()
	changes := b.changes
	if b.saved == changes {
		m.mu.Unlock()
		return nil
	}
	now := b.snapshot()
	m.mu.Unlock()
	if err := m.opts.Repository.Progress(now); err != nil {
		m.log.Error("progress was not stored", "branch_id", now.ID, "error", err)
		return err
	}
	b.saved = changes
	return nil
}

// inOrder returns branches deepest first, then oldest first.
func inOrder(branches iter.Seq[*branch]) []*branch {
	return slices.SortedFunc(branches, func(a, b *branch) int {
		return cmp.Or(cmp.Compare(b.Depth, a.Depth), cmp.Compare(a.seq, b.seq))
	})
}
