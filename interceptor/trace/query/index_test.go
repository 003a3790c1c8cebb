package query

import (
	"bytes"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// randomRecord draws from few values, so that filters hit.
func randomRecord(rng *rand.Rand, i int) *trace.Record {
	one := func(values ...string) string { return values[rng.IntN(len(values))] }
	flip := func() bool { return rng.IntN(6) == 0 }
	r := &trace.Record{ID: fmt.Sprintf("id%d", i), From: one("host:a", "host:b", "upstream:x"), To: []string{one("host:a", "upstream:x"), "y"},
		Kind:    one("mcp/request:tools/call", "mcp/response:tools/call", "mcp/request:ping", "mcp/reject:tools/call", "conclusion", "reflection"),
		Context: one("", "", "a", "a/b", "a/b/c", "a_x/b", "A/b", "ab", "br_1/br_2"),
		TS:      time.UnixMicro(int64(1e15) + int64(i)*1e6 + rng.Int64N(3e6)).UTC().Format(trace.TimeFormat)}
	for range rng.IntN(3) {
		r.CorrelationID = append(r.CorrelationID, fmt.Sprintf("id%d", rng.IntN(400)))
	}
	if flip() {
		r.Payload = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d}`, rng.IntN(20))
	}
	if flip() {
		return r
	}
	r.Audit = &trace.Audit{Session: one("s1", "s2"), Principal: one("p\"1", "p2", ""), Server: one("files", "every"), Tool: one("read_file", "write_file", ""),
		Late: flip(), Ambiguous: flip(), OverBudget: flip(), IsError: flip()}
	if flip() {
		r.Audit.Decision = &trace.Decision{Result: one(trace.Allowed, trace.Blocked), Reason: one("", "policy", "resource_limit"), Rule: one("", "no-writes", "day")}
	}
	if flip() {
		r.Audit.Scrub = []trace.Finding{{Rule: "r"}}
	}
	if flip() {
		r.Audit.Deprecated = []string{"correlation_string"}
	}
	if flip() {
		r.Audit.Workflow = []byte(`{"context_id":"ctx_B","path":"` + one("ctx_A/ctx_B", "ctx_B") + `","evidence":"` + one("explicit", "join") + `"}`)
	}
	return r
}

func randomFilter(rng *rand.Rand) (f Filter) {
	one := func(values ...string) string { return values[rng.IntN(len(values))] }
	for range 1 + rng.IntN(3) {
		switch rng.IntN(20) {
		case 0:
			f.Context = one("a", "a/b", "a_x", "br_1")
			switch rng.IntN(4) {
			case 0:
				f.Tree = true
			case 1:
				f.Children = true
			case 2:
				f.Ancestors = true
			}
		case 1:
			f.Main = true
		case 2:
			f.Roots = true
		case 3:
			f.Depth = 1 + rng.IntN(3)
		case 4:
			f.Type = one("a", "br", "b")
		case 5:
			f.Conclusions = true
		case 6:
			f.ID = fmt.Sprintf("id%d", rng.IntN(400))
		case 7:
			f.Correlates = one(fmt.Sprintf("id%d", rng.IntN(400)), "rpc:7", "rpc:8", "rpc:9", "rpc:3")
		case 8:
			f.Workflow = one("ctx_A", "ctx_B", "ctx_A/ctx_B")
		case 9:
			f.Evidence = []string{"explicit"}
		case 10:
			f.Session = one("s1", "s*", "x")
		case 11:
			f.Principal = one(`p"1`, "p?")
		case 12:
			f.From, f.To = one("host:*", "", "upstream:x"), one("", "y", "host:a", "upstream*")
		case 13:
			f.Servers, f.Tools = []string{one("files", "*", "f*")}, []string{one("read_*", "*")}
		case 14:
			f.Kinds = []string{one("mcp/request", "mcp/*", "reflection", "mcp/reject:*")}
		case 15:
			f.Since = time.UnixMicro(int64(1e15) + rng.Int64N(4e8))
		case 16:
			f.Until = time.UnixMicro(int64(1e15) + rng.Int64N(4e8))
		case 17:
			f.Blocked, f.Reason, f.Rule = rng.IntN(2) == 0, one("", "policy"), one("", "", "no-*", "r", "d?y")
		case 18:
			f.Scrubbed, f.Late, f.Errors = rng.IntN(2) == 0, rng.IntN(3) == 0, rng.IntN(3) == 0
		case 19:
			f.OverBudget, f.Ambiguous, f.Deprecated = rng.IntN(2) == 0, rng.IntN(3) == 0, rng.IntN(3) == 0
		}
	}
	return f
}

