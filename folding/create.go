package folding

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding/contextpath"
)

// CreateRequest asks for a branch.
type CreateRequest struct {
	// SessionID overrides the caller's session. With neither, one is made up.
	SessionID string
	// ParentID names the branch to nest below; "" makes a first-level branch.
	ParentID string
	// Description is required, at most 500 characters; Prompt at most 10,000.
	Description, Prompt string
	// Budget in tokens and TimeoutSeconds: 0 means the default, more than the
	// maximum means the maximum. A branch never outlives its parent.
	Budget, TimeoutSeconds int
	// Errand marks a branch that one call opens for itself and ends with. It
	// counts against the open branches of Session, which need not be its own,
	// and not against the rate: there is one for each such call.
	Errand *Errand
	// Cause is passed on in the Event of the creation.
	Cause any
}

// Errand says on whose behalf a branch is opened; see [CreateRequest].
type Errand struct {
	// Session is the session whose limits count, "" where the connection that
	// the call came on keeps none.
	Session string
}

// draft is a request whose texts and figures have been checked.
type draft struct {
	CreateRequest
	cost    int // tokens of the texts
	timeout time.Duration
	id      string
	context contextpath.Path
	limits  sessionKey // whose limits it counts against
}

// Create opens a branch and charges it with its description and prompt. All
// limits are checked and taken in one critical section. The branch is durable
// and active when Create returns.
func (m *Manager) Create(ctx context.Context, caller Caller, req CreateRequest) (out Branch, err error) {
	ctx, done := m.telemetry.span(ctx, "folding.branch.create", caller.Session)
	defer func() { done(out, err) }()
	d, err := m.draft(ctx, caller, req)
	if err != nil {
		return Branch{}, err
	}
	ledger, err := budget.NewLedger(d.Budget, 0)
	if err == nil {
		err = ledger.Charge(d.cost) // and warn if that is most of it
	}
	if err != nil {
		return Branch{}, err
	}
	m.mu.Lock()
	now := m.tick()
	if m.closed {
		m.unlock()
		return Branch{}, Errorf(ErrClosed, "foldgate is shutting down: no branch can be created")
	}
	parent, err := m.place(caller, &d)
	if err == nil && d.ParentID != "" && parent == nil {
		m.unlock()
		return Branch{}, m.gone(ctx, caller, d.ParentID)
	}
	if err == nil {
		err = m.admit(d.limits, now, d.Errand == nil)
	}
	if err != nil {
		m.unlock()
		return Branch{}, err
	}
	b := m.open(caller, d, parent, ledger, now)
	stored := m.w.put(OpInsert, b.stored())
	m.emit(EventCreated, now, b.snapshot(), nil)
	m.events[len(m.events)-1].Cause = d.Cause
	m.unlock()
	return m.activate(b, stored.wait())
}

// draft checks what can be checked without the lock.
func (m *Manager) draft(ctx context.Context, caller Caller, req CreateRequest) (draft, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return draft{}, fmt.Errorf("make a branch id: %w", err)
	}
	d := draft{CreateRequest: req, id: "br_" + id.String()}
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
	d.Budget = capped(req.Budget, m.cfg.DefaultBudget, m.cfg.MaxBudget)
	d.timeout = time.Duration(capped(req.TimeoutSeconds, m.cfg.DefaultTimeoutSeconds, m.cfg.MaxTimeoutSeconds)) * time.Second
	if err := m.pickSession(caller, &d); err != nil {
		return d, err
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

// pickSession decides which session the branch belongs to, except that a
// parent's session goes first (see place).
func (m *Manager) pickSession(caller Caller, d *draft) error {
	if d.SessionID == "" && m.cfg.RequireSessionID {
		return Errorf(ErrInvalidInput, "session_id is missing: it is required here")
	}
	if err := checkSessionID(d.SessionID); err != nil {
		return err
	}
	if d.ParentID != "" {
		return nil
	}
	if d.SessionID == "" {
		d.SessionID = caller.Session
	}
	if d.SessionID == "" {
		id, err := uuid.NewRandom()
		if err != nil {
			return fmt.Errorf("make a session id: %w", err)
		}
		d.SessionID = "ses_" + id.String()
	}
	if !m.opts.Sessions.ValidSession(caller, d.SessionID) {
		return Errorf(ErrForbidden, "this session may not be used from here: leave out session_id, or use a connection that keeps a session")
	}
	return nil
}

// place finds the branch's place in the tree. It returns the parent, nil where
// none was named or it is not active. m.mu is held.
func (m *Manager) place(caller Caller, d *draft) (parent *branch, err error) {
	// The connection's session, not the argument: a session id that a caller
	// makes up buys nothing. Callers without one share one set of limits.
	d.limits = sessionKey{principal: caller.Principal, session: caller.Session}
	if d.Errand != nil {
		d.limits.session = d.Errand.Session
	}
	if d.ParentID != "" {
		if parent = m.own(caller, d.ParentID); parent == nil {
			return nil, nil
		}
		if d.SessionID != "" && d.SessionID != parent.Session {
			return nil, Errorf(ErrInvalidInput, "session_id is not that of the parent branch: leave it out")
		}
		d.SessionID = parent.Session
		d.limits = parent.limits
		d.context = contextpath.Path(parent.Context)
		if parent.Depth >= m.cfg.MaxDepth {
			return nil, Errorf(ErrMaxDepthExceeded, "branch %s is at depth %d, the deepest allowed: do the work in it, or create the branch below a shallower one",
				parent.ID, parent.Depth)
		}
	}
	if d.context, err = d.context.Join(d.id); err != nil {
		return nil, Errorf(ErrInvalidInput, "the branch has no place in the tree: %w", err)
	}
	return parent, nil
}

// open makes the branch that was admitted. m.mu is held.
func (m *Manager) open(caller Caller, d draft, parent *branch, ledger *budget.Ledger, now time.Time) *branch {
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
	return m.add(rec, ledger, parent, d.limits, caller.Thread)
}

// stored returns b as it is written: the repository knows no created branches,
// since being written is what makes them active.
func (b *branch) stored() Branch {
	out := b.snapshot()
	out.Status = StatusActive
	return out
}

// activate makes a branch active that is durable now, or takes it back.
func (m *Manager) activate(b *branch, stored error) (Branch, error) {
	m.mu.Lock()
	now := m.tick()
	if b.Status.Terminal() { // ended while it was being written
		defer m.unlock()
		return Branch{}, b.ended()
	}
	if stored != nil {
		m.finish(b, outcome{status: StatusFailed, reason: ReasonStorageFailed}, now)
		m.unlock()
		return Branch{}, Errorf(ErrStorage, "the branch could not be stored: %w", stored)
	}
	b.Status = StatusActive
	m.settle(b, now)
	out := b.snapshot()
	m.unlock()
	return out, nil
}

// capped applies a default and a maximum.
func capped(v, fallback, most int) int {
	if v == 0 {
		v = fallback
	}
	return min(v, most)
}
