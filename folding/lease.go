package folding

import (
	"context"
	"slices"
)

// Lease is one running call's use of a branch. Tokens are charged through it, and the end of the
// branch cancels it. Release it once the result is delivered or dropped. A Lease is safe for
// concurrent use.
type Lease struct {
	m      *Manager
	b      *branch
	ctx    context.Context
	cancel context.CancelCauseFunc // of ctx

	// Guarded by Manager.mu.
	charged  int  // less refunds
	holding  bool // has all that the branch had left and may refund some of it
	released bool
}

// CallOutcome is the entry of a completed call in the digest of its branch.
type CallOutcome struct {
	// Tool names the tool, resource or prompt. It is scrubbed and cut to 64 characters.
	Tool string
	// Err is the text of a failure, "" for a success. It is scrubbed and cut to 200 characters.
	Err string
	// ModelInput and ModelOutput are the tokens of a model that the call used; see [Activity].
	ModelInput, ModelOutput int
}

// Acquire registers a call in an active branch. It fails like [Manager.Resolve], but does not
// check the caller. ctx is the context of the call. If the branch ends before the call, cancel ends
// ctx with an [*EndedError] as its cause. If the process dies after the first charge and before the
// release, the call counts as lost.
func (m *Manager) Acquire(ctx context.Context, cancel context.CancelCauseFunc, branchID string) (*Lease, error) {
	m.mu.Lock()
	m.now()
	b := m.live[branchID]
	if b == nil || b.Status != StatusActive {
		m.unlock()
		ended, ok, err := m.load(ctx, branchID)
		return nil, notActiveError(branchID, ended, ok, err)
	}
	l := &Lease{m: m, b: b, ctx: ctx, cancel: cancel}
	b.leases[l] = struct{}{}
	b.changes++ // saved with the first charge
	m.unlock()
	return l, nil
}

// Remaining returns the tokens that the branch has left, zero once it has ended.
func (l *Lease) Remaining() int {
	l.m.mu.Lock()
	defer l.m.unlock()
	l.m.now()
	if l.b.Status.Terminal() {
		return 0
	}
	return l.b.balance.Remaining()
}

// Charge charges n tokens, all or nothing. It is for the arguments of a call, before they are
// sent. If the tokens do not fit, the branch ends and the error matches [ErrBudgetExhausted].
// After a nil error the charge is durable.
func (l *Lease) Charge(n int) error {
	m, b := l.m, l.b
	m.mu.Lock()
	now := m.now()
	if err := l.usable(n); err != nil {
		m.unlock()
		return err
	}
	if !b.balance.Charge(n) {
		left := b.balance.Remaining()
		delete(b.leases, l) // the call is not made, so the digest must not count it as cancelled
		m.exhaust(b, now)
		l.cancel(b.ended())
		stored := m.w.barrier()
		m.unlock()
		_ = stored.wait() // the writer logs the error and tries again
		return Errorf(ErrBudgetExhausted, "the call takes %d tokens, branch %s has %d of %d left: it has ended; return to its parent with what you have",
			n, b.ID, left, b.BudgetTotal)
	}
	return l.store(n)
}

// ChargeUpTo charges n tokens or what is left, and returns how many. So many may be delivered,
// even if the branch ends meanwhile. Zero with a nil error means that the budget is used up: call
// Exhaust. With fewer than n the lease holds all that was left, to be used or given back with
// Refund; other leases wait for that. After a nil error the charge is durable. If the branch has
// ended, nothing is charged, the error is an [*EndedError], and the result must not be delivered.
func (l *Lease) ChargeUpTo(n int) (granted int, err error) { return l.chargeUpTo(n, nil) }

// Deliver is [Lease.ChargeUpTo] for the result of the call, whose delivery nothing else can prevent. If
// all n tokens are granted and the branch has some left, it is [Lease.Release] too: both are one write.
func (l *Lease) Deliver(n int, o CallOutcome) (granted int, err error) {
	o = l.forDigest(o)
	return l.chargeUpTo(n, &o)
}

// chargeUpTo is ChargeUpTo, or Deliver with an outcome.
func (l *Lease) chargeUpTo(n int, o *CallOutcome) (granted int, err error) {
	m, b := l.m, l.b
	for {
		m.mu.Lock()
		m.now()
		if err := l.usable(n); err != nil {
			m.unlock()
			return 0, err
		}
		if n == 0 || l.holding || b.holders == 0 || b.balance.Remaining() > 0 {
			break
		}
		freed := b.freed
		m.unlock()
		select {
		case <-freed:
		case <-l.ctx.Done():
			return 0, context.Cause(l.ctx)
		}
	}
	granted = b.balance.Take(n)
	if 0 < granted && granted < n && !l.holding {
		l.holding = true
		b.holders++
	}
	if o != nil && granted == n && b.balance.Remaining() > 0 {
		l.finish(*o)
	}
	if err := l.store(granted); err != nil {
		l.undelivered(err)
		return 0, err
	}
	return granted, nil
}

