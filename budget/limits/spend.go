package limits

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Options are the options of [New].
type Options struct {
	Allow     bool          // if the store can't be reached: allow, and charge later. Otherwise refuse
	Wait      time.Duration // bounds the wait of one call for the store; 0 means 2 s
	MaxResult int           // what is reserved at first, in tokens: room for a large result; 0 means 8192
	Log       *slog.Logger
	Now       func() time.Time // nil means time.Now
	Notify    func(Crossing)   // is told of each crossing; it must not block; may be nil
	Reserves  *ReserveFile     // keeps what is reserved for the next process; nil: a process that is killed loses it
}

// Crossing tells that a limit is near, refuses, or is over: each once for a subject and window, and
// again if meanwhile less than 9/10 of what makes the limit near was used. A session is one window.
// In a rolling window a limit that refused tells so again after the length of the window.
type Crossing struct {
	State
	Kind string // near, refused, or over: a limit with another action than refuse; reset: by the operator
	Use  Use    // what crossed it

	counter int // of the account
}

// Limits takes what calls use from the limits that match. All methods are safe for concurrent use.
type Limits struct {
	all   []*limit
	store Store
	o     Options
	pause time.Duration // until other gateways have given back
	id    string        // starts the ids of operations

	sending chan struct{} // one sends at a time; taken before mu

	mu       sync.Mutex // guards the fields below; it is not held while the store is asked
	ops      int64
	offset   time.Duration // of the store's clock
	accounts map[Use]*account
	holding  map[string]*account // those with a reserve, by name
	levels   map[string]level    // what Notify was told, by key of the counter
	outbox   []pendingOp         // changes that the store has not confirmed
	timer    *time.Timer         // sends them; nil if none runs
	down     error               // why the store does not answer; nil if it does, and once the outbox was sent
}

// level is what Notify was told of a counter.
type level struct {
	near, spent bool
	bucket      int64     // of spent
	since       time.Time // of near or spent, the later one
}

const (
	giveBackAfter = 100 * time.Millisecond
	retryAfter    = time.Second
	maxAccounts   = 4096
	maxHolding    = 1 << 16
	maxOutbox     = 4096
	maxExtraCalls = 64
	maxDoublings  = 7
)

// New returns the limits, which count in a store. The error says what is wrong with a limit.
func New(all []Limit, store Store, o Options) (*Limits, error) {
	if err := Check(all).Err(); err != nil {
		return nil, err
	}
	l := &Limits{
		store: store, o: o, id: rand.Text(), pause: giveBackAfter * 5 / 4, sending: make(chan struct{}, 1),
		accounts: map[Use]*account{}, holding: map[string]*account{}, levels: map[string]level{},
	}
	l.o.Wait = cmp.Or(o.Wait, 2*time.Second)
	l.o.MaxResult = cmp.Or(o.MaxResult, 8192)
	l.o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if l.o.Now == nil {
		l.o.Now = time.Now
	}
	for _, one := range all {
		ready, err := one.prepare()
		if err != nil {
			return nil, err
		}
		l.all = append(l.all, ready)
	}
	if o.Reserves != nil {
		l.takeOver()
	}
	return l, nil
}

// Spend is what one call uses. One goroutine at a time uses it. All methods of a nil Spend work: it has no
// limits.
type Spend struct {
	l     *Limits
	use   Use
	wait  time.Duration // what is left of Options.Wait
	whole bool          // takes are all or nothing

	account     *account // of the last take
	used        []Used   // of its counters, as the store answered the last take
	taken       int64    // from it, and not given back
	unconfirmed bool     // the store did not answer a take, and Options.Allow let it pass
}

// Begin takes one call and the tokens of its arguments from all limits that match, or nothing. If
// none match the Spend is nil. The error is an [*ExceededError] or an [*UnavailableError].
func (l *Limits) Begin(ctx context.Context, u Use, args int) (*Spend, error) {
	if l == nil || len(l.all) == 0 {
		return nil, nil
	}
	s := &Spend{l: l, use: u, wait: l.o.Wait, whole: true}
	_, exceeded, err := s.take(ctx, int64(args), 1)
	switch {
	case err != nil:
		return nil, err
	case exceeded != nil:
		return nil, s.refusal(ctx, exceeded, Used{int64(args), 1})
	case len(s.account.counters) == 0:
		return nil, nil
	}
	s.whole = false
	return s, nil
}

