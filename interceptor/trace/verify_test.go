package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// call appends a request and its response in ctx and returns the request.
func call(t *testing.T, j *Journal, ctx string) *Record {
	t.Helper()
	req := &Record{From: "host:h", To: []string{"upstream:u"}, Kind: "mcp/request:tools/call", Context: ctx, Payload: []byte(`{"id":1}`)}
	add(t, j, req)
	add(t, j, &Record{From: "upstream:u", To: []string{"host:h"}, Kind: "mcp/response:tools/call", Context: ctx, CorrelationID: IDs{req.ID}})
	return req
}

// sample writes a closed journal of one file with n calls: 1+2n records.
func sample(t *testing.T, n int) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	j := open(t, dir, Options{})
	for i := range n {
		call(t, j, fmt.Sprintf("c%d", i%3))
	}
	closeJournal(t, j)
	return dir, filepath.Join(dir, SegmentName(1))
}

func verify(t *testing.T, dir string) Report {
	t.Helper()
	r, err := Verify(t.Context(), dir, VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func edit(t *testing.T, file string, change func([][]byte) [][]byte) {
	t.Helper()
	data := read(t, file)
	lines := bytes.SplitAfter(data, []byte("\n"))
	lines = change(lines[:len(lines)-1])
	write(t, file, bytes.Join(lines, nil))
}

func TestVerifyAcceptsWhatWasWritten(t *testing.T) {
	dir, _ := sample(t, 10)
	r := verify(t, dir)
	if !r.OK() || r.Records != 21 || r.Last.Seq != 21 || r.First.Seq != 1 {
		t.Errorf("report = %+v, want 21 records and no faults", r)
	}
}

// TestTamper changes a sound journal in one way each and wants the first fault
// to name the place.
func TestTamper(t *testing.T) {
	other, _ := sample(t, 10)
	foreign := read(t, filepath.Join(other, SegmentName(1)))
	foreignLines := bytes.SplitAfter(foreign, []byte("\n"))
	for _, c := range []struct {
		name   string
		change func([][]byte) [][]byte
		line   int
		code   string
	}{
		{"drop a line", func(l [][]byte) [][]byte { return slices.Delete(l, 6, 7) }, 7, FaultSeq},
		{"drop three lines", func(l [][]byte) [][]byte { return slices.Delete(l, 6, 9) }, 7, FaultSeq},
		{"drop the first line", func(l [][]byte) [][]byte { return l[1:] }, 1, FaultSeq},
		{"swap two", func(l [][]byte) [][]byte { l[4], l[5] = l[5], l[4]; return l }, 5, FaultSeq},
		{"repeat a line", func(l [][]byte) [][]byte { return slices.Insert(l, 5, l[4]) }, 6, FaultSeq},
		{"cut the tail at a line border", func(l [][]byte) [][]byte { return l[:18] }, 0, FaultTail},
		{"cut everything", func([][]byte) [][]byte { return nil }, 0, FaultTail},
		{"splice a line of another journal", func(l [][]byte) [][]byte { l[9] = foreignLines[9]; return l }, 10, FaultPrev},
		{"splice the tail of another journal", func(l [][]byte) [][]byte { return append(l[:15:15], foreignLines[15:21]...) }, 16, FaultPrev},
		{"another journal as a whole", func([][]byte) [][]byte { return foreignLines[:21] }, 21, FaultHead},
		{"a line of something else", func(l [][]byte) [][]byte { l[2] = []byte("{}\n"); return l }, 3, FaultFormat},
		{"change and rehash one line", func(l [][]byte) [][]byte {
			r, _, _ := ParseLine(l[7])
			r.From = "someone"
			l[7], _, _ = lineOf(r, r.Seq, r.Prev)
			return l
		}, 9, FaultPrev},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, file := sample(t, 10)
			edit(t, file, c.change)
			r := verify(t, dir)
			if r.OK() {
				t.Fatal("nothing found")
			}
			if f := r.Faults[0]; f.Line != c.line || f.Code != c.code || f.File != filepath.Base(file) && c.line > 0 {
				t.Errorf("first fault = %s, want line %d, code %s", f, c.line, c.code)
			}
		})
	}
}

