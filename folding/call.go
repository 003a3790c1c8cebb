package folding

import (
	"context"
	"time"
)

// Call is one call in flight in a branch. Its methods are safe for concurrent
// use; End must be called, once the result is delivered or given up.
type Call struct {
	m      *Manager
	b      *branch
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Guarded by Manager.mu.
	booked  int  // charged and taken, less refunds
	partial bool // has taken all that was left and may give some back
	over    bool // End was called
}

// CallOutcome is what a finished call adds to its branch's digest.
type CallOutcome struct {
	// Tool is the tool's name, or what another method names. It is cut to
	// maxToolName characters and scrubbed.
	Tool string
	// Err is the text of a failure, "" for a success. It is cut to 200
	// characters and scrubbed.
	Err string
}

// Begin registers a call in an active branch. It fails like Resolve; the
// caller is not checked again. The call's context ends with ctx and, with an
// [*EndedError] as its cause, with the branch. From its first charge on, a
// call that is under way when the process dies is counted as lost.
func (m *Manager) Begin(ctx context.Context, branchID string) (*Call, error) {
	m.mu.Lock()
	m.tick()
	b := m.live[branchID]
	if b == nil || b.Status != StatusActive {
		m.unlock()
		return nil, m.whyNot(ctx, branchID)
	}
	c := &Call{m: m, b: b}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	b.calls[c] = struct{}{}
	m.w.putQuietly(OpProgress, b.snapshot()) // written with the first charge
	m.unlock()
	return c, nil
}

// whyNot is gone without an owner.
func (m *Manager) whyNot(ctx context.Context, id string) error {
	if !IsBranchID(id) {
		return notFound(id)
	}
	b, ok := m.w.pending(id)
	if !ok {
		var err error
		if b, ok, err = m.opts.Repository.Get(ctx, id); err != nil {
			return Errorf(ErrStorage, "branch %s could not be looked up: %w", id, err)
		}
	}
	if !ok || !b.Status.Terminal() {
		return notFound(id)
	}
	return b.ended()
}

// Context is the context for the call's work.
func (c *Call) Context() context.Context { return c.ctx }

// Branch returns the call's branch as it is now, or as it ended.
func (c *Call) Branch() Branch {
	c.m.mu.Lock()
	defer c.m.unlock()
	c.m.tick()
	return c.b.snapshot()
}

// Charge books n tokens, all or nothing: the arguments of the call, before
// they are sent. If they do not fit, the branch ends and the error matches
// ErrBudgetExhausted. A nil error means that the charge is durable.
func (c *Call) Charge(n int) error {
	if n < 0 {
		return Errorf(ErrInvalidInput, "negative charge %d", n)
	}
	m, b := c.m, c.b
	m.mu.Lock()
	now := m.tick()
	if err := c.usable(); err != nil {
		m.unlock()
		return err
	}
	if err := b.ledger.Charge(n); err != nil {
		left := b.ledger.Balance()
		delete(b.calls, c) // it is not made, so the digest must not call it cancelled
		m.exhaust(b, now)
		c.cancel(&EndedError{BranchID: b.ID, Status: b.Status, Reason: b.Reason})
		stored := m.w.barrier()
		m.unlock()
		_ = stored.wait() // the writer logs what it could not store and tries again
		return hiding(err, ErrBudgetExhausted, "the call takes %d tokens, branch %s has %d of %d left: it has ended; return to its parent with what you have",
			n, b.ID, left.Remaining(), left.Total)
	}
	return c.book(n, now)
}

// Take books up to n tokens and returns how many there were: what may be
// delivered, also where the branch ends meanwhile. Zero with a nil error means that the budget is used up: call
// Exhaust. Fewer than n means that all that was left is the caller's, to be
// filled or given back with Refund. A nil error means that the charge is
// durable. If the branch has ended, nothing is booked and the error is an
// [*EndedError]: the result is late and goes to nobody.
func (c *Call) Take(n int) (granted int, err error) {
	if n < 0 {
		return 0, Errorf(ErrInvalidInput, "negative charge %d", n)
	}
	m, b := c.m, c.b
	m.mu.Lock()
	now := m.tick()
	for {
		if err := c.usable(); err != nil {
			m.unlock()
			return 0, err
		}
		// Another call holds the rest and may need less than that.
		if n == 0 || c.partial || b.partial == 0 || !b.ledger.Balance().Exhausted() {
			break
		}
		settled := b.settled
		m.unlock()
		select {
		case <-settled:
		case <-c.ctx.Done():
			return 0, context.Cause(c.ctx)
		}
		m.mu.Lock()
		now = m.tick()
	}
	granted = b.ledger.Take(n)
	if 0 < granted && granted < n && !c.partial {
		c.partial = true
		b.partial++
	}
	if err := c.book(granted, now); err != nil {
		return 0, err
	}
	return granted, nil
}

