package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// crash copies a journal's directory as a killed process leaves it: without
// the lock, with the last file cut at size.
func crash(t *testing.T, dir string, size int64) string {
	t.Helper()
	to := t.TempDir()
	names, err := Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range append(names, headName) {
		data := read(t, filepath.Join(dir, name))
		if i == len(names)-1 {
			data = data[:size]
		}
		write(t, filepath.Join(to, name), data)
	}
	return to
}

// repairs returns what the journal's own records say was repaired or noted.
func repairs(t *testing.T, dir string) []Event {
	t.Helper()
	var out []Event
	for _, r := range query(t, dir, pick{Kinds: []string{KindJournal}}) {
		var e Event
		if err := json.Unmarshal(r.Payload, &e); err != nil {
			t.Fatal(err)
		}
		if e.Event != EventBegin {
			out = append(out, e)
		}
	}
	return out
}

// TestCrashAtAnyOffset cuts the last write of a journal at every offset, opens
// it again and wants: whole records kept, a torn one cut off and reported, the
// chain continued, and verify content.
func TestCrashAtAnyOffset(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{Interval: time.Hour}) // the head stays where Open left it
	call(t, j, "a")
	call(t, j, "a")
	whole := read(t, filepath.Join(dir, SegmentName(1)))
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
		if rs := repairs(t, at); torn != (len(rs) == 1 && rs[0].Event == EventRepaired) {
			t.Fatalf("cut at %d: repairs %+v, torn %v", size, rs, torn)
		}
		if borderMissing {
			lines++
		}
		if got := query(t, at, pick{}); uint64(len(got)) != lines-1 {
			t.Fatalf("cut at %d: %d records, want %d", size, len(got), lines-1)
		}
		if err := j.Append(&Record{Kind: "after"}); err != nil {
			t.Fatal(err)
		}
		closeJournal(t, j)
		if r := verify(t, at); !r.OK() {
			t.Fatalf("cut at %d: %v", size, r.Faults)
		}
	}
}

// TestCrashWhileAFileIsBegun: the process ends between creating a file and its first whole line.
func TestCrashWhileAFileIsBegun(t *testing.T) {
	for _, content := range []string{"", `{"protocol":"foldgate/tr`, "\x00\x00\x00\x00"} {
		dir, _ := sample(t, 3)
		write(t, filepath.Join(dir, SegmentName(8)), content)
		j := open(t, dir, Options{})
		call(t, j, "")
		closeJournal(t, j)
		if r := verify(t, dir); !r.OK() || r.Records < 9 {
			t.Errorf("%q: %d records, faults %v", content, r.Records, r.Faults)
		}
	}
}

