package limits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// mortal is a store whose process dies.
type mortal struct {
	Store
	mu   sync.RWMutex // held to write by death
	dead bool
	die  func() bool // asked before and after each operation
}

var errDead = errors.New("the process is dead")

func (m *mortal) dies() bool {
	m.mu.RLock()
	die := m.die
	m.mu.RUnlock()
	return die()
}

func (m *mortal) alive() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return !m.dead
}

func (m *mortal) Take(ctx context.Context, op Op) (a Answer, err error) {
	if !m.alive() || m.dies() {
		return a, errDead
	}
	if a, err = m.Store.Take(ctx, op); m.dies() || !m.alive() {
		return Answer{}, errDead
	}
	return a, err
}

func (m *mortal) Change(ctx context.Context, id string, how How, changes []Change) error {
	if !m.alive() || m.dies() {
		return errDead
	}
	err := m.Store.Change(ctx, id, how, changes)
	if m.dies() || !m.alive() {
		return errDead
	}
	return err
}

var reserveLimits = []Limit{
	{Name: "me", Per: PerPrincipal, Tokens: 1e9, Calls: 1e6, Window: Window{n: 1, unit: month}},
	{Name: "all", Per: PerAll, Tokens: 1e9, Window: Window{n: 30, unit: day, rolling: true}},
}