// book makes a charge durable that the ledger has taken, or takes it back. It
// releases m.mu.
func (c *Call) book(n int, now time.Time) error {
	m, b := c.m, c.b
	c.booked += n
	if b.partial == 0 && b.ledger.Warn() {
		m.emit(EventWarned, now, b.snapshot(), nil)
	}
	stored := m.save(b)
	m.unlock()
	if err := stored.wait(); err != nil {
		c.Refund(n)
		return Errorf(ErrStorage, "the charge could not be stored, so nothing is delivered: %w", err)
	}
	return nil
}

// Refund gives back tokens that were booked by this call and will not be
// delivered. After the end of the branch it does nothing.
func (c *Call) Refund(n int) {
	m, b := c.m, c.b
	m.mu.Lock()
	defer m.unlock()
	now := m.tick()
	n = min(n, c.booked)
	if n < 0 || b.Status.Terminal() || c.over {
		return
	}
	c.booked -= n
	b.ledger.Refund(n)
	m.save(b)
	c.unhold()
	if b.partial == 0 && b.ledger.Warn() {
		m.emit(EventWarned, now, b.snapshot(), nil)
	}
}

// Remaining returns what the branch has left, zero once it has ended.
func (c *Call) Remaining() int {
	c.m.mu.Lock()
	defer c.m.unlock()
	c.m.tick()
	if c.b.Status.Terminal() {
		return 0
	}
	return c.b.ledger.Balance().Remaining()
}

// Exhaust is End, and ends the branch because what it has left is of no use to
// the caller. It returns when the end is durable, or with ctx.
func (c *Call) Exhaust(ctx context.Context, o CallOutcome) {
	if stored := c.end(o, (*Manager).exhaust); stored != nil {
		_ = stored.waitFor(ctx) // the writer logs what it could not store and tries again
	}
}

// End releases the call and adds its outcome to the branch's digest. Where
// nothing is left of the budget the branch ends. Only the first End counts;
// after the end of the branch there is nothing to add.
func (c *Call) End(o CallOutcome) {
	if stored := c.end(o, (*Manager).settle); stored != nil {
		_ = stored.wait() // the writer logs what it could not store and tries again
	}
}

// end releases the call, unless that was done, adds its outcome and lets then
// decide what becomes of the branch. It returns what stores the branch's end,
// nil where it goes on or had ended before.
func (c *Call) end(o CallOutcome, then func(*Manager, *branch, time.Time)) (stored *batch) {
	m, b := c.m, c.b
	o.Tool, o.Err = c.kept(o.Tool, maxToolName), c.kept(o.Err, maxLastError)
	m.mu.Lock()
	now := m.tick()
	if c.over {
		m.unlock()
		return nil
	}
	c.over = true
	delete(b.calls, c)
	c.unhold()
	if !b.Status.Terminal() {
		b.Activity.record(o)
		m.w.putSoon(OpProgress, b.snapshot())
		if then(m, b, now); b.Status.Terminal() {
			stored = m.w.barrier()
		}
	}
	m.unlock()
	c.cancel(context.Canceled)
	return stored
}

// kept is a text as the digest may keep it, of at most max characters.
func (c *Call) kept(text string, max int) string {
	if text == "" {
		return ""
	}
	// Scrub before cutting: half a secret is no longer recognised.
	out, err := c.m.scrub(context.WithoutCancel(c.ctx), clean(text))
	if err != nil {
		out = "(withheld: it could not be scrubbed)"
	}
	return cut(out, max)
}

// usable returns why the call can't be charged any more. m.mu is held.
func (c *Call) usable() error {
	switch {
	case c.b.Status.Terminal():
		return c.b.ended()
	case c.over:
		return Errorf(ErrInvalidInput, "the call is over")
	}
	return nil
}

// unhold says that the call gives back no more. m.mu is held.
func (c *Call) unhold() {
	if !c.partial {
		return
	}
	c.partial = false
	c.b.partial--
	close(c.b.settled)
	c.b.settled = make(chan struct{})
}
