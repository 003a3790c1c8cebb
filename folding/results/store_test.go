package results

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// resultStore opens a store whose clock the test moves.
func resultStore(t *testing.T, path string, quota int64) (*Store, *time.Time) {
	t.Helper()
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	r, err := Open(path, Config{Quota: quota, TTL: 24 * time.Hour, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, &now
}

var owner = folding.Caller{Principal: "ada", Session: "s1"}

// keep stores n bytes in a context and returns the handle.
func keep(t *testing.T, r *Store, context_ string, n int) string {
	t.Helper()
	s := Result{
		Handle: (&Store{}).NewHandle(), Principal: "ada", Session: "s1", Context: context_, Server: "files", Tool: "read_file",
		Kind: "text", Text: strings.Repeat("x", n), Tokens: n, Delivered: 10,
	}
	if err := r.Put(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s.Handle
}

func TestStoredResultSurvivesRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.db")
	r, now := resultStore(t, path, 1<<20)
	want := Result{
		Handle: (&Store{}).NewHandle(), Principal: "ada", Session: "s1", Context: "br_a/br_b", Server: "db", Tool: "query", Kind: "JSON",
		Text: "line\x00 \xff one\n", Structured: `{"a":1.0}`, Tokens: 900, Delivered: 40,
	}
	if err := r.Put(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want.CreatedAt = *now
	r, _ = resultStore(t, path, 1<<20)
	got, err := r.Get(t.Context(), owner, "br_a/br_b", want.Handle)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("after a restart the result differs (-want +got):\n%s", d)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the store = %v, %v; want 0600", info.Mode().Perm(), err)
	}
}

func TestReadOfACancelledCall(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1<<20)
	handle := keep(t, r, "", 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := r.Get(ctx, owner, "", handle); err != nil || got.Text == "" {
		t.Errorf("Get = %+v, %v, want the result", got, err)
	}
	if _, err := r.Get(ctx, owner, "", (&Store{}).NewHandle()); !errors.Is(err, ErrUnknown) {
		t.Errorf("Get of an unknown handle = %v", err)
	}
}

func TestWhoMayReadAResult(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1<<20)
	handle := keep(t, r, "br_a/br_b", 100)
	for _, tc := range []struct {
		name   string
		caller folding.Caller
		strict bool
		at     string
		want   error
	}{
		{"its branch", owner, true, "br_a/br_b", nil},
		{"the parent", owner, false, "br_a", nil},
		{"main", owner, false, "", nil},
		{"a branch below", owner, false, "br_a/br_b/br_c", nil},
		{"a sibling", owner, false, "br_a/br_x", ErrUnknown},
		{"a branch with a longer name", owner, false, "br_a/br_bb", ErrUnknown},
		{"another session", folding.Caller{Principal: "ada", Session: "s2"}, false, "", nil},
		{"another session, strictly", folding.Caller{Principal: "ada", Session: "s2"}, true, "", ErrUnknown},
		{"another principal", folding.Caller{Principal: "bob", Session: "s1"}, false, "br_a/br_b", ErrUnknown},
	} {
		r.cfg.Strict = tc.strict
		_, err := r.Get(t.Context(), tc.caller, tc.at, handle)
		if !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) {
			t.Errorf("Get as %s = %v, want %v", tc.name, err, tc.want)
		}
	}
	r.cfg.Strict = false
	// Foreign, unknown and malformed handles get the same text.
	_, foreign := r.Get(t.Context(), folding.Caller{Principal: "bob"}, "", handle)
	other := (&Store{}).NewHandle()
	_, unknown := r.Get(t.Context(), owner, "", other)
	if got, want := strings.ReplaceAll(foreign.Error(), handle, "H"), strings.ReplaceAll(unknown.Error(), other, "H"); got != want {
		t.Errorf("a foreign handle says %q, an unknown one %q", got, want)
	}
	for _, h := range []string{"", "res_", "res_'; DROP TABLE results", handle + "x", strings.ToUpper(handle)} {
		if _, err := r.Get(t.Context(), owner, "", h); !errors.Is(err, ErrUnknown) {
			t.Errorf("Get(%q) = %v, want unknown", h, err)
		}
	}
}