// TestTamperEveryByte flips each byte of a journal and wants a fault at its line.
func TestTamperEveryByte(t *testing.T) {
	dir, file := sample(t, 2)
	data := read(t, file)
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= 1
		write(t, file, bad)
		r := verify(t, dir)
		line := bytes.Count(data[:i], []byte("\n")) + 1
		if r.OK() || r.Faults[0].Line != line && (i != len(data)-1 || r.Faults[0].Code != FaultTail) {
			t.Fatalf("byte %d (%q) of line %d flipped: faults %v", i, data[i], line, r.Faults)
		}
	}
}

func TestTamperFiles(t *testing.T) {
	build := func(t *testing.T) (string, []string) {
		dir := t.TempDir()
		j := open(t, dir, Options{RotateBytes: 4000})
		for range 20 {
			call(t, j, "")
		}
		closeJournal(t, j)
		names, _ := Segments(dir)
		if len(names) < 4 {
			t.Fatalf("%d files, want more", len(names))
		}
		if r := verify(t, dir); !r.OK() {
			t.Fatal(r.Faults)
		}
		return dir, names
	}
	for _, c := range []struct {
		name string
		do   func(dir string, names []string) error
		file func(names []string) string
		line int
		code string
	}{
		{"remove the first file", func(d string, n []string) error { return os.Remove(filepath.Join(d, n[0])) },
			func(n []string) string { return n[0] }, 0, FaultFileMissing},
		{"remove a middle file", func(d string, n []string) error { return os.Remove(filepath.Join(d, n[1])) },
			func(n []string) string { return n[2] }, 1, FaultSeq},
		{"remove the last file", func(d string, n []string) error { return os.Remove(filepath.Join(d, n[len(n)-1])) },
			func(n []string) string { return n[len(n)-2] }, 0, FaultTail},
		{"rename the last file", func(d string, n []string) error {
			return os.Rename(filepath.Join(d, n[len(n)-1]), filepath.Join(d, SegmentName(999)))
		}, func([]string) string { return SegmentName(999) }, 1, FaultFileName},
		{"rename a middle file within its place", func(d string, n []string) error {
			seq, _ := SegmentSeq(n[1])
			return os.Rename(filepath.Join(d, n[1]), filepath.Join(d, SegmentName(seq+1)))
		}, func(n []string) string { seq, _ := SegmentSeq(n[1]); return SegmentName(seq + 1) }, 1, FaultFileName},
		{"remove the head", func(d string, n []string) error { return os.Remove(filepath.Join(d, headName)) },
			func([]string) string { return headName }, 0, FaultHeadMissing},
		{"damage the head", func(d string, n []string) error { return os.WriteFile(filepath.Join(d, headName), []byte("{}"), 0o600) },
			func([]string) string { return headName }, 0, FaultHeadUnreadable},
		{"cut a middle file within a line", func(d string, n []string) error {
			fi, err := os.Stat(filepath.Join(d, n[1]))
			if err != nil {
				return err
			}
			return os.Truncate(filepath.Join(d, n[1]), fi.Size()-10)
		}, func(n []string) string { return n[1] }, 0, FaultTorn},
		{"remove all journal files", func(d string, n []string) error {
			for _, name := range n {
				if err := os.Remove(filepath.Join(d, name)); err != nil {
					return err
				}
			}
			return nil
		}, func(n []string) string { return n[0] }, 0, FaultFileMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, names := build(t)
			if err := c.do(dir, names); err != nil {
				t.Fatal(err)
			}
			r := verify(t, dir)
			if r.OK() {
				t.Fatal("nothing found")
			}
			f := r.Faults[0]
			if f.File != c.file(names) || f.Code != c.code || c.line > 0 && f.Line != c.line {
				t.Errorf("first fault = %s, want %s line %d code %s", f, c.file(names), c.line, c.code)
			}
		})
	}
}

