package trace

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files returns the lines of a journal by file.
func files(t *testing.T, dir string) map[string][]string {
	t.Helper()
	names, err := Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, name := range names {
		data := read(t, filepath.Join(dir, name))
		lines := strings.SplitAfter(string(data), "\n")
		out[name] = lines[:len(lines)-1]
	}
	return out
}

// TestErase erases random records, and records with neighbours, and proves that nothing else changed.
func TestErase(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			j := open(t, dir, Options{RotateBytes: int64(2000 + 1000*seed)})
			for i := range 30 {
				add(t, j, &Record{From: "a", Kind: "k", Payload: fmt.Appendf(nil, `{"text":"word-%d","hash":"x","payload":{},"salt":"%s"}`, i, strings.Repeat("z", random.IntN(300)))})
			}
			add(t, j, &Record{From: "a", Kind: "without a payload"})
			all := query(t, dir, pick{Journal: true})
			anchor := Anchor{Seq: j.seq, Hash: j.hash}
			var chosen []uint64
			words := map[string]bool{} // by the word: whether it is to go
			for _, r := range all {
				if take := random.IntN(3) == 0; r.Kind == "k" {
					word, _, _ := strings.Cut(string(r.Payload[9:]), `"`)
					if words[word+`"`] = take; take {
						chosen = append(chosen, r.Seq)
					}
				} else if take {
					chosen = append(chosen, r.Seq) // without an effect
				}
			}
			before := files(t, dir)
			random.Shuffle(len(chosen), func(i, k int) { chosen[i], chosen[k] = chosen[k], chosen[i] })
			for range 2 { // again is without an effect
				if err := j.Erase(chosen, "root"); err != nil {
					t.Fatal(err)
				}
			}
			call(t, j, "after")
			closeJournal(t, j)
			gone := 0
			var text strings.Builder
			for name, lines := range files(t, dir) {
				for i, line := range lines {
					if text.WriteString(line); i >= len(before[name]) || line == before[name][i] {
						continue
					}
					was, _, _ := ParseLine([]byte(strings.TrimSuffix(before[name][i], "\n")))
					is, intact, err := ParseLine([]byte(strings.TrimSuffix(line, "\n")))
					if gone++; err != nil || !intact || !is.Erased() || !was.Erasable() || is.Salt != "" || is.Hash != was.Hash || !slices.Contains(chosen, is.Seq) {
						t.Errorf("%s became %s", before[name][i], line)
					}
				}
			}
			want := 0
			for word, erased := range words {
				if erased {
					want++
				}
				if strings.Contains(text.String(), word) == erased {
					t.Errorf("%s: erased %v, in the files %v", word, erased, !erased)
				}
			}
			r, err := Verify(t.Context(), dir, VerifyOptions{Anchors: []Anchor{anchor}})
			if err != nil || !r.OK() || int(r.Erased) != want || gone != want {
				t.Errorf("%v, %+v: want %d erased, found %d", err, r, want, gone)
			}
			j = open(t, dir, Options{})
			closeJournal(t, j)
			if r := verify(t, dir); !r.OK() {
				t.Errorf("after a start: %v", r.Faults)
			}
		})
	}
}

