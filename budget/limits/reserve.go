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
	of       []match
	counters []Counter // of these, in their order
	from     int64     // the counters are those of [from, until)
	until    int64
	fold     bool // a limit with the action fold is spent

	waited        bool  // a take has waited in vain for reserves that others may give back
	leftAfterWait int64 // what the tightest limit had left after that

	reserving     chan struct{} // closed when the take that reserves has ended; nil: none is under way
	tokens, calls int64         // reserved; negative: delivered while the store was down, and not charged
	grown         int           // each reserve is twice the one before, and a quarter of it after what was left of it went back
	room          Used          // the most to have in reserve, by what the last answer left

	// What is on its way to the store, if the account has a slot in the ledger.
	slot                             int    // 0: none
	described                        bool   // the slot has the counters
	taking                           string // the take that reserves; "" if the store has answered it
	back                             string // the change that gives back; "" if the store has confirmed it
	backTokens, backCalls, backSince int64  // what it gives back, since when in seconds since 1970
}

// keys returns the keys of the counters.
func (a *account) keys() (keys []string) {
	for _, c := range a.counters {
		keys = append(keys, c.Key)
	}
	return keys
}

// undone returns the changes that undo a take.
func (a *account) undone() []Change {
	changes := make([]Change, len(a.counters))
	for i, c := range a.counters {
		changes[i] = Change{Key: c.Key, Bucket: c.Bucket, Expires: c.Expires}
	}
	return changes
}

// idle reports whether there is nothing to keep.
func (a *account) idle() bool {
	return a.tokens == 0 && a.calls == 0 && a.taking == "" && a.back == ""
}

// parcel is an operation that has to reach the store.
type parcel struct {
	id      string
	how     How
	changes []Change
	since   time.Time
	account *account // the take that is undone filled its reserve; may be nil
}

// inherit takes over what a process before has left in the ledger.
func (l *Limits) inherit() {
	l.o.Ledger.mu.Lock()
	left := l.o.Ledger.left
	l.o.Ledger.left = nil
	l.o.Ledger.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	backs := map[string]sums{}
	for _, a := range left {
		l.holding[a.name] = a
		l.wake(0)
		if a.taking != "" {
			l.outbox = append(l.outbox, parcel{a.taking, Undo, a.undone(), l.o.Now(), a})
		}
		if a.back != "" && backs[a.back] == nil {
			backs[a.back] = sums{}
			l.outbox = append(l.outbox, parcel{id: a.back, how: Add, since: time.Unix(a.backSince, 0)})
		}
		if a.back != "" {
			backs[a.back].giveBack(a, a.backTokens, a.backCalls)
		}
	}
	for i := range l.outbox {
		if p := &l.outbox[i]; p.how == Add {
			p.changes = backs[p.id].inOrder()
		}
	}
}

// fromReserve takes from what is reserved, or if no limit matches from nothing.
func (s *Spend) fromReserve(tokens, calls int64) bool {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	a := s.l.account(s.use)
	s.charge(a)
	switch {
	case len(a.counters) == 0:
		return true
	case a.tokens < tokens, a.calls < calls, a.tokens <= 0:
		return false
	}
	if !s.l.hold(a, -tokens, -calls) {
		return false
	}
	s.taken += tokens
	return true
}

// reserve lets op reserve for an account, once the ledger knows it. l.mu is held.
func (l *Limits) reserve(a *account, op *Op) bool {
	d := l.o.Ledger
	if d == nil {
		return true
	}
	if a.taking != "" { // it is not known whether that one took something
		return false
	}
	if a.slot == 0 {
		d.open(a)
	}
	if a.slot == 0 {
		return false
	}
	op.ID = l.nextID("/" + strconv.Itoa(a.slot) + ".")
	a.taking = op.ID
	return l.settle(a) && a.slot != 0
}

// reserved adds what op has reserved. It reports false if the ledger can't say so: then the next
// process would undo op. l.mu is held.
func (l *Limits) reserved(a *account, op *Op, answer Answer) bool {
	if l.o.Ledger != nil && a.taking != op.ID {
		return false
	}
	a.taking = ""
	if answer.ExtraTokens > 0 || answer.ExtraCalls > 0 {
		a.grown = min(a.grown+1, maxGrown)
	}
	return l.hold(a, answer.ExtraTokens, answer.ExtraCalls)
}