// undelivered makes a call that Deliver ended a failed one.
func (l *Lease) undelivered(err error) {
	text := l.scrub(err.Error(), maxLastError)
	l.m.mu.Lock()
	l.m.now()
	if l.released && !l.b.Status.Terminal() {
		l.b.Activity.fail(text)
		l.b.changes++
	}
	l.m.unlock()
	_ = l.m.save(l.b) // which logs the error
}

// usable returns the reason why n tokens can't be charged, or nil. m.mu is held.
func (l *Lease) usable(n int) error {
	switch {
	case n < 0:
		return Errorf(ErrInvalidInput, "negative charge %d", n)
	case l.b.Status.Terminal():
		return l.b.ended()
	case l.released:
		return Errorf(ErrInvalidInput, "the call is over")
	}
	return nil
}

// store makes a charge of the balance durable, or refunds it. It releases m.mu.
func (l *Lease) store(n int) error {
	m, b := l.m, l.b
	l.charged += n
	b.changes++
	m.warn(b)
	m.unlock()
	if err := m.save(b); err != nil {
		l.refund(n, true)
		return Errorf(ErrStorage, "the charge could not be stored, so nothing is delivered: %w", err)
	}
	return nil
}

// Refund gives back tokens that this lease was charged and that are not delivered. After the end
// of the branch it does nothing.
func (l *Lease) Refund(n int) { l.refund(n, false) }

// refund is Refund. With released it also refunds what Deliver could not store.
func (l *Lease) refund(n int, released bool) {
	m, b := l.m, l.b
	m.mu.Lock()
	m.now()
	n = min(n, l.charged)
	if n < 0 || b.Status.Terminal() || l.released && !released {
		m.unlock()
		return
	}
	l.charged -= n
	b.balance.Refund(n)
	b.changes++
	l.letGo()
	m.warn(b)
	m.unlock()
	_ = m.save(b) // which logs the error; then the tokens stay used if the process dies
}

// letGo ends holding: this lease refunds no more. m.mu is held.
func (l *Lease) letGo() {
	if !l.holding {
		return
	}
	l.holding = false
	l.b.holders--
	close(l.b.freed)
	l.b.freed = make(chan struct{})
}

// Exhaust is [Lease.Release] for a call that can't use what the branch has left. It also ends the
// branch. It returns when the end is durable, or with ctx.
func (l *Lease) Exhaust(ctx context.Context, o CallOutcome) { _, _ = l.release(ctx, o, true) }

// Release ends the call and adds its outcome to the digest of the branch. If the budget is used
// up, the branch ends. Only the first release counts. Each returns the tokens that the branch has used,
// and those that it may use.
func (l *Lease) Release(o CallOutcome) (used, total int) {
	return l.release(context.Background(), o, false)
}

// release ends the call and, if exhaust is set or nothing is left, the branch. Then it waits
// until that end is durable or wait ends.
func (l *Lease) release(wait context.Context, o CallOutcome, exhaust bool) (used, total int) {
	m, b := l.m, l.b
	m.mu.Lock()
	now := m.now()
	if !l.released {
		m.unlock()
		o = l.forDigest(o)
		m.mu.Lock()
		now = m.now()
	}
	if l.released {
		defer m.unlock()
		return b.used(), b.BudgetTotal
	}
	var stored *commit
	if l.finish(o); !b.Status.Terminal() {
		if exhaust {
			m.exhaust(b, now)
		} else {
			m.checkBudget(b, now)
		}
		if b.Status.Terminal() {
			stored = m.w.barrier()
		}
	}
	used, total = b.used(), b.BudgetTotal
	m.unlock()
	if stored != nil {
		_ = stored.waitFor(wait) // the writer logs the error and tries again
	} else {
		_ = m.save(b) // which logs the error
	}
	return used, total
}

// forDigest returns an outcome as a digest may contain it. A tool that the digest names is clean.
func (l *Lease) forDigest(o CallOutcome) CallOutcome {
	l.m.mu.Lock()
	named := slices.ContainsFunc(l.b.Activity.Tools, func(t ToolCount) bool { return t.Tool == o.Tool })
	l.m.mu.Unlock()
	if !named {
		o.Tool = l.scrub(o.Tool, maxToolName)
	}
	if o.Err != "" {
		o.Err = l.scrub(o.Err, maxLastError)
	}
	return o
}

// scrub returns a foreign text as a digest may contain it, also if the call was cancelled.
func (l *Lease) scrub(text string, max int) string {
	// Scrub before cutting: the scrubber does not recognise half a secret.
	out, err := l.m.scrub(context.WithoutCancel(l.ctx), clean(text))
	if err != nil {
		out = "(withheld: it could not be scrubbed)"
	}
	return cut(out, max)
}

// finish ends the call. Its outcome counts if the branch has not ended. m.mu is held.
func (l *Lease) finish(o CallOutcome) {
	l.released = true
	delete(l.b.leases, l)
	l.letGo()
	if !l.b.Status.Terminal() {
		l.b.Activity.add(o)
		l.b.changes++
	}
}
