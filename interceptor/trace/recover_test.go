package trace

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// crash copies a journal's directory as a killed process leaves it: without
// the lock, with the last file cut at size.
func crash(t *testing.T, dir string, size int64) string {
	t.Helper()
	to := t.TempDir()
	names, err := segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range append(names, headName) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if i == len(names)-1 {
			data = data[:size]
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestCrashAtAnyOffset cuts the last write of a journal at every offset, opens
// it again and wants: whole records kept, a torn one cut off and reported, the
// chain continued, and verify content.
func TestCrashAtAnyOffset(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{Interval: time.Hour}) // the head stays where Open left it
	call(t, j, "a")
	call(t, j, "a")
	whole, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	first := int64(bytes.IndexByte(whole, '\n') + 1) // the head anchors record 1
	for size := first; size <= int64(len(whole)); size++ {
		if size > first+100 && size < int64(len(whole))-100 && rand.IntN(8) > 0 {
			continue // most of the middle is alike
		}
		at := crash(t, dir, size)
		lines := uint64(bytes.Count(whole[:size], []byte("\n")))
		borderMissing := size < int64(len(whole)) && whole[size] == '\n'
		j, err := Open(at, Options{})
		if err != nil {
			t.Fatalf("cut at %d: %v", size, err)
		}
		torn := whole[size-1] != '\n'
		if torn != (len(j.Repairs()) == 1 && j.Repairs()[0].Event == EventRepaired) {
			t.Fatalf("cut at %d: repairs %+v, torn %v", size, j.Repairs(), torn)
		}
		if borderMissing {
			lines++
		}
		if got := query(t, at, Filter{}); uint64(len(got)) != lines-1 {
			t.Fatalf("cut at %d: %d records, want %d", size, len(got), lines-1)
		}
		if err := j.Append(&Record{Kind: "after"}); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, at); !r.OK() {
			t.Fatalf("cut at %d: %v", size, r.Faults)
		}
	}
}

// TestCrashWhileAFileIsBegun: the process ends between creating a file and its first whole line.
func TestCrashWhileAFileIsBegun(t *testing.T) {
	for _, content := range []string{"", `{"protocol":"foldgate/tr`, "\x00\x00\x00\x00"} {
		dir, _ := sample(t, 3)
		if err := os.WriteFile(filepath.Join(dir, segmentName(8)), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, dir, Options{})
		call(t, j, "")
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, dir); !r.OK() || r.Records < 9 {
			t.Errorf("%q: %d records, faults %v", content, r.Records, r.Faults)
		}
	}
}

func TestLostHeadIsNoted(t *testing.T) {
	dir, _ := sample(t, 3)
	if err := os.Remove(filepath.Join(dir, headName)); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir, Options{})
	if rs := j.Repairs(); len(rs) != 1 || rs[0].Event != EventNoHead || rs[0].Found.Seq != 7 {
		t.Errorf("Repairs() = %+v, want no_head after record 7", rs)
	}
}

func TestDamagedLastLineIsKept(t *testing.T) {
	dir, file := sample(t, 3)
	edit(t, file, func(l [][]byte) [][]byte { l[6][40] ^= 1; return l })
	j := open(t, dir, Options{})
	if len(j.Repairs()) == 0 || j.Repairs()[0].Event != EventDamaged {
		t.Errorf("Repairs() = %+v, want damaged", j.Repairs())
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir); r.OK() || r.Faults[0].Line != 7 || r.Faults[0].Code != FaultHash {
		t.Errorf("faults = %v, want the hash of line 7", r.Faults)
	}
}

// fullDisk lets through room bytes and then fails as a full disk does: with a
// partial write.
type fullDisk struct {
	segmentFile
	room    int
	syncErr error
}

func (f *fullDisk) Write(b []byte) (int, error) {
	if len(b) <= f.room {
		f.room -= len(b)
		return f.segmentFile.Write(b)
	}
	n, _ := f.segmentFile.Write(b[:f.room])
	f.room = 0
	return n, syscall.ENOSPC
}

func (f *fullDisk) Sync() error {
	if f.syncErr != nil {
		return f.syncErr
	}
	return f.segmentFile.Sync()
}

func TestFullDiskRefusesAndHeals(t *testing.T) {
	for room := 0; room < 1200; room += 37 {
		dir := t.TempDir()
		j := open(t, dir, Options{})
		full := &fullDisk{segmentFile: j.file, room: room}
		j.file = full
		written := 0
		var failed *Record
		for range 20 {
			r := &Record{Kind: "k", Payload: []byte(`"0123456789"`)}
			if err := j.Append(r); err != nil {
				if !errors.Is(err, syscall.ENOSPC) || j.Err() == nil {
					t.Fatalf("Append = %v, Err = %v, want ENOSPC", err, j.Err())
				}
				failed = r
				break
			}
			written++
		}
		if failed == nil || failed.Seq != 0 || failed.Hash != "" {
			t.Fatalf("room %d: failed record = %+v, want one without a place in the chain", room, failed)
		}
		full.room = 1 << 20
		if err := j.Append(failed); err != nil || j.Err() != nil {
			t.Fatalf("with room again: %v, Err %v", err, j.Err())
		}
		if got := query(t, dir, Filter{}); len(got) != written+1 {
			t.Fatalf("room %d: %d records, want %d", room, len(got), written+1)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, dir); !r.OK() {
			t.Fatalf("room %d: %v", room, r.Faults)
		}
	}
}

