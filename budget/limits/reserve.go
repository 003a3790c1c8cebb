package limits

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"
)

// account is what one set of counters has in reserve.
type account struct {
	name     string // of its counters
	matches  []match
	counters []Counter // of the matches, in their order
	from     int64     // the counters are those of [from, until)
	until    int64
	fold     bool // a limit with the action fold is spent

	waited        bool  // a take has waited in vain for reserves that others may give back
	leftAfterWait int64 // what the tightest limit had left after that

	reserving     chan struct{} // closed when the take that reserves has ended; nil: none is under way
	tokens, calls int64         // reserved; negative: delivered while the store was down, and not charged
	doublings     int           // each reserve is twice the one before, and a quarter of it after what was left of it went back
	maxReserve    Used          // by what the last answer left

	// Operations that the store has not confirmed, if the account has a slot in the reserve file.
	slot                      int    // 0: none
	described                 bool   // the slot has the counters
	pendingTake               string // the take that reserves, "" for none
	pendingReturn             string // the change that gives back, "" for none
	returnTokens, returnCalls int64  // what it gives back
	returnSince               int64  // in seconds since 1970
}

// keys returns the keys of the counters.
func (a *account) keys() (keys []string) {
	for _, c := range a.counters {
		keys = append(keys, c.Key)
	}
	return keys
}

// undoChanges returns the changes that undo a take.
func (a *account) undoChanges() []Change {
	changes := make([]Change, len(a.counters))
	for i, c := range a.counters {
		changes[i] = Change{Key: c.Key, Bucket: c.Bucket, Expires: c.Expires}
	}
	return changes
}

// idle reports whether there is nothing to keep.
func (a *account) idle() bool {
	return a.tokens == 0 && a.calls == 0 && a.pendingTake == "" && a.pendingReturn == ""
}

// pendingOp is an operation that the store has not confirmed.
type pendingOp struct {
	id      string
	how     How
	changes []Change
	since   time.Time
	account *account // the take that is undone filled its reserve; may be nil
}

// takeOver takes over what the process before has left in the reserve file.
func (l *Limits) takeOver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	returned := map[string]sums{} // by operation
	for _, a := range l.o.Reserves.takeLeft() {
		l.holding[a.name] = a
		l.scheduleFlush(0)
		if a.pendingTake != "" {
			l.outbox = append(l.outbox, pendingOp{a.pendingTake, Undo, a.undoChanges(), l.o.Now(), a})
		}
		if a.pendingReturn == "" {
			continue
		}
		if returned[a.pendingReturn] == nil {
			returned[a.pendingReturn] = sums{}
			l.outbox = append(l.outbox, pendingOp{id: a.pendingReturn, how: Add, since: time.Unix(a.returnSince, 0)})
		}
		returned[a.pendingReturn].subtract(a, a.returnTokens, a.returnCalls)
	}
	for i := range l.outbox {
		if p := &l.outbox[i]; p.how == Add {
			p.changes = returned[p.id].inOrder()
		}
	}
}

// takeFromReserve takes from what is reserved. It reports false if that is too little. If no limit matches it
// takes nothing.
func (s *Spend) takeFromReserve(tokens, calls int64) bool {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	a := s.l.account(s.use)
	s.useAccount(a)
	switch {
	case len(a.counters) == 0:
		return true
	case a.tokens < tokens, a.calls < calls, a.tokens <= 0:
		return false
	}
	if !s.l.addToReserve(a, -tokens, -calls) {
		return false
	}
	s.taken += tokens
	return true
}

// prepareReserve lets op reserve for an account: the reserve file notes op before it is sent. It reports false
// if op must not reserve. l.mu is held.
func (l *Limits) prepareReserve(a *account, op *Op) bool {
	d := l.o.Reserves
	if d == nil {
		return true
	}
	if a.pendingTake != "" { // it is not known whether that one took something
		return false
	}
	if a.slot == 0 {
		d.assignSlot(a)
	}
	if a.slot == 0 {
		return false
	}
	op.ID = l.nextID("/" + strconv.Itoa(a.slot) + ".")
	a.pendingTake = op.ID
	return l.saveAccount(a) && a.slot != 0
}

