package limits

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func window(t *testing.T, s string) (w Window) {
	t.Helper()
	if err := w.UnmarshalText([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if w.String() != s {
		t.Errorf("%q is written %q", s, w)
	}
	return w
}

func TestCheck(t *testing.T) {
	good := Limit{Name: "a", Per: PerAll, Tokens: 1, Window: window(t, "1d")}
	for want, change := range map[string]func(*Limit){
		"":                        func(l *Limit) {},
		"limits[0].name":          func(l *Limit) { l.Name = "A b" },
		"limits[0].per":           func(l *Limit) { l.Per = "user" },
		"limits[0].match.context": func(l *Limit) { l.Match.Context = "leaf" },
		"limits[0].match.tool":    func(l *Limit) { l.Match.Tool = "a[" },
		"limits[0].action":        func(l *Limit) { l.Action = "stop" },
		"limits[0].tokens":        func(l *Limit) { l.Tokens = 0 },
		"limits[0].window":        func(l *Limit) { l.Window = Window{} },
		"limits[0].time_zone":     func(l *Limit) { l.TimeZone = "Mars/Olympus" },
		"limits[0].warn_at":       func(l *Limit) { l.WarnAt = 1.5 },
		"limits[0].subjects":      func(l *Limit) { l.Subjects = map[string]Amounts{"a": {Tokens: 1}} },
		"limits[0].subjects.a": func(l *Limit) {
			l.Per, l.Subjects = PerTeam, map[string]Amounts{"a": {}, "b": {Tokens: 1}}
		},
		"limits[0].subjects.b": func(l *Limit) {
			l.Per, l.Subjects = PerTeam, map[string]Amounts{"a": {Tokens: 1, Calls: 1}, "b": {ModelTokens: 1}}
		},
		"limits[0].subjects.c": func(l *Limit) { l.Per, l.Subjects = PerTeam, map[string]Amounts{"c": {Calls: maxAmount + 1}} },
	} {
		l := good
		change(&l)
		err := Check([]Limit{l}).Err()
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want+": ")) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if err := Check([]Limit{good, good}).Err(); err == nil || !strings.Contains(err.Error(), "limits[1].name") {
		t.Errorf("two of one name: %v", err)
	}
	if err := Check(make([]Limit, maxLimits+1)).Err(); err == nil || !strings.Contains(err.Error(), "use at most 256") {
		t.Errorf("too many: %v", err)
	}
}

func TestAmount(t *testing.T) {
	for text, want := range map[string]Amount{"0": 0, "200000": 200000, "200_000": 200000, "200k": 200000, "20M": 20e6, "1000G": 1e12, "-1": -1, "": -1, "1.5k": -1, "k": -1, "1001G": -1, "99999999999999999999": -1, "1kk": -1, "5kM": -1, "5Mk": -1} {
		var got Amount
		if err := got.UnmarshalText([]byte(text)); err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
}

// newLimits returns limits on a new SQLite store.
func newLimits(t *testing.T, o Options, all ...Limit) *Limits {
	t.Helper()
	now := o.Now
	if now == nil {
		now = time.Now
	}
	store, err := openSQLite(filepath.Join(t.TempDir(), "budgets.db"), slog.New(slog.DiscardHandler), now, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := onStore(t, all, store, o)
	t.Cleanup(func() {
		l.Close(context.Background())
		store.Close()
	})
	return l
}

// onStore returns limits on a store.
func onStore(t testing.TB, all []Limit, store Store, o Options) *Limits {
	t.Helper()
	l, err := New(all, store, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// openReserves opens a reserve file of any store.
func openReserves(t testing.TB, path string) *ReserveFile {
	t.Helper()
	d, err := OpenReserveFile(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (l *Limits) used(t *testing.T, limit, subject string) Used {
	t.Helper()
	all, err := l.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Limit == limit && s.Subject == subject {
			return Used{s.TokensUsed, s.CallsUsed}
		}
	}
	return Used{}
}

func TestSpend(t *testing.T) {
	l := newLimits(t, Options{},
		Limit{Name: "alice", Match: Match{Principal: "alice"}, Per: PerPrincipal, Tokens: 1000, Window: window(t, "1d")},
		Limit{Name: "team", Per: PerTeam, Tokens: 1500, Window: window(t, "1mo")},
		Limit{Name: "db", Match: Match{Tool: "db__*"}, Per: PerTool, Calls: 2, Window: window(t, "1h")},
	)
	alice := Use{Principal: "alice", Team: "data", Server: "db", Tool: "db__query"}
	bob := Use{Principal: "bob", Team: "data", Server: "web", Tool: "web__get"}
	s, err := l.Begin(t.Context(), alice, 100)
	if err != nil {
		t.Fatal(err)
	}
	if got, tight, err := s.Take(t.Context(), 300); got != 300 || tight != nil || err != nil {
		t.Fatalf("Take = %d, %v, %v", got, tight, err)
	}
	s.Refund(50)
	s.Refund(1 << 30) // no more than was taken
	s2, err := l.Begin(t.Context(), alice, 600)
	if err != nil {
		t.Fatal(err)
	}
	if u := l.used(t, "team", "data"); u.Calls != 2 || u.Tokens != 600 {
		t.Errorf("team has used %+v", u)
	}
	got, tight, err := s2.Take(t.Context(), 900)
	if got != 400 || tight == nil || tight.Limit != "alice" || tight.Left != 0 || tight.Total != 1000 || tight.Unit != "tokens" || err != nil {
		t.Errorf("Take above the limit = %d, %+v, %v", got, tight, err)
	}
	var exceeded *ExceededError
	if _, err := l.Begin(t.Context(), alice, 0); !errors.As(err, &exceeded) || exceeded.Limit != "alice" && exceeded.Limit != "db" {
		t.Errorf("Begin above the limit: %v", err)
	}
	for n, want := range map[int]int{501: 0, 500: 500} { // in any order
		if got := pay(t, l, bob, n); got != want {
			t.Errorf("bob's message of %d tokens got %d of the team's 500", n, got)
		}
	}
	states, err := l.Status(t.Context(), alice)
	if err != nil || len(states) != 3 || states[0].TokensUsed != 1000 || states[2].CallsUsed != 2 || states[2].Subject != "db__query" {
		t.Errorf("Status = %+v, %v", states, err)
	}
	if n, err := l.Reset(t.Context(), "alice", ""); n != 1 || err != nil {
		t.Errorf("Reset = %d, %v", n, err)
	}
	if _, err := l.Begin(t.Context(), alice, 0); !errors.As(err, &exceeded) || exceeded.Unit == "tokens" && exceeded.Limit == "alice" {
		t.Errorf("after the reset: %v", err)
	}
}

// A subject with amounts of its own has these, and the limit's amounts where it names none.
// A refusal asks the store once, unless a rolling window refuses: when that has enough again, its parts say.
func TestRefusalAsksOnce(t *testing.T) {
	at := time.Date(2026, 11, 29, 6, 0, 0, 0, time.UTC)
	for length, lists := range map[string]int64{"1d": 0, "rolling 24h": 1} {
		l := newLimits(t, Options{Now: func() time.Time { return at }},
			Limit{Name: "small", Per: PerAll, Tokens: 100, Window: window(t, length)},
			Limit{Name: "large", Per: PerAll, Tokens: 1000, Window: window(t, "rolling 1h")},
			Limit{Name: "session", Per: PerSession, Tokens: 1000})
		l.pause = 0
		asked := &counting{Store: l.store}
		l.store = asked
		u := Use{Principal: "alice", Session: "s"}
		s, err := l.Begin(t.Context(), u, 40)
		if err != nil {
			t.Fatal(err)
		}
		var tightest *ExceededError
		for n, refused := range []func() error{
			func() error { _, err := l.Begin(t.Context(), u, 100); return err },
			func() error { _, err := l.Pay(t.Context(), u, 100); return err },
			func() error { _, tightest, err = s.Take(t.Context(), 100); return errors.Join(err, tightest) },
		} {
			l.Close(t.Context())                                                           // gives back what is reserved
			if err := refused(); !errors.As(err, &tightest) || tightest.Limit != "small" { // it learns that nobody else gives back
				t.Fatalf("%d: %v", n, err)
			}
			asked.n.Store(0)
			asked.lists.Store(0)
			if err := refused(); !errors.As(err, &tightest) || !tightest.Reset.Equal(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)) && length == "1d" {
				t.Errorf("%d: %v", n, err)
			}
			if asked.n.Load() != 1 || asked.lists.Load() != lists {
				t.Errorf("%d: a limit of %s asked for %d takes and %d lists", n, length, asked.n.Load(), asked.lists.Load())
			}
		}
	}
}

func TestSubjects(t *testing.T) {
	l := newLimits(t, Options{},
		Limit{Name: "person", Per: PerPrincipal, Tokens: 100, Calls: 3, Window: window(t, "1d"), Subjects: map[string]Amounts{"alice": {Tokens: 500}, "bob": {Tokens: 20, Calls: 1}}},
	)
	for who, want := range map[string]Used{"alice": {500, 3}, "bob": {20, 1}, "carol": {100, 3}} {
		u := Use{Principal: who}
		if pay(t, l, u, int(want.Tokens)) == 0 || pay(t, l, u, 1) != 0 {
			t.Errorf("%s can't use exactly %d tokens", who, want.Tokens)
		}
		states, err := l.Status(t.Context(), u)
		if err != nil || len(states) != 1 || (Used{states[0].Tokens, states[0].Calls}) != want || states[0].TokensUsed != want.Tokens {
			t.Errorf("%s has %+v, %v, want %+v", who, states, err, want)
		}
		var exceeded *ExceededError
		if _, err := l.Begin(t.Context(), u, 0); !errors.As(err, &exceeded) || exceeded.Total != want.Tokens || exceeded.Subject != who {
			t.Errorf("%s above the limit: %v", who, err)
		}
	}
	all, err := l.All(t.Context())
	if err != nil || len(all) != 3 || all[0].Tokens != 500 || all[1].Calls != 1 || all[2].Tokens != 100 {
		t.Errorf("All = %+v, %v", all, err)
	}
}

// pay returns how many of n tokens a message gets: all or none.
func pay(t *testing.T, l *Limits, u Use, n int) int {
	t.Helper()
	var exceeded *ExceededError
	if s, err := l.Pay(t.Context(), u, n); err == nil && s.Confirmed() {
		return n
	} else if !errors.As(err, &exceeded) {
		t.Errorf("Pay = %v", err)
	}
	return 0
}

func TestNoLimits(t *testing.T) {
	var none *Limits
	s, err := none.Begin(t.Context(), Use{}, 5)
	got, tight, err2 := s.Take(t.Context(), 7)
	s.Refund(1)
	if s != nil || err != nil || got != 7 || tight != nil || err2 != nil || s.Fold() || pay(t, none, Use{}, 3) != 3 {
		t.Error("a nil Limits limits")
	}
	l := newLimits(t, Options{}, Limit{Name: "a", Match: Match{Team: "x"}, Per: PerAll, Tokens: 1, Window: window(t, "1d")})
	if s, err := l.Begin(t.Context(), Use{Team: "y"}, 5); s != nil || err != nil || pay(t, l, Use{}, 3) != 3 {
		t.Error("a limit of others limits")
	}
}
