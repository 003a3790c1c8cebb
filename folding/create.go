package folding

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/replicaid"
)

// CreateRequest asks for a branch.
type CreateRequest struct {
	// SessionID overrides the caller's session. If both are empty, Create makes up a session.
	SessionID string
	// ParentID names the parent; "" creates a first-level branch.
	ParentID string
	// Description is required, at most 500 characters; Prompt at most 10,000.
	Description, Prompt string
	// Handles are stored results that calls in the branch may read, besides those that the texts name.
	Handles []string
	// Budget in tokens and TimeoutSeconds: 0 means the default, more than the maximum means the
	// maximum. A branch never outlives its parent.
	Budget, TimeoutSeconds int
	// Ephemeral marks a branch that one call opens for itself and ends with. It does not count
	// against the rate. It counts against the open branches of LimitSession, "" if the connection
	// of the call has no session.
	Ephemeral    bool
	LimitSession string
	// Unattended marks a branch in which only calls are made that name it: it is not the active branch of
	// its session. The mark does not outlive the process.
	Unattended bool
	// Claims describe the caller, in one line; see [Branch].
	Claims string
	// Cause is passed on in the Event of the creation.
	Cause any
}

// draft is a request with checked texts and figures.
type draft struct {
	CreateRequest
	cost    int // tokens of the texts
	timeout time.Duration
	id      string
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
	balance, err := budget.NewBalance(d.Budget, 0)
	if err != nil {
		return Branch{}, err
	}
	balance.Charge(d.cost) // not NewBalance's second argument: this warns if it is most of the budget
	m.mu.Lock()
	now := m.now()
	parent := m.own(caller, d.ParentID)
	if parent == nil && d.ParentID != "" && !m.closed {
		m.unlock()
		b, ok, err := m.find(ctx, caller, d.ParentID)
		return Branch{}, notActiveError(d.ParentID, b, ok, err)
	}
	rec, quota, err := m.place(caller, parent, d, now)
	if err == nil {
		err = m.admit(quota, now, !d.Ephemeral)
	}
	if err != nil {
		m.unlock()
		return Branch{}, err
	}
	b := m.add(rec, balance, parent, quota, caller.Thread)
	b.unattended = d.Unattended
	m.emit(Event{Kind: EventCreated, Branch: b.snapshot(), Cause: d.Cause})
	rec = b.snapshot()
	rec.Status = StatusActive // the repository knows no created branches: being stored makes it active
	stored := m.w.put(rec)
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
	cfg := m.config()
	d = draft{CreateRequest: req, id: replicaid.New("br_", m.opts.Replica, uuid.NewString())}
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
			cfg.DefaultBudget, cfg.DefaultTimeoutSeconds)
	}
	d.Budget = min(cmp.Or(req.Budget, cfg.DefaultBudget), cfg.MaxBudget)
	d.timeout = time.Duration(min(cmp.Or(req.TimeoutSeconds, cfg.DefaultTimeoutSeconds), cfg.MaxTimeoutSeconds)) * time.Second
	if err := checkSessionID(d.SessionID); err != nil {
		return d, err
	}
	if clean, err := m.scrub(ctx, d.SessionID); err != nil || clean != d.SessionID { // without the secret it could be another session's id
		return d, cmp.Or(err, Errorf(ErrInvalidInput, "session_id looks like a secret, which would be stored: leave it out, or give another one"))
	}
	if d.ParentID == "" { // other branches belong to the session of their parent; see place
		own := cmp.Or(caller.Session, replicaid.New("ses_", m.opts.Replica, uuid.NewString()))
		if !m.mayUse(caller, cmp.Or(d.SessionID, own)) {
			return d, Errorf(ErrForbidden, "this session may not be used from here: %s", m.sessionRemedy(caller.Session))
		}
		if d.SessionID == "" && cfg.RequireSessionID {
			return d, Errorf(ErrInvalidInput, "session_id is missing: it is required here; %s", m.sessionRemedy(own))
		}
		d.SessionID = cmp.Or(d.SessionID, own)
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
			d.cost, d.Budget, cfg.MaxBudget)
	}
	return d, nil
}

// sessionRemedy says what to do about a wrong session_id if session is the right one, "" if there
// is none.
func (m *Manager) sessionRemedy(session string) string {
	switch {
	case session == "":
		return "use a connection that keeps a session"
	case m.config().RequireSessionID:
		return fmt.Sprintf("give session_id %q", session)
	}
	return "leave out session_id"
}

