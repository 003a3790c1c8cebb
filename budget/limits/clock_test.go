package limits

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// clock is a clock that a test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
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
}

// Over days with a change to summer or winter time, with a clock that jumps forward and back, no
// window gets more than its limit, and each gets all of it.
func TestClock(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []time.Time{time.Date(2026, 3, 27, 12, 0, 0, 0, berlin), time.Date(2026, 10, 23, 12, 0, 0, 0, berlin)} {
		for _, jumps := range []bool{false, true} {
			c := &clock{t: first}
			store, err := openSQLite(filepath.Join(t.TempDir(), "budgets.db"), c.now)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
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
					s.Give(back)
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
			sum += l.Pay(t.Context(), Use{}, 125)
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
	windows := []string{"15m", "6h", "1d", "1w", "1mo", "rolling 24m", "rolling 7h", "rolling 30d"}
	var named, never int
	for range 60 {
		c := &clock{t: time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC)}
		store, err := openSQLite(filepath.Join(t.TempDir(), "budgets.db"), c.now)
		if err != nil {
			t.Fatal(err)
		}
		var all []Limit
		for i := range 1 + rand.IntN(4) {
			one := Limit{Name: fmt.Sprint("l", i), Per: PerAll, Window: window(t, windows[rand.IntN(len(windows))])}
			if one.Tokens = Amount(20 + rand.IntN(200)); rand.IntN(3) == 0 {
				one.Tokens, one.Calls = 0, Amount(1+rand.IntN(6))
			}
			all = append(all, one)
		}
		l, err := New(all, store, Options{Now: c.now, MaxResult: 1})
		if err != nil {
			t.Fatal(err)
		}
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
