package folding

import (
	"context"
)

// Returned is what a branch brings back.
type Returned struct {
	// Branch is the branch as it ended; Branch.BudgetUsed is tokens_used.
	Branch Branch
	// Message is the cleaned and scrubbed message, MessageTokens its count.
	Message       string
	MessageTokens int
	// Granted is how many tokens of Message the parent's budget could take and
	// was charged with. It equals MessageTokens unless the parent is a branch
	// that has less left: then the parent ends, and Message has to be cut.
	Granted int
	// Late says that the branch had been ended by force before; Branch says
	// how. The message is kept all the same.
	Late bool
	// Children are the ids of the branches that were closed with this one, in
	// the order of their ends.
	Children []string
}

// Return ends a branch with a message. The message is scrubbed before
// anything is closed: if that fails, nothing has happened. Then the branch's
// children end, deepest first, then the branch. A message that comes after a
// forced end is kept, once. A second return fails with an [*EndedError].
func (m *Manager) Return(ctx context.Context, caller Caller, branchID, message string) (r Returned, err error) {
	ctx, done := m.telemetry.span(ctx, "folding.branch.return", caller.Session)
	defer func() { done(r.Branch, err) }()
	message, err = cleanText("message", message, maxMessage)
	if err != nil {
		return Returned{}, err
	}
	b, ok, err := m.find(ctx, caller, branchID)
	switch {
	case err != nil:
		return Returned{}, err
	case !ok:
		return Returned{}, notFound(branchID)
	case b.Status.Terminal() && !b.lateable():
		return Returned{}, b.ended()
	}
	if message, err = m.scrub(ctx, message); err != nil {
		return Returned{}, err
	}
	r = Returned{Message: message, MessageTokens: m.opts.Count(message)}

	m.mu.Lock()
	now := m.tick()
	if b := m.own(caller, branchID); b != nil {
		r.Children = m.finish(b, outcome{status: StatusCompleted, message: message}, now)
		r.Branch = b.snapshot()
		r.Granted = m.chargeParent(r.Branch, r.MessageTokens)
		stored := m.w.barrier()
		m.unlock()
		if err := stored.wait(); err != nil {
			// The branch has ended, and the writer goes on trying.
			m.log.Error("return was not stored yet", "branch_id", branchID, "error", err)
		}
		return r, nil
	}
	m.unlock()
	return m.returnLate(ctx, caller, branchID, r)
}

// lateable reports whether a finished branch can still take a message.
func (b Branch) lateable() bool { return b.Reason != "" && !b.Late }

// returnLate keeps the message of a branch that was ended by force.
func (m *Manager) returnLate(ctx context.Context, caller Caller, id string, r Returned) (Returned, error) {
	m.lateReturn.Lock()
	defer m.lateReturn.Unlock()
	b, ok, err := m.findEnded(ctx, caller, id)
	switch {
	case err != nil:
		return Returned{}, err
	case !ok:
		return Returned{}, notFound(id)
	case !b.lateable():
		return Returned{}, b.ended()
	}
	b.Message, b.Late = r.Message, true
	r.Branch, r.Late = b, true
	m.mu.Lock()
	now := m.tick()
	if m.closed {
		m.unlock()
		return Returned{}, Errorf(ErrClosed, "foldgate is shutting down: the message was not kept")
	}
	m.w.put(OpLate, b)
	m.emit(EventLate, now, b, nil)
	r.Granted = m.chargeParent(b, r.MessageTokens)
	stored := m.w.barrier()
	m.unlock()
	if err := stored.wait(); err != nil {
		return Returned{}, Errorf(ErrStorage, "the message could not be stored: %w", err)
	}
	return r, nil
}

// chargeParent books a return message to the parent, as far as its budget
// goes, and returns what was booked. m.mu is held.
func (m *Manager) chargeParent(b Branch, tokens int) int {
	parent := m.live[b.ParentID]
	if parent == nil {
		return tokens
	}
	got := parent.ledger.Take(tokens)
	m.save(parent)
	m.settle(parent, m.now())
	return got
}
