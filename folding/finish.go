package folding

import (
	"context"
	"time"
)

// outcome is how a branch ends.
type outcome struct {
	status  Status
	reason  string
	detail  string // replaces the sentence for reason
	message string
}

// finish ends b, its children first, deepest first, and returns the ids of the
// descendants it closed. It is the only way in which a branch ends: m.mu is
// held, b is live, and whoever comes later finds it gone. Calls in flight are
// cancelled; what they bring back is charged to nobody.
func (m *Manager) finish(b *branch, o outcome, now time.Time) []string {
	below := outcome{status: StatusFailed, reason: ReasonParentEnded}
	if o.status == StatusCompleted {
		below.reason = ReasonParentReturning
	}
	var closed []string
	for _, child := range inOrder(b.children) {
		closed = append(closed, m.finish(child, below, now)...)
		closed = append(closed, child.ID)
	}
	b.Branch = b.snapshot() // the last look at the ledger and the calls
	b.Status, b.Reason, b.Message = o.status, o.reason, o.message
	b.CompletedAt = now
	if o.reason == ReasonTimeout {
		b.CompletedAt = b.ExpiresAt // a late timer prolongs nothing
	}
	if o.reason != "" {
		b.Error = explain(o.reason, b.Branch)
		if o.detail != "" {
			b.Error = o.detail
		}
		b.Digest = digest(b.Branch)
	}
	m.remove(b)
	m.w.put(OpFinish, b.Branch)
	for c := range b.calls {
		c.cancel(&EndedError{BranchID: b.ID, Status: b.Status, Reason: b.Reason})
	}
	kind := EventConcluded
	if o.reason != "" {
		kind = EventEnded
	}
	m.emit(kind, now, b.snapshot(), closed)
	return closed
}

// finishAll ends a set of branches, deepest first. m.mu is held.
func (m *Manager) finishAll(set map[*branch]struct{}, o outcome, now time.Time) {
	for _, b := range inOrder(set) {
		if !b.Status.Terminal() {
			m.finish(b, o, now)
		}
	}
}

// exhaust ends b because its budget is used up. m.mu is held.
func (m *Manager) exhaust(b *branch, now time.Time) {
	m.emit(EventExhausted, now, b.snapshot(), nil)
	m.finish(b, outcome{status: StatusFailed, reason: ReasonBudgetExhausted}, now)
}

// settle ends b if nothing is left of its budget and no call may still give
// something back, and warns once if it is nearly used up. m.mu is held, b is
// live.
func (m *Manager) settle(b *branch, now time.Time) {
	if b.partial > 0 {
		return
	}
	if b.ledger.Warn() {
		m.emit(EventWarned, now, b.snapshot(), nil)
	}
	if b.ledger.Balance().Exhausted() {
		m.exhaust(b, now)
	}
}

// expire ends every branch whose deadline has come, deepest first. m.mu is
// held.
func (m *Manager) expire(now time.Time) {
	if m.next.IsZero() || now.Before(m.next) {
		return
	}
	due := map[*branch]struct{}{}
	for _, b := range m.live {
		if !now.Before(b.ExpiresAt) {
			due[b] = struct{}{}
		}
	}
	m.finishAll(due, outcome{status: StatusTimeout, reason: ReasonTimeout}, now)
	m.next = time.Time{}
	for _, b := range m.live {
		if m.next.IsZero() || b.ExpiresAt.Before(m.next) {
			m.next = b.ExpiresAt
		}
	}
}

// EndSession ends all branches of the caller's session, and those that were
// created on its connection under another session id, with ReasonSessionEnded.
// It is called when a connection closes, is deleted or has idled too long;
// reason says which, for the digest. It returns when the ends are durable, or
// after Config.SessionCleanupSeconds with an error: the branches have ended
// all the same.
func (m *Manager) EndSession(ctx context.Context, caller Caller, reason string) (err error) {
	if caller.Session == "" {
		return nil
	}
	ctx, done := m.telemetry.span(ctx, "folding.session.cleanup", caller.Session)
	defer func() { done(Branch{}, err) }()
	ctx, cancel := context.WithTimeout(ctx, m.cleanupTime())
	defer cancel()
	m.mu.Lock()
	now := m.tick()
	m.leave(caller)
	set := m.sessions[sessionKey{principal: caller.Principal, session: caller.Session}]
	ending := len(set) > 0 // finishing empties the set
	o := outcome{status: StatusFailed, reason: ReasonSessionEnded}
	if reason = Shorten(reason, maxLastError); reason != "" {
		o.detail = explain(o.reason, Branch{}) + ": " + reason
	}
	m.finishAll(set, o, now)
	var last *batch
	if ending {
		last = m.w.barrier()
	}
	m.unlock()
	if last == nil {
		return nil
	}
	if err := last.waitFor(ctx); err != nil {
		return Errorf(ErrStorage, "the end of session %q was not stored: %w", caller.Session, err)
	}
	return nil
}