// TestIndexChangesNoAnswer: over random journals and filters, a query by index
// and one that reads every line give the same.
func TestIndexChangesNoAnswer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 30_000})
	for i := range 400 {
		add(t, j, randomRecord(rng, i))
	}
	names, err := trace.Segments(dir)
	if err != nil || len(names) < 3 {
		t.Fatalf("%v, %v, want several files", names, err)
	}
	query(t, dir, Filter{}) // fills the index, which the next query extends
	hits := 0
	for range 400 {
		f := randomFilter(rng)
		if f.Validate() != nil {
			continue
		}
		byIndex := ids(query(t, dir, f))
		f.NoIndex = true
		if d := cmp.Diff(ids(query(t, dir, f)), byIndex); d != "" {
			t.Fatalf("%+v: %s", f, d)
		}
		hits += len(byIndex)
	}
	if hits < 150 {
		t.Errorf("only %d hits: the filters are too narrow to show anything", hits)
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if fi, _ := e.Info(); fi.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v, want 0600", e.Name(), fi.Mode().Perm())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, indexName)); err != nil {
		t.Error(err)
	}
	closeJournal(t, j)
	for _, f := range verify(t, dir).Faults {
		if f.Code == trace.FaultIndex {
			t.Errorf("fault %v, want sound indexes", f)
		}
	}
}

// TestBadIndex: an index that is damaged, of another file or of a file that
// has changed is not used; a forged one is found by verify.
func TestBadIndex(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache) // where an index lies that can't be made again
	build := func(t *testing.T) (dir, idx string) {
		dir = t.TempDir()
		j := open(t, dir, trace.Options{RotateBytes: 3000})
		for range 10 {
			call(t, j, "a")
		}
		closeJournal(t, j)
		query(t, dir, Filter{})
		idx = filepath.Join(dir, indexName)
		if _, err := os.Stat(idx); err != nil {
			t.Fatal(err)
		}
		return dir, idx
	}
	good, _ := build(t)
	n := len(query(t, good, Filter{Context: "a"}))
	for name, bad := range map[string]func(data []byte) []byte{
		"empty":   func([]byte) []byte { return nil }, // the next query makes it again
		"cut":     func(d []byte) []byte { return d[:len(d)/2] },
		"not one": func([]byte) []byte { return []byte("something else, long enough for a header") },
		"foreign": func(d []byte) []byte { return bytes.Replace(d, []byte("fgty"), []byte("fgtx"), 1) }, // of an older schema
		"newer":   func(d []byte) []byte { d[63]++; return d },                                          // user_version
	} {
		dir, idx := build(t)
		data, err := os.ReadFile(idx)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(idx, bad(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, dir); r.OK() != (name == "empty") || !r.OK() && r.Faults[0].Code != trace.FaultIndex {
			t.Errorf("%s: verify says %v", name, r.Faults)
		}
		if got := len(query(t, dir, Filter{Context: "a"})); got != n {
			t.Errorf("%s: %d records, want %d", name, got, n)
		}
		if r := verify(t, dir); !r.OK() {
			t.Errorf("%s: after a query verify says %v, want a new index", name, r.Faults)
		}
		if left, _ := os.ReadDir(cache); len(left) > 0 {
			t.Fatalf("%s: the index lies elsewhere now", name)
		}
	}
	dir, idx := build(t)
	db, err := sqlitedb.Open(t.Context(), idx, options)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("UPDATE word SET value = CAST('z' AS BLOB) WHERE value = CAST('a' AS BLOB)"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir); r.OK() || r.Faults[0].Code != trace.FaultIndex {
		t.Errorf("forged index: verify says %v", r.Faults)
	}
	if got := len(query(t, dir, Filter{Context: "a", NoIndex: true})); got != n {
		t.Errorf("NoIndex: %d records, want %d", got, n)
	}
}

