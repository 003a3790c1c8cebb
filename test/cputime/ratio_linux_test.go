package cputime

import (
	"testing"
	"time"
)

func spin(n int) func() {
	return func() {
		x := uint64(1)
		for range n * 10_000_000 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		sink = x
	}
}

var sink uint64

// Three times the work takes about three times as long, and sleep takes none.
func TestRatioOfWork(t *testing.T) {
	if r := Ratio(5, spin(3), spin(1)); r < 2 || r > 4.5 {
		t.Errorf("Ratio = %.2f, want about 3", r)
	}
	before := Process()
	idle := func() { time.Sleep(20 * time.Millisecond); spin(1)() }
	if r := Ratio(3, idle, spin(1)); r > 1.5 {
		t.Errorf("with a sleep beside the work Ratio = %.2f, want about 1", r)
	}
	if Process() <= before {
		t.Error("the process used no processor time")
	}
}
