package budget_test

import (
	"testing"

	"github.com/foldgate/foldgate/budget"
)

func newBalance(t *testing.T, total, used int) *budget.Balance {
	t.Helper()
	l, err := budget.NewBalance(total, used)
	if err != nil {
		t.Fatalf("NewBalance(%d, %d): %v", total, used, err)
	}
	return l
}

func TestNewBalanceRefusesImpossibleFigures(t *testing.T) {
	for _, f := range [][2]int{{0, 0}, {-100, 0}, {10, -1}, {10, 11}} {
		if _, err := budget.NewBalance(f[0], f[1]); err == nil {
			t.Errorf("NewBalance(%d, %d) = nil error, want one", f[0], f[1])
		}
	}
}

func TestBalanceCharge(t *testing.T) {
	l := newBalance(t, 1000, 0)
	if !l.Charge(300) || l.Used() != 300 || l.Remaining() != 700 {
		t.Errorf("after Charge(300) of 1000: used %d, remaining %d", l.Used(), l.Remaining())
	}
	if l.Charge(701) || l.Used() != 300 {
		t.Errorf("after Charge(701) with 700 left: used %d, want a refusal", l.Used())
	}
	if !l.Charge(700) || l.Remaining() != 0 {
		t.Errorf("after Charge(700) with 700 left: remaining %d", l.Remaining())
	}
}

func TestBalanceTakeAndRefund(t *testing.T) {
	l := newBalance(t, 100, 90)
	if got := l.Take(25); got != 10 {
		t.Errorf("Take(25) with 10 left = %d, want 10", got)
	}
	if got := l.Take(1); got != 0 {
		t.Errorf("Take(1) with nothing left = %d, want 0", got)
	}
	l.Refund(4)
	if got := l.Remaining(); got != 4 {
		t.Errorf("remaining after Refund(4) = %d, want 4", got)
	}
	l.Refund(1000)
	if got := l.Used(); got != 0 {
		t.Errorf("used after a refund of more than all = %d, want 0", got)
	}
}

func TestBalanceWarnsOncePerCrossing(t *testing.T) {
	tests := []struct {
		total int
		steps []int  // positive: charge, negative: refund
		warns []bool // after each step
	}{
		{1000, []int{700, 99, 1, 100}, []bool{false, false, true, false}},
		{1000, []int{850, -100, 100}, []bool{true, false, true}},
		{1000, []int{850, -10, 10}, []bool{true, false, false}},
		{1, []int{1}, []bool{true}},
		{3, []int{2, 1}, []bool{false, true}}, // 80 % of 3 is 2.4
		{1 << 62, []int{1 << 61, 1 << 61}, []bool{false, true}},
	}
	for _, tt := range tests {
		l := newBalance(t, tt.total, 0)
		for i, n := range tt.steps {
			if n < 0 {
				l.Refund(-n)
			} else if !l.Charge(n) {
				t.Fatalf("Charge(%d) was refused", n)
			}
			if got := l.Warn(); got != tt.warns[i] {
				t.Errorf("budget %d, steps %v: Warn() = %v, want %v", tt.total, tt.steps[:i+1], got, tt.warns[i])
			}
			if l.Warn() {
				t.Errorf("budget %d, steps %v: Warn() twice", tt.total, tt.steps[:i+1])
			}
		}
	}
}

// Opened at 85 % after a restart, a balance has warned already.
func TestBalanceReopenedDoesNotWarnAgain(t *testing.T) {
	if newBalance(t, 100, 85).Warn() {
		t.Error("Warn() = true on a balance opened above the line")
	}
}