// TestRPCIDs: an id is found as the value in the message and by what a string
// says, with the index and without.
func TestRPCIDs(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	for _, id := range []string{`42`, `"42"`, `"\"42\""`, `"a\nb"`, `""`, `"\""`, `"\"x"`} {
		add(t, j, &trace.Record{Kind: "mcp/request:ping", Payload: []byte(`{"id":` + id + `}`)})
	}
	for ask, want := range map[string]int{`42`: 2, `"42"`: 2, `"\"42\""`: 1, "a\nb": 1, `"a\nb"`: 1, `""`: 1, ``: 1, `"`: 1, `"x`: 1, `x`: 0, `4`: 0} {
		for _, without := range []bool{false, true} {
			if got := len(query(t, dir, Filter{Correlates: "rpc:" + ask, NoIndex: without})); got != want {
				t.Errorf("rpc:%s, without the index %v: %d records, want %d", ask, without, got, want)
			}
		}
	}
}

// TestDamagedIndex: an index that is damaged inside stops no query.
func TestDamagedIndex(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 3000})
	for i := range 10 {
		add(t, j, &trace.Record{From: "host:h", Kind: "mcp/request:tools/call", Context: "a", Payload: []byte(`{"id":1}`),
			Audit: &trace.Audit{Server: fmt.Sprint("s", i%2), Late: i%2 == 0}})
	}
	closeJournal(t, j)
	query(t, dir, Filter{})
	path := filepath.Join(dir, indexName)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	filters := []Filter{{Servers: []string{"s1"}}, {From: "host:*", Late: true}, {Correlates: "rpc:1"}, {Orphans: true}}
	n := 0
	for i, b := range good {
		if b == 0 && i%97 != 0 { // most of the file is empty
			continue
		}
		if n++; n%25 != 0 {
			continue
		}
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		query(t, dir, filters[n/25%len(filters)])
	}
	if n < 1000 {
		t.Errorf("only %d places", n)
	}
}