// However much one principal stores, it pushes out its own results before those of one who stores less.
func TestQuotaIsShared(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1000)
	put := func(principal string, n int) string {
		s := Result{Handle: (&Store{}).NewHandle(), Principal: principal, Server: "files", Tool: "read_file", Text: strings.Repeat("x", n)}
		if err := r.Put(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		return s.Handle
	}
	kept := []string{put("bob", 100), put("bob", 150)}
	last := ""
	for range 20 {
		last = put("ada", 300)
	}
	for _, h := range kept {
		if _, err := r.Get(t.Context(), folding.Caller{Principal: "bob"}, "", h); err != nil {
			t.Errorf("ada pushed out a result of bob: %v", err)
		}
	}
	if _, err := r.Get(t.Context(), folding.Caller{Principal: "ada"}, "", last); err != nil {
		t.Error(err)
	}
	for range 4 {
		put("cyd", 150) // gets room from ada, who has the most
	}
	if _, err := r.Get(t.Context(), folding.Caller{Principal: "bob"}, "", kept[0]); err != nil {
		t.Errorf("cyd pushed out a result of bob: %v", err)
	}
	sizesHold(t, r)
}

// sizesHold fails a test if the sizes that a store keeps are not those of its results.
func sizesHold(t *testing.T, r *Store) {
	t.Helper()
	const wrong = `SELECT count(*) FROM (SELECT principal, sum(bytes) AS bytes FROM results GROUP BY principal) AS r
		FULL JOIN sizes USING (principal, bytes) WHERE r.principal IS NULL OR sizes.principal IS NULL`
	var n int
	if err := r.db.QueryRowContext(t.Context(), wrong).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d sizes are not those of the results, %v", n, err)
	}
}

// TestEvictionHasIndexes: what a full store takes to find the result to evict does not grow with the results.
func TestEvictionHasIndexes(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1000)
	var id, parent, unused, steps int
	var detail string
	for err := range sqlitedb.Rows(t.Context(), r.db, []any{&id, &parent, &unused, &detail}, "EXPLAIN QUERY PLAN "+largest, "ada", 1) {
		if steps++; err != nil || strings.HasPrefix(detail, "SCAN") {
			t.Errorf("%s, %v", detail, err)
		}
	}
	if steps < 4 {
		t.Errorf("a plan of %d steps, want more", steps)
	}
}

func TestQuotaEvictsTheOldest(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1000)
	var handles []string
	for range 5 {
		handles = append(handles, keep(t, r, "", 300))
	}
	for i, h := range handles {
		_, err := r.Get(t.Context(), owner, "", h)
		if i < 2 && (!errors.Is(err, ErrEvicted) || !strings.Contains(err.Error(), "quota_mb") || !strings.Contains(err.Error(), "read_file")) {
			t.Errorf("result %d of 5: %v, want evicted by quota, with the tool to call again", i, err)
		}
		if i >= 2 && err != nil {
			t.Errorf("result %d of 5: %v, want it kept", i, err)
		}
	}
	if _, err := r.Get(t.Context(), folding.Caller{Principal: "bob"}, "", handles[0]); !errors.Is(err, ErrUnknown) {
		t.Errorf("an evicted result of somebody else: %v, want unknown", err)
	}
	err := r.Put(t.Context(), Result{Handle: (&Store{}).NewHandle(), Text: strings.Repeat("x", 1001)})
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("Put over the quota = %v, want ErrTooLarge", err)
	}
	if _, err := r.Get(t.Context(), owner, "", handles[4]); err != nil {
		t.Errorf("a refused result evicted another: %v", err)
	}
}

func TestOldResultsGo(t *testing.T) {
	r, now := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1000)
	old := keep(t, r, "", 100)
	*now = now.Add(25 * time.Hour)
	for _, when := range []string{"before", "after"} {
		if _, err := r.Get(t.Context(), owner, "", old); !errors.Is(err, ErrEvicted) || !strings.Contains(err.Error(), "ttl_hours") {
			t.Errorf("an old result %s the next Put: %v, want gone by age", when, err)
		}
		keep(t, r, "", 100)
	}
	var n int
	if err := r.db.QueryRowContext(t.Context(), "SELECT count(*) FROM results").Scan(&n); n != 2 || err != nil {
		t.Errorf("%d results kept, %v; want the 2 new ones", n, err)
	}
}

