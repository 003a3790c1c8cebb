package budget

import "fmt"

// Balance keeps one budget: the tokens allowed and spent. Used is the sum of all charges less all
// refunds, exactly, and always between 0 and the total. A Balance is not safe for concurrent use. It is in
// memory only: to keep a charge over a crash, record it before delivery.
type Balance struct {
	total, used int
	warned      bool
}

// NewBalance returns a budget of total tokens with used tokens already spent. The error names the
// invalid figure: total must be positive, used between 0 and total.
func NewBalance(total, used int) (*Balance, error) {
	if total <= 0 {
		return nil, fmt.Errorf("budget of %d tokens: must be positive", total)
	}
	if used < 0 || used > total {
		return nil, fmt.Errorf("budget of %d tokens with %d used: must be between 0 and the budget", total, used)
	}
	return &Balance{total: total, used: used, warned: atWarning(used, total)}, nil
}

// Charge books n tokens and returns true, or books nothing if fewer are left. It panics if n is negative.
func (b *Balance) Charge(n int) bool {
	mustNotBeNegative(n)
	if n > b.Remaining() {
		return false
	}
	b.used += n
	return true
}

// Take books n tokens, or as many as are left, and returns the number it booked. It panics if n
// is negative.
func (b *Balance) Take(n int) int {
	mustNotBeNegative(n)
	n = min(n, b.Remaining())
	b.used += n
	return n
}

// Refund returns n booked tokens that were not delivered, at most all that are booked. If use
// falls below the warning line, [Balance.Warn] can warn again. It panics if n is negative.
func (b *Balance) Refund(n int) {
	mustNotBeNegative(n)
	b.used -= min(n, b.used)
	if !atWarning(b.used, b.total) {
		b.warned = false
	}
}

// Warn reports whether use reached 80 % since it was last below. It is true once a crossing.
func (b *Balance) Warn() bool {
	if b.warned || !atWarning(b.used, b.total) {
		return false
	}
	b.warned = true
	return true
}

// Used returns the tokens that are booked.
func (b *Balance) Used() int { return b.used }

// Remaining returns the tokens that are left.
func (b *Balance) Remaining() int { return b.total - b.used }

// atWarning reports whether used is at least 80 % of total: all but a fifth.
func atWarning(used, total int) bool { return used >= total-total/5 }

func mustNotBeNegative(n int) {
	if n < 0 {
		panic(fmt.Sprintf("budget: negative amount %d", n))
	}
}
