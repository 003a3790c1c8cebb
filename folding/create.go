package folding

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding/contextpath"
)

// CreateRequest asks for a branch.
type CreateRequest struct {
	// SessionID overrides the caller's session. If both are empty, Create makes up a session.
	SessionID string
	// ParentID names the parent; "" creates a first-level branch.
	ParentID string
	// Description is required, at most 500 characters; Prompt at most 10,000.
	Description, Prompt string
	// Budget in tokens and TimeoutSeconds: 0 means the default, more than the maximum means the
	// maximum. A branch never outlives its parent.
	Budget, TimeoutSeconds int
	// Ephemeral marks a branch that one call opens for itself and ends with. It does not count
	// against the rate. It counts against the open branches of LimitSession, "" if the connection
	// of the call has no session.
	Ephemeral    bool
	LimitSession string
	// Cause is passed on in the Event of the creation.
	Cause any
}

// draft is a request with checked texts and figures.
type draft struct {
	CreateRequest
	cost    int // tokens of the texts
	timeout time.Duration
	id      string
	context contextpath.Path
	limits  sessionKey // of the quota that it counts against
}

// Create opens a branch and charges it for its description and prompt. It checks and takes all
// limits in one critical section. When it returns, the branch is durable and active.
func (m *Manager) Create(ctx context.Context, caller Caller, req CreateRequest) (out Branch, err error) {
	ctx, done := m.telemetry.span(ctx, "folding.branch.create", caller.Session)
	defer func() { done(out, err) }()
	d, err := m.draft(ctx, caller, req)
	if err != nil {
		return Branch{}, err
	}
	ledger, err := budget.NewLedger(d.Budget, 0)
	if err == nil {
		err = ledger.Charge(d.cost) // not NewLedger's second argument: this warns if it is most of the budget
	}
	if err != nil {
		return Branch{}, err
	}
	m.mu.Lock()
	now := m.now()
	parent := m.own(caller, d.ParentID)
	switch {
	case m.closed:
		err = Errorf(ErrClosed, "foldgate is shutting down: no branch can be created")
	case d.ParentID != "" && parent == nil:
		m.unlock()
		b, ok, err := m.find(ctx, caller, d.ParentID)
		return Branch{}, notActiveError(d.ParentID, b, ok, err)
	default:
		if err = m.attach(caller, parent, &d); err == nil {
			err = m.admit(d.limits, now, !d.Ephemeral)
		}
	}
	if err != nil {
		m.unlock()
		return Branch{}, err
	}
	rec := Branch{
		ID: d.id, Principal: caller.Principal, Session: d.SessionID, Origin: caller.Session,
		Context: string(d.context), Depth: 1, Description: d.Description, Prompt: d.Prompt,
		Status: StatusCreated, BudgetUsed: d.cost, BudgetTotal: d.Budget,
		CreatedAt: now, ExpiresAt: now.Add(d.timeout),
	}
	if parent != nil {
		rec.ParentID, rec.Depth = parent.ID, parent.Depth+1
		if parent.ExpiresAt.Before(rec.ExpiresAt) {
			rec.ExpiresAt = parent.ExpiresAt
		}
	}
	b := m.add(rec, ledger, parent, d.limits, caller.Thread)
	m.emit(Event{Kind: EventCreated, Time: now, Branch: b.snapshot(), Cause: d.Cause})
	rec = b.snapshot()
	rec.Status = StatusActive // the repository knows no created branches: being stored makes it active
	stored := m.w.put(OpInsert, rec, atOnce)
	m.unlock()
	err = stored.wait()

	m.mu.Lock()
	defer m.unlock()
	now = m.now()
	if b.Status.Terminal() { // ended during the insert
		return Branch{}, b.ended()
	}
	if err != nil {
		m.finish(b, outcome{reason: ReasonStorageFailed}, now)
		return Branch{}, Errorf(ErrStorage, "the branch could not be stored: %w", err)
	}
	b.Status = StatusActive
	m.checkBudget(b, now)
	return b.snapshot(), nil
}

