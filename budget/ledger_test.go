package budget_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/foldgate/foldgate/budget"
)

func newLedger(t *testing.T, total, used int) *budget.Ledger {
	t.Helper()
	l, err := budget.NewLedger(total, used)
	if err != nil {
		t.Fatalf("NewLedger(%d, %d): %v", total, used, err)
	}
	return l
}

func TestNewLedgerRefusesImpossibleFigures(t *testing.T) {
	for _, f := range [][2]int{{0, 0}, {-100, 0}, {10, -1}, {10, 11}} {
		if _, err := budget.NewLedger(f[0], f[1]); err == nil {
			t.Errorf("NewLedger(%d, %d) = nil error, want one", f[0], f[1])
		}
	}
}

func TestLedgerCharge(t *testing.T) {
	l := newLedger(t, 1000, 0)
	if err := l.Charge(300); err != nil {
		t.Fatalf("Charge(300): %v", err)
	}
	if got, want := l.Balance(), (budget.Balance{Used: 300, Total: 1000}); got != want {
		t.Errorf("Balance() = %v, want %v", got, want)
	}
	if err := l.Charge(701); !errors.Is(err, budget.ErrExhausted) {
		t.Errorf("Charge(701) with 700 left = %v, want ErrExhausted", err)
	}
	if got := l.Balance().Used; got != 300 {
		t.Errorf("used after a refused charge = %d, want 300", got)
	}
	if err := l.Charge(700); err != nil || !l.Balance().Exhausted() {
		t.Errorf("Charge(700) with 700 left = %v, exhausted %v; want nil, true", err, l.Balance().Exhausted())
	}
}

func TestLedgerTakeAndRefund(t *testing.T) {
	l := newLedger(t, 100, 90)
	if got := l.Take(25); got != 10 {
		t.Errorf("Take(25) with 10 left = %d, want 10", got)
	}
	if got := l.Take(1); got != 0 {
		t.Errorf("Take(1) with nothing left = %d, want 0", got)
	}
	l.Refund(4)
	if got := l.Balance().Remaining(); got != 4 {
		t.Errorf("remaining after Refund(4) = %d, want 4", got)
	}
	l.Refund(1000)
	if got := l.Balance().Used; got != 0 {
		t.Errorf("used after a refund of more than all = %d, want 0", got)
	}
}

func TestLedgerWarnsOncePerCrossing(t *testing.T) {
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
		l := newLedger(t, tt.total, 0)
		for i, n := range tt.steps {
			if n < 0 {
				l.Refund(-n)
			} else if err := l.Charge(n); err != nil {
				t.Fatal(err)
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

// Opened at 85 % after a restart, a ledger has warned already.
func TestLedgerReopenedDoesNotWarnAgain(t *testing.T) {
	if newLedger(t, 100, 85).Warn() {
		t.Error("Warn() = true on a ledger opened above the line")
	}
}

func TestLedgerIsExactUnderContention(t *testing.T) {
	const total, workers, rounds = 10_007, 64, 200
	l := newLedger(t, total, 0)
	var booked atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				n := (w*31+i*7)%97 + 1
				switch i % 3 {
				case 0:
					if l.Charge(n) == nil {
						booked.Add(int64(n))
					}
				case 1:
					booked.Add(int64(l.Take(n)))
				case 2:
					if got := l.Take(n); got > 0 {
						l.Refund(got / 2)
						booked.Add(int64(got - got/2))
					}
				}
				if b := l.Balance(); b.Used < 0 || b.Used > b.Total {
					t.Errorf("Balance() = %v: used is outside 0 to total", b)
				}
			}
		})
	}
	wg.Wait()
	for l.Take(1) == 1 { // the last tokens, so that the limit was met
		booked.Add(1)
	}
	if got := l.Balance().Used; int64(got) != booked.Load() || got != total {
		t.Errorf("used = %d, booked = %d, want both %d", got, booked.Load(), total)
	}
}