// TestGapIsNeverHealed: after the tail was cut, the next start goes on, and the
// missing records stay missing for every later verify.
func TestGapIsNeverHealed(t *testing.T) {
	dir, file := sample(t, 5)
	edit(t, file, func(l [][]byte) [][]byte { return l[:6] })
	j := open(t, dir, Options{})
	if rs := repairs(t, dir); len(rs) != 1 || rs[0].Event != EventGap {
		t.Fatalf("repairs = %+v, want a gap", rs)
	}
	call(t, j, "x")
	closeJournal(t, j)
	r := verify(t, dir)
	if r.OK() || r.Faults[0].Line != 7 || r.Faults[0].Code != FaultSeq || !strings.Contains(r.Faults[0].Text, "records 7 to 11 are missing") {
		t.Errorf("faults = %v, want records 7 to 11 missing before line 7", r.Faults)
	}
	if r.Total != 1 {
		t.Errorf("faults = %v, want only one: what follows the gap is sound", r.Faults)
	}
}

// TestRewrittenEndIsNeverHealed: the end was replaced by another, longer one
// whose hashes fit. The next start moves the anchor; the fault stays.
func TestRewrittenEndIsNeverHealed(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines int // that are kept
		ok    bool
	}{
		{"record 9 on", 8, false},
		{"the anchored record on", 10, false},
		{"what follows the anchor", 11, true}, // the chain alone covers that
		{"nothing", 13, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, file := sample(t, 6)
			j := open(t, dir, Options{})
			closeJournal(t, j)
			h, err := readHead(dir)
			if err != nil {
				t.Fatal(err)
			}
			edit(t, file, func(l [][]byte) [][]byte {
				at, _, err := ParseLine(l[10])
				if err != nil {
					t.Fatal(err)
				}
				h.Seq, h.Hash = at.Seq, at.Hash // as if the process had been killed after two more records
				before, _, err := ParseLine(l[c.lines-1])
				if err != nil {
					t.Fatal(err)
				}
				l, prev := l[:c.lines], before.Hash
				for seq := before.Seq + 1; seq <= 20; seq++ {
					line, hash, err := lineOf(&Record{Protocol: Protocol, ID: NewID(), TS: before.TS, From: "someone", Kind: "k"}, seq, prev)
					if err != nil {
						t.Fatal(err)
					}
					l, prev = append(l, line), hash
				}
				return l
			})
			if err := writeHead(dir, h, false); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				j := open(t, dir, Options{})
				call(t, j, "x")
				closeJournal(t, j)
			}
			r := verify(t, dir)
			if r.OK() != c.ok || !c.ok && (r.Total != 1 || r.Faults[0].Code != FaultHead || !strings.Contains(r.Faults[0].Text, "record 11 was not the one")) {
				t.Errorf("faults = %v, want none: %v, else that record 11 was not the anchored one", r.Faults, c.ok)
			}
		})
	}
}

func TestVerifyAgainstACopiedHead(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	call(t, j, "")
	if err := j.flushNow(); err != nil {
		t.Fatal(err)
	}
	held, err := readHead(dir)
	if err != nil {
		t.Fatal(err)
	}
	call(t, j, "")
	for _, c := range []struct {
		anchor Anchor
		ok     bool
	}{
		{held.Anchor, true},
		{Anchor{Seq: held.Seq, Hash: genesis}, false},
		{Anchor{Seq: 999, Hash: held.Hash}, false},
	} {
		if err := j.flushNow(); err != nil {
			t.Fatal(err)
		}
		r, err := Verify(t.Context(), dir, VerifyOptions{Anchors: []Anchor{c.anchor}})
		if err != nil || r.OK() != c.ok {
			t.Errorf("anchor %+v: ok %v, %v, want %v", c.anchor, r.OK(), err, c.ok)
		}
		// Of several journals one has it.
		r, err = Verify(t.Context(), dir, VerifyOptions{Anchors: []Anchor{c.anchor}, Several: true})
		if err != nil || !r.OK() || slices.Contains(r.Held, c.anchor) != c.ok {
			t.Errorf("anchor %+v among several journals: held %v, ok %v, %v, want %v", c.anchor, r.Held, r.OK(), err, c.ok)
		}
	}
}