func TestFailedSyncIsFinal(t *testing.T) {
	j, err := Open(t.TempDir(), Options{Sync: SyncAlways})
	if err != nil {
		t.Fatal(err)
	}
	disk := &fullDisk{segmentFile: j.file, room: 1 << 20, syncErr: syscall.EIO}
	j.file = disk
	if err := j.Append(&Record{Kind: "k"}); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Append = %v, want EIO", err)
	}
	disk.syncErr = nil
	if err := j.Append(&Record{Kind: "k"}); !errors.Is(err, syscall.EIO) {
		t.Errorf("Append after a failed sync = %v, want EIO still: the kernel may have dropped pages", err)
	}
	if err := j.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Close = %v, want EIO", err)
	}
}

func TestFileTakenAwayIsAnError(t *testing.T) {
	dir := t.TempDir()
	j, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, segmentName(1))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := j.flushNow(); err == nil {
		t.Error("flush = nil, want an error: the file was moved")
	}
	if err := j.Append(&Record{Kind: "k"}); err == nil {
		t.Error("Append = nil, want an error")
	}
	if err := j.Close(); err == nil {
		t.Error("Close = nil, want an error")
	}
}

func TestHeadFollowsWithinTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		j, err := Open(dir, Options{Interval: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		add(t, j, &Record{Kind: "k"})
		synctest.Wait()
		if h, _ := readHead(dir); h.Seq != 1 {
			t.Errorf("head is at %d before the interval, want 1", h.Seq)
		}
		time.Sleep(time.Second) // the bubble's clock
		synctest.Wait()
		if h, err := readHead(dir); err != nil || h.Seq != 2 || h.Anchor != j.Head() {
			t.Errorf("head = %+v, %v, want record 2", h, err)
		}
	})
}

// TestAlwaysSharesSyncs: with many callers there are fewer syncs than records.
func TestAlwaysSharesSyncs(t *testing.T) {
	j := open(t, t.TempDir(), Options{Sync: SyncAlways})
	slow := &slowSync{segmentFile: j.file}
	j.file = slow
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 10 {
				if err := j.Append(&Record{Kind: "k"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if slow.n == 0 || slow.n >= 160 {
		t.Errorf("%d syncs for 160 records", slow.n)
	}
}

type slowSync struct {
	segmentFile
	n int
}

func (f *slowSync) Sync() error { f.n++; return f.segmentFile.Sync() }

func TestRetentionKeepsTheChainProvable(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 4000, Retain: Retention{Files: 3}})
	for range 60 {
		call(t, j, "")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	names, _ := segments(dir)
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
	if evs := query(t, dir, Filter{Kinds: []string{KindJournal}}); len(evs) == 0 {
		t.Error("retention left no record")
	}
}

// TestRetentionCrash: the anchor was moved, the files not yet removed.
func TestRetentionCrash(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{RotateBytes: 4000})
	for range 30 {
		call(t, j, "")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	names, _ := segments(dir)
	h, err := readHead(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := firstRecord(filepath.Join(dir, names[2]))
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
	if now, _ := segments(dir); now[0] != names[2] {
		t.Errorf("the oldest file is %s, want %s", now[0], names[2])
	}
}

func TestRetentionBounds(t *testing.T) {
	for _, c := range []struct {
		name   string
		retain Retention
		age    time.Duration
		few    bool
	}{
		{"bytes", Retention{Bytes: 9000}, 0, true},
		{"many bytes", Retention{Bytes: 1 << 30}, 0, false},
		{"age, young", Retention{Age: time.Hour}, 0, false},
		{"age, old", Retention{Age: time.Hour}, 2 * time.Hour, true},
	} {
		dir := t.TempDir()
		j := open(t, dir, Options{RotateBytes: 4000, Retain: c.retain, Now: func() time.Time { return time.Now().Add(c.age) }})
		for range 40 {
			call(t, j, "")
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if names, _ := segments(dir); (len(names) <= 3) != c.few {
			t.Errorf("%s: %d files, want few: %v", c.name, len(names), c.few)
		}
		if r := verify(t, dir); !r.OK() {
			t.Errorf("%s: %v", c.name, r.Faults)
		}
	}
}