// addReserved adds what op has reserved. It reports false if the reserve file can't be written: then the next
// process would undo op. l.mu is held.
func (l *Limits) addReserved(a *account, op *Op, answer Answer) bool {
	if l.o.Reserves != nil && a.pendingTake != op.ID {
		return false
	}
	a.pendingTake = ""
	if answer.ExtraTokens > 0 || answer.ExtraCalls > 0 {
		a.doublings = min(a.doublings+1, maxDoublings)
	}
	return l.addToReserve(a, answer.ExtraTokens, answer.ExtraCalls)
}

// addToReserve adds to the reserve of an account, or takes from it. If the reserve file can't be written it adds
// nothing and reports false: the reserve is left to the next process. l.mu is held.
func (l *Limits) addToReserve(a *account, tokens, calls int64) bool {
	if len(a.counters) == 0 {
		return true
	}
	if same := l.holding[a.name]; same != nil {
		a = same
	}
	before := Used{a.tokens, a.calls}
	a.tokens += tokens
	a.calls += calls
	if l.saveAccount(a) {
		return true
	}
	a.tokens, a.calls = min(before.Tokens, 0), min(before.Calls, 0)
	l.saveAccount(a)
	return false
}

// saveAccount keeps a changed account for as long as it has something to keep, and writes it to its slot. It
// reports false if the account has lost its slot, and its reserve with it. l.mu is held.
func (l *Limits) saveAccount(a *account) bool {
	d := l.o.Reserves
	if d != nil && a.slot == 0 && !a.idle() {
		d.assignSlot(a)
	}
	saved := a.slot == 0 || l.writeSlot(a)
	if !a.idle() {
		l.holding[a.name] = a
		l.scheduleFlush(giveBackAfter)
		return saved
	}
	delete(l.holding, a.name)
	if a.slot != 0 {
		d.releaseSlot(a)
	}
	return saved
}

// writeSlot writes an account to its slot. If that fails the account has no slot any more. If the slot has what
// was reserved before, writeSlot reports false and takes the reserve from the account: the next process gives it
// back. l.mu is held.
func (l *Limits) writeSlot(a *account) bool {
	described, err := a.described, l.o.Reserves.write(a)
	if err == nil {
		return true
	}
	if !errors.Is(err, os.ErrClosed) {
		l.o.Log.Warn("limits: the file of reserves can't be written: calls are slower", "error", err)
	}
	a.pendingTake, a.pendingReturn = "", ""
	if !described {
		l.o.Reserves.releaseSlot(a)
		return true
	}
	a.slot, a.tokens, a.calls = 0, min(a.tokens, 0), min(a.calls, 0)
	return false
}

// enqueue queues an operation for the store. l.mu is held.
func (l *Limits) enqueue(p pendingOp) {
	if len(l.outbox) >= maxOutbox {
		l.o.Log.Warn("limits: an operation that the store did not confirm stays charged", "waiting", len(l.outbox))
		l.confirmed(p)
		return
	}
	l.outbox = append(l.outbox, p)
	l.scheduleFlush(giveBackAfter)
}

// scheduleFlush runs flush after a time, unless it is scheduled already. l.mu is held.
func (l *Limits) scheduleFlush(after time.Duration) {
	if l.timer == nil {
		l.timer = time.AfterFunc(after, l.flush)
	}
}

func (l *Limits) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), l.o.Wait)
	defer cancel()
	l.returnReserves(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	if len(l.outbox) > 0 {
		l.scheduleFlush(retryAfter)
	} else if len(l.holding) > 0 {
		l.scheduleFlush(giveBackAfter)
	}
}