func TestVerifyDetectsSecrets(t *testing.T) {
	dir, file := sample(t, 2)
	r, err := Verify(t.Context(), dir, VerifyOptions{Detect: func(line []byte) []string {
		if bytes.Contains(line, []byte(`"seq":3,`)) {
			return []string{"some-rule"}
		}
		return nil
	}})
	if err != nil || r.Total != 1 || r.Faults[0].Line != 3 || r.Faults[0].Code != FaultSecret || r.Faults[0].Seq != 3 {
		t.Errorf("%s: %+v, %v", file, r.Faults, err)
	}
}

func TestInvariants(t *testing.T) {
	late := &Audit{Late: true}
	used := func(delivered, total int) *Audit {
		return &Audit{Tokens: &Tokens{Counter: "o200k_base", Delivered: delivered, Used: total}}
	}
	push := func(ctx string) *Record { return &Record{Kind: KindPush, Context: ctx} }
	pop := func(ctx string) *Record { return &Record{Kind: KindPop, Context: ctx} }
	req := func(ctx string) *Record { return &Record{ID: "q" + ctx, Kind: "mcp/request:tools/call", Context: ctx} }
	resp := func(ctx string, to ...string) *Record {
		return &Record{Kind: "mcp/response:tools/call", Context: ctx, CorrelationID: to}
	}
	for _, c := range []struct {
		name string
		rs   []*Record
		want string
	}{
		{"a whole branch", []*Record{push("a"), req("a"), resp("a", "qa"), push("a/b"), pop("a/b"), pop("a")}, ""},
		{"a response that answers two", []*Record{req("a"), req(""), resp("", "qa", "q")}, ""},
		{"a free context needs no push", []*Record{{Kind: KindReflection, Context: "reason-1"}}, ""},
		{"response in flight at the pop", []*Record{push("a"), req("a"), pop("a"), resp("a", "qa")}, ""},
		{"late call", []*Record{push("a"), pop("a"), {ID: "qa", Kind: "mcp/request:x", Context: "a", Audit: late}}, ""},
		{"response to nothing", []*Record{resp("", "nothing")}, FaultOrphan},
		{"response in another context", []*Record{req("a"), resp("b", "qa")}, FaultOrphan},
		{"response that correlates to its context instead of its request", []*Record{push("a"), req("a"), resp("a", "a")}, FaultOrphan},
		{"response before its request", []*Record{resp("a", "qa"), req("a")}, FaultOrphan},
		{"pushed twice", []*Record{push("a"), push("a")}, FaultPushTwice},
		{"popped unopened", []*Record{pop("a")}, FaultPopUnopened},
		{"popped twice", []*Record{push("a"), pop("a"), pop("a")}, FaultPopTwice},
		{"parent popped first", []*Record{push("a"), push("a/b"), pop("a")}, FaultPopOrder},
		{"call in a closed branch, refused", []*Record{push("a"), pop("a"), req("a"),
			{Kind: "mcp/response:x", Context: "a", CorrelationID: IDs{"qa"}, Audit: &Audit{IsError: true}}}, ""},
		{"branch tool on a closed branch", []*Record{push("a"), pop("a"), req("a"),
			{Kind: "mcp/response:x", Context: "a", CorrelationID: IDs{"qa"}, Audit: &Audit{Tool: "branch_return"}}}, ""},
		{"call in a closed branch, answered", []*Record{push("a"), pop("a"), req("a"), resp("a", "qa")}, FaultClosed},
		{"conclusion of a closed branch", []*Record{push("a"), pop("a"), {Kind: KindConclusion, Context: "a"}}, FaultClosed},
		{"id twice", []*Record{req("a"), req("a")}, FaultDuplicateID},
		{"branch total too small", []*Record{push("a"), req("a"), {Kind: "mcp/response:x", Context: "a", CorrelationID: IDs{"qa"}, Audit: used(50, 50)},
			{Kind: KindPop, Context: "a", Audit: used(0, 40)}}, FaultTokens},
		{"branch total right", []*Record{push("a"), req("a"), {Kind: "mcp/response:x", Context: "a", CorrelationID: IDs{"qa"}, Audit: used(50, 70)},
			{Kind: KindPop, Context: "a", Audit: used(0, 70)}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			j := open(t, dir, Options{})
			add(t, j, c.rs...)
			closeJournal(t, j)
			r := verify(t, dir)
			switch {
			case c.want == "" && !r.OK():
				t.Errorf("faults = %v, want none", r.Faults)
			case c.want != "" && (r.Total != 1 || r.Faults[0].Code != c.want || r.Faults[0].Line == 0):
				t.Errorf("faults = %v, want one %s with its line", r.Faults, c.want)
			}
		})
	}
}