// refusal returns, of the limits that refuse a use, the one that refuses it for longest, and until
// when. exceeded is one of them; it is the answer if the store does not say more. Of a use that got a
// part it is the answer, with the time when the rest is there, or all that it has in a window. Only a rolling window
// has parts, about which the store is asked.
func (s *Spend) refusal(ctx context.Context, exceeded *ExceededError, wanted Used) *ExceededError {
	a := s.account
	until := make([]int64, len(a.counters)) // see refuses
	amount := func(c Counter) Used {
		if s.whole {
			return wanted
		}
		return Used{min(wanted.Tokens, c.Tokens), wanted.Calls}
	}
	var rolling []string
	for i, c := range a.counters {
		if m := a.matches[i]; !c.Hard || !s.whole && (m.Name != exceeded.Limit || m.subject != exceeded.Subject) {
			continue
		}
		if until[i] = c.refuses([]Count{{Used: s.used[i]}}, amount(c)); until[i] > 0 && c.Bucket != 0 {
			rolling = append(rolling, c.Key)
		}
	}
	if rolling != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.wait)
		defer cancel()
		list, err := s.l.store.List(ctx, rolling...)
		if err != nil {
			return exceeded
		}
		for i, c := range a.counters {
			if until[i] > 0 && c.Bucket != 0 {
				until[i] = c.refuses(slices.DeleteFunc(slices.Clone(list), func(part Count) bool { return part.Key != c.Key || part.Bucket < c.Oldest }), amount(c))
			}
		}
	}
	longest := int64(0)
	for i, c := range a.counters {
		if until[i] > longest {
			longest = until[i]
			exceeded = a.exceeded(i, s.used[i], left(c.Calls, s.used[i].Calls) < wanted.Calls)
			exceeded.Reset = a.matches[i].time(longest)
		}
	}
	return exceeded
}

// refuses returns until when a counter has less than wanted, in seconds since 1970: 0 if it has
// enough, the largest number if that never changes. parts are those that count.
func (c Counter) refuses(parts []Count, wanted Used) int64 {
	wanted.Tokens = max(wanted.Tokens, 1) // a call without arguments needs some for its result
	enough := func(used Used) bool {
		return left(c.Tokens, used.Tokens) >= wanted.Tokens && left(c.Calls, used.Calls) >= wanted.Calls
	}
	switch {
	case enough(sum(parts)):
		return 0
	case !enough(Used{}):
		return math.MaxInt64
	case c.Bucket == 0:
		return c.Until
	}
	slices.SortFunc(parts, func(a, b Count) int { return cmp.Compare(a.Bucket, b.Bucket) })
	for i := range parts {
		if enough(sum(parts[i+1:])) {
			return parts[i].Bucket + c.Until - c.Oldest // then begins a bucket that does not reach back to it
		}
	}
	return c.Until
}

// Take takes n tokens, or what the tightest limit has left: then it returns that limit too. Deliver
// what is granted, and give back the rest. Do so also if there is an error: what was granted before it stays
// taken.
func (s *Spend) Take(ctx context.Context, n int) (granted int, tightest *ExceededError, err error) {
	if s == nil || n <= 0 {
		return n, nil, nil
	}
	got, tightest, err := s.take(ctx, int64(n), 0)
	if tightest != nil {
		tightest = s.refusal(ctx, tightest, Used{Tokens: int64(n) - got})
	}
	return int(got), tightest, err
}

