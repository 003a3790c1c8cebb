package limits

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// faulty is a store that a test lets fail.
type faulty struct {
	Store
	mode atomic.Int32
}

const (
	works int32 = iota
	fails
	hangs // until the caller leaves or the mode changes
	slow  // answers after 30 ms
)

func (f *faulty) fault(ctx context.Context) error {
	switch f.mode.Load() {
	case fails:
		return errors.New("it fails")
	case slow:
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	for f.mode.Load() == hangs && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

func (f *faulty) Take(ctx context.Context, op Op) (Answer, error) {
	if err := f.fault(ctx); err != nil {
		return Answer{}, err
	}
	return f.Store.Take(ctx, op)
}

func (f *faulty) Change(ctx context.Context, id string, how How, changes []Change) error {
	if err := f.fault(ctx); err != nil {
		return err
	}
	return f.Store.Change(ctx, id, how, changes)
}

func (f *faulty) List(ctx context.Context, keys ...string) ([]Count, error) {
	if err := f.fault(ctx); err != nil {
		return nil, err
	}
	return f.Store.List(ctx, keys...)
}

// newFaulty returns limits on a store that a test lets fail.
func newFaulty(t *testing.T, o Options, all ...Limit) (*Limits, *faulty) {
	t.Helper()
	l := newLimits(t, o, all...)
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &faulty{Store: l.store}
	l.store = f
	return l, f
}

// A caller that leaves, or that has little time left, does not mark the store as down for others.
func TestImpatientCallers(t *testing.T) {
	u := Use{Principal: "alice"}
	leave := func(f func(context.Context)) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		time.AfterFunc(10*time.Millisecond, cancel)
		f(ctx)
	}
	for name, call := range map[string]func(l *Limits, s *Spend){
		"Status": func(l *Limits, _ *Spend) { leave(func(ctx context.Context) { _, _ = l.Status(ctx, u) }) },
		"All":    func(l *Limits, _ *Spend) { leave(func(ctx context.Context) { _, _ = l.All(ctx) }) },
		"Reset":  func(l *Limits, _ *Spend) { leave(func(ctx context.Context) { _, _ = l.Reset(ctx, "me", "") }) },
		"Close":  func(l *Limits, _ *Spend) { leave(l.Close) },
		"Take": func(l *Limits, s *Spend) { // with 5 ms left
			s.wait = 5 * time.Millisecond
			_, _, _ = s.Take(context.Background(), 5000)
		},
		"Take of more than is left": func(l *Limits, s *Spend) { // gives back with 5 ms left
			s.wait = 35 * time.Millisecond
			_, _, _ = s.Take(context.Background(), 1e6)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, f := newFaulty(t, Options{Wait: 10 * time.Second, MaxResult: 100}, Limit{Name: "me", Per: PerPrincipal, Tokens: 100_000, Window: window(t, "1mo")})
			s, err := l.Begin(t.Context(), u, 3) // reserves
			if err != nil {
				t.Fatal(err)
			}
			f.mode.Store(slow)
			defer f.mode.Store(works)
			if name != "Take of more than is left" {
				f.mode.Store(hangs)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				call(l, s)
			}()
			select {
			case <-done:
			case <-time.After(200 * time.Millisecond): // it waits for the store
				f.mode.Store(works)
				<-done
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.down != nil {
				t.Errorf("the store is down: %v", l.down)
			}
		})
	}
}

// A store that hangs for the whole wait is down, whoever notices it.
func TestStoreThatHangs(t *testing.T) {
	for name, call := range map[string]func(l *Limits) error{
		"Status": func(l *Limits) error { _, err := l.Status(context.Background(), Use{}); return err },
		"Begin":  func(l *Limits) error { _, err := l.Begin(context.Background(), Use{}, 5000); return err },
	} {
		t.Run(name, func(t *testing.T) {
			l, f := newFaulty(t, Options{Wait: 50 * time.Millisecond, MaxResult: 100}, Limit{Name: "me", Per: PerAll, Tokens: 100_000, Window: window(t, "1mo")})
			if _, err := l.Begin(t.Context(), Use{}, 3); err != nil {
				t.Fatal(err)
			}
			f.mode.Store(hangs)
			defer f.mode.Store(works)
			err := call(l)
			l.mu.Lock()
			defer l.mu.Unlock()
			if _, ok := errors.AsType[*UnavailableError](err); !ok || l.down == nil {
				t.Errorf("%v; the store is down: %v", err, l.down)
			}
		})
	}
}

// After an outage of any length what was delivered is charged; what was reserved is given back while
// the store knows the operation.
func TestLongOutage(t *testing.T) {
	for _, outage := range []time.Duration{time.Second, 8 * time.Minute, 10 * time.Minute, 3 * time.Hour} {
		for _, tokens := range []int{1, 100, 101, 5000} { // 100 are in reserve
			for _, begins := range []int{0, 1, 200} { // 64 calls are in reserve
				c := &clock{t: time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)}
				l, f := newFaulty(t, Options{Allow: true, MaxResult: 100, Now: c.now}, Limit{Name: "me", Per: PerAll, Tokens: 1e9, Calls: 1e6, Window: window(t, "1mo")})
				s, err := l.Begin(t.Context(), Use{}, 3)
				if err != nil {
					t.Fatal(err)
				}
				f.mode.Store(fails)
				want := Used{int64(3 + tokens), int64(1 + begins)}
				if got, _, err := s.Take(t.Context(), tokens); got != tokens || err != nil {
					t.Fatalf("Take = %d, %v", got, err)
				}
				for range begins {
					if _, err := l.Begin(t.Context(), Use{}, 0); err != nil {
						t.Fatal(err)
					}
				}
				l.Close(t.Context()) // the sum waits for the store
				c.set(c.now().Add(outage))
				f.mode.Store(works)
				l.settled(t)
				got := l.used(t, "me", "")
				if got.Tokens < want.Tokens || got.Calls < want.Calls || outage < 9*time.Minute && got != want || got.Tokens > want.Tokens+100 || got.Calls > want.Calls+64 {
					t.Errorf("after %v: the counter has %+v, %+v was delivered", outage, got, want)
				}
			}
		}
	}
}
