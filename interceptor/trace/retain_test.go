package trace

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetentionKeepsTheChainProvable(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 4000, RetainFiles: 3})
	for range 60 {
		call(t, j, "")
	}
	closeJournal(t, j)
	names, _ := Segments(dir)
	if len(names) != 3 {
		t.Fatalf("%d files, want 3", len(names))
	}
	r := verify(t, dir)
	if !r.OK() || r.First.Seq == 1 {
		t.Fatalf("report = %+v, want a sound journal that begins later", r)
	}
	if err := os.Remove(filepath.Join(dir, names[0])); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir); r.OK() || r.Faults[0].Code != FaultFileMissing {
		t.Errorf("faults = %v, want the oldest file missing", r.Faults)
	}
	if evs := query(t, dir, pick{Kinds: []string{KindJournal}}); len(evs) == 0 {
		t.Error("retention left no record")
	}
}

// TestRetentionCrash: the anchor was moved, the files not yet removed.
func TestRetentionCrash(t *testing.T) {
	dir, names := severalFiles(t)
	h, err := readHead(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := FirstRecord(filepath.Join(dir, names[2]))
	if err != nil {
		t.Fatal(err)
	}
	h.First = FirstRef{File: names[2], Seq: r.Seq, Prev: r.Prev}
	if err := writeHead(dir, h, false); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir); !r.OK() {
		t.Errorf("faults = %v before the next start", r.Faults)
	}
	open(t, dir, Options{RotateBytes: 4000})
	if now, _ := Segments(dir); now[0] != names[2] {
		t.Errorf("the oldest file is %s, want %s", now[0], names[2])
	}
}

// TestDamagedHeadRemovesNothing: no digit of the head can make a start give up
// files that retention has not.
func TestDamagedHeadRemovesNothing(t *testing.T) {
	dir, names := severalFiles(t)
	good := read(t, filepath.Join(dir, headName))
	other := fmt.Sprintf(`"first":{"file":%q,"seq":%d,`, names[2], must(SegmentSeq(names[2])))
	bad := [][]byte{regexp.MustCompile(`"first":\{"file":"[^"]*","seq":1,`).ReplaceAll(good, []byte(other))}
	for i, c := range good {
		if c < '0' || c > '9' {
			continue
		}
		b := bytes.Clone(good)
		b[i] = '0' + (c-'0'+8)%10
		bad = append(bad, b)
	}
	for _, head := range bad {
		to := t.TempDir()
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(to, headName), head)
		j, err := Open(to, Options{RotateBytes: 4000})
		if err != nil {
			t.Fatalf("%s: %v", head, err)
		}
		closeJournal(t, j)
		if now, _ := Segments(to); len(now) < len(names) {
			t.Fatalf("%d files of %d are left after a start with the head %s", len(now), len(names), head)
		}
	}
}

// severalFiles writes a journal and returns its directory and files.
func severalFiles(t *testing.T) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	j := open(t, dir, Options{RotateBytes: 4000})
	for range 30 {
		call(t, j, "")
	}
	closeJournal(t, j)
	names, err := Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, names
}

func must(n uint64, ok bool) uint64 {
	if !ok {
		panic("not a file of a journal")
	}
	return n
}

