package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// randomRecord draws from few values, so that filters hit.
func randomRecord(rng *rand.Rand, i int) *Record {
	one := func(values ...string) string { return values[rng.IntN(len(values))] }
	flip := func() bool { return rng.IntN(6) == 0 }
	r := &Record{ID: fmt.Sprintf("id%d", i), From: one("host:a", "host:b", "upstream:x"), To: []string{one("host:a", "upstream:x"), "y"},
		Kind:    one("mcp/request:tools/call", "mcp/response:tools/call", "mcp.request", "mcp/reject:tools/call", "conclusion", "reasoning/thought"),
		Context: one("", "", "a", "a/b", "a/b/c", "a_x/b", "A/b", "ab", "br_1/br_2"),
		TS:      time.UnixMicro(int64(1e15) + int64(i)*1e6 + rng.Int64N(3e6)).UTC().Format(TimeFormat)}
	for range rng.IntN(3) {
		r.CorrelationID = append(r.CorrelationID, fmt.Sprintf("id%d", rng.IntN(400)))
	}
	if flip() {
		r.Payload = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d}`, rng.IntN(20))
	}
	if flip() {
		return r
	}
	r.Audit = &Audit{Session: one("s1", "s2"), Principal: one("p\"1", "p2", ""), Server: one("files", "every"), Tool: one("read_file", "write_file", ""),
		Late: flip(), Ambiguous: flip(), OverBudget: flip(), IsError: flip()}
	if flip() {
		r.Audit.Decision = &Decision{Result: one(Allowed, Blocked), Reason: one("", "policy", "resource_limit")}
	}
	if flip() {
		r.Audit.Scrub = []Finding{{Rule: "r"}}
	}
	if flip() {
		r.Audit.Deprecated = []string{DeprecatedString}
	}
	if flip() {
		r.Audit.Hops = &Hops{Host: []byte(one("7", `"8"`)), Upstream: []byte("9")}
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
			f.Blocked, f.Reason = rng.IntN(2) == 0, one("", "policy")
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
	j := open(t, dir, Options{RotateBytes: 30_000})
	for i := range 400 {
		add(t, j, randomRecord(rng, i))
	}
	names, err := segments(dir)
	if err != nil || len(names) < 3 {
		t.Fatalf("%v, %v, want several files", names, err)
	}
	// The file being written: an index on the disk over its first half, the rest in memory.
	last := filepath.Join(dir, names[len(names)-1])
	data, err := buildIndex(last, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	saveIndex(last, data)
	for i := 400; i < 410; i++ {
		add(t, j, randomRecord(rng, i))
	}
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
	n := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), indexSuffix) {
			n++
		}
		if fi, _ := e.Info(); fi.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v, want 0600", e.Name(), fi.Mode().Perm())
		}
	}
	if n != len(names) {
		t.Errorf("%d indexes for %d files", n, len(names))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range verify(t, dir).Faults {
		if f.Code == FaultIndex {
			t.Errorf("fault %v, want sound indexes", f)
		}
	}
}

// TestBadIndex: an index that is damaged, of another file or of a file that
// has changed is not used; a forged one is found by verify.
func TestBadIndex(t *testing.T) {
	build := func(t *testing.T) (dir, idx string) {
		dir = t.TempDir()
		j := open(t, dir, Options{RotateBytes: 3000})
		for range 10 {
			call(t, j, "a")
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		query(t, dir, Filter{})
		idx = filepath.Join(dir, segmentName(1)+indexSuffix)
		if _, err := os.Stat(idx); err != nil {
			t.Fatal(err)
		}
		return dir, idx
	}
	good, _ := build(t)
	n := len(query(t, good, Filter{Context: "a"}))
	for name, bad := range map[string]func(data []byte) []byte{
		"empty":   func([]byte) []byte { return nil },
		"cut":     func(d []byte) []byte { return d[:len(d)/2] },
		"not one": func([]byte) []byte { return []byte("something else, long enough for a header") },
		"huge":    func(d []byte) []byte { return append([]byte(indexMagic+"\xff\xff\xff\x7f"), d...) },
	} {
		dir, idx := build(t)
		data, err := os.ReadFile(idx)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(idx, bad(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, dir); r.OK() || r.Faults[0].Code != FaultIndex {
			t.Errorf("%s: verify says %v", name, r.Faults)
		}
		if got := len(query(t, dir, Filter{Context: "a"})); got != n {
			t.Errorf("%s: %d records, want %d", name, got, n)
		}
		if r := verify(t, dir); !r.OK() {
			t.Errorf("%s: after a query verify says %v, want a new index", name, r.Faults)
		}
	}
	dir, idx := build(t)
	data, err := os.ReadFile(idx)
	if err != nil {
		t.Fatal(err)
	}
	data = []byte(strings.Replace(string(data), "\x01a", "\x01z", 1)) // the dictionary of contexts
	if err := os.WriteFile(idx, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir); r.OK() || r.Faults[0].Code != FaultIndex {
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
	j := open(t, dir, Options{})
	for _, id := range []string{`42`, `"42"`, `"\"42\""`, `"a\nb"`, `""`, `"\""`, `"\"x"`} {
		add(t, j, &Record{Kind: "mcp/request:ping", Payload: []byte(`{"id":` + id + `}`)})
	}
	for ask, want := range map[string]int{`42`: 2, `"42"`: 2, `"\"42\""`: 1, "a\nb": 1, `"a\nb"`: 1, `""`: 1, ``: 1, `"`: 1, `"x`: 1, `x`: 0, `4`: 0} {
		for _, without := range []bool{false, true} {
			if got := len(query(t, dir, Filter{Correlates: "rpc:" + ask, NoIndex: without})); got != want {
				t.Errorf("rpc:%s, without the index %v: %d records, want %d", ask, without, got, want)
			}
		}
	}
}

// TestDamagedIndex: an index that opens and is damaged inside stops no query
// but by an error that says what to do.
func TestDamagedIndex(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 3000})
	for i := range 10 {
		add(t, j, &Record{From: "host:h", Kind: "mcp/request:tools/call", Context: "a", Payload: []byte(`{"id":1}`),
			Audit: &Audit{Server: fmt.Sprint("s", i%2), Late: i%2 == 0}})
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	query(t, dir, Filter{})
	name := segmentName(1) + indexSuffix
	good, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	x, err := openIndex(bytes.NewReader(good), int64(len(good)))
	if err != nil {
		t.Fatal(err)
	}
	var bad [][]byte
	for i := 0; i < len(good); i += 3 {
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		bad = append(bad, b)
	}
	for _, less := range []string{"offsets", "times", "flags", colName(colServer), colName(colFrom)} { // the next section has the rest
		h := x.indexHeader
		h.Sections = maps.Clone(h.Sections)
		h.Sections[less] -= 2
		h.Sections[sectionNames()[slices.Index(sectionNames(), less)+1]] += 2
		head := rawjson.Marshal(h)
		b := binary.LittleEndian.AppendUint32([]byte(indexMagic), uint32(len(head)))
		bad = append(bad, append(append(b, head...), good[x.start["offsets"]:]...))
	}
	for _, b := range bad {
		for _, f := range []Filter{{Servers: []string{"s1"}}, {From: "host:*", Late: true}, {Correlates: "rpc:1"}, {Orphans: true}} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Query(dir, f, func(*Record) bool { return true }); err != nil &&
				(!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "delete it")) {
				t.Fatalf("%+v: %v, want the name of the index and what to do", f, err)
			}
		}
	}
}
