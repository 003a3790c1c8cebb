package query

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// randomSet opens the indexes of two journals with random records.
func randomSet(t *testing.T, rng *rand.Rand, n int) (Set, []string) {
	t.Helper()
	var dirs []string
	for range 2 {
		dir := t.TempDir()
		j := open(t, dir, trace.Options{RotateBytes: 60_000})
		for i := range n {
			r := randomRecord(rng, i)
			if r.Audit == nil {
				r.Audit = &trace.Audit{}
			}
			r.Audit.MS = float64(rng.IntN(50))
			r.Audit.Tokens = &trace.Tokens{In: rng.IntN(3), Out: rng.IntN(90), Delivered: rng.IntN(40)}
			switch rng.IntN(4) {
			case 0:
				r.Audit.Fold = &trace.Fold{Handle: "res_1", Saved: rng.IntN(50)}
			case 1:
				r.Audit.Read = &trace.Read{Handle: "res_1", Server: "files", Tool: "read_file"}
			}
			add(t, j, r)
		}
		closeJournal(t, j)
		dirs = append(dirs, dir)
	}
	return indexes(t, dirs...), dirs
}

// indexes returns the indexes of journals as they are now. The test closes them.
func indexes(t *testing.T, dirs ...string) Set {
	t.Helper()
	s, err := OpenCurrent(t.Context(), dirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestPages: all pages of a query together have the records of Select, in the order of the page.
func TestPages(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	s, dirs := randomSet(t, rng, 300)
	name := func(r *trace.Record) string { return r.TS + " " + r.ID + r.Hash[:12] }
	value := map[string]func(*trace.Record) float64{
		Tokens:  func(r *trace.Record) float64 { return float64(r.Audit.Tokens.Delivered) },
		Slowest: func(r *trace.Record) float64 { return r.Audit.MS },
	}
	hits := 0
	for i := range 250 {
		f := randomFilter(rng)
		if f.Validate() != nil {
			continue
		}
		q := PageQuery{Filter: f, Order: []string{Newest, Oldest, Tokens, Slowest}[i%4], Size: 1 + rng.IntN(20), Wait: time.Minute}
		if i%7 == 0 {
			q.Wait = 0 // each page stops at once and says where
		}
		var want, got []string
		for r, err := range SelectAll(t.Context(), dirs, f) {
			if err != nil {
				t.Fatal(err)
			}
			if v := value[q.Order]; v == nil || v(r) > 0 {
				want = append(want, name(r))
			}
		}
		var all []*trace.Record
		for pages := 0; ; pages++ {
			p, err := s.Page(t.Context(), q)
			if err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
			if len(p.Records) > q.Size || pages > 700 {
				t.Fatalf("%+v: %d records on page %d", q, len(p.Records), pages)
			}
			all = append(all, p.Records...)
			if q.After = p.Next; q.After == "" {
				break
			}
		}
		if q.Wait == 0 && value[q.Order] != nil { // such a page says that records can be missing
			continue
		}
		if v := value[q.Order]; v != nil && !slices.IsSortedFunc(all, func(a, b *trace.Record) int { return cmp.Compare(v(b), v(a)) }) {
			t.Errorf("%+v: the pages are not in order", q)
		}
		for _, r := range all {
			got = append(got, name(r))
		}
		hits += len(got)
		slices.Sort(want)
		slices.Sort(got)
		if d := gocmp.Diff(want, got); d != "" {
			t.Fatalf("%+v: %s", q, d)
		}
	}
	if hits < 300 {
		t.Errorf("only %d hits", hits)
	}
}

// TestSelectNewest: the records of SelectAll, of one journal in the other order.
func TestSelectNewest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	_, dirs := randomSet(t, rng, 300)
	for i := range 60 {
		f := randomFilter(rng)
		if f.Validate() != nil || f.Chain != "" || f.Orphans || f.NoIndex {
			continue
		}
		one := dirs[i%len(dirs):][:1]
		var want, got []string
		for r, err := range SelectAll(t.Context(), one, f) {
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, r.Hash)
		}
		slices.Reverse(want)
		if f.Limit = i % 7; f.Limit > 0 {
			want = want[:min(f.Limit, len(want))]
		}
		for r, err := range SelectNewest(t.Context(), one, f) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.Hash)
		}
		if d := gocmp.Diff(want, got); d != "" {
			t.Errorf("%+v: %s", f, d)
		}
	}
}