// TestStaleIndex: an index of lines that are no longer in the journal is
// rebuilt, and it forgets what retention removes.
func TestStaleIndex(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 3000})
	for i := range 40 {
		call(t, j, fmt.Sprint("c", i))
	}
	closeJournal(t, j)
	x, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ask := func(f Filter) []*trace.Record {
		var rs []*trace.Record
		for r, err := range x.Select(t.Context(), f) {
			if err != nil {
				t.Fatal(err)
			}
			rs = append(rs, r)
		}
		return rs
	}
	if n := len(ask(Filter{})); n != 80 {
		t.Fatalf("%d records, want 80", n)
	}
	names, err := trace.Segments(dir)
	if err != nil || len(names) < 4 {
		t.Fatal(names, err)
	}
	for _, name := range names[:2] { // as retention does
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	left := len(ask(Filter{}))
	want := len(query(t, dir, Filter{NoIndex: true}))
	if left != want || left == 80 || len(ask(Filter{Context: "c0"})) != 0 {
		t.Errorf("%d records after retention, want %d", left, want)
	}
	rows := func(query string) (n int) {
		if err := x.database().QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := rows("SELECT count(*) FROM word WHERE field = 0"); n > want/2+2 {
		t.Errorf("%d contexts are indexed, want those of %d records", n, want)
	}
	if n := rows("SELECT count(*) FROM link"); n > (want+1)/2 { // the first may be a response
		t.Errorf("%d links are indexed, want those of %d records", n, want)
	}
	last := filepath.Join(dir, names[len(names)-1])
	data, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	if err := os.Truncate(last, int64(cut)); err != nil {
		t.Fatal(err)
	}
	if n := len(ask(Filter{})); n != left-1 {
		t.Errorf("%d records after the last was cut off, want %d", n, left-1)
	}
	changed := bytes.ReplaceAll(data[:cut], []byte(`"context":"c39"`), []byte(`"context":"c99"`))
	if err := os.WriteFile(last, append(changed, data[cut:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := len(ask(Filter{Context: "c39"})); n != 1 {
		t.Errorf("%d records of a context, want the last", n)
	}
}

// TestPlaces: an index lies in the cache directory if it can't lie beside the
// journal, else in a temporary directory for the time of its use.
func TestPlaces(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	j := open(t, dir, trace.Options{})
	req := call(t, j, "a")
	if err := os.Mkdir(filepath.Join(dir, indexName), 0o700); err != nil { // so that no file can be made there
		t.Fatal(err)
	}
	for range 2 {
		if got := query(t, dir, Filter{ID: req.ID}); len(got) != 1 {
			t.Errorf("%d records, want 1", len(got))
		}
	}
	cached, err := filepath.Glob(filepath.Join(cache, "foldgate", "*", indexName))
	if err != nil || len(cached) != 1 {
		t.Fatalf("cached indexes: %v, %v, want one", cached, err)
	}
	month := time.Now().Add(-31 * 24 * time.Hour)
	if err := os.Chtimes(cached[0], month, month); err != nil {
		t.Fatal(err)
	}
	query(t, t.TempDir(), Filter{})
	if _, err := os.Stat(cached[0]); err == nil {
		t.Error("an index that nobody uses stays in the cache")
	}
	t.Setenv("XDG_CACHE_HOME", "/dev/null")
	t.Setenv("TMPDIR", t.TempDir())
	if got := query(t, dir, Filter{Chain: req.ID}); len(got) != 2 {
		t.Errorf("%d records, want 2", len(got))
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) != 0 {
		t.Errorf("a temporary index stays: %v", left)
	}
}

// TestFullDisk: an index that can't grow is kept, and goes on where it stands.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	call(t, j, "a")
	x, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ask := func() (n int, err error) {
		for _, err := range x.Select(t.Context(), Filter{}) {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	if n, err := ask(); n != 2 || err != nil {
		t.Fatalf("%d records, %v", n, err)
	}
	good := x.database()
	good.SetMaxOpenConns(1)                                                               // the limit is of the connection
	if _, err := good.ExecContext(t.Context(), "PRAGMA max_page_count = 1"); err != nil { // what there is, is the least
		t.Fatal(err)
	}
	for i := range 1000 {
		call(t, j, fmt.Sprint("b", i))
	}
	if _, err := ask(); !sqlitedb.IsUnavailable(err) {
		t.Errorf("error %v, want that the disk is full", err)
	}
	if x.database() != good {
		t.Fatal("the index was replaced")
	}
	if _, err := good.ExecContext(t.Context(), "PRAGMA max_page_count = 100000"); err != nil {
		t.Fatal(err)
	}
	if n, err := ask(); n != 2002 || err != nil {
		t.Errorf("%d records, %v, want 2002", n, err)
	}
	if x.database() != good {
		t.Error("the index was replaced")
	}
}

// TestReplacedIndex: the database of a replaced index is closed; the query that uses it goes on with the new one.
func TestReplacedIndex(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	for i := range 3 * blockRecords / 2 { // two blocks: two statements
		add(t, j, &trace.Record{ID: fmt.Sprint(i), Kind: "mcp/request:ping"})
	}
	x, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	n := 0
	var old *sql.DB
	for r, err := range x.Select(t.Context(), Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.ID != fmt.Sprint(n) {
			t.Fatalf("record %s, want %d", r.ID, n)
		}
		if n++; n == 10 {
			old = x.database()
			if err := x.refresh(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n != 3*blockRecords/2 {
		t.Errorf("%d records", n)
	}
	if err := old.PingContext(t.Context()); err == nil || old.Stats().OpenConnections != 0 {
		t.Errorf("the old database is open: %v, %d connections", err, old.Stats().OpenConnections)
	}
}