// TestUnfinishedErasures: a start removes what an erasure left that was killed. Other files stay.
func TestUnfinishedErasures(t *testing.T) {
	dir, file := sample(t, 3)
	gone := filepath.Join(dir, SegmentName(900))
	keep := []string{filepath.Join(dir, "trace-1.jsonl.tmp"), filepath.Join(dir, "notes.tmp"), file}
	drop := []string{file + ".tmp", gone + ".tmp"}
	for _, path := range append(keep[:2:2], drop...) {
		write(t, path, "x")
	}
	open(t, dir, Options{})
	for _, path := range keep {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	for _, path := range drop {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

// TestRetentionKeepsFilesWhoseAnchorCannotMove: if the head cannot be replaced,
// removing files would look like tampering.
func TestRetentionKeepsFilesWhoseAnchorCannotMove(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 4000, Interval: time.Hour})
	for range 30 {
		call(t, j, "")
	}
	before, err := Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(dir, headName+".tmp") // a directory where the new head is written
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	j.writing.Lock()
	j.opt.RetainFiles = 2
	j.removeExpired()
	j.writing.Unlock()
	if now, _ := Segments(dir); len(now) != len(before) {
		t.Errorf("%d files, want %d still", len(now), len(before))
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	j.writing.Lock()
	j.removeExpired()
	j.writing.Unlock()
	if now, _ := Segments(dir); len(now) != 2 {
		t.Errorf("%d files, want 2 once the head can be written", len(now))
	}
	closeJournal(t, j)
	if r := verify(t, dir); !r.OK() {
		t.Error(r.Faults)
	}
}

// A segment goes once its last record is old, and a segment that is written every day ends, so that it
// can go. An idle journal makes no segments.
func TestRetentionByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		const age = 3 * time.Hour
		j := open(t, dir, Options{RetainAge: age})
		for range 20 {
			call(t, j, "")
			time.Sleep(age / 4)
		}
		names, err := Segments(dir)
		if err != nil {
			t.Fatal(err)
		}
		oldest, err := FirstRecord(filepath.Join(dir, names[0]))
		if err != nil || time.Since(oldest.Time()) < age-time.Hour || time.Since(oldest.Time()) > 2*age+time.Hour {
			t.Errorf("%d segments, the oldest of %s, now %s: %v", len(names), oldest.TS, time.Now().UTC(), err)
		}
		if r := verify(t, dir); !r.OK() || r.First.Seq == 1 {
			t.Errorf("report = %+v, want a sound journal that begins later", r)
		}
		time.Sleep(4 * age)
		if names, _ = Segments(dir); len(names) > 3 {
			t.Errorf("%d segments after a long time without a call: %s", len(names), names)
		}
		closeJournal(t, j)
		if r := verify(t, dir); !r.OK() {
			t.Errorf("faults = %v", r.Faults)
		}
	})
}

// The clock of the machine is wrong for some hours. Records of before do not go early, and neither these nor those that
// were written meanwhile stay longer than they should.
func TestRetentionByAgeWithAWrongClock(t *testing.T) {
	const day, age = 24 * time.Hour, 30 * 24 * time.Hour
	for _, wrong := range []time.Duration{12 * 365 * day, -40 * 365 * day, 31 * day, -31 * day} {
		dir := t.TempDir()
		steady := time.Date(2026, 11, 29, 9, 0, 0, 0, time.UTC)
		var passed, off atomic.Int64 // ns
		j := open(t, dir, Options{
			RetainAge: age, RotateBytes: 4000, Steady: func() time.Time { return steady.Add(time.Duration(passed.Load())) },
			Now: func() time.Time { return steady.Add(time.Duration(passed.Load() + off.Load())) },
		})
		begins := map[string]time.Time{}
		for hour := range 80 * 24 {
			now := j.opt.Steady()
			off.Store(0)
			if hour >= 100 && hour < 120 {
				off.Store(int64(wrong))
			}
			if hour%12 == 1 {
				call(t, j, "")
			}
			if hour > 100 && hour < 120 { // several segments
				call(t, j, "")
				call(t, j, "")
			}
			j.rotateIfOld()
			names, err := Segments(dir)
			if err != nil {
				t.Fatal(err)
			}
			for i, name := range names {
				if begins[name].IsZero() {
					begins[name] = now
				}
				if i > 0 && now.Sub(begins[name]) > age+day+time.Hour { // the one before ended then
					t.Fatalf("with a step of %v: hour %d has %s, which ended %v ago", wrong, hour, names[i-1], now.Sub(begins[name]))
				}
			}
			for name, begun := range begins {
				if old := now.Sub(begun); old < age && !slices.Contains(names, name) {
					t.Fatalf("with a step of %v: %s is gone after %v", wrong, name, old)
				}
			}
			passed.Add(int64(time.Hour))
		}
		if len(begins) < 60 {
			t.Errorf("%d segments", len(begins))
		}
		if r := verify(t, dir); !r.OK() {
			t.Error(r.Faults)
		}
		closeJournal(t, j)
	}
}

// A record that begins a segment is as old as it says, although the segment's first record is younger.
func TestAgeOfARecordThatBeginsAFile(t *testing.T) {
	dir := t.TempDir()
	for _, days := range []int{30, 8, 3} {
		j, err := Open(dir, Options{RotateBytes: 1, Now: func() time.Time { return time.Now().AddDate(0, 0, -days) }})
		if err != nil {
			t.Fatal(err)
		}
		call(t, j, "")
		closeJournal(t, j)
	}
	open(t, dir, Options{RetainAge: 7 * 24 * time.Hour})
	names, err := Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	if first, err := FirstRecord(filepath.Join(dir, names[0])); err != nil || time.Since(first.Time()) > 4*24*time.Hour {
		t.Errorf("the oldest file begins at %s, %v", first.TS, err)
	}
}