// Processes die at random moments: within, before and after operations of the store, and while they
// write to their reserve file. Each next one takes over. What was delivered is counted, and besides it at
// most what each caller had in hand at each death.
func TestReserveFile(t *testing.T) {
	const lives, callers, maxTokens = 150, 4, 50
	eachStore(t, func(t *testing.T, open func() Store) {
		path := filepath.Join(t.TempDir(), "reserves")
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex
		delivered := map[string]Used{}
		deaths := 0
		most := Used{} // too much that is counted
		check := func(l *Limits) {
			t.Helper()
			l.settled(t)
			got := delivered[""]
			counted := l.used(t, "all", "")
			over := Used{counted.Tokens - got.Tokens, counted.Calls - got.Calls}
			if over.Tokens < most.Tokens || over.Calls < most.Calls {
				t.Fatalf("%+v was delivered, %+v is counted: before it was %+v too much", got, counted, most)
			}
			most = over
		}
		for life := range lives {
			reserves := openReserves(t, path)
			store := open()
			m := &mortal{Store: store, die: func() bool { return false }}
			kill := func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.dead = true
				reserves.Close() // nothing is written to it any more
			}
			ops, writes, after := 1+rng.IntN(100), 1+rng.IntN(200), life%3 // every second one is before an operation
			l := onStore(t, reserveLimits, m, Options{Wait: 20 * time.Second, MaxResult: 1000, Reserves: reserves})
			if rng.IntN(2) == 0 {
				check(l)
			}
			m.mu.Lock()
			m.die = func() bool {
				mu.Lock()
				ops--
				dies := ops == 0 && after < 2
				mu.Unlock()
				if dies {
					kill()
				}
				return dies
			}
			m.mu.Unlock()
			deliver := func(who string, n int, calls int64) {
				m.mu.RLock()
				defer m.mu.RUnlock()
				if m.dead {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, to := range []string{who, ""} {
					u := delivered[to]
					delivered[to] = Used{u.Tokens + int64(n), u.Calls + calls}
				}
				if writes--; writes == 0 {
					go kill()
				}
			}
			var wg sync.WaitGroup
			for i := range callers {
				rng := rand.New(rand.NewPCG(seed, uint64(life*callers+i)))
				wg.Go(func() {
					for range 100 {
						u := Use{Principal: fmt.Sprint("p", rng.IntN(2))}
						args := rng.IntN(10)
						s, err := l.Begin(t.Context(), u, args)
						if !m.alive() {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						deliver(u.Principal, args, 1)
						n := rng.IntN(maxTokens)
						got, _, err := s.Take(t.Context(), n)
						if !m.alive() {
							return
						}
						if err != nil || got != n {
							t.Error(got, err)
						}
						back := rng.IntN(n + 1)
						deliver(u.Principal, n-back, 0)
						s.Refund(back)
						if rng.IntN(20) == 0 {
							l.returnReserves(t.Context())
						}
					}
				})
			}
			wg.Wait()
			if !m.alive() {
				deaths++
			}
			kill()
			store.Close()
		}
		reserves := openReserves(t, path)
		defer reserves.Close()
		l := onStore(t, reserveLimits, open(), Options{Reserves: reserves})
		check(l)
		if deaths < lives/2 {
			t.Errorf("%d deaths", deaths)
		}
		for who, got := range delivered {
			limit := "me"
			if who == "" {
				limit = "all"
			}
			counted := l.used(t, limit, who)
			if counted.Tokens < got.Tokens || counted.Calls < got.Calls {
				t.Errorf("%q: %+v was delivered, %+v is counted", who, got, counted)
			}
			if counted.Tokens > got.Tokens+lives*callers*(maxTokens+10) || counted.Calls > got.Calls+lives*callers {
				t.Errorf("%q: %+v was delivered, %+v is counted", who, got, counted)
			}
			t.Logf("%q: %+v was delivered, %+v is counted", who, got, counted)
		}
	})
}

// dying returns what a process with one caller leaves in its reserve file, and what it has delivered.
func dying(t *testing.T, store Store, path string) (delivered int64) {
	t.Helper()
	reserves := openReserves(t, path)
	m := &mortal{Store: store, die: func() bool { return false }}
	l := onStore(t, reserveLimits, m, Options{MaxResult: 1000, Reserves: reserves})
	s, err := l.Begin(t.Context(), Use{Principal: "p"}, 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Take(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.dead = true
	m.mu.Unlock()
	reserves.Close()
	return 107
}

// What is left in a reserve file goes back if no write to it can be lost. Else, and if it is damaged, it
// stays counted.
func TestReserveFileLeft(t *testing.T) {
	const reserve = 1000
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, path string)
		left int64
	}{
		{"as it was", func(*testing.T, string) {}, 0},
		{"after a restart of the machine", func(t *testing.T, path string) {
			edit(t, path, func(raw []byte) { raw[len(fileHead)]++ })
		}, reserve - 100},
		{"a copy", func(t *testing.T, path string) {
			raw, err := os.ReadFile(path)
			if err == nil {
				err = errors.Join(os.WriteFile(path+"2", raw, 0o600), os.Rename(path+"2", path))
			}
			if err != nil {
				t.Fatal(err)
			}
		}, reserve - 100},
		{"cut", func(t *testing.T, path string) {
			if err := os.Truncate(path, slotSize+slotCounts+10); err != nil {
				t.Fatal(err)
			}
		}, reserve - 100},
		{"other counters", func(t *testing.T, path string) {
			edit(t, path, func(raw []byte) { raw[slotSize+slotCounts] = 'x' })
		}, reserve - 100},
		{"lost", func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, reserve - 100},
	} {
		eachStore(t, func(t *testing.T, open func() Store) {
			store, path := open(), filepath.Join(t.TempDir(), "reserves")
			delivered := dying(t, store, path)
			tt.do(t, path)
			for range 2 { // the next process, and the one after it
				reserves := openReserves(t, path)
				l := onStore(t, reserveLimits, store, Options{Reserves: reserves})
				l.settled(t)
				if got := l.used(t, "me", "p"); got.Tokens != delivered+tt.left {
					t.Errorf("%s: %d tokens are counted, want %d", tt.name, got.Tokens, delivered+tt.left)
				}
				reserves.Close()
			}
		})
	}
}

func edit(t *testing.T, path string, change func([]byte)) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw := make([]byte, 2*slotSize)
	if _, err := f.ReadAt(raw, 0); err != nil {
		t.Fatal(err)
	}
	change(raw)
	if _, err := f.WriteAt(raw, 0); err != nil {
		t.Fatal(err)
	}
}