func TestVerifyNotesOpenBranches(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	add(t, j, &Record{Kind: KindPush, Context: "br_1"})
	closeJournal(t, j)
	r := verify(t, dir)
	if !r.OK() || len(r.Notes) != 1 || r.Notes[0].Code != NoteOpen {
		t.Errorf("report = %+v, want one note of an open branch", r)
	}
}

// FuzzParseRecord: what ParseLine accepts is written again as a line that is
// one record with a right hash and the same content.
func FuzzParseRecord(f *testing.F) {
	r := &Record{Protocol: Protocol, ID: "env_1", TS: "2026-01-01T00:00:00.000000Z", From: "a", Kind: "k", CorrelationID: IDs{"x"}, Payload: []byte(`{"a":1}`), Audit: &Audit{Session: "s"}}
	line, _, err := lineOf(r, 1, genesis)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add(bytes.Replace(line, []byte(`{"a":1}`), []byte(`1,"digest":"","seq":5`), 1))
	f.Add([]byte(`{"protocol":"foldgate/trace.v2","id":"a","kind":"k","seq":1,"correlationId":"s"}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		proofOf(data)
		r, intact, err := ParseLine(data)
		if err != nil {
			return
		}
		if intact && r.Erased() { // an intact line that is cut behind its hash is intact, and no other is
			p := proofOf(data)
			if p.end != len(data)-1 {
				t.Fatalf("%q is erased, and has a rest", data)
			}
		}
		var payload bytes.Buffer
		if len(r.Payload) > 0 && json.Compact(&payload, r.Payload) != nil {
			t.Fatalf("payload %q is not JSON", r.Payload)
		}
		line, hash, err := lineOf(r, r.Seq, genesis)
		if err != nil {
			t.Fatal(err)
		}
		back := intactRecord(bytes.TrimSuffix(line, []byte("\n")))
		if back == nil || back.Hash != hash || back.ID != r.ID || !slices.Equal(back.CorrelationID, r.CorrelationID) {
			t.Fatalf("%q is written as %q", data, line)
		}
	})
}

// FuzzParseAnchor: an anchor has the number of a record and a whole hash, or is refused.
func FuzzParseAnchor(f *testing.F) {
	hash := "sha256:" + strings.Repeat("0a", 32)
	for text, ok := range map[string]bool{"17:" + hash: true, "0:" + hash: false, "-1:" + hash: false, "17:" + hash[:len(hash)-1]: false, "17:" + hash + "\n": false, hash: false, "": false} {
		if _, err := ParseAnchor(text); (err == nil) != ok {
			f.Errorf("%q: %v", text, err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAnchor(text)
		if err == nil && (a.Seq == 0 || len(a.Hash) != len(hash) || !strings.HasSuffix(text, ":"+a.Hash)) {
			t.Errorf("%q is %+v", text, a)
		}
	})
}
