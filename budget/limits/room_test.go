package limits

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"
)

// However often a caller asks, it reserves more only up to a 16th of what the store had left at its last
// answer, which was a little more than it has left now.
func TestRoomForReserves(t *testing.T) {
	for _, total := range []Limit{{Tokens: 2_000_000, Calls: 100}, {Tokens: 100_000}, {Tokens: 100_000, Calls: 10_000}, {Calls: 1000}} {
		total.Name, total.Per, total.Window = "all", PerAll, window(t, "1mo")
		l := newLimits(t, Options{Wait: time.Minute}, total)
		l.sending <- struct{}{} // nothing goes back meanwhile
		t.Cleanup(func() { <-l.sending })
		var before Used
		for range 40 {
			s, err := l.Begin(t.Context(), Use{Principal: "alice"}, 10)
			if err != nil {
				break // it is spent
			}
			if _, _, err := s.Take(t.Context(), 2000); err != nil {
				t.Fatal(err)
			}
			l.mu.Lock()
			a := l.account(Use{Principal: "alice"})
			tokens, calls := a.tokens, a.calls
			l.mu.Unlock()
			list, err := l.store.List(t.Context(), a.counters[0].Key)
			if err != nil {
				t.Fatal(err)
			}
			used := sum(list)
			if most := left(int64(total.Tokens), used.Tokens-tokens) / share; total.Tokens > 0 && tokens > before.Tokens && tokens > most+most/8 {
				t.Fatalf("of %+v, %d tokens are in reserve, more than %d", total, tokens, most)
			}
			if most := left(int64(total.Calls), used.Calls-calls) / share; total.Calls > 0 && calls > before.Calls && calls > most+1 {
				t.Fatalf("of %+v, %d calls are in reserve, more than %d", total, calls, most)
			}
			before = Used{tokens, calls}
		}
	}
}

// What is in the reserve file of one store does not go back to another.
func TestReserveFileOfAnotherStore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "reserves")
	all := Limit{Name: "all", Per: PerAll, Tokens: 1_000_000, Window: window(t, "1mo")}
	of := func(store Store, reserves *ReserveFile) *Limits {
		l := onStore(t, []Limit{all}, store, Options{Wait: time.Minute, Reserves: reserves})
		return l
	}
	open := func(name string) Store {
		store, err := OpenSQLite(filepath.Join(dir, name), slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}
	used := func(store Store) (n int64) {
		list, err := store.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return sum(list).Tokens
	}
	spend := func(l *Limits, tokens int) {
		if _, err := l.Begin(t.Context(), Use{Principal: "alice"}, tokens); err != nil {
			t.Fatal(err)
		}
	}
	one, other := open("one.db"), open("other.db")
	reserves, err := OpenReserveFile(path, "one")
	if err != nil {
		t.Fatal(err)
	}
	killed := of(one, reserves)
	killed.sending <- struct{}{} // it gives nothing back
	spend(killed, 10)
	if n := used(one); n < 1000 {
		t.Fatalf("nothing is in reserve: %d tokens", n)
	}
	reserves.Close()
	owner := of(other, nil)
	spend(owner, 5000)
	owner.Close(t.Context())
	for _, name := range []string{"other", "one"} { // trusted by the other store only once it is the reserve file's
		again, err := OpenReserveFile(path, name)
		if err != nil {
			t.Fatal(err)
		}
		of(other, again).returnReserves(t.Context())
		again.Close()
	}
	if n := used(other); n != 5000 {
		t.Errorf("the other store has %d tokens, want the 5,000 that were spent there", n)
	}
}