// draft checks the request as far as that needs no lock.
func (m *Manager) draft(ctx context.Context, caller Caller, req CreateRequest) (d draft, err error) {
	d = draft{CreateRequest: req, id: "br_" + uuid.NewString()}
	if d.Description, err = cleanText("description", req.Description, maxDescription); err != nil {
		return d, err
	}
	if strings.TrimSpace(d.Description) == "" {
		return d, Errorf(ErrInvalidInput, "description is missing: say in a few words what the branch will do")
	}
	if d.Prompt, err = cleanText("prompt", req.Prompt, maxPrompt); err != nil {
		return d, err
	}
	if req.Budget < 0 || req.TimeoutSeconds < 0 {
		return d, Errorf(ErrInvalidInput, "budget and timeout_seconds can't be negative: leave them out for %d tokens and %d s",
			m.cfg.DefaultBudget, m.cfg.DefaultTimeoutSeconds)
	}
	d.Budget = min(cmp.Or(req.Budget, m.cfg.DefaultBudget), m.cfg.MaxBudget)
	d.timeout = time.Duration(min(cmp.Or(req.TimeoutSeconds, m.cfg.DefaultTimeoutSeconds), m.cfg.MaxTimeoutSeconds)) * time.Second
	if d.SessionID == "" && m.cfg.RequireSessionID {
		return d, Errorf(ErrInvalidInput, "session_id is missing: it is required here")
	}
	if err := checkSessionID(d.SessionID); err != nil {
		return d, err
	}
	if d.ParentID == "" { // other branches belong to the session of their parent; see attach
		if d.SessionID = cmp.Or(d.SessionID, caller.Session); d.SessionID == "" {
			d.SessionID = "ses_" + uuid.NewString()
		}
		if !m.mayUse(caller, d.SessionID) {
			return d, Errorf(ErrForbidden, "this session may not be used from here: leave out session_id, or use a connection that keeps a session")
		}
	}
	if d.Description, err = m.scrub(ctx, d.Description); err != nil {
		return d, err
	}
	if d.Prompt, err = m.scrub(ctx, d.Prompt); err != nil {
		return d, err
	}
	text := d.Description
	if d.Prompt != "" {
		text += "\n" + d.Prompt
	}
	if d.cost = m.opts.Count(text); d.cost >= d.Budget {
		return d, Errorf(ErrInvalidInput, "description and prompt take %d tokens of a budget of %d: shorten them or ask for a larger budget (up to %d)",
			d.cost, d.Budget, m.cfg.MaxBudget)
	}
	return d, nil
}

// attach gives the branch its context path, its session and its quota. parent is nil for a
// first-level branch. m.mu is held.
func (m *Manager) attach(caller Caller, parent *branch, d *draft) (err error) {
	// The session of the connection, since the argument can be made up. Callers without one share
	// a quota.
	d.limits = sessionKey{principal: caller.Principal, session: caller.Session}
	if d.Ephemeral {
		d.limits.session = d.LimitSession
	}
	if parent != nil {
		if d.SessionID != "" && d.SessionID != parent.Session {
			return Errorf(ErrInvalidInput, "session_id is not that of the parent branch: leave it out")
		}
		d.SessionID, d.limits, d.context = parent.Session, parent.limits, contextpath.Path(parent.Context)
		if parent.Depth >= m.cfg.MaxDepth {
			return Errorf(ErrMaxDepthExceeded, "branch %s is at depth %d, the deepest allowed: do the work in it, or create the branch below a shallower one",
				parent.ID, parent.Depth)
		}
	}
	if d.context, err = d.context.Join(d.id); err != nil {
		return Errorf(ErrInvalidInput, "the branch has no place in the tree: %w", err)
	}
	return nil
}

// quota is the use that one session has made of its limits. Its rate is a token bucket, full at
// first, of MaxBranchesPerMinute creations.
type quota struct {
	open  int
	spent float64   // creations that the bucket lacks
	at    time.Time // of spent
}

// quota returns the quota of a session. m.mu is held.
func (m *Manager) quota(key sessionKey) *quota {
	q := m.quotas[key]
	if q == nil {
		q = &quota{}
		m.quotas[key] = q
	}
	return q
}

// admit checks the limits of a session and, if rated is set, takes one creation from its rate.
// m.mu is held.
func (m *Manager) admit(key sessionKey, now time.Time, rated bool) error {
	q := m.quota(key)
	if q.open >= m.cfg.MaxConcurrentPerSession {
		return failAfter(ErrTooManyBranches, m.nextEnd(now, func(b *branch) bool { return b.limits == key }),
			"this session has %d branches open, the most allowed: return one with branch_return first", q.open)
	}
	if len(m.live) >= m.cfg.MaxConcurrentPerInstance {
		return failAfter(ErrInstanceFull, m.nextEnd(now, func(*branch) bool { return true }),
			"foldgate has %d branches open, the most allowed: try again later", len(m.live))
	}
	if !rated {
		return nil
	}
	perMinute := m.cfg.MaxBranchesPerMinute
	q.refill(now, perMinute)
	if over := q.spent + 1 - float64(perMinute); over > 1e-9 { // the sum of many small refills is not exact
		wait := time.Duration(over / float64(perMinute) * float64(time.Minute))
		return failAfter(ErrRateLimited, wait, "this session may create %d branches a minute: try again in %d s", perMinute, Seconds(wait))
	}
	q.spent++
	return nil
}

// refill brings the bucket to now. A clock that runs backwards refills nothing.
func (q *quota) refill(now time.Time, perMinute int) {
	if passed := now.Sub(q.at); passed > 0 {
		q.spent = max(0, q.spent-passed.Minutes()*float64(perMinute))
		q.at = now
	}
}

// nextEnd returns the time until the first deadline of the branches that count. m.mu is held.
func (m *Manager) nextEnd(now time.Time, counts func(*branch) bool) time.Duration {
	var wait time.Duration
	for _, b := range m.live {
		if left := b.ExpiresAt.Sub(now); counts(b) && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}
