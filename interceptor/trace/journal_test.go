package trace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// open opens a journal that is closed at the end of the test.
func open(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	j, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil && !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	return j
}

func add(t *testing.T, j *Journal, rs ...*Record) {
	t.Helper()
	for _, r := range rs {
		if err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
}

// pick selects records of a journal; the journal's own only if Journal is set or
// Kinds names them.
type pick struct {
	ID      string
	Kinds   []string
	Journal bool
}

func query(t *testing.T, dir string, p pick) []*Record {
	t.Helper()
	names, err := Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	rs := []*Record{}
	for _, name := range names {
		if err := ReadLines(filepath.Join(dir, name), 0, func(line []byte, _ int64, _ bool) bool {
			r, _, err := ParseLine(line)
			if err == nil && (p.ID == "" || r.ID == p.ID) &&
				(len(p.Kinds) > 0 && slices.Contains(p.Kinds, r.Kind) || len(p.Kinds) == 0 && (p.Journal || r.Kind != KindJournal)) {
				rs = append(rs, r)
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return rs
}

func TestAppendThenQueryGivesTheSameRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trace")
	j := open(t, dir, Options{})
	want := &Record{From: "host:<h>#s", To: []string{"upstream:files"}, Kind: "mcp/request:tools/call",
		CorrelationID: IDs{"a", "b", "a"}, Context: "br_1/br_2",
		Payload: []byte(`{"jsonrpc":"2.0","id":9007199254740993,"x":"é<\u2028"}`),
		Audit: &Audit{Session: "s", Tokens: &Tokens{Counter: "o200k_base", In: 3}, MS: 1.5, Late: true,
			Scrub: []Finding{{Rule: "github-pat", Count: 1}}}}
	add(t, j, want)
	got := query(t, dir, pick{})
	if len(got) == 1 && len(got[0].Digest) == hashLen && len(got[0].Salt) == 2*saltBytes {
		want.Digest, want.Salt = got[0].Digest, got[0].Salt
	}
	if d := cmp.Diff([]*Record{want}, got); d != "" {
		t.Error(d)
	}
	if want.Seq != 2 || len(want.CorrelationID) != 2 || !strings.HasPrefix(want.ID, "env_") {
		t.Errorf("record = %+v, want seq 2 (after the journal's own first record), 2 correlations, an id", want)
	}
	if all := query(t, dir, pick{Journal: true}); len(all) != 2 || all[0].Kind != KindJournal || all[1].Prev != all[0].Hash || all[0].Prev != genesis {
		t.Errorf("journal = %v, want its own first record, then the chain", all)
	}
}

func TestConcurrentAppendsFormOneChain(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 20 << 10})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if err := j.Append(&Record{From: "f", Kind: "k", Context: fmt.Sprintf("w%d", w), Payload: fmt.Appendf(nil, "%d", i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	prev, seq := genesis, uint64(0)
	for _, r := range query(t, dir, pick{Journal: true}) {
		if r.Prev != prev || r.Seq != seq+1 {
			t.Fatalf("record %d does not continue the chain", r.Seq)
		}
		prev, seq = r.Hash, r.Seq
		if r.Context != "" {
			if string(r.Payload) != fmt.Sprint(next[r.Context]) {
				t.Fatalf("%s: payload %s, want %d: each caller's records keep their order", r.Context, r.Payload, next[r.Context])
			}
			next[r.Context]++
		}
	}
	for w, n := range next {
		if n != 100 {
			t.Errorf("%s has %d records, want 100", w, n)
		}
	}
	if names, _ := Segments(dir); len(names) < 3 {
		t.Errorf("%d files, want rotation", len(names))
	}
}

// Of records that are appended while the journal is closed, those are in it
// that Append said so of, each whole, up to the limit of payloads.
func TestCloseBesideAppends(t *testing.T) {
	const limit = 1000
	for range 10 {
		dir := t.TempDir()
		j := open(t, dir, Options{RotateBytes: 20 << 10, Sync: SyncNever})
		j.maxPayload = limit
		var appended atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					size := limit - 2 + i%5
					text := strings.Repeat("x", size-2)
					r := &Record{Kind: "k", Audit: &Audit{Bytes: int64(size)}}
					err := j.Append(r, []byte(`"`), []byte(text), []byte(`"`))
					if err == ErrClosed {
						return
					}
					if err != nil || r.Seq == 0 || r.Audit.Truncated != (size > limit) {
						t.Errorf("payload of %d bytes: %v, %+v", size, err, r.Audit)
					}
					if appended.Add(1) == 100 {
						if err := j.Close(); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		records := query(t, dir, pick{Kinds: []string{"k"}})
		if len(records) != int(appended.Load()) {
			t.Errorf("%d records, want %d", len(records), appended.Load())
		}
		for _, r := range records {
			if len(r.Payload) != int(r.Audit.Bytes) && !r.Audit.Truncated {
				t.Errorf("payload of %d bytes has %d", r.Audit.Bytes, len(r.Payload))
			}
		}
		if v, err := Verify(t.Context(), dir, VerifyOptions{}); err != nil || !v.OK() {
			t.Errorf("Verify = %+v, %v", v, err)
		}
	}
}

func TestOnlyOneWriter(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	_, err := Open(dir, Options{})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("second Open = %v, want ErrInUse naming the process", err)
	}
	closeJournal(t, j)
	open(t, dir, Options{})
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "trace")
	j := open(t, dir, Options{})
	add(t, j, &Record{Kind: "k"})
	closeJournal(t, j)
	if fi, _ := os.Stat(dir); fi.Mode().Perm() != 0o700 {
		t.Errorf("directory is %v, want 0700", fi.Mode().Perm())
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 3 {
		t.Errorf("%d files, want journal, head and lock", len(entries))
	}
	for _, e := range entries {
		if fi, _ := e.Info(); fi.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v, want 0600", e.Name(), fi.Mode().Perm())
		}
	}
}

func TestAppendRefusesWhatIsNoRecord(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	for _, r := range []*Record{{}, {Kind: "k", Context: "../x"}, {Kind: "k", Context: "a\nb"}} {
		if err := j.Append(r); err == nil {
			t.Errorf("Append(%+v) = nil, want an error", r)
		}
	}
	closeJournal(t, j)
	if err := j.Append(&Record{Kind: "k"}); !errors.Is(err, ErrClosed) {
		t.Errorf("Append after Close = %v", err)
	}
}

func TestPayloadsCannotBreakTheLine(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	j.maxPayload = 1000
	shared := &Audit{Session: "s"}
	add(t, j,
		&Record{Kind: "k", Payload: []byte("{\n \"a\": 1}"), Audit: shared},
		&Record{Kind: "k", Payload: []byte("not json\n{}"), Audit: shared},
		&Record{Kind: "k", Payload: []byte(`"` + strings.Repeat("x", 2000) + `"`), Audit: shared})
	rs := query(t, dir, pick{})
	if len(rs) != 3 {
		t.Fatalf("%d records, want 3", len(rs))
	}
	deep := open(t, t.TempDir(), Options{})
	add(t, deep, &Record{ID: "deep", Kind: "k", Payload: []byte(strings.Repeat("[", 9_990) + strings.Repeat("]", 9_990))})
	if rs := query(t, deep.dir, pick{ID: "deep"}); len(rs) != 1 || rs[0].Payload[0] != '"' || !rs[0].Audit.Truncated {
		t.Errorf("a payload that no reader takes: %d records, want it as a string", len(rs))
	}
	if string(rs[0].Payload) != `{"a":1}` || rs[0].Audit.Truncated {
		t.Errorf("payload = %s", rs[0].Payload)
	}
	if string(rs[1].Payload) != `"not json\n{}"` || !rs[1].Audit.Truncated {
		t.Errorf("payload = %s", rs[1].Payload)
	}
	if !strings.Contains(string(rs[2].Payload), `"bytes":2002`) || !rs[2].Audit.Truncated {
		t.Errorf("payload = %s", rs[2].Payload)
	}
	if shared.Truncated {
		t.Error("the caller's Audit was changed")
	}
}

// A payload in pieces is stored as if it had been put together before.
func TestPayloadInPieces(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	j.maxPayload = 100
	for i, payload := range []string{`{"a":[1,"b"]}`, "{\n \"a\": 1 }", `{"a":`, `"` + strings.Repeat("x", 200) + `"`, ""} {
		whole := &Record{From: "a", Kind: "test/whole", Payload: []byte(payload)}
		if err := j.Append(whole); err != nil {
			t.Fatal(err)
		}
		at := len(payload) / 3
		pieces := &Record{From: "a", Kind: "test/pieces", Payload: []byte(`"not this"`)}
		if err := j.Append(pieces, []byte(payload[:at]), nil, []byte(payload[at:])); err != nil {
			t.Fatal(err)
		}
		if i == 0 && string(whole.Payload) != payload {
			t.Errorf("Append changed the payload to %s", whole.Payload)
		}
	}
	whole, pieces := query(t, j.dir, pick{Kinds: []string{"test/whole"}}), query(t, j.dir, pick{Kinds: []string{"test/pieces"}})
	if len(whole) != 5 || len(pieces) != 5 {
		t.Fatalf("%d and %d records, want 5 of each", len(whole), len(pieces))
	}
	for i := range whole {
		if w, p := whole[i], pieces[i]; string(w.Payload) != string(p.Payload) || (w.Audit != nil && w.Audit.Truncated) != (p.Audit != nil && p.Audit.Truncated) {
			t.Errorf("payload %d is %s in pieces, %s whole", i, p.Payload, w.Payload)
		}
	}
}

// flushNow does at once what the flusher does later.
func (j *Journal) flushNow() error {
	j.flush()
	return j.Err()
}

// write writes a file that a test reads.
func write[T string | []byte](t testing.TB, file string, text T) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// read returns what a file holds.
func read(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// closeJournal closes a journal without a fault.
func closeJournal(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}
