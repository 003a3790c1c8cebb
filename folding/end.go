package folding

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"time"
)

// Returned is the result of [Manager.Return].
type Returned struct {
	// Branch is the branch as it ended; Branch.BudgetUsed is tokens_used. Branch.Message is the cleaned and
	// scrubbed message. Branch.Late says that the branch had been ended by force before; the message is stored
	// all the same.
	Branch        Branch
	MessageTokens int // the size of the message
	// Granted is the number of tokens that the parent was charged for the message, 0 if pay refused them. It
	// is less than MessageTokens if the parent is a branch that has less left: then the parent has ended, and
	// the message must be cut.
	Granted int
}

// Return ends a branch with a message. It scrubs the message first; if that fails, nothing has
// happened. Then the children of the branch end, deepest first, then the branch. A branch that
// was ended by force takes one late message. A second return fails with an [*EndedError].
func (m *Manager) Return(ctx context.Context, caller Caller, branchID, message string) (Returned, error) {
	return m.ReturnPaid(ctx, caller, branchID, message, func(Branch, int) func() { return func() {} })
}

// ReturnPaid is [Manager.Return] for a message that others than the parent have to pay, too. pay
// gets the branch and the tokens of the message. If they have paid, it returns what gives the tokens back: that
// is called if the return then fails, as when another one was faster. If it returns nil, the branch ends all
// the same, the parent is charged nothing, and its reader must not have the message.
func (m *Manager) ReturnPaid(ctx context.Context, caller Caller, branchID, message string, pay func(Branch, int) (giveBack func())) (r Returned, err error) {
	ctx, done := m.telemetry.span(ctx, "folding.branch.return", caller.Session)
	defer func() { done(r.Branch, err) }()
	message, err = cleanText("message", message, maxMessage)
	if err != nil {
		return Returned{}, err
	}
	b, ok, err := m.find(ctx, caller, branchID)
	if err != nil || !ok || b.Status.Terminal() && !b.acceptsLateMessage() {
		return Returned{}, notActiveError(branchID, b, ok, err)
	}
	if message, err = m.scrub(ctx, message); err != nil {
		return Returned{}, err
	}
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return Returned{}, errNotKept // nobody pays for it
	}
	tokens := m.opts.Count(message)
	giveBack := pay(b, tokens)
	paid := giveBack != nil
	defer func() {
		if paid && err != nil {
			giveBack()
		}
	}()
	m.mu.Lock()
	now := m.now()
	if m.closed {
		m.unlock()
		return Returned{}, errNotKept
	}
	live := m.own(caller, branchID)
	if live == nil {
		m.unlock()
		return m.returnLate(ctx, caller, branchID, message, tokens, paid)
	}
	o := outcome{message: message}
	if by := caller.connection(); by != (Caller{Session: live.Origin, Thread: live.thread}).connection() {
		o.returnedBy = by
	}
	m.finish(live, o, now)
	r = Returned{Branch: live.snapshot(), MessageTokens: tokens}
	m.settle(&r, paid, now)
	return r, nil
}

// settle charges the message of a branch that has ended to its parent, if paid is set. It returns when all
// changes are durable, or after a failure: the branch has ended, and the writer tries again. It releases m.mu.
func (m *Manager) settle(r *Returned, paid bool, now time.Time) {
	parent := m.live[r.Branch.ParentID]
	if paid {
		r.Granted = m.charge(parent, r.MessageTokens, now)
	}
	stored := m.w.barrier()
	m.unlock()
	if err := cmp.Or(m.save(parent), stored.wait()); err != nil {
		m.log.Error("return was not stored yet", "branch_id", r.Branch.ID, "error", err)
	}
}

// TakeMessage reports whether the caller should read the message of b, a copy from
// [Manager.Status]: it has not, because b was returned on another connection, or late. It is true once.
func (m *Manager) TakeMessage(ctx context.Context, caller Caller, b Branch) (bool, error) {
	if b.ReturnedBy == "" { // no message waits, or it was read
		return false, nil
	}
	m.finished.Lock()
	defer m.finished.Unlock()
	b, _, err := m.findEnded(ctx, caller, b.ID)
	if err != nil || b.ReturnedBy == "" || b.ReturnedBy == caller.connection() && !b.Late {
		return false, err
	}
	b.ReturnedBy = ""
	m.mu.Lock()
	if m.closed {
		m.unlock()
		return false, Errorf(ErrClosed, "foldgate is shutting down: the message can be read after the next start")
	}
	stored := m.w.put(b)
	m.unlock()
	_ = stored.wait() // the writer logs the error and tries again
	return true, nil
}