// TestSums: sums by any dimensions are those that the records give.
func TestSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	s, dirs := randomSet(t, rng, 300)
	for _, by := range [][]string{nil, {"hour", "server"}, {"day"}, {"principal", "tool"}, {"server"}} {
		for _, f := range []SumFilter{{}, {Server: "files"}, {Principal: "p2"}, {Tool: "none"}} {
			rows, err := s.Sums(t.Context(), f, by...)
			if err != nil {
				t.Fatal(err)
			}
			var got, want Sums
			for _, r := range rows {
				got.Add(r.Sums)
			}
			for r, err := range SelectAll(t.Context(), dirs, Filter{}) {
				if err != nil {
					t.Fatal(err)
				}
				for of, sums := range sumsOf(r) {
					if a := of.Audit; (f.Server == "" || a.Server == f.Server) && (f.Principal == "" || a.Principal == f.Principal) && (f.Tool == "" || a.Tool == f.Tool) {
						want.Add(sums)
					}
				}
			}
			if got != want {
				t.Errorf("by %v of %+v: %+v, want %+v", by, f, got, want)
			}
		}
	}
	if _, err := s.Sums(t.Context(), SumFilter{}, "color"); err == nil {
		t.Error("by color: no error")
	}
}

// TestBranches: a branch has its records also if they are in several files, and its end.
func TestBranches(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 2000})
	push := func(path, who string) {
		add(t, j, &trace.Record{From: "foldgate", Kind: trace.KindPush, Context: path, Audit: &trace.Audit{Principal: who}})
	}
	push("br_1", "alice")
	push("br_1/br_2", "alice")
	push("br_3", "bob")
	for i := range 12 {
		add(t, j, &trace.Record{From: "host:h", Kind: "mcp/request:tools/call", Context: []string{"br_1", "br_1/br_2/notes", "br_3"}[i%3], Audit: &trace.Audit{Principal: "x", Tokens: &trace.Tokens{Used: i, Budget: 100}}})
	}
	add(t, j, &trace.Record{From: "foldgate", Kind: trace.KindPop, Context: "br_1/br_2"})
	closeJournal(t, j)
	s := indexes(t, dir)
	for name, c := range map[string]struct {
		q    BranchQuery
		want []string
	}{
		"newest":    {BranchQuery{Size: 9}, []string{"br_3", "br_1/br_2", "br_1"}},
		"page":      {BranchQuery{Size: 1, Page: 1}, []string{"br_1/br_2"}},
		"open":      {BranchQuery{Size: 9, Open: true}, []string{"br_3", "br_1"}},
		"principal": {BranchQuery{Size: 9, Principal: "alice"}, []string{"br_1/br_2", "br_1"}},
		"cost":      {BranchQuery{Size: 9, ByCost: true}, []string{"br_3", "br_1/br_2", "br_1"}},
		"tree":      {BranchQuery{Size: 9, Tree: "br_1"}, []string{"br_1", "br_1/br_2"}},
	} {
		got, _, err := s.Branches(t.Context(), c.q)
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, b := range got {
			paths = append(paths, b.Context)
			if b.Calls != 4 || b.Budget != 100 || b.Opened == nil || (b.Closed != nil) != (b.Context == "br_1/br_2") {
				t.Errorf("%s: %+v", name, b)
			}
		}
		if d := gocmp.Diff(c.want, paths); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if r, err := Verify(t.Context(), dir, trace.VerifyOptions{}); err != nil || slices.ContainsFunc(r.Faults, func(f trace.Fault) bool { return f.Code == trace.FaultIndex }) {
		t.Errorf("%v, %v", r.Faults, err)
	}
	for _, forge := range []string{"UPDATE branch SET calls = 5", "UPDATE total SET calls = calls + 1", "DELETE FROM posting WHERE block = 2", "UPDATE block SET until = 1 WHERE id = 1"} {
		if _, err := s[0].database().Exec(forge); err != nil {
			t.Fatal(err)
		}
		if r, err := Verify(t.Context(), dir, trace.VerifyOptions{}); err != nil || !slices.ContainsFunc(r.Faults, func(f trace.Fault) bool { return f.Code == trace.FaultIndex }) {
			t.Errorf("%s: verify finds nothing: %v", forge, err)
		}
		if err := s[0].refresh(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBranchesOverSegments: a branch has a row for each segment, and fills only one place of a page.
func TestBranchesOverSegments(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 2000})
	for i := range 40 { // the longest branch uses the most tokens, at last
		for _, name := range []string{"br_long", "br_other"} {
			if name == "br_other" && i > 2 {
				continue
			}
			kind := trace.KindResponse + "tools/call"
			if i == 0 {
				kind = trace.KindPush
			}
			add(t, j, &trace.Record{From: "foldgate", Kind: kind, Context: name, Audit: &trace.Audit{Principal: "alice", Tokens: &trace.Tokens{Used: i + 1}}})
		}
	}
	closeJournal(t, j)
	s := indexes(t, dir)
	for page, want := range []string{"br_long", "br_other"} {
		all, more, err := s.Branches(t.Context(), BranchQuery{ByCost: true, Principal: "alice", Page: page, Size: 1})
		if err != nil || len(all) != 1 || all[0].Context != want || more != (page == 0) {
			t.Errorf("page %d has %d branches, more %v, %v, want %s", page, len(all), more, err, want)
		}
	}
}

// ending is a context that ends after so many looks at it.
type ending struct {
	context.Context
	looks *int
}

func (e ending) Err() error {
	if *e.looks--; *e.looks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestCutPageIsInOrder: a search whose time ends within a block gives what it has in the order of the page.
func TestCutPageIsInOrder(t *testing.T) {
	dir := t.TempDir()
	j, err := trace.Open(dir, trace.Options{Sync: trace.SyncNever})
	if err != nil {
		t.Fatal(err)
	}
	for i := range blockRecords + 10 {
		tokens := 0
		switch { // the first block has the most, and the second one most of the others
		case i == 5:
			tokens = 1000
		case i < 10:
			tokens = i
		case i >= blockRecords:
			tokens = 900 + i%10
		}
		add(t, j, &trace.Record{From: "x", Kind: "mcp/response:tools/call", Audit: &trace.Audit{Tokens: &trace.Tokens{Delivered: tokens}}})
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	s, cut := indexes(t, dir), 0
	q := PageQuery{Order: Tokens, Size: 50}
	for looks := range 20 {
		left := looks
		var part found
		if err := s[0].read(t.Context(), func(db *sql.DB, lines *lineReader) (err error) {
			part, err = lines.search(t.Context(), ending{t.Context(), &left}, db, q, hit{key: math.MaxInt64})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if part.cut {
			cut++
		}
		var page Page
		page.merge(q, []found{part}, []hit{{key: math.MaxInt64}})
		var keys []int
		for _, r := range page.Records {
			keys = append(keys, r.Audit.Tokens.Delivered)
		}
		if !slices.IsSortedFunc(keys, func(a, b int) int { return b - a }) {
			t.Errorf("after %d looks a page has the tokens %v", looks, keys)
		}
	}
	if cut < 2 {
		t.Errorf("%d searches were cut", cut)
	}
}