// TestEraseBesideAppends: while payloads are erased, records are appended and retention removes files, which
// stay removed. No other payload goes. Close ends an erasure.
func TestEraseBesideAppends(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 2000, RetainFiles: 100, Sync: SyncNever})
	var even []uint64
	for n := range uint64(1000) {
		even = append(even, 2*n)
	}
	done := make(chan error)
	go func() {
		for {
			if err := j.Erase(even, "root"); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 500 {
		add(t, j, &Record{From: "a", Kind: "k", Payload: []byte(`{"text":"personal"}`)})
	}
	if err := j.Erase(even, "root"); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("an erasure after Close: %v", err)
	}
	if r := verify(t, dir); !r.OK() || r.Files > 100 || r.Erased == 0 {
		t.Errorf("%+v", r)
	}
	odd := 0
	for _, r := range query(t, dir, pick{}) {
		if r.Seq%2 == 1 {
			if odd++; r.Erased() {
				t.Errorf("the payload of record %d is erased", r.Seq)
			}
		}
	}
	if odd < 10 {
		t.Errorf("only %d records that keep their payload", odd)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	gone, tmp := filepath.Join(dir, SegmentName(1)), filepath.Join(dir, "x.tmp")
	write(t, tmp, "")
	if err := j.replace(gone, tmp); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(gone); err == nil {
		t.Error("an erasure brings a file back that retention has removed")
	}
}

// TestEraseStops: an erasure that ends early loses nothing, and the next one does the rest.
func TestEraseStops(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 2000})
	var seqs []uint64
	for range 20 {
		r := &Record{From: "a", Kind: "k", Payload: []byte(`{"text":"personal"}`)}
		add(t, j, r)
		seqs = append(seqs, r.Seq)
	}
	names, err := Segments(dir)
	if err != nil || len(names) < 4 {
		t.Fatal(names, err)
	}
	stop := filepath.Join(dir, names[2]+".tmp")
	if err := os.MkdirAll(filepath.Join(stop, "x"), 0o700); err != nil { // no file can be made there
		t.Fatal(err)
	}
	if err := j.Erase(seqs, "root"); err == nil || !strings.Contains(err.Error(), "run the erasure again") {
		t.Errorf("%v, want an error that says what to do", err)
	}
	if r := verify(t, dir); !r.OK() || r.Erased == 0 || r.Erased == 20 {
		t.Errorf("an erasure that stopped: %+v", r)
	}
	add(t, j, &Record{From: "a", Kind: "k"})
	closeJournal(t, j)
	if err := os.RemoveAll(stop); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stop, []byte(`{"text":"personal"`), 0o600); err != nil { // as of a killed process
		t.Fatal(err)
	}
	j = open(t, dir, Options{})
	if _, err := os.Stat(stop); err == nil {
		t.Error("a start leaves the file of an erasure that was killed")
	}
	if err := j.Erase(seqs, "root"); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	if r := verify(t, dir); !r.OK() || r.Erased != 20 {
		t.Errorf("after the second erasure: %+v", r)
	}
	for name, lines := range files(t, dir) {
		if strings.Contains(strings.Join(lines, ""), "personal") {
			t.Errorf("%s has an erased text", name)
		}
	}
}

// TestEraseOnlyWhatIs: an erasure does not announce that later records will lose their payloads.
func TestEraseOnlyWhatIs(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	some := func() {
		for n := range 3 {
			add(t, j, &Record{From: "a", Kind: "k", Payload: fmt.Appendf(nil, `{"n":%d}`, n)})
		}
	}
	some()
	for _, seqs := range [][]uint64{{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1_000_000}, {1_000_000}} {
		if err := j.Erase(seqs, "root"); err != nil {
			t.Fatal(err)
		}
	}
	some()
	closeJournal(t, j)
	if r := verify(t, dir); !r.OK() || r.Erased != 2 {
		t.Fatalf("before: %+v", r)
	}
	names, err := Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, names[len(names)-1]), func(l [][]byte) [][]byte { l[len(l)-1] = bare(l[len(l)-1]); return l })
	if r := verify(t, dir); r.Total != 1 || r.Faults[0].Code != FaultErased {
		t.Errorf("faults = %v, want one, %s", r.Faults, FaultErased)
	}
}

// TestEraseBesideVerify: an erasure in a file that Verify has not read yet is announced in one that began after
// Verify listed the files. That is no fault; a payload that somebody took before is one, also if an
// erasure comes with every pass.
func TestEraseBesideVerify(t *testing.T) {
	for _, forged := range []bool{false, true} {
		dir := t.TempDir()
		j := open(t, dir, Options{})
		record := func() uint64 {
			r := &Record{From: "a", Kind: "k", Payload: []byte(`{"text":"personal"}`)}
			add(t, j, r)
			return r.Seq
		}
		erase := func(seq uint64) {
			if err := j.Erase([]uint64{seq}, "root"); err != nil {
				t.Error(err)
			}
		}
		record()
		erase(record()) // the second file begins
		record()
		if forged {
			edit(t, filepath.Join(dir, SegmentName(1)), func(l [][]byte) [][]byte { l[1] = bare(l[1]); return l })
		}
		passes := 0
		r, err := Verify(t.Context(), dir, VerifyOptions{Each: func() func(*Record, string, int64, int) {
			passes++
			return func(r *Record, _ string, _ int64, _ int) {
				if r.Seq == 1 && (passes == 1 || forged && passes < 9) {
					erase(record())
				}
			}
		}})
		if err := errors.Join(err, j.Close()); err != nil {
			t.Fatal(err)
		}
		if passes != 2 || r.OK() == forged || forged && (r.Total != 1 || r.Faults[0].Code != FaultErased || !strings.Contains(r.Faults[0].Text, "record 2 ")) {
			t.Errorf("forged %v: after %d passes %+v", forged, passes, r)
		}
	}
}