var errNotKept = Errorf(ErrClosed, "foldgate is shutting down: the message was not kept")

// returnLate stores the message of a branch that was ended by force.
func (m *Manager) returnLate(ctx context.Context, caller Caller, id, message string, tokens int, paid bool) (Returned, error) {
	m.finished.Lock()
	defer m.finished.Unlock()
	b, ok, err := m.findEnded(ctx, caller, id)
	if err != nil || !ok || !b.acceptsLateMessage() {
		return Returned{}, notActiveError(id, b, ok, err)
	}
	b.Message, b.Late, b.ReturnedBy = message, true, caller.connection()
	r := Returned{Branch: b, MessageTokens: tokens}
	m.mu.Lock()
	now := m.now()
	if m.closed {
		m.unlock()
		return Returned{}, errNotKept
	}
	m.w.put(b)
	m.emit(Event{Kind: EventLate, Branch: b})
	m.settle(&r, paid, now)
	return r, nil
}

// charge charges a message to a branch, as far as its budget goes, and returns how much. A nil b, main or a
// branch that has ended, pays all. [Manager.save] makes it durable. m.mu is held.
func (m *Manager) charge(b *branch, tokens int, now time.Time) int {
	if b == nil {
		return tokens
	}
	granted := b.balance.Take(tokens)
	b.changes++
	m.checkBudget(b, now)
	return granted
}

// Pay charges a branch n tokens for a message outside of its calls, as far as its budget goes, and
// returns how many. Only so many may be delivered. Main, "", pays all; a branch that has ended, or
// can't be stored, pays nothing.
func (m *Manager) Pay(branchID string, n int) int {
	if branchID == "" || n == 0 {
		return n
	}
	m.mu.Lock()
	now := m.now()
	b := m.live[branchID]
	if b == nil {
		m.unlock()
		return 0
	}
	granted := m.charge(b, n, now)
	m.unlock()
	if m.save(b) != nil { // which logs the error
		return 0
	}
	return granted
}

// EndSession ends all branches of the caller's session with ReasonSessionEnded, also those that
// its connection created in another session. Call it when a connection has ended; reason says
// how, for the digest. With [ReasonShutdown] they end with that reason, but a replica keeps its
// branches. It returns when the ends are durable, or with an error after Config.SessionCleanupSeconds; the
// branches have ended in both cases.
func (m *Manager) EndSession(ctx context.Context, caller Caller, reason string) (err error) {
	if caller.Session == "" || reason == ReasonShutdown && m.opts.Replica != "" {
		return nil
	}
	ctx, done := m.telemetry.span(ctx, "folding.session.cleanup", caller.Session)
	defer func() { done(Branch{}, err) }()
	ctx, cancel := context.WithTimeout(ctx, m.cleanupTime())
	defer cancel()
	m.mu.Lock()
	now := m.now()
	for key, b := range m.joined {
		if key.principal == caller.Principal && key.session == caller.Session {
			delete(m.joined, key)
			b.joined = slices.DeleteFunc(b.joined, func(k sessionKey) bool { return k == key })
		}
	}
	branches := m.sessions[sessionKey{principal: caller.Principal, session: caller.Session}]
	if len(branches) == 0 {
		m.unlock()
		return nil
	}
	o := outcome{reason: ReasonSessionEnded, detail: Shorten(reason, maxLastError)}
	if reason == ReasonShutdown {
		o = outcome{reason: ReasonShutdown}
	}
	m.finishAll(maps.Keys(branches), o, now)
	stored := m.w.barrier()
	m.unlock()
	if err := stored.waitFor(ctx); err != nil {
		return Errorf(ErrStorage, "the end of session %q was not stored: %w", caller.Session, err)
	}
	return nil
}

