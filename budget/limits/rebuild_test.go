package limits

import (
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRebuild(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() Store) {
		now := time.Now()
		l, err := New([]Limit{
			{Name: "month", Per: PerPrincipal, Tokens: 1000, Window: window(t, "1mo")},
			{Name: "hours", Per: PerAll, Tokens: 5000, Calls: 100, Window: window(t, "rolling 24h")},
			{Name: "session", Per: PerSession, Tokens: 700},
			{Name: "db", Match: Match{Tool: "db__*"}, Per: PerTool, Calls: 10, Window: window(t, "rolling 3d")},
		}, open(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		alice, bob := Use{Principal: "alice", Session: "s1", Tool: "db__get"}, Use{Principal: "bob"}
		charges := []Charge{
			{now, alice, 100, 1}, {now, alice, 50, 1}, {now, bob, 30, 0},
			{now.Add(-48 * time.Hour), alice, 7, 1},           // not in the 24 hours
			{now.Add(-40 * 24 * time.Hour), alice, 90_000, 1}, // in the session only
		}
		seq := func(err error) iter.Seq2[Charge, error] {
			return func(yield func(Charge, error) bool) {
				for _, c := range charges {
					if !yield(c, nil) {
						return
					}
				}
				if err != nil {
					yield(Charge{}, err)
				}
			}
		}
		fault := errors.New("the trace ends in the middle")
		if _, _, err := l.Rebuild(t.Context(), seq(fault)); !errors.Is(err, fault) {
			t.Errorf("Rebuild = %v", err)
		}
		if got := pay(t, l, bob, 60); got != 60 { // more than the traces have
			t.Fatal(got)
		}
		sum := func() map[string]Used {
			return map[string]Used{
				"alice": l.used(t, "month", "alice"), "bob": l.used(t, "month", "bob"), "all": l.used(t, "hours", ""),
				"session": l.used(t, "session", "s1"), "db": l.used(t, "db", "db__get"),
			}
		}
		want := map[string]Used{"alice": {150, 2}, "bob": {60, 0}, "all": {180, 2}, "session": {90_157, 4}, "db": {157, 3}}
		if now.Add(-48*time.Hour).Month() == now.Month() {
			want["alice"] = Used{157, 3}
		}
		from := map[string]Used{"month alice": {}, "hours ": {60, 0}, "session s1": {}, "db db__get": {}}
		for range 2 { // twice is as good as once
			n, raised, err := l.Rebuild(t.Context(), seq(nil))
			if n < 5 || err != nil {
				t.Fatalf("Rebuild = %d, %v", n, err)
			}
			got := map[string]Used{}
			for _, r := range raised {
				got[r.Limit+" "+r.Subject] = r.From
				if is := l.used(t, r.Limit, r.Subject); is != (Used{r.TokensUsed, r.CallsUsed}) {
					t.Errorf("%s of %s is raised to %+v, and has %+v", r.Limit, r.Subject, r.State, is)
				}
			}
			if diff := cmp.Diff(from, got); diff != "" {
				t.Errorf("raised: %s", diff)
			}
			from = map[string]Used{}
			if diff := cmp.Diff(want, sum()); diff != "" {
				t.Error(diff)
			}
		}
	})
}