// Continue returns a Spend for the rest of a call whose use is known better now: it takes from the limits of u.
// s is the call's Spend so far, or nil.
func (l *Limits) Continue(s *Spend, u Use) *Spend {
	if l == nil || len(l.all) == 0 {
		return nil
	}
	of := &Spend{l: l, use: u, wait: l.o.Wait}
	if s != nil {
		of.wait = s.wait
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of.account = l.account(u)
	return of
}

// Fold reports whether a limit with the action fold is spent: only previews are to be delivered.
func (s *Spend) Fold() bool {
	if s == nil {
		return false
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	return s.account.fold
}

// Refund gives back n tokens that were taken and not delivered.
func (s *Spend) Refund(n int) {
	if s == nil || n <= 0 {
		return
	}
	back := min(int64(n), s.taken)
	s.taken -= back
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.addToReserve(s.account, back, 0)
}

// Pay takes n tokens for a message outside of calls, or none. The error is as of Begin.
func (l *Limits) Pay(ctx context.Context, u Use, n int) (*Spend, error) {
	if l == nil || len(l.all) == 0 || n <= 0 {
		return nil, nil
	}
	s := &Spend{l: l, use: u, wait: l.o.Wait, whole: true}
	_, exceeded, err := s.take(ctx, int64(n), 0)
	if err == nil && exceeded != nil {
		err = s.refusal(ctx, exceeded, Used{Tokens: int64(n)})
	}
	return s, err
}

// Confirmed reports whether the store has counted what was taken. If not, it could not be reached, and
// [Options.Allow] let it pass.
func (s *Spend) Confirmed() bool { return s == nil || !s.unconfirmed }

// take takes tokens and calls.
func (s *Spend) take(ctx context.Context, tokens, calls int64) (got int64, exceeded *ExceededError, err error) {
	if s.takeFromReserve(tokens, calls) {
		return tokens, nil, nil
	}
	start := time.Now()
	// A host that cancels its call does not interrupt the store: that would look like a failure.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.wait)
	defer func() {
		cancel()
		s.wait = max(s.wait-time.Since(start), 0)
	}()
	if s.waitForReserve(ctx) && s.takeFromReserve(tokens, calls) {
		return tokens, nil, nil
	}
	got, exceeded, err = s.takeFromStore(ctx, tokens, calls)
	if err != nil && s.l.o.Allow && s.chargeUnconfirmed(tokens-got, calls) {
		return tokens, nil, nil
	}
	return got, exceeded, err
}

// waitForReserve waits until the take that reserves has ended. It reports false if none is under way.
func (s *Spend) waitForReserve(ctx context.Context) bool {
	s.l.mu.Lock()
	reserving := s.account.reserving
	s.l.mu.Unlock()
	if reserving == nil {
		return false
	}
	select {
	case <-reserving:
	case <-ctx.Done():
	}
	return true
}

// takeFromStore takes from the store, up to four times: what is missing may be in a reserve, which goes back.
func (s *Spend) takeFromStore(ctx context.Context, tokens, calls int64) (got int64, exceeded *ExceededError, err error) {
	waited := false
	for try := 0; ; try++ {
		var more int64
		more, exceeded, err = s.takeOnce(ctx, tokens-got, calls)
		got += more
		s.taken += more
		if err != nil || exceeded == nil || try == 3 {
			return got, exceeded, err
		}
		if s.l.returnReserves(ctx) { // another account of ours may have had it
			continue
		}
		if s.waitIsVain(exceeded.Left, waited) {
			return got, exceeded, nil
		}
		waited = true
		select { // another gateway may have it, and gives it back in a moment
		case <-time.After(s.l.pause):
		case <-ctx.Done():
			return got, exceeded, nil
		}
	}
}

// waitIsVain reports whether a take has waited for reserves, and the tightest limit had as little left afterwards
// as it has now. waited says that this take has.
func (s *Spend) waitIsVain(left int64, waited bool) bool {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	a := s.account
	if waited {
		a.waited, a.leftAfterWait = true, left
	}
	return a.waited && a.leftAfterWait == left
}

// chargeUnconfirmed lets a take pass that the store does not answer. The account owes it to the store. It
// reports false if too many accounts owe something.
func (s *Spend) chargeUnconfirmed(tokens, calls int64) bool {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.holding) >= maxHolding { // it must not grow for ever
		return false
	}
	for charged := false; !charged; { // if the account has lost its slot, it tries another one, or goes without
		charged = l.addToReserve(s.account, -tokens, -calls)
	}
	s.taken += tokens
	s.unconfirmed = true
	return true
}

// useAccount lets takes come from an account. Another account is another window: what was taken before
// stays taken.
func (s *Spend) useAccount(a *account) {
	if s.account == nil || s.account.name != a.name {
		s.taken = 0
	}
	s.account = a
}

// newOp returns a take from the account at the present time, and whether it reserves. l.mu is held.
func (s *Spend) newOp(tokens, calls int64) (a *account, op Op, reserves bool) {
	l := s.l
	a = l.account(s.use)
	s.useAccount(a)
	op = Op{ID: l.nextID(""), Counters: a.counters, Tokens: tokens, Calls: calls, Whole: s.whole}
	if a.reserving != nil || !l.prepareReserve(a, &op) { // many at once would reserve many times as much
		return a, op, false
	}
	a.reserving = make(chan struct{})
	op.ExtraTokens = max(min(int64(l.o.MaxResult)<<a.doublings, a.maxReserve.Tokens)-a.tokens, 0)
	op.ExtraCalls = max(min(maxExtraCalls<<a.doublings, a.maxReserve.Calls)-a.calls, 0)
	return a, op, true
}

// takeOnce takes tokens and calls from the store. It also reserves, if no other take does.
func (s *Spend) takeOnce(ctx context.Context, tokens, calls int64) (got int64, exceeded *ExceededError, err error) {
	l := s.l
	for range 4 { // more often than windows change
		l.mu.Lock()
		if l.down != nil { // one wait was enough: sendPending finds out when it is back
			err := l.down
			l.mu.Unlock()
			return 0, nil, &UnavailableError{err}
		}
		a, op, reserves := s.newOp(tokens, calls)
		l.mu.Unlock()

		sent, start := l.o.Now(), time.Now()
		answer, err := l.store.Take(ctx, op)

		l.mu.Lock()
		if reserves { // those who wait for it come once this has unlocked
			close(a.reserving)
			a.reserving = nil
		}
		if err != nil {
			l.noteFailure(ctx, start, err)
		} else {
			l.down = nil
			l.offset = answer.Now.Sub(sent)
			if reserves && !l.addReserved(a, &op, answer) {
				err = errors.New("what it reserved could not be noted")
			}
		}
		if err != nil {
			l.enqueue(pendingOp{op.ID, Undo, a.undoChanges(), l.o.Now(), a})
			l.mu.Unlock()
			return 0, nil, &UnavailableError{err}
		}
		if answer.Stale {
			l.mu.Unlock()
			continue
		}
		crossings := l.noteAnswer(a, s.use, answer, start)
		l.mu.Unlock()
		l.notify(ctx, a, crossings)
		s.used = answer.Used
		if answer.Tightest >= 0 {
			exceeded = a.exceeded(answer.Tightest, answer.Used[answer.Tightest], answer.TooFewCalls)
		}
		return answer.Tokens, exceeded, nil
	}
	return 0, nil, &UnavailableError{errors.New("its clock jumps")}
}

// notify tells of crossings. The last use of a rolling window that refuses may be in an earlier part: the store
// knows that.
func (l *Limits) notify(ctx context.Context, a *account, crossings []Crossing) {
	for _, c := range crossings {
		if m := a.matches[c.counter]; c.Kind == "refused" && m.span.bucket != 0 {
			if parts, err := l.store.List(ctx, a.counters[c.counter].Key); err == nil {
				c.Reset = m.stateOf(parts).Reset
			}
		}
		l.o.Notify(c)
	}
}

// account returns the account of a use at the present time of the store. l.mu is held.
func (l *Limits) account(u Use) *account {
	now := l.o.Now().Add(l.offset)
	a := l.accounts[u]
	known := a != nil && now.Unix() >= a.from && now.Unix() < a.until
	if !known {
		a = l.newAccount(u, now)
	}
	if same := l.holding[a.name]; same != nil && same != a { // uses that have the same counters share the account
		a, known = same, false
	}
	if known {
		return a
	}
	if len(l.accounts) >= maxAccounts {
		clear(l.accounts)
	}
	l.accounts[u] = a
	return a
}

// noBound is the largest reserve where no limit has a total.
var noBound = Used{math.MaxInt64, math.MaxInt64}

// newAccount returns an account for a use at a time.
func (l *Limits) newAccount(u Use, now time.Time) *account {
	a := &account{until: 1<<63 - 1, maxReserve: noBound}
	for _, one := range l.all {
		for _, u := range one.uses(u) {
			c, m := one.counter(u, now)
			a.matches, a.counters = append(a.matches, m), append(a.counters, c)
			a.from, a.until = max(a.from, c.From), min(a.until, c.Until)
			a.name += c.Key + "\x00" + strconv.FormatInt(c.Bucket, 10) + "\x00"
			if c.From == 0 { // the life of a session: it is extended
				a.until = min(a.until, now.Unix()+keepSession/2)
			}
		}
	}
	return a
}

// noteAnswer reads what an answer says about the limits, and returns the crossings. asked is when the store was
// asked. l.mu is held.
func (l *Limits) noteAnswer(a *account, u Use, answer Answer, asked time.Time) (crossings []Crossing) {
	a.fold, a.maxReserve = false, noBound
	for i, c := range a.counters {
		used, m := answer.Used[i], a.matches[i]
		a.maxReserve = Used{min(a.maxReserve.Tokens, left(c.Tokens, used.Tokens)/share), min(a.maxReserve.Calls, left(c.Calls, used.Calls)/share)}
		a.fold = a.fold || m.Action == Fold && c.reached(used, 1)
		kind := l.noteLevel(c, m.WarnAt, used, answer.Tightest == i, asked)
		if kind != "" && l.o.Notify != nil {
			crossings = append(crossings, Crossing{m.state(used, m.span.bucket), kind, u, i})
		}
	}
	return crossings
}

// reached reports whether a share of what the counter has is used.
func (c Counter) reached(used Used, share float64) bool {
	return c.Tokens > 0 && float64(used.Tokens) >= share*float64(c.Tokens) ||
		c.Calls > 0 && float64(used.Calls) >= share*float64(c.Calls)
}

// noteLevel notes the level that the use of a counter has reached. It returns the kind of the crossing, "" if
// Notify was told of it. tightest says that the counter had too little left. Answers to calls at the same time come
// in any order: one that was asked for before a level was reached does not end it. l.mu is held.
func (l *Limits) noteLevel(c Counter, warnAt float64, used Used, tightest bool, asked time.Time) (kind string) {
	was := l.levels[c.Key]
	older := asked.Before(was.since)
	is := level{near: c.reached(used, warnAt) || was.near && (older || c.reached(used, warnAt*0.9)), bucket: was.bucket, since: was.since}
	// One call that is too large is refused while others fit: that lifts nothing.
	was.spent = was.spent && (older || was.bucket >= c.Oldest && (is.near || !was.near))
	is.spent = was.spent || c.Hard && tightest || !c.Hard && c.reached(used, 1)
	switch {
	case is.spent && !was.spent && c.Hard:
		kind, is.bucket = "refused", c.Bucket
	case is.spent && !was.spent:
		kind, is.bucket = "over", c.Bucket
	case is.near && !was.near:
		kind = "near"
	case !is.near && !is.spent:
		delete(l.levels, c.Key)
		return ""
	}
	if kind != "" {
		is.since = time.Now()
	}
	if len(l.levels) >= maxAccounts {
		clear(l.levels)
	}
	l.levels[c.Key] = is
	return kind
}

// exceeded returns the error of limit i, of which so much is used: of calls, or of tokens.
func (a *account) exceeded(i int, used Used, calls bool) *ExceededError {
	m := a.matches[i]
	s := m.state(used, m.span.bucket)
	q := s.tokens()
	if calls {
		q = s.calls()
	}
	return &ExceededError{Limit: s.Limit, Subject: s.Subject, Unit: q.Unit, Left: q.Left(), Total: q.Total, Reset: s.Reset, Main: m.Match.Context == Main}
}

// nextID returns the id of an operation. With a place that ends with a dot the next process may ask for it.
// l.mu is held.
func (l *Limits) nextID(place string) string {
	l.ops++
	return l.id + place + strconv.FormatInt(l.ops, 36)
}

// noteFailure notes that the store does not answer. Takes don't wait for it until the outbox is sent, so the
// caller must leave something in the outbox. The failure of a caller that had little time left does not count.
// l.mu is held.
func (l *Limits) noteFailure(ctx context.Context, start time.Time, err error) {
	if ctx.Err() != nil && time.Since(start) < l.o.Wait/2 {
		return
	}
	if l.down == nil {
		l.o.Log.Warn("limits: the store can't be reached", "error", err, "calls are", map[bool]string{true: "allowed, and charged later", false: "refused"}[l.o.Allow])
	}
	l.down = err
}