// A result leaves the disk when it is too old, also if nothing is put.
func TestOldResultsGoByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Open(filepath.Join(t.TempDir(), "results.db"), Config{Quota: 1 << 20, TTL: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		keep(t, r, "", 10)
		start := time.Now()
		for i, age := range []time.Duration{23 * time.Hour, 25*time.Hour + time.Minute} {
			want := 1 - i
			time.Sleep(time.Until(start.Add(age)))
			synctest.Wait()
			var n int
			if err := r.db.QueryRowContext(t.Context(), "SELECT count(*) FROM results").Scan(&n); err != nil || n != want {
				t.Errorf("after %v there are %d results, %v, want %d", age, n, err, want)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(48 * time.Hour) // nothing runs on
	})
}

// A clock that is wrong, in either direction, or a step that turns out right, makes no result older than it is.
func TestResultsDuringAStep(t *testing.T) {
	for _, step := range []time.Duration{40 * 24 * time.Hour, -40 * 24 * time.Hour} {
		for _, right := range []bool{false, true} {
			steady := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
			wall := steady
			later := func() time.Time {
				if wall.After(steady) {
					return wall
				}
				return steady
			}
			r, err := Open(filepath.Join(t.TempDir(), "results.db"), Config{Quota: 1 << 20, TTL: 24 * time.Hour, Now: later, Steady: func() time.Time { return steady }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			before := keep(t, r, "", 10)
			wall = wall.Add(step)
			r.tidy()
			during := keep(t, r, "", 10)
			steady, wall = steady.Add(12*time.Hour), wall.Add(12*time.Hour)
			r.tidy()
			for _, handle := range []string{before, during} {
				if _, err := r.Get(t.Context(), owner, "", handle); err != nil {
					t.Errorf("12 hours after a step of %v: %v", step, err)
				}
			}
			if right {
				steady = wall
			} else {
				wall = steady
			}
			r.tidy()
			if _, err := r.Get(t.Context(), owner, "", during); err != nil {
				t.Errorf("after a step of %v, right is %t: %v", step, right, err)
			}
		}
	}
}

// What was stored while the clock was far ahead does not stay until then, nor does what came after it.
func TestResultsOfATimeToComeGo(t *testing.T) {
	r, now := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1<<20)
	right := *now
	*now = right.AddDate(12, 0, 0)
	ahead := keep(t, r, "", 10)
	*now = right
	after := keep(t, r, "", 10)
	for _, age := range []time.Duration{time.Minute, 23 * time.Hour, 25 * time.Hour} {
		*now = right.Add(age)
		r.tidy()
		for _, handle := range []string{ahead, after} {
			if _, err := r.Get(t.Context(), owner, "", handle); errors.Is(err, ErrEvicted) != (age > 24*time.Hour) {
				t.Errorf("after %v: %v", age, err)
			}
		}
	}
}

func TestOpenEvicts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.db")
	r, _ := resultStore(t, path, 1000)
	first, second := keep(t, r, "", 300), keep(t, r, "", 300)
	r.Close()
	r, _ = resultStore(t, path, 500)
	if _, err := r.Get(t.Context(), owner, "", first); !errors.Is(err, ErrEvicted) {
		t.Errorf("with a lower quota the older result: %v, want it gone", err)
	}
	if _, err := r.Get(t.Context(), owner, "", second); err != nil {
		t.Errorf("with a lower quota the newer result: %v", err)
	}
}

func TestResultsConcurrently(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 5000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				h := keep(t, r, "", 400)
				if _, err := r.Get(context.Background(), owner, "", h); err != nil && !errors.Is(err, ErrEvicted) {
					t.Errorf("Get after Put: %v", err)
				}
			}
		})
	}
	wg.Wait()
	var kept, sum int64
	if err := r.db.QueryRow("SELECT count(*), total(bytes) FROM results").Scan(&kept, &sum); err != nil {
		t.Fatal(err)
	}
	if kept != 12 || sum != 4800 {
		t.Errorf("%d results, %d bytes; want the 12 newest, 4800 bytes", kept, sum)
	}
}

// A file of the same name that another program made stays as it is.
func TestForeignResultStoreIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.db")
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{Migrations: []string{"CREATE TABLE experiments (id)"}})
	if err == nil {
		_, err = db.Exec("PRAGMA user_version = 0; PRAGMA journal_mode(DELETE)")
		err = errors.Join(err, db.Close())
	}
	before, err2 := os.ReadFile(path)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Config{}); !errors.Is(err, sqlitedb.ErrForeign) {
		t.Errorf("Open = %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed, %v", err)
	}
}

func TestNewerResultStoreIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.db")
	r, _ := resultStore(t, path, 100)
	if _, err := r.db.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := Open(path, Config{}); err == nil || !strings.Contains(err.Error(), "newer foldgate") {
		t.Errorf("Open of a newer store = %v, want a refusal that says so", err)
	}
}

func TestHandles(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		h := (&Store{}).NewHandle()
		if !IsHandle(h) || len(h) != 30 || seen[h] {
			t.Fatalf("(&Store{}).NewHandle() = %q", h)
		}
		seen[h] = true
	}
}