// TestForgedErasure: who takes or changes a payload without a record of it is found.
func TestForgedErasure(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(l [][]byte) [][]byte
		code   string
	}{
		{"a payload is taken", func(l [][]byte) [][]byte { l[3] = bare(l[3]); return l }, FaultErased},
		{"a payload goes to another record", func(l [][]byte) [][]byte {
			l[3] = append(bytes.TrimSuffix(bare(l[3]), []byte("}\n")), l[4][len(bare(l[4]))-2:]...)
			return l
		}, FaultHash},
		{"a salt is changed", func(l [][]byte) [][]byte {
			at := bytes.Index(l[3], []byte(saltMember)) + len(saltMember)
			l[3][at] ^= 1
			return l
		}, FaultHash},
		{"a salt is taken", func(l [][]byte) [][]byte {
			at := bytes.Index(l[3], []byte(saltMember))
			l[3] = slices.Delete(l[3], at, at+len(saltMember)+2*saltBytes+1)
			return l
		}, FaultHash},
		{"the journal's own payload is taken", func(l [][]byte) [][]byte { l[0] = bare(l[0]); return l }, FaultFormat},
		{"a payload comes to an erased record", func(l [][]byte) [][]byte {
			l[1] = append(bytes.TrimSuffix(l[1], []byte("}\n")), `,"salt":"00","payload":{}}`+"\n"...)
			return l
		}, FaultHash},
		{"a payload comes to a record without one", func(l [][]byte) [][]byte {
			l[2] = append(bytes.TrimSuffix(l[2], []byte("}\n")), `,"digest":"","payload":{}}`+"\n"...)
			return l
		}, FaultHash},
		{"members come behind the hash", func(l [][]byte) [][]byte {
			l[1] = append(bytes.TrimSuffix(l[1], []byte("}\n")), `,"from":"someone"}`+"\n"...)
			return l
		}, FaultHash},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			j := open(t, dir, Options{})
			add(t, j, &Record{From: "a", Kind: "k", Payload: []byte(`{"n":1}`)}, &Record{From: "a", Kind: "k"},
				&Record{From: "a", Kind: "k", Payload: []byte(`{"n":2}`)}, &Record{From: "a", Kind: "k", Payload: []byte(`{"n":3}`)})
			if err := j.Erase([]uint64{2}, "root"); err != nil {
				t.Fatal(err)
			}
			closeJournal(t, j)
			if r := verify(t, dir); !r.OK() || r.Erased != 1 {
				t.Fatalf("before: %+v", r)
			}
			edit(t, filepath.Join(dir, SegmentName(1)), c.change)
			if r := verify(t, dir); r.Total != 1 || r.Faults[0].Code != c.code {
				t.Errorf("faults = %v, want one, %s", r.Faults, c.code)
			}
		})
	}
}

// bare returns a line without what stands behind its hash.
func bare(line []byte) []byte {
	return append(bytes.Clone(line[:proofOf(bytes.TrimSuffix(line, []byte("\n"))).end]), lineEnd...)
}

func TestUnannounced(t *testing.T) {
	const most = ^uint64(0)
	for _, c := range []struct {
		erased, announced []Range
		want              uint64
	}{
		{nil, nil, 0}, {[]Range{{3, 3}}, nil, 3}, {[]Range{{3, 5}}, []Range{{3, 4}}, 5}, {[]Range{{3, 5}}, []Range{{5, 9}, {1, 4}}, 0},
		{[]Range{{3, 5}, {8, 8}}, []Range{{1, 5}}, 8}, {[]Range{{3, 5}, {8, 8}}, []Range{{1, 9}}, 0}, {[]Range{{3, 5}}, []Range{{4, 9}}, 3},
		{[]Range{{1, most}}, []Range{{1, most}}, 0}, {[]Range{{1, 2}, {most, most}}, []Range{{0, most}}, 0}, {[]Range{{2, 3}}, []Range{{9, 1}}, 2},
	} {
		if got := unannounced(c.erased, c.announced); got != c.want {
			t.Errorf("unannounced(%v, %v) = %d, want %d", c.erased, c.announced, got, c.want)
		}
	}
}
