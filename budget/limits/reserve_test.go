//go:build linux && !race

package limits

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// reserving returns limits with a reserve file that give back only when asked, what counts the takes that
// reach their store, and one call of theirs.
func reserving(t *testing.T) (l *Limits, asked *counting, call func(args, result int)) {
	t.Helper()
	reserves := openReserves(t, filepath.Join(t.TempDir(), "reserves"))
	l = newLimits(t, Options{Wait: time.Minute, Reserves: reserves},
		Limit{Name: "me", Per: PerPrincipal, Tokens: 1e9, Calls: 1e9, Window: window(t, "1mo")},
		Limit{Name: "team", Per: PerTeam, Tokens: 1e9, Window: window(t, "rolling 24h")},
		Limit{Name: "tool", Match: Match{Tool: "db__*"}, Per: PerTool, Calls: 1e9, Window: window(t, "1w")},
		Limit{Name: "server", Per: PerServer, Tokens: 1e9, Window: window(t, "1d")},
		Limit{Name: "all", Per: PerAll, Tokens: 1e9, Window: window(t, "1h")})
	asked = &counting{Store: l.store}
	l.store = asked
	l.sending <- struct{}{}
	t.Cleanup(func() { <-l.sending })
	return l, asked, func(args, result int) {
		t.Helper()
		s, err := l.Begin(t.Context(), Use{Principal: "alice", Team: "data", Server: "db", Tool: "db__query"}, args)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.Take(t.Context(), result); got != result || err != nil {
			t.Fatalf("Take = %d, %v", got, err)
		}
	}
}

// The guard on what limits cost a busy caller: each reserve is twice the one before, so hardly a call
// needs the store. Time does not count here.
func TestCallsFromReserve(t *testing.T) {
	for result, most := range map[int]int64{30: 5, 1000: 8, 10_000: 20} {
		_, asked, call := reserving(t)
		for range 1000 {
			call(20, result)
		}
		if n := asked.n.Load(); n > most {
			t.Errorf("1000 calls with results of %d tokens asked the store %d times, want at most %d", result, n, most)
		}
	}
	_, _, call := reserving(t)
	call(20, 30)
	if n := testing.AllocsPerRun(1000, func() { call(20, 30) }); n > 2 {
		t.Errorf("a call allocates %.0f times, want at most 2", n)
	}
}

// What is taken from a reserve is noted without an operation of the kernel.
func TestNotesInMemory(t *testing.T) {
	l, asked, call := reserving(t)
	call(20, 30)
	if err := l.o.Reserves.file.Close(); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		call(20, 30)
	}
	if n := asked.n.Load(); n != 1 {
		t.Errorf("51 calls asked the store %d times", n)
	}
}

// A reserve file that somebody cuts costs the reserve at most. It does not end the process.
func TestReserveFileIsCut(t *testing.T) {
	l, _, call := reserving(t)
	call(20, 30)
	if err := os.Truncate(l.o.Reserves.file.Name(), 0); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		call(20, 30)
	}
	<-l.sending
	l.settled(t)
	if got := l.used(t, "all", ""); got != (Used{501 * 50, 501}) {
		t.Errorf("%+v is counted", got)
	}
	l.sending <- struct{}{}
}
