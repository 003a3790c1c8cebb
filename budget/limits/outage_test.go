package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// settled waits until the store has got all changes.
func (l *Limits) settled(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		l.Close(t.Context())
		l.mu.Lock()
		waiting, holding := len(l.outbox), len(l.holding)
		l.mu.Unlock()
		if waiting+holding == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d operations wait for the store, %d accounts have a reserve; it is down: %v", waiting, holding, l.down)
		}
	}
}

// outage is one way to make a store unreachable.
type outage struct {
	name string
	make func(t *testing.T) (s Store, down, up func())
}

func outages() []outage {
	return []outage{
		{"stopped redis", func(t *testing.T) (Store, func(), func()) {
			r := newRedis(t)
			signal := func(s syscall.Signal) func() { return func() { r.Signal(s) } }
			return r.open(t), signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
		}},
		{"killed redis", func(t *testing.T) (Store, func(), func()) {
			r := newRedis(t)
			return r.open(t), r.Kill, func() { r.Start(t) }
		}},
		{"locked sqlite", func(t *testing.T) (Store, func(), func()) {
			path := filepath.Join(t.TempDir(), "budgets.db")
			s, err := OpenSQLite(path, slog.New(slog.DiscardHandler), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			other, err := sqlitedb.Open(t.Context(), path, Schema)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { other.Close() })
			tx := func() {}
			return s, func() {
				begun, err := other.BeginTx(context.Background(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				tx = func() { _ = begun.Rollback() }
			}, func() { tx() }
		}},
	}
}

// While the store is down no call waits longer than Wait, on_error decides, and when it is back each
// counter has exactly what was delivered.
func TestOutage(t *testing.T) {
	const wait = 400 * time.Millisecond
	for _, o := range outages() {
		for _, allow := range []bool{false, true} {
			for _, maxResult := range []int{1, 2000} {
				t.Run(fmt.Sprintf("%s/allow=%v/reserve=%d", o.name, allow, maxResult), func(t *testing.T) {
					t.Parallel()
					store, down, up := o.make(t)
					l, err := New([]Limit{
						{Name: "me", Per: PerPrincipal, Tokens: 1e9, Calls: 1e6, Window: window(t, "1mo")},
						{Name: "all", Per: PerAll, Tokens: 1e9, Window: window(t, "rolling 366d")},
					}, store, Options{Wait: wait, Allow: allow, MaxResult: maxResult})
					if err != nil {
						t.Fatal(err)
					}
					u := Use{Principal: "alice"}
					var tokens, calls, refused atomic.Int64
					var slowest atomic.Int64
					call := func() {
						start := time.Now()
						defer func() {
							if d := int64(time.Since(start)); d > slowest.Load() {
								slowest.Store(d)
							}
						}()
						s, err := l.Begin(context.Background(), u, 3)
						var unavailable *UnavailableError
						if errors.As(err, &unavailable) {
							refused.Add(1)
							return
						} else if err != nil {
							t.Error(err)
							return
						}
						calls.Add(1)
						tokens.Add(3)
						got, _, err := s.Take(context.Background(), 1+rand.IntN(300))
						if err != nil && !errors.As(err, &unavailable) {
							t.Error(err)
						} else if err != nil {
							refused.Add(1)
						}
						back := rand.IntN(got + 1)
						s.Refund(back)
						tokens.Add(int64(got - back))
					}
					var wg sync.WaitGroup
					stop := make(chan struct{})
					for range 8 {
						wg.Go(func() {
							for {
								select {
								case <-stop:
									return
								default:
									call()
								}
								time.Sleep(time.Millisecond)
							}
						})
					}
					time.Sleep(100 * time.Millisecond)
					down()
					time.Sleep(1500 * time.Millisecond)
					up()
					time.Sleep(100 * time.Millisecond)
					close(stop)
					wg.Wait()
					l.settled(t)
					if d := time.Duration(slowest.Load()); d > wait+400*time.Millisecond { // the machine is busy
						t.Errorf("a call waited %v", d)
					}
					if n := refused.Load(); allow != (n == 0) {
						t.Errorf("%d calls were refused", n)
					}
					want := Used{tokens.Load(), calls.Load()}
					if got := l.used(t, "me", "alice"); got != want {
						t.Errorf("the counter has %+v, %+v was delivered", got, want)
					}
					if got := l.used(t, "all", ""); got != want {
						t.Errorf("the counter of all has %+v, %+v was delivered", got, want)
					}
				})
			}
		}
	}
}

// A proxy loses connections before or after the server has done what it was asked. Each take has
// one answer, and counts once.
func TestLostAnswers(t *testing.T) {
	r := newRedis(t)
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	var lost atomic.Int64
	go func() {
		for {
			in, err := proxy.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", "127.0.0.1:"+r.Port)
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					_, _ = io.Copy(out, in)
					out.Close()
				}()
				buf := make([]byte, 4096)
				for {
					n, err := out.Read(buf)
					if err != nil {
						return
					}
					if rand.IntN(10) == 0 {
						lost.Add(1)
						return
					}
					if _, err := in.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	store, err := OpenRedis("redis://"+proxy.Addr().String(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := onStore(t, []Limit{{Name: "me", Per: PerPrincipal, Tokens: 20_000, Window: window(t, "1mo")}}, store, Options{Wait: 20 * time.Second, MaxResult: 1})
	var tokens, calls atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				s, err := l.Begin(t.Context(), Use{Principal: "alice"}, 5)
				var exceeded *ExceededError
				if errors.As(err, &exceeded) {
					return
				} else if err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
				got, _, err := s.Take(t.Context(), 30)
				if err != nil {
					t.Error(err)
				}
				tokens.Add(5 + int64(got))
			}
		})
	}
	wg.Wait()
	l.settled(t)
	if got, want := l.used(t, "me", "alice"), (Used{tokens.Load(), calls.Load()}); got != want || got.Tokens > 20_000 || lost.Load() < 5 {
		t.Errorf("the counter has %+v, %+v was delivered; %d answers were lost", got, want, lost.Load())
	}
}

// Who removes the file of the store while a gateway runs, or puts another in its place, counts in
// that one from then on: the gateway and a rebuild see the same counts.
func TestReplacedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "budgets.db")
	of := func(path string) Store {
		s, err := OpenSQLite(path, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	other := filepath.Join(t.TempDir(), "budgets.db")
	restored := of(other)
	counter := Counter{Key: "k", Until: 1 << 40, Expires: 1 << 40, Calls: 5, Hard: true}
	take := func(s Store, id string, want int64) {
		t.Helper()
		if a, err := s.Take(t.Context(), Op{ID: id, Calls: 1, Whole: true, Counters: []Counter{counter}}); err != nil || a.Refused || a.Used[0].Calls != want {
			t.Errorf("take %s: %+v, %v, want %d calls", id, a, err, want)
		}
	}
	listed := func(s Store, want int64) {
		t.Helper()
		if all, err := s.List(t.Context(), "k"); err != nil || len(all) != 1 || all[0].Calls != want {
			t.Errorf("the file has %v, %v, want %d calls", all, err, want)
		}
	}
	for i := range int64(4) {
		take(restored, fmt.Sprint("r", i), i+1)
	}
	if err := restored.Close(); err != nil {
		t.Fatal(err)
	}
	s := of(path)
	take(s, "a", 1)
	take(s, "b", 2)
	if err := sqlitedb.Remove(path); err != nil {
		t.Fatal(err)
	}
	take(s, "b", 1) // the new file does not know it
	if err := of(path).Change(t.Context(), "", Raise, []Change{{Key: "k", Expires: 1 << 40, Used: Used{Calls: 2}}}); err != nil {
		t.Fatal(err)
	}
	take(s, "c", 3)
	listed(s, 3)
	if err := errors.Join(sqlitedb.Remove(path), os.Rename(other, path)); err != nil {
		t.Fatal(err)
	}
	listed(s, 4) // also before something is written
	take(s, "d", 5)
	listed(of(path), 5)
}

// hanging is a store that grants all, or hangs.
type hanging struct {
	Store
	hangs atomic.Bool
	takes atomic.Int64
}

func (h *hanging) wait(ctx context.Context) error {
	if h.hangs.Load() {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (h *hanging) Take(ctx context.Context, op Op) (Answer, error) {
	h.takes.Add(1)
	return Answer{Now: time.Now(), Tokens: op.Tokens, Tightest: -1, Used: make([]Used, len(op.Counters))}, h.wait(ctx)
}

func (h *hanging) Change(ctx context.Context, _ string, _ How, _ []Change) error { return h.wait(ctx) }

// One message waits for a store that hangs, the others don't, however long it hangs: the reader of a
// server's notifications goes on. When the store answers again, so do the limits.
func TestOneWaitInAnOutage(t *testing.T) {
	for _, allow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := &hanging{}
			l := onStore(t, []Limit{{Name: "a", Per: PerAll, Tokens: 1e9, Window: window(t, "1mo")}}, store, Options{Wait: 2 * time.Second, MaxResult: 1, Allow: allow})
			store.hangs.Store(true)
			start, unavailable := time.Now(), &UnavailableError{}
			for range 50 {
				if s, err := l.Pay(t.Context(), Use{}, 10); allow != (err == nil) || !allow && !errors.As(err, &unavailable) || allow && s.Confirmed() {
					t.Fatalf("Pay = %v", err)
				}
				time.Sleep(time.Second)
			}
			if waited := time.Since(start) - 50*time.Second; waited > 2*time.Second || store.takes.Load() != 1 {
				t.Errorf("messages waited %v, the store was asked %d times", waited, store.takes.Load())
			}
			store.hangs.Store(false)
			time.Sleep(4 * time.Second)
			if s, err := l.Pay(t.Context(), Use{}, 10); err != nil || !s.Confirmed() {
				t.Errorf("the store answers again: %v", err)
			}
			l.Close(t.Context())
			time.Sleep(time.Minute) // its timers end
		})
	}
}

// A connection that holds the write lock nearly all the time, as that of a busy process does, does not
// keep others out: neither when they open the database, nor when they take, nor when they delete.
func TestBusyConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "budgets.db")
	other, err := sqlitedb.Open(t.Context(), path, Schema)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var rounds atomic.Int64
	var done atomic.Bool
	var busy sync.WaitGroup
	busy.Go(func() {
		for ; !done.Load(); rounds.Add(1) {
			tx, err := other.BeginTx(context.Background(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(20 * time.Millisecond)
			_ = tx.Rollback()
			time.Sleep(4 * time.Millisecond)
		}
	})
	const takes = 20
	for range takes {
		s, err := OpenSQLite(path, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Take(t.Context(), Op{Tokens: 1, Counters: []Counter{{Key: "k", Until: 1 << 40, Expires: 1 << 40}}}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Delete(t.Context(), []string{"k"}), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	n := rounds.Load()
	done.Store(true)
	busy.Wait()
	t.Logf("the other connection had %d transactions meanwhile", n)
	if most := int64(4 * takes); n > most {
		t.Errorf("%d openings, takes and deletions waited for %d transactions, more than %d", takes, n, most)
	}
}
