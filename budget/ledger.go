package budget

import (
	"errors"
	"fmt"
	"sync"
)

// ErrExhausted says that an amount does not fit what is left of a budget. A
// caller matches it with errors.Is; the text names the figures.
var ErrExhausted = errors.New("budget exhausted")

// warnNumerator and warnDenominator set the share of a budget from which on
// a [Ledger] warns: 80 %.
const (
	warnNumerator   = 4
	warnDenominator = 5
)

// Balance is a budget at one moment, in tokens: Used of Total.
type Balance struct {
	Used, Total int
}

// Remaining returns what may still be spent.
func (b Balance) Remaining() int { return b.Total - b.Used }

// Exhausted reports whether nothing is left.
func (b Balance) Exhausted() bool { return b.Used >= b.Total }

// Ledger keeps one budget: what was allowed and what is spent. Used never
// exceeds Total and never falls below zero, whatever callers do at once; the
// sum of what was charged and not refunded is Used, exactly. It is memory
// only: whoever needs a charge to survive a crash writes it down before it
// hands out what was charged. Make one with [NewLedger].
type Ledger struct {
	total int

	mu     sync.Mutex // guards what follows
	used   int
	warned bool
}

// NewLedger returns a budget of total tokens of which used are already spent.
// The error says which figure is impossible: total must be positive, used
// between zero and total.
func NewLedger(total, used int) (*Ledger, error) {
	if total <= 0 {
		return nil, fmt.Errorf("budget of %d tokens: must be positive", total)
	}
	if used < 0 || used > total {
		return nil, fmt.Errorf("budget of %d tokens with %d used: must be between 0 and the budget", total, used)
	}
	return &Ledger{total: total, used: used, warned: atWarning(used, total)}, nil
}

// Charge books n tokens, all or nothing. It returns an error that wraps
// [ErrExhausted] where fewer than n are left. It panics on a negative n: that
// would be a refund in disguise.
func (l *Ledger) Charge(n int) error {
	mustNotBeNegative(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := l.total - l.used; n > left {
		return fmt.Errorf("%w: %d tokens asked, %d of %d left", ErrExhausted, n, left, l.total)
	}
	l.used += n
	return nil
}

// Take books as many of n tokens as are left and returns how many that were.
// It panics on a negative n.
func (l *Ledger) Take(n int) int {
	mustNotBeNegative(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, l.total-l.used)
	l.used += n
	return n
}

// Refund gives back n tokens that were booked and not delivered; more than is
// booked is cut to what is booked. A refund that leads back below the warning
// line arms the warning again. It panics on a negative n.
func (l *Ledger) Refund(n int) {
	mustNotBeNegative(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= min(n, l.used)
	if !atWarning(l.used, l.total) {
		l.warned = false
	}
}

// Warn reports whether use has reached 80 % since the last time it was below:
// true once for each crossing.
func (l *Ledger) Warn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.warned || !atWarning(l.used, l.total) {
		return false
	}
	l.warned = true
	return true
}

// Balance returns the figures of this moment.
func (l *Ledger) Balance() Balance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Balance{Used: l.used, Total: l.total}
}

// atWarning compares without multiplying, so that no budget is too large.
func atWarning(used, total int) bool {
	line := total/warnDenominator*warnNumerator +
		(total%warnDenominator*warnNumerator+warnDenominator-1)/warnDenominator
	return used >= line
}

func mustNotBeNegative(n int) {
	if n < 0 {
		panic(fmt.Sprintf("budget: negative amount %d", n))
	}
}