// returnReserves gives all reserves back to the store. It reports whether there were any and the store has
// confirmed all.
func (l *Limits) returnReserves(ctx context.Context) bool {
	select {
	case l.sending <- struct{}{}:
		defer func() { <-l.sending }()
	case <-ctx.Done():
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// While the store is down the reserves stay where they are: they can't become too many.
	if !l.sendPending(ctx) {
		return false
	}
	p := l.drainReserves()
	if len(p.changes) == 0 {
		return false
	}
	l.outbox = append(l.outbox, p)
	return l.sendPending(ctx)
}

// sendPending sends the outbox to the store. l.mu is held, but not while the store is asked.
func (l *Limits) sendPending(ctx context.Context) bool {
	for len(l.outbox) > 0 {
		p := l.outbox[0]
		if age := l.o.Now().Sub(p.since); age > rememberOps-time.Minute || age < -30*time.Second { // the store may have forgotten it
			p.changes = slices.Clone(p.changes) // a store that was left may still read them
			for i := range p.changes {
				c := &p.changes[i]
				c.Tokens, c.Calls = max(c.Tokens, 0), max(c.Calls, 0)
			}
		}
		l.mu.Unlock()
		start := time.Now()
		err := l.store.Change(ctx, p.id, p.how, p.changes)
		l.mu.Lock()
		if err != nil {
			l.noteFailure(ctx, start, err)
			return false
		}
		l.outbox = l.outbox[1:]
		l.confirmed(p)
	}
	l.outbox, l.down = nil, nil
	return true
}

// confirmed notes that an operation is no longer pending. l.mu is held.
func (l *Limits) confirmed(p pendingOp) {
	switch {
	case l.o.Reserves == nil:
	case p.how == Add:
		for _, a := range l.holding {
			if a.pendingReturn == p.id {
				a.pendingReturn, a.returnTokens, a.returnCalls = "", 0, 0
				l.saveAccount(a)
			}
		}
	case p.account != nil && p.account.pendingTake == p.id:
		p.account.pendingTake = ""
		l.saveAccount(p.account)
	}
}

// drainReserves empties all reserves and returns the operation that gives them back. l.mu is held.
func (l *Limits) drainReserves() pendingOp {
	p := pendingOp{id: l.nextID("."), how: Add, since: l.o.Now().Round(0)} // the clock of a machine that sleeps stands still otherwise
	all := sums{}
	for _, a := range l.holding {
		tokens, calls := a.tokens, a.calls
		if a.doublings = max(a.doublings-2, 0); tokens == 0 && calls == 0 {
			continue
		}
		a.tokens, a.calls = 0, 0
		if a.slot != 0 {
			a.pendingReturn, a.returnTokens, a.returnCalls, a.returnSince = p.id, tokens, calls, p.since.Unix()
		}
		if l.saveAccount(a) { // else the next process gives it back
			all.subtract(a, tokens, calls)
		}
	}
	p.changes = all.inOrder()
	return p
}

// part names one part of a counter.
type part struct {
	key    string
	bucket int64
}

// sums are changes of counters by several charges.
type sums map[part]Change

// add adds a charge of a counter.
func (s sums) add(c Counter, tokens, calls int64) {
	at := part{c.Key, c.Bucket}
	sum := s[at]
	s[at] = Change{c.Key, c.Bucket, max(sum.Expires, c.Expires), Used{sum.Tokens + tokens, sum.Calls + calls}}
}

// subtract subtracts what an account gives back from its counters.
func (s sums) subtract(a *account, tokens, calls int64) {
	for _, c := range a.counters {
		s.add(c, -tokens, -calls)
	}
}

// inOrder returns the sums by key and part.
func (s sums) inOrder() []Change {
	return slices.SortedFunc(maps.Values(s), func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Bucket, b.Bucket))
	})
}

// Close gives back what is reserved. Spends stay valid.
func (l *Limits) Close(ctx context.Context) {
	if l != nil {
		l.returnReserves(ctx)
	}
}