// hold adds to the reserve of an account. If the ledger can't be written it adds nothing: then the
// reserve is left to the next process. l.mu is held.
func (l *Limits) hold(a *account, tokens, calls int64) bool {
	if len(a.counters) == 0 {
		return true
	}
	if same := l.holding[a.name]; same != nil {
		a = same
	}
	before := Used{a.tokens, a.calls}
	a.tokens += tokens
	a.calls += calls
	if l.settle(a) {
		return true
	}
	a.tokens, a.calls = min(before.Tokens, 0), min(before.Calls, 0)
	l.settle(a)
	return false
}

// settle notes a changed account in the ledger. It reports false if the account has lost its slot,
// and its reserve with it: the next process gives that back. l.mu is held.
func (l *Limits) settle(a *account) bool {
	d, noted := l.o.Ledger, true
	if d != nil && a.slot == 0 && !a.idle() {
		d.open(a)
	}
	if a.slot != 0 {
		if known, err := a.described, d.write(a); err != nil {
			if !errors.Is(err, os.ErrClosed) {
				l.o.Log.Warn("limits: the file of reserves can't be written: calls are slower", "error", err)
			}
			if a.taking, a.back = "", ""; known {
				a.slot, a.tokens, a.calls, noted = 0, min(a.tokens, 0), min(a.calls, 0), false
			} else {
				d.release(a)
			}
		}
	}
	if !a.idle() {
		l.holding[a.name] = a
		l.wake(giveBackAfter)
		return noted
	}
	delete(l.holding, a.name)
	if a.slot != 0 {
		d.release(a)
	}
	return noted
}

// send queues a change for the store. l.mu is held.
func (l *Limits) send(p parcel) {
	if len(l.outbox) >= maxOutbox {
		l.o.Log.Warn("limits: an operation that the store did not confirm stays charged", "waiting", len(l.outbox))
		l.sent(p)
		return
	}
	l.outbox = append(l.outbox, p)
	l.wake(giveBackAfter)
}

// wake lets flush run, in a while. l.mu is held.
func (l *Limits) wake(after time.Duration) {
	if l.timer == nil {
		l.timer = time.AfterFunc(after, l.flush)
	}
}

func (l *Limits) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), l.o.Wait)
	defer cancel()
	l.giveBack(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	if len(l.outbox) > 0 {
		l.wake(retryAfter)
	} else if len(l.holding) > 0 {
		l.wake(giveBackAfter)
	}
}

// giveBack gives back all reserves and reports whether there were any, and the store has got all.
func (l *Limits) giveBack(ctx context.Context) bool {
	select {
	case l.sending <- struct{}{}:
		defer func() { <-l.sending }()
	case <-ctx.Done():
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// While the store is down the reserves stay where they are: they can't become too many.
	if !l.sendAll(ctx) {
		return false
	}
	p := l.empty()
	if len(p.changes) == 0 {
		return false
	}
	l.outbox = append(l.outbox, p)
	return l.sendAll(ctx)
}

// sendAll sends all that waits for the store. l.mu is held, but not while the store is asked.
func (l *Limits) sendAll(ctx context.Context) bool {
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
			l.blame(ctx, start, err)
			return false
		}
		l.outbox = l.outbox[1:]
		l.sent(p)
	}
	l.outbox, l.down = nil, nil
	return true
}

// sent notes that a parcel waits no longer. l.mu is held.
func (l *Limits) sent(p parcel) {
	switch {
	case l.o.Ledger == nil:
	case p.how == Add:
		for _, a := range l.holding {
			if a.back == p.id {
				a.back, a.backTokens, a.backCalls = "", 0, 0
				l.settle(a)
			}
		}
	case p.account != nil && p.account.taking == p.id:
		p.account.taking = ""
		l.settle(p.account)
	}
}

// empty takes all reserves for a parcel. l.mu is held.
func (l *Limits) empty() parcel {
	p := parcel{id: l.nextID("."), how: Add, since: l.o.Now().Round(0)} // the clock of a machine that sleeps stands still otherwise
	all := sums{}
	for _, a := range l.holding {
		tokens, calls := a.tokens, a.calls
		if a.grown = max(a.grown-2, 0); tokens == 0 && calls == 0 {
			continue
		}
		a.tokens, a.calls = 0, 0
		if a.slot != 0 {
			a.back, a.backTokens, a.backCalls, a.backSince = p.id, tokens, calls, p.since.Unix()
		}
		if l.settle(a) { // else the next process gives it back
			all.giveBack(a, tokens, calls)
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

// giveBack adds what an account gives back.
func (s sums) giveBack(a *account, tokens, calls int64) {
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
		l.giveBack(ctx)
	}
}