// What gave back too long ago, so that the store may have forgotten it, does not give back again.
func TestReserveFileOfLongAgo(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() Store) {
		store, path := open(), filepath.Join(t.TempDir(), "reserves")
		delivered := dying(t, store, path)
		var was Used
		for _, age := range []time.Duration{rememberOps, time.Minute} {
			edit(t, path, func(raw []byte) {
				a := readSlot(raw[slotSize:])
				if was == (Used{}) {
					was = Used{a.tokens, a.calls}
				}
				a.tokens, a.calls = 0, 0
				a.pendingReturn, a.returnTokens, a.returnCalls, a.returnSince = fmt.Sprintf("gone%d.1", age), was.Tokens, was.Calls, time.Now().Add(-age).Unix()
				d := ReserveFile{file: blank(t)}
				a.slot, a.described = 1, false
				if err := d.write(a); err != nil {
					t.Fatal(err)
				}
				if _, err := d.file.ReadAt(raw[slotSize:], slotSize); err != nil {
					t.Fatal(err)
				}
			})
			reserves := openReserves(t, path)
			l := onStore(t, reserveLimits, store, Options{Reserves: reserves})
			l.settled(t)
			want := delivered
			if age == rememberOps {
				want += was.Tokens
			}
			if got := l.used(t, "me", "p"); got.Tokens != want {
				t.Errorf("%v ago: %d tokens are counted, want %d", age, got.Tokens, want)
			}
			reserves.Close()
		}
	})
}

func blank(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A reserve file that can't be written costs the reserve, not a token: calls go to the store.
func TestReserveFileFails(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() Store) {
		store, path := open(), filepath.Join(t.TempDir(), "reserves")
		reserves := openReserves(t, path)
		l := onStore(t, reserveLimits, store, Options{MaxResult: 1000, Reserves: reserves})
		sum := int64(0)
		for i := range 20 {
			if i == 10 {
				reserves.Close()
			}
			s, err := l.Begin(t.Context(), Use{Principal: "p"}, 7)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Take(t.Context(), 30); err != nil {
				t.Fatal(err)
			}
			s.Refund(10)
			sum += 27
		}
		l.settled(t)
		again := openReserves(t, path)
		defer again.Close()
		l = onStore(t, reserveLimits, store, Options{Reserves: again})
		l.settled(t)
		if got := l.used(t, "me", "p"); got.Tokens != sum || got.Calls != 20 {
			t.Errorf("%+v is counted, %d tokens and 20 calls were delivered", got, sum)
		}
	})
}

// Accounts beyond the slots, and those that need more room than a slot has, work without.
func TestReserveFileIsFull(t *testing.T) {
	store, err := OpenSQLite(filepath.Join(t.TempDir(), "budgets.db"), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	reserves := openReserves(t, filepath.Join(t.TempDir(), "reserves"))
	defer reserves.Close()
	reserves.used = maxSlots - 1
	l := onStore(t, reserveLimits, store, Options{Reserves: reserves})
	for _, who := range []string{strings.Repeat("long", 1000), "a", "b"} {
		s, err := l.Begin(t.Context(), Use{Principal: who}, 7)
		if err != nil {
			t.Fatal(err)
		}
		s.Refund(3)
	}
	l.settled(t)
	if got := l.used(t, "all", ""); got.Tokens != 12 || got.Calls != 3 {
		t.Errorf("%+v is counted", got)
	}
}

func FuzzReserveFile(f *testing.F) {
	f.Add([]byte(fileHead))
	f.Add(append(make([]byte, slotSize+slotCounts), `[{"Key":"a:1:b"}]`...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "reserves")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		d := openReserves(t, path)
		defer d.Close()
		for _, a := range d.left {
			if a.tokens > 0 || a.calls > 0 || a.returnTokens > 0 || a.returnCalls > 0 || a.pendingTake != "" {
				t.Errorf("an unknown file gives back %+v", a)
			}
		}
	})
}
