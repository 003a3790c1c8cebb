package limits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"
)

// clock is a clock that a test sets.
type clock struct {
	mu    sync.Mutex
	t     time.Time
	redis func(time.Time) // sets the time of a Redis server
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
	if c.redis != nil {
		c.redis(t)
	}
}

// eachClock runs a test with each kind of store, whose time is that of the clock. open opens a store of
// the counters with a name. The time must be in the future: what has expired Redis deletes.
func eachClock(t *testing.T, test func(t *testing.T, c *clock, open func(name string) Store)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		c, dir := &clock{}, t.TempDir()
		test(t, c, func(name string) Store {
			s, err := openSQLite(filepath.Join(dir, name), slog.New(slog.DiscardHandler), c.now, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := newRedis(t)
		client, err := valkey.NewClient(valkey.MustParseURL(server.URL()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		c := &clock{redis: func(now time.Time) {
			set := client.B().Mset().KeyValue().KeyValue("now:s", fmt.Sprint(now.Unix())).KeyValue("now:us", fmt.Sprint(now.Nanosecond()/1000)).Build()
			if err := client.Do(context.Background(), set).Error(); err != nil {
				t.Error(err)
			}
		}}
		const asks = "redis.call('TIME')"
		if strings.Count(takeText, asks) != 1 {
			t.Fatal("the script does not ask for the time as this test thinks")
		}
		take := valkey.NewLuaScript(strings.Replace(takeText, asks, "redis.call('MGET', 'now:s', 'now:us')", 1))
		test(t, c, func(name string) Store {
			s, err := OpenRedis(server.URL(), name)
			if err != nil {
				t.Fatal(err)
			}
			s.(*remote).take = take
			t.Cleanup(func() { s.Close() })
			return s
		})
	})
}

// Over days with a change to summer or winter time, with a clock that jumps forward and back, no
// window gets more than its limit, and each gets all of it.
func TestClock(t *testing.T) {
	eachClock(t, testClock)
}

func testClock(t *testing.T, c *clock, open func(name string) Store) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []time.Time{time.Date(2040, 3, 23, 12, 0, 0, 0, berlin), time.Date(2040, 10, 26, 12, 0, 0, 0, berlin)} {
		for _, jumps := range []bool{false, true} {
			c.set(first)
			store := open(fmt.Sprintf("%v-%v", first.Month(), jumps))
			const tokens = 1000
			l, err := New([]Limit{
				{Name: "day", Match: Match{Tool: "a"}, Per: PerAll, Tokens: tokens, Window: window(t, "1d"), TimeZone: "Europe/Berlin"},
				{Name: "hour", Match: Match{Tool: "b"}, Per: PerAll, Tokens: tokens, Window: window(t, "1h"), TimeZone: "Europe/Berlin"},
				{Name: "rolling", Match: Match{Tool: "c"}, Per: PerAll, Tokens: tokens, Window: window(t, "rolling 6h")},
			}, store, Options{Now: c.now, MaxResult: 200})
			if err != nil {
				t.Fatal(err)
			}
			l.pause = 0
			type delivered struct {
				at time.Time
				n  int
			}
			perDay, perHour := map[string]int{}, map[int64]int{}
			var rolling []delivered
			steady := first
			for range 2000 {
				steady = steady.Add(time.Duration(rand.Int64N(int64(6 * time.Minute))))
				at := steady
				if jumps && rand.IntN(10) == 0 { // and back with the next step
					at = steady.Add(time.Duration(rand.Int64N(int64(10*time.Hour))) - 5*time.Hour)
				}
				c.set(at)
				day := at.In(berlin).Format(time.DateOnly)
				spend := func(tool string) int {
					s, err := l.Begin(t.Context(), Use{Tool: tool}, 1)
					var exceeded *ExceededError
					if errors.As(err, &exceeded) {
						if exceeded.RetryAfter(at) > 25*time.Hour || !exceeded.Reset.After(at) {
							t.Fatalf("at %v: %v", at, err)
						}
						return 0
					} else if err != nil {
						t.Fatal(err)
					}
					got, _, err := s.Take(t.Context(), rand.IntN(80))
					if err != nil {
						t.Fatal(err)
					}
					back := rand.IntN(got + 1)
					s.Refund(back)
					return 1 + got - back
				}
				perDay[day] += spend("a")
				perHour[at.Unix()/3600] += spend("b") // whole hours, also of Berlin
				if n := spend("c"); n > 0 {
					rolling = append(rolling, delivered{at, n})
				}
				if rand.IntN(50) == 0 {
					l.Close(t.Context()) // gives back
				}
			}
			for day, n := range perDay {
				if n > tokens {
					t.Errorf("%s has had %d", day, n)
				}
				if day != first.Format(time.DateOnly) && day < steady.In(berlin).Format(time.DateOnly) && n != tokens {
					t.Errorf("%s has had only %d", day, n)
				}
			}
			for hour, n := range perHour {
				if n > tokens {
					t.Errorf("%v has had %d", time.Unix(hour*3600, 0).In(berlin), n)
				}
			}
			if len(perDay) < 4 || len(rolling) < 100 {
				t.Errorf("%d days, %d in rolling windows", len(perDay), len(rolling))
			}
			if jumps {
				continue // rolling windows are of a clock that goes on
			}
			for i := range rolling {
				sum := 0
				for j := i; j >= 0 && rolling[i].at.Sub(rolling[j].at) < 6*time.Hour; j-- {
					sum += rolling[j].n
				}
				if sum > tokens {
					t.Errorf("%d in the 6 hours before %v", sum, rolling[i].at)
				}
			}
		}
	}
}

// At the edge of a window the old one has nothing left, and the new one has all, for two gateways
// whose clocks are wrong: days of 23 and 25 hours, months of all lengths, weeks, hours that come twice.
func TestEdge(t *testing.T) {
	edges := []struct{ zone, window, at string }{
		{"Europe/Berlin", "1d", "2040-03-24T23:00:00Z"},
		{"Europe/Berlin", "1d", "2040-03-25T22:00:00Z"}, // of 23 hours
		{"Europe/Berlin", "1d", "2040-10-28T23:00:00Z"}, // of 25 hours
		{"Europe/Berlin", "6h", "2040-03-25T05:00:00Z"},
		{"Europe/Berlin", "6h", "2040-03-25T22:00:00Z"},
		{"Europe/Berlin", "1h", "2040-10-28T01:00:00Z"}, // 02:00 for the second time
		{"Europe/Berlin", "1w", "2040-03-25T22:00:00Z"},
		{"Europe/Berlin", "1mo", "2040-02-29T23:00:00Z"},
		{"Europe/Berlin", "1mo", "2041-02-28T23:00:00Z"},
		{"Europe/Berlin", "1mo", "2040-03-31T22:00:00Z"},
		{"Europe/Berlin", "1mo", "2040-10-31T23:00:00Z"},
		{"Europe/Berlin", "1mo", "2040-12-31T23:00:00Z"},
		{"America/New_York", "1mo", "2040-11-01T04:00:00Z"},
		{"America/Havana", "1d", "2040-11-04T04:00:00Z"}, // 00:00 comes twice
		{"America/Havana", "1d", "2040-11-05T05:00:00Z"},
		{"Australia/Lord_Howe", "1d", "2040-04-01T13:30:00Z"}, // of 24 and a half hours
		{"Asia/Kolkata", "1mo", "2040-01-31T18:30:00Z"},
		{"", "15m", "2040-05-05T10:15:00Z"},
	}
	eachClock(t, func(t *testing.T, c *clock, open func(name string) Store) {
		for i, tt := range edges {
			edge, err := time.Parse(time.RFC3339, tt.at)
			if err != nil {
				t.Fatal(err)
			}
			const tokens = 200
			var all []*Limits
			var drift atomic.Int64 // one clock is slow, the other fast
			for _, skew := range []time.Duration{3 * time.Hour, -40 * 24 * time.Hour} {
				sign := time.Duration(1 - 2*len(all))
				l, err := New([]Limit{{Name: "a", Per: PerAll, Tokens: tokens, Window: window(t, tt.window), TimeZone: tt.zone}},
					open(fmt.Sprint(i)), Options{MaxResult: 50, Now: func() time.Time { return c.now().Add(skew + sign*time.Duration(drift.Load())) }})
				if err != nil {
					t.Fatal(err)
				}
				l.pause = 0
				all = append(all, l)
			}
			begin := func(l *Limits, args int) *Spend {
				s, err := l.Begin(t.Context(), Use{}, args)
				var exceeded *ExceededError
				if err != nil && (!errors.As(err, &exceeded) || !exceeded.Reset.Equal(edge) && c.now().Before(edge)) {
					t.Errorf("%v: at %v: %v", tt, c.now(), err)
				}
				return s
			}
			spend := func() (n int) {
				for _, args := range []int{7, 3, 1} {
					for idle := 0; idle < 2; {
						idle++
						for _, l := range all {
							if begin(l, args) != nil {
								n, idle = n+args, 0
							}
						}
						for _, l := range all {
							l.settled(t)
						}
					}
				}
				return n
			}
			c.set(edge.Add(-2 * time.Second))
			before := begin(all[0], 20)
			if n := 20 + spend(); n != tokens {
				t.Errorf("%v: before the edge %d were delivered", tt, n)
			}
			c.set(edge.Add(-time.Microsecond))
			drift.Store(int64(5 * time.Second))
			if n := spend(); n != 0 {
				t.Errorf("%v: a moment before the edge %d were delivered", tt, n)
			}
			c.set(edge)
			drift.Store(-int64(5 * time.Second))
			got, _, err := before.Take(t.Context(), 60) // the call began before it
			if err != nil || got != 60 {
				t.Errorf("%v: the result of a call before the edge gets %d, %v", tt, got, err)
			}
			before.Refund(10)
			if n := 50 + spend(); n != tokens {
				t.Errorf("%v: after the edge %d were delivered", tt, n)
			}
			if u := all[1].used(t, "a", ""); u.Tokens != tokens {
				t.Errorf("%v: the new window has %+v", tt, u)
			}
		}
	})
}

// A gateway whose clock is wrong counts in the windows of the server's clock.
func TestClockOfTheServer(t *testing.T) {
	store := newRedis(t).open(t)
	var all []*Limits
	for _, skew := range []time.Duration{0, 50 * time.Hour, -50 * time.Hour} {
		l, err := New([]Limit{
			{Name: "day", Per: PerAll, Tokens: 1000, Window: window(t, "1d")},
			{Name: "minutes", Per: PerAll, Tokens: 1000, Window: window(t, "rolling 24h")},
		}, store, Options{MaxResult: 1, Now: func() time.Time { return time.Now().Add(skew) }})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	sum := 0
	for range 3 {
		for _, l := range all {
			sum += pay(t, l, Use{}, 125)
		}
	}
	if sum != 1000 {
		t.Errorf("%d were delivered: did midnight pass?", sum)
	}
	for _, l := range all {
		l.settled(t)
		if u := l.used(t, "day", ""); u.Tokens != 1000 {
			t.Errorf("the day has %+v", u)
		}
	}
}

// A refused call succeeds at the time that the refusal names, and no earlier, whichever of its limits
// are spent. Without a time it never succeeds.
func TestRetryAfter(t *testing.T) {
	eachClock(t, testRetryAfter)
}

func testRetryAfter(t *testing.T, c *clock, open func(name string) Store) {
	windows := []string{"15m", "6h", "1d", "1w", "1mo", "rolling 24m", "rolling 7h", "rolling 30d"}
	var named, never int
	for i := range 60 {
		c.set(time.Date(2040, 3, 23, 12, 0, 0, 0, time.UTC))
		store := open(fmt.Sprint(i))
		var all []Limit
		for i := range 1 + rand.IntN(4) {
			one := Limit{Name: fmt.Sprint("l", i), Per: PerAll, Window: window(t, windows[rand.IntN(len(windows))])}
			if one.Tokens = Amount(20 + rand.IntN(200)); rand.IntN(3) == 0 {
				one.Tokens, one.Calls = 0, Amount(1+rand.IntN(6))
			}
			all = append(all, one)
		}
		l := onStore(t, all, store, Options{Now: c.now, MaxResult: 1})
		l.pause = 0
		begin := func(tokens int) *ExceededError {
			_, err := l.Begin(t.Context(), Use{}, tokens)
			var exceeded *ExceededError
			if err != nil && !errors.As(err, &exceeded) {
				t.Fatal(err)
			}
			l.Close(t.Context()) // gives back
			return exceeded
		}
		for range 40 {
			c.set(c.now().Add(time.Duration(rand.Int64N(int64(20 * time.Minute)))))
			tokens := rand.IntN(60)
			e := begin(tokens)
			if e == nil {
				continue
			}
			at := c.now()
			if e.Reset.IsZero() {
				never++
				c.set(at.AddDate(0, 2, 0))
				if begin(tokens) == nil {
					t.Fatalf("%+v never refused %d tokens later", e, tokens)
				}
				break
			}
			named++
			c.set(e.Reset.Add(-time.Second))
			if e.Reset.Sub(at) > time.Second && begin(tokens) == nil {
				t.Fatalf("at %v %v refused %d tokens until %v, and not a second before", at, e, tokens, e.Reset)
			}
			c.set(e.Reset)
			if e := begin(tokens); e != nil {
				t.Fatalf("%v, when it should have enough", e)
			}
		}
		store.Close()
	}
	if named < 100 || never < 5 {
		t.Errorf("%d refusals with a time, %d without", named, never)
	}
}

// The reset of a rolling window is when the last use comes free. It does not move with the time.
func TestResetOfARollingWindow(t *testing.T) {
	day := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	at := func(clock string) time.Time {
		d, err := time.ParseDuration(clock)
		if err != nil {
			t.Fatal(err)
		}
		return day.Add(d)
	}
	c := &clock{t: at("6h35m22s")}
	var crossings []Crossing
	l := newLimits(t, Options{Now: c.now, Notify: func(x Crossing) { crossings = append(crossings, x) }}, Limit{Name: "roll", Per: PerPrincipal, Calls: 2, Window: window(t, "rolling 1h")})
	u := Use{Principal: "alice"}
	shows := func(want time.Time) {
		t.Helper()
		all, err := l.All(t.Context())
		status, err2 := l.Status(t.Context(), u)
		if err != nil || err2 != nil || len(all) != 1 || len(status) != 1 {
			t.Fatalf("at %v: All = %v, %v; Status = %v, %v", c.now(), all, err, status, err2)
		}
		if !all[0].Reset.Equal(want) || !status[0].Reset.Equal(want) {
			t.Errorf("at %v: All has the reset %v, Status %v; want %v", c.now(), all[0].Reset, status[0].Reset, want)
		}
	}
	if status, err := l.Status(t.Context(), u); err != nil || len(status) != 1 || !status[0].Reset.IsZero() {
		t.Errorf("before the first use: %+v, %v", status, err)
	}
	for range 2 {
		s, err := l.Begin(t.Context(), u, 5)
		if err != nil {
			t.Fatal(err)
		}
		c.set(at("6h37m31s")) // tokens of a result don't count for the limit
		if _, _, err := s.Take(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		c.set(at("6h35m22s"))
	}
	c.set(at("6h37m"))
	shows(at("7h37m30s"))
	for _, clock := range []string{"6h37m55s", "6h49m54s", "7h37m29s"} {
		c.set(at(clock))
		shows(at("7h37m30s"))
		var exceeded *ExceededError
		if _, err := l.Begin(t.Context(), u, 5); !errors.As(err, &exceeded) || !exceeded.Reset.Equal(at("7h37m30s")) {
			t.Errorf("at %s Begin = %v", clock, err)
		}
	}
	for _, x := range crossings {
		if !x.Reset.Equal(at("7h37m30s")) {
			t.Errorf("%s has the reset %v", x.Kind, x.Reset)
		}
	}
	if len(crossings) != 2 {
		t.Errorf("%d crossings", len(crossings))
	}
}

// What a message or the rest of a result lacks in a rolling window is there once enough of what was used before has
// come free, which is not when all has.
func TestRoomInARollingWindow(t *testing.T) {
	start := time.Date(2026, 11, 29, 6, 0, 0, 0, time.UTC)
	c := &clock{t: start}
	l := newLimits(t, Options{Now: c.now}, Limit{Name: "roll", Per: PerPrincipal, Tokens: 1000, Window: window(t, "rolling 1h")})
	l.pause = 0
	u := Use{Principal: "alice"}
	for _, used := range []int{600, 300} { // at 6:00 and 6:20
		if _, err := l.Pay(t.Context(), u, used); err != nil {
			t.Fatal(err)
		}
		c.set(c.now().Add(20 * time.Minute))
	}
	free := start.Add(time.Hour + 150*time.Second) // the first part has come free
	var exceeded *ExceededError
	if _, err := l.Pay(t.Context(), u, 200); !errors.As(err, &exceeded) || !exceeded.Reset.Equal(free) {
		t.Errorf("Pay = %v, want a reset at %v", err, free)
	}
	s, err := l.Begin(t.Context(), u, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, tightest, err := s.Take(t.Context(), 300); err != nil || tightest == nil || !tightest.Reset.Equal(free) {
		t.Errorf("Take = %v, %v, want a reset at %v", tightest, err, free)
	}
	all := c.now().Add(time.Hour + 150*time.Second).Truncate(150 * time.Second)
	if _, tightest, err := s.Take(t.Context(), 5000); err != nil || tightest == nil || !tightest.Reset.Equal(all) {
		t.Errorf("Take of more than there ever is = %v, %v, want a reset at %v", tightest, err, all)
	}
}

// A clock that is ahead for days deletes no count, if the steady clock is not.
func TestCountsOutliveAStep(t *testing.T) {
	c := &clock{t: time.Date(2026, 11, 29, 6, 0, 0, 0, time.UTC)}
	right := c.now()
	store, err := openSQLite(filepath.Join(t.TempDir(), "budgets.db"), slog.New(slog.DiscardHandler), c.now, func() time.Time { return right })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	l := onStore(t, []Limit{{Name: "day", Per: PerAll, Calls: 5, Window: window(t, "1d")}, {Name: "roll", Per: PerAll, Calls: 9, Window: window(t, "rolling 1h")}}, store, Options{Now: c.now})
	spend := func() (n int) {
		for ; n < 100; n++ {
			if _, err := l.Begin(t.Context(), Use{}, 1); err != nil {
				return n
			}
		}
		return n
	}
	if n := spend(); n != 5 {
		t.Fatalf("%d calls", n)
	}
	for _, step := range []time.Duration{3 * 24 * time.Hour, 12 * 365 * 24 * time.Hour} {
		c.set(right.Add(step))
		spend()
		store.(*file).tidy(t.Context())
	}
	c.set(right)
	if n := spend(); n != 0 {
		t.Errorf("%d more calls once the clock is right", n)
	}
}