// place returns the new branch as it is stored, and the session against whose limits it counts.
// parent is nil for a first-level branch. m.mu is held.
func (m *Manager) place(caller Caller, parent *branch, d draft, now time.Time) (rec Branch, quota sessionKey, err error) {
	if m.closed {
		return rec, quota, Errorf(ErrClosed, "foldgate is shutting down: no branch can be created")
	}
	rec = Branch{
		ID: d.id, ParentID: d.ParentID, Principal: caller.Principal, Subject: caller.Subject, Claims: d.Claims, Session: d.SessionID, Origin: caller.Session,
		Depth: 1, Description: d.Description, Prompt: d.Prompt, Handles: strings.Join(d.Handles, " "),
		Status: StatusCreated, BudgetUsed: d.cost, BudgetTotal: d.Budget,
		CreatedAt: now, ExpiresAt: now.Add(d.timeout),
	}
	// The session of the connection, since the argument can be made up. Callers without one share
	// their limits.
	quota = sessionKey{principal: caller.Principal, session: caller.Session}
	if d.Ephemeral {
		quota.session = d.LimitSession
	}
	var above contextpath.Path
	if parent != nil {
		cfg := m.config()
		if d.SessionID != parent.Session && (d.SessionID != "" || cfg.RequireSessionID) {
			return rec, quota, Errorf(ErrInvalidInput, "session_id is not that of the parent branch: %s", m.sessionRemedy(parent.Session))
		}
		if parent.Depth >= cfg.MaxDepth {
			return rec, quota, Errorf(ErrMaxDepthExceeded, "branch %s is at depth %d, the deepest allowed: do the work in it, or create the branch below a shallower one",
				parent.ID, parent.Depth)
		}
		rec.Session, rec.Depth, above, quota = parent.Session, parent.Depth+1, contextpath.Path(parent.Context), parent.quota
		if rec.Claims = parent.Claims; !slices.Contains(strings.Split(rec.Claims, "\n"), d.Claims) {
			rec.Claims = strings.TrimPrefix(rec.Claims+"\n"+d.Claims, "\n")
		}
		rec.ExpiresAt = now.Add(min(d.timeout, m.left(parent)).Truncate(time.Microsecond)) // now may be ahead of the parent's time
	}
	path, err := above.Join(d.id)
	if err != nil {
		return rec, quota, Errorf(ErrInvalidInput, "the branch has no place in the tree: %w", err)
	}
	rec.Context = string(path)
	return rec, quota, nil
}

// admit checks the limits of a session, its principal and the instance. If rated is set, it takes
// one creation from the rates of the session and the principal. m.mu is held.
func (m *Manager) admit(key sessionKey, now time.Time, rated bool) error {
	limits, inSession, open := m.limits.Load(), 0, 0
	for _, b := range m.live {
		if b.quota == key {
			inSession++
		}
		if b.Principal == key.principal {
			open++
		}
	}
	if inSession >= limits.MaxConcurrentPerSession {
		return failAfter(ErrTooManyBranches, m.nextEnd(func(b *branch) bool { return b.quota == key }),
			"this session has %d branches open, the most allowed: return one with branch_return first", inSession)
	}
	others := len(m.live) - open
	if limits.several && open >= max((limits.MaxConcurrentPerInstance-others)/2, 1) {
		return failAfter(ErrInstanceFull, m.nextEnd(func(b *branch) bool { return b.Principal == key.principal }),
			"you have %d branches open, half of what other principals leave: return one with branch_return first", open)
	}
	if len(m.live) >= limits.MaxConcurrentPerInstance {
		return failAfter(ErrInstanceFull, m.nextEnd(func(*branch) bool { return true }),
			"foldgate has %d branches open, the most allowed: try again later", len(m.live))
	}
	if !rated {
		return nil
	}
	all := lastMinute(m.made[key.principal], now)
	made := slices.DeleteFunc(slices.Clone(all), func(c creation) bool { return c.session != key.session })
	per := limits.MaxBranchesPerMinute
	perPrincipal := max(limits.MaxBranchesPerMinutePerPrincipal, per)
	own, wait := untilFree(made, per, now), untilFree(all, perPrincipal, now)
	switch {
	case key.session != "" && own > wait:
		return failAfter(ErrRateLimited, own, "this session may create %d branches a minute: try again in %d s", per, Seconds(own))
	case wait > 0:
		return failAfter(ErrRateLimited, wait, "you may create %d branches a minute, in all sessions together: try again in %d s", perPrincipal, Seconds(wait))
	}
	m.made[key.principal] = append(all, creation{key.session, now})
	return nil
}

// untilFree returns how long a rate of limit a minute allows no creation after those made.
func untilFree(made []creation, limit int, now time.Time) time.Duration {
	if len(made) < limit {
		return 0
	}
	return made[len(made)-limit].at.Add(time.Minute).Sub(now)
}

// lastMinute leaves out the creations of a minute ago and before. If the clock was set back, later
// times become now.
func lastMinute(made []creation, now time.Time) []creation {
	for i := len(made) - 1; i >= 0 && made[i].at.After(now); i-- {
		made[i].at = now
	}
	for len(made) > 0 && now.Sub(made[0].at) >= time.Minute {
		made = made[1:]
	}
	return made
}

// nextEnd returns the time until the first deadline of the branches that count. m.mu is held.
func (m *Manager) nextEnd(counts func(*branch) bool) time.Duration {
	var wait time.Duration
	for _, b := range m.live {
		if left := m.left(b); counts(b) && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}
