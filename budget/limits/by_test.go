package limits

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What several tools have made counts once for each subject of each limit that matches one of them,
// whatever it is per. A rebuild counts the same.
func TestUseByTools(t *testing.T) {
	matches := map[string]Match{"any": {}, "db": {Server: "db"}, "tools": {Tool: "db__*"}, "own": {Tool: "branch_*"}, "none": {Server: "none"}}
	subjects := map[string]map[string][]string{ // by per and match; else one subject for what matches
		PerTool: {
			"any": {"branch_read", "db__a", "db__b", "files__a"}, "db": {"db__a", "db__b"}, "tools": {"db__a", "db__b"}, "own": {"branch_read"},
		},
		PerServer: {"any": {"db", "files"}, "db": {"db"}, "tools": {"db"}},
	}
	eachStore(t, func(t *testing.T, open func() Store) {
		var all []Limit
		want := map[string]int64{}
		for _, per := range []string{PerSession, PerPrincipal, PerTeam, PerTool, PerServer, PerAll} {
			for name, match := range matches {
				one := Limit{Name: per + "-" + name, Match: match, Per: per, Tokens: 1000, Window: window(t, "1mo")}
				all = append(all, one)
				of, several := subjects[per]
				for _, s := range of[name] {
					want[one.Name+" of "+s] = 70
				}
				if name != "none" && !several {
					want[one.Name+" of "+map[string]string{PerSession: "s", PerPrincipal: "alice"}[per]] = 70
				}
			}
		}
		u := Use{Principal: "alice", Session: "s", Tool: "branch_read"}
		u = u.MadeBy("db", "db__a").MadeBy("db", "db__b").MadeBy("files", "files__a").MadeBy("", "branch_read")
		store := open()
		spent := onStore(t, all, store, Options{})
		check := func(l *Limits) {
			t.Helper()
			got := map[string]int64{}
			states, err := l.All(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range states {
				got[s.Limit+" of "+s.Subject] = s.TokensUsed
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		s := spent.Continue(nil, u)
		if n, e, err := s.Take(t.Context(), 100); n != 100 || e != nil || err != nil {
			t.Fatal(n, e, err)
		}
		s.Refund(30)
		check(spent)
		if n, e, _ := s.Take(t.Context(), 1000); n != 930 || e == nil {
			t.Errorf("%d tokens of the 930 left, %v", n, e)
		}
		for _, one := range all {
			if _, err := spent.Reset(t.Context(), one.Name, ""); err != nil {
				t.Fatal(err)
			}
		}
		charges := func(yield func(Charge, error) bool) {
			yield(Charge{At: spent.o.Now(), Use: u, Tokens: 70}, nil)
		}
		if n, _, err := spent.Rebuild(t.Context(), charges); n != len(want) || err != nil {
			t.Fatal(n, err)
		}
		check(spent)
	})
}