// End ends a branch of any principal with a Reason; detail says why, for its owner and the trace. It
// returns the branch as it has ended, when that is durable.
func (m *Manager) End(ctx context.Context, branchID, reason, detail string) (Branch, error) {
	detail, err := cleanText("reason", detail, maxDescription)
	if err == nil {
		detail, err = m.scrub(ctx, detail)
	}
	if err != nil {
		return Branch{}, err
	}
	m.mu.Lock()
	now := m.now()
	b := m.live[branchID]
	if b == nil || b.Status != StatusActive {
		m.unlock()
		return Branch{}, Errorf(ErrNotFound, "no open branch %q", Shorten(branchID, 64))
	}
	m.finish(b, outcome{reason: reason, detail: Shorten(detail, maxLastError)}, now)
	out, stored := b.snapshot(), m.w.barrier()
	m.unlock()
	if err := stored.waitFor(ctx); err != nil {
		return out, Errorf(ErrStorage, "the end of branch %s was not stored yet: %w", branchID, err)
	}
	return out, nil
}

// expire ends every branch that has reached its deadline, deepest first. m.mu is held.
func (m *Manager) expire(now time.Time) {
	steady, passed := m.steady(), time.Since(m.began)
	if m.next.IsZero() || steady.Before(m.next) && passed < m.until {
		return
	}
	var due []*branch
	m.next = time.Time{}
	for _, b := range m.live {
		if !steady.Before(b.ExpiresAt) || passed >= b.until {
			due = append(due, b)
		} else {
			m.schedule(b)
		}
	}
	m.finishAll(slices.Values(due), outcome{reason: ReasonTimeout}, now)
}

// checkBudget ends b if its budget is used up and no lease may still refund some of it. It warns
// once if the budget is nearly used up. m.mu is held, b is live.
func (m *Manager) checkBudget(b *branch, now time.Time) {
	m.warn(b)
	if b.holders == 0 && b.balance.Remaining() == 0 {
		m.exhaust(b, now)
	}
}

// warn announces once that most of the budget is used. It waits for leases that may still refund.
// m.mu is held.
func (m *Manager) warn(b *branch) {
	if b.holders == 0 && b.balance.Warn() {
		m.emit(Event{Kind: EventWarned, Branch: b.snapshot()})
	}
}

// exhaust ends b because its budget is used up. m.mu is held.
func (m *Manager) exhaust(b *branch, now time.Time) {
	m.emit(Event{Kind: EventExhausted, Branch: b.snapshot()})
	m.finish(b, outcome{reason: ReasonBudgetExhausted}, now)
}

// finishAll ends live branches, deepest first. m.mu is held.
func (m *Manager) finishAll(branches iter.Seq[*branch], o outcome, now time.Time) {
	for _, b := range inOrder(branches) {
		if !b.Status.Terminal() { // not ended with its parent meanwhile
			m.finish(b, o, now)
		}
	}
}

type outcome struct {
	reason     string // "" for a return by its agent
	detail     string // added to the sentence for reason
	message    string
	returnedBy string // see Branch
}

// finish ends b, its children first, deepest first. Every branch ends here, once: m.mu is held, b
// is live, and afterwards it is not. Calls of b are cancelled; their results are charged to no
// branch.
func (m *Manager) finish(b *branch, o outcome, now time.Time) {
	below := outcome{reason: ReasonParentEnded}
	if o.reason == "" || o.reason == ReasonParentReturning {
		below.reason = ReasonParentReturning
	}
	for _, child := range inOrder(maps.Keys(b.children)) {
		m.finish(child, below, now)
	}
	b.Branch = b.snapshot() // the last look at the balance and the leases
	b.Status, b.Reason, b.Message, b.ReturnedBy, b.CompletedAt = StatusFailed, o.reason, o.message, o.returnedBy, now
	kind := EventEnded
	switch o.reason {
	case "":
		b.Status, kind = StatusCompleted, EventConcluded
	case ReasonTimeout:
		b.Status = StatusTimeout
		if b.ExpiresAt.Before(now) { // a late timer does not prolong the branch
			b.CompletedAt = b.ExpiresAt
		}
	}
	if o.reason != "" {
		b.Error, b.Digest = b.explain(), b.digest()
		if o.detail != "" {
			b.Error += ": " + o.detail
		}
	}
	m.remove(b)
	m.w.put(b.Branch)
	for l := range b.leases {
		l.cancel(b.ended())
	}
	m.emit(Event{Kind: kind, Branch: b.snapshot()})
}
