package budget

import (
	"errors"
	"fmt"
	"sync"
)

// ErrExhausted is the error for an amount above the rest of a budget. Match it with errors.Is;
// the text has the figures.
var ErrExhausted = errors.New("budget exhausted")

// Balance is a budget at one moment, in tokens: Used of Total.
type Balance struct {
	Used, Total int
}

// Remaining returns the tokens that are left.
func (b Balance) Remaining() int { return b.Total - b.Used }

// Exhausted reports whether no tokens are left.
func (b Balance) Exhausted() bool { return b.Used >= b.Total }

// Ledger keeps one budget: the tokens allowed and spent. Used is the sum of all charges less all
// refunds, exactly, and always between 0 and Total. A Ledger is safe for concurrent use. It is in
// memory only: to keep a charge over a crash, record it before delivery.
type Ledger struct {
	total int

	mu     sync.Mutex // guards used and warned
	used   int
	warned bool
}

// NewLedger returns a budget of total tokens with used tokens already spent. The error names the
// invalid figure: total must be positive, used between 0 and total.
func NewLedger(total, used int) (*Ledger, error) {
	if total <= 0 {
		return nil, fmt.Errorf("budget of %d tokens: must be positive", total)
	}
	if used < 0 || used > total {
		return nil, fmt.Errorf("budget of %d tokens with %d used: must be between 0 and the budget", total, used)
	}
	return &Ledger{total: total, used: used, warned: atWarning(used, total)}, nil
}

// Charge books n tokens, all or nothing. If fewer than n are left, it returns an error that wraps
// [ErrExhausted]. It panics if n is negative.
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

// Take books n tokens, or as many as are left, and returns the number it booked. It panics if n
// is negative.
func (l *Ledger) Take(n int) int {
	mustNotBeNegative(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, l.total-l.used)
	l.used += n
	return n
}

// Refund returns n booked tokens that were not delivered, at most all that are booked. If use
// falls below the warning line, [Ledger.Warn] can warn again. It panics if n is negative.
func (l *Ledger) Refund(n int) {
	mustNotBeNegative(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= min(n, l.used)
	if !atWarning(l.used, l.total) {
		l.warned = false
	}
}

// Warn reports whether use reached 80 % since it was last below. It is true once a crossing.
func (l *Ledger) Warn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.warned || !atWarning(l.used, l.total) {
		return false
	}
	l.warned = true
	return true
}

// Balance returns the current figures.
func (l *Ledger) Balance() Balance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Balance{Used: l.used, Total: l.total}
}

// atWarning reports whether used is at least 80 % of total: all but a fifth.
func atWarning(used, total int) bool { return used >= total-total/5 }

func mustNotBeNegative(n int) {
	if n < 0 {
		panic(fmt.Sprintf("budget: negative amount %d", n))
	}
}
