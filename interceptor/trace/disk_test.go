package trace

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

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
		if got := query(t, dir, pick{}); len(got) != written+1 {
			t.Fatalf("room %d: %d records, want %d", room, len(got), written+1)
		}
		closeJournal(t, j)
		if r := verify(t, dir); !r.OK() {
			t.Fatalf("room %d: %v", room, r.Faults)
		}
	}
}

// TestHealsWithoutACall: where nobody calls because the journal has failed, it
// must see for itself that there is room again.
func TestHealsWithoutACall(t *testing.T) {
	for _, c := range []struct {
		name string
		fill func(j *Journal, dir string) (empty func() error)
	}{
		{"the file", func(j *Journal, _ string) func() error {
			full := &fullDisk{segmentFile: j.file}
			j.file = full
			return func() error {
				j.writing.Lock()
				defer j.writing.Unlock()
				full.room = 1 << 20
				return nil
			}
		}},
		{"the head", func(_ *Journal, dir string) func() error {
			blocked := filepath.Join(dir, headName+".tmp") // a directory where the new head is written
			if err := os.Mkdir(blocked, 0o700); err != nil {
				t.Fatal(err)
			}
			return func() error { return os.Remove(blocked) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				j, err := Open(dir, Options{})
				if err != nil {
					t.Fatal(err)
				}
				empty := c.fill(j, dir)
				_ = j.Append(&Record{Kind: "k"}) // only the head's failure lets it through
				time.Sleep(time.Minute)
				synctest.Wait()
				if j.Err() == nil {
					t.Fatal("Err = nil, want that it is full")
				}
				if rs := repairs(t, dir); len(rs) != 0 {
					t.Fatalf("%d records were written while it was full", len(rs))
				}
				if err := empty(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second + 100*time.Millisecond + time.Millisecond)
				synctest.Wait()
				if err := j.Err(); err != nil {
					t.Errorf("Err = %v, want nil: there is room again", err)
				}
				time.Sleep(time.Minute)
				if rs := repairs(t, dir); len(rs) != 1 || rs[0].Event != EventResumed {
					t.Errorf("events = %+v, want one that says resumed", rs)
				}
				closeJournal(t, j)
				if r := verify(t, dir); !r.OK() {
					t.Error(r.Faults)
				}
			})
		})
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
	path := filepath.Join(dir, SegmentName(1))
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
		last := query(t, dir, pick{})[0]
		if h, err := readHead(dir); err != nil || h.Seq != 2 || h.Hash != last.Hash {
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