// TestLostHeadIsNeverHealed: without its head a journal may lack its end. The next start goes on,
// and the fault stays for every later verify, however much was cut.
func TestLostHeadIsNeverHealed(t *testing.T) {
	for keep := 1; keep <= 7; keep++ {
		for _, damage := range []func(head string) error{os.Remove, func(head string) error { return os.WriteFile(head, []byte("{}"), 0o600) }} {
			dir, file := sample(t, 3)
			edit(t, file, func(l [][]byte) [][]byte { return l[:keep] })
			if err := damage(filepath.Join(dir, headName)); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			for range 2 {
				j := open(t, dir, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
				call(t, j, "x")
				closeJournal(t, j)
			}
			if says := fmt.Sprintf(`expected=none found="record %d of %s, sha256:`, keep, filepath.Base(file)); !strings.Contains(log.String(), says) {
				t.Errorf("the log has no %s:\n%s", says, log.String())
			}
			if rs := repairs(t, dir); len(rs) != 1 || rs[0].Event != EventNoHead || rs[0].Found.Seq != uint64(keep) {
				t.Errorf("repairs = %+v, want no_head after record %d", rs, keep)
			}
			want := fmt.Sprintf("what followed record %d may be cut off", keep)
			if r := verify(t, dir); r.Total != 1 || r.Faults[0].Code != FaultHeadMissing || !strings.Contains(r.Faults[0].Text, want) {
				t.Errorf("%d records kept: faults %v, want one: %s", keep, r.Faults, want)
			}
		}
	}
}

// TestFirstStartWithoutHead: a process that is killed between its first record and its first head
// leaves no fault.
func TestFirstStartWithoutHead(t *testing.T) {
	dir, file := sample(t, 0)
	edit(t, file, func(l [][]byte) [][]byte { return l[:1] })
	if err := errors.Join(os.Remove(filepath.Join(dir, headName)), os.WriteFile(filepath.Join(dir, lockName), []byte("1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir, Options{})
	call(t, j, "x")
	closeJournal(t, j)
	if r := verify(t, dir); !r.OK() {
		t.Errorf("faults %v, want none", r.Faults)
	}
}

func TestDamagedLastLineIsKept(t *testing.T) {
	dir, file := sample(t, 3)
	edit(t, file, func(l [][]byte) [][]byte { l[6][40] ^= 1; return l })
	j := open(t, dir, Options{})
	if rs := repairs(t, dir); len(rs) == 0 || rs[0].Event != EventDamaged {
		t.Errorf("repairs = %+v, want damaged", rs)
	}
	closeJournal(t, j)
	if r := verify(t, dir); r.OK() || r.Faults[0].Line != 7 || r.Faults[0].Code != FaultHash {
		t.Errorf("faults = %v, want the hash of line 7", r.Faults)
	}
}

// TestInterrupted tells a process that died from one that closed its journal.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	want := func(j *Journal, want bool) {
		t.Helper()
		to, ok := j.Interrupted()
		if ok != want || ok && to.IsZero() {
			t.Errorf("Interrupted() = %v, %v; want %v", to, ok, want)
		}
	}
	j := open(t, dir, Options{})
	want(j, false)
	add(t, j, &Record{Kind: "a"})
	closeJournal(t, j)
	j = open(t, dir, Options{})
	want(j, false)
	add(t, j, &Record{Kind: "b"})
	lock, err := os.ReadFile(filepath.Join(dir, lockName))
	if err != nil || len(lock) == 0 {
		t.Fatalf("lock = %q, %v: want the process id", lock, err)
	}
	closeJournal(t, j)
	if err := os.WriteFile(filepath.Join(dir, lockName), lock, 0o600); err != nil { // as it was before Close
		t.Fatal(err)
	}
	want(open(t, dir, Options{}), true)
}

// TestInterruptedUntilSettled: a start that fails, or is killed, hides nothing
// from the next.
func TestInterruptedUntilSettled(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	start := func() *Journal {
		now = now.Add(time.Hour)
		return open(t, dir, Options{Now: func() time.Time { return now }, Interval: time.Hour})
	}
	die := func(j *Journal) { // as after SIGKILL
		t.Helper()
		lock, err := os.ReadFile(filepath.Join(dir, lockName))
		if err == nil {
			err = j.Close()
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, lockName), lock, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(j *Journal, to time.Time) {
		t.Helper()
		if got, ok := j.Interrupted(); !ok || !got.Equal(to) {
			t.Errorf("Interrupted() = %v, %v; want %v", got, ok, to)
		}
	}
	j := start()
	now = now.Add(time.Minute)
	add(t, j, &Record{Kind: "a"})
	to := now
	die(j)

	j = start()
	want(j, to)
	add(t, j, &Record{Kind: "b"})
	die(j)

	j = start()
	want(j, to)
	if err := j.Close(); err != nil { // a start that failed in order
		t.Fatal(err)
	}

	blocked := filepath.Join(dir, headName+".tmp") // a directory where the new head is written
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if _, err := Open(dir, Options{}); err == nil {
		t.Fatal("Open = nil, want an error: the head cannot be written")
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}

	j = start()
	want(j, to)
	now = now.Add(time.Minute) // what this process recovers is recorded before it settles
	j.Settle()
	add(t, j, &Record{Kind: "c"})
	to = now
	die(j)

	j = start()
	want(j, to)
	j.Settle()
	closeJournal(t, j)
	if _, ok := start().Interrupted(); ok {
		t.Error("interrupted after Settle and Close")
	}
}

// TestLockWithoutTime: the last record there is says when the process died.
func TestLockWithoutTime(t *testing.T) {
	dir, _ := sample(t, 3)
	write(t, filepath.Join(dir, lockName), "4711\n")
	if to, ok := open(t, dir, Options{}).Interrupted(); !ok || to.IsZero() {
		t.Errorf("Interrupted() = %v, %v", to, ok)
	}
}