func TestSearch(t *testing.T) {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "line %d tells of storage and its costs\n", i+1)
		if i == 149 {
			b.WriteString("The limiter refuses requests over 250 a minute.\n")
		}
	}
	text := b.String()
	for _, tc := range []struct {
		query, want string
		line        int
	}{
		{"limiting request", "refuses requests", 151}, // by stem
		{"limi", "refuses requests", 151},             // by prefix
		{"250/minute?", "refuses requests", 151},      // signs are ignored
		{`"; DROP (limiter) NOT * ^`, "refuses requests", 151},
	} {
		hits, err := Search(t.Context(), text, tc.query, 3)
		if err != nil || len(hits) == 0 {
			t.Errorf("Search(%q) = %v, %v", tc.query, hits, err)
			continue
		}
		h := hits[0]
		if h.From > tc.line || h.To < tc.line || !strings.Contains(h.Lines, fmt.Sprintf("%d: The limiter %s", tc.line, tc.want)) {
			t.Errorf("Search(%q): first hit %+v, want line %d", tc.query, h, tc.line)
		}
	}
	marks := strings.Repeat("\x02", 1900) + " word " + strings.Repeat("x", 450) // the sign that ends what is found
	if hits, err := Search(t.Context(), marks, "word", 3); err != nil || len(hits) != 1 || !strings.Contains(hits[0].Lines, "word") {
		t.Errorf("Search in a line of control characters = %v, %v", hits, err)
	}
	if hits, err := Search(t.Context(), text, "zebra", 3); len(hits) != 0 || err != nil {
		t.Errorf("Search(zebra) = %v, %v; want nothing", hits, err)
	}
	if _, err := Search(t.Context(), text, "?!", 3); !errors.Is(err, folding.ErrInvalidInput) {
		t.Errorf("Search of no words: %v", err)
	}
	hits, err := Search(t.Context(), strings.Repeat("filler ", 3000)+"needle "+strings.Repeat("filler ", 3000), "needle", 3)
	if err != nil || len(hits) != 1 || !strings.Contains(hits[0].Lines, "needle") || len(hits[0].Lines) > hitLine+40 {
		t.Errorf("Search in one long line = %+v, %v", hits, err)
	}
}

// FuzzSearch: no query makes the index fail, and the passages of a text join to
// the text.
func FuzzSearch(f *testing.F) {
	f.Add("some text\nof two lines", `a"b* OR NEAR(c)`)
	f.Add("\x00\xff\n", "ß 漢字 x1")
	f.Fuzz(func(t *testing.T, text, query string) {
		if _, err := Search(t.Context(), text, query, 3); err != nil && !errors.Is(err, folding.ErrInvalidInput) {
			t.Errorf("Search(%q): %v", query, err)
		}
		for rest := text; rest != ""; {
			p := passage(rest)
			if p == "" || !strings.HasPrefix(rest, p) {
				t.Fatalf("passage(%q) = %q", rest, p)
			}
			rest = rest[len(p):]
		}
	})
}

func TestSavedSumsABranch(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1<<20)
	for _, b := range []struct {
		path            string
		results, tokens int
	}{{"br_a", 1, 100}, {"br_a/br_b", 1, 200}, {"br_ab", 1, 400}, {"br_a", 0, -30}, {"br_a", 1, 50}} {
		if err := r.AddSavings(t.Context(), "ada", b.path, b.results, b.tokens); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		principal, path string
		results, tokens int
	}{{"ada", "br_a", 2, 120}, {"ada", "br_a/br_b", 1, 200}, {"ada", "br_c", 0, 0}, {"bob", "br_a", 0, 0}} {
		if n, tokens, err := r.Savings(t.Context(), tt.principal, tt.path); n != tt.results || tokens != tt.tokens || err != nil {
			t.Errorf("Savings(%s, %s) = %d, %d, %v; want %d, %d", tt.principal, tt.path, n, tokens, err, tt.results, tt.tokens)
		}
	}
}

// The savings of the latest maxSavings branches are kept.
func TestSavingsAreBounded(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1<<20)
	if _, err := r.db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO savings (principal, context, results, tokens) SELECT 'ada', 'br_' || i, 1, 1 FROM n`, maxSavings+5); err != nil {
		t.Fatal(err)
	}
	if err := r.AddSavings(t.Context(), "ada", "br_new", 1, 7); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := r.db.QueryRowContext(t.Context(), "SELECT count(*) FROM savings").Scan(&n); n != maxSavings || err != nil {
		t.Errorf("the savings of %d branches are kept, %v; want %d", n, err, maxSavings)
	}
	if n, tokens, err := r.Savings(t.Context(), "ada", "br_new"); n != 1 || tokens != 7 || err != nil {
		t.Errorf("Savings(br_new) = %d, %d, %v; want 1, 7", n, tokens, err)
	}
}
