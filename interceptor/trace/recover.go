package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// recover prepares the journal for appending: it repairs a torn last line,
// compares the tail with the head file, and notes missing records. It never
// hides a gap: missing records keep their numbers.
func (j *Journal) recover() error {
	names, err := Segments(j.dir)
	if err != nil {
		return err
	}
	h, err := readHead(j.dir)
	if err != nil { // it must not stop the gateway, nor vanish silently
		j.opt.Log.Error("trace head is unreadable and will be replaced", "dir", j.dir, "error", err)
	}
	if h != nil {
		names = j.dropRetired(names, h.First)
	}
	j.removeUnfinished()
	j.hash = genesis
	var events []Event
	for len(names) > 0 && j.file == nil {
		name := names[len(names)-1]
		e, err := j.reopen(name)
		if err != nil {
			return err
		}
		events = append(events, e...)
		if j.file == nil { // it had no whole line: the crash came while it was created
			names = names[:len(names)-1]
		}
	}
	if j.interrupted {
		j.mark() // before the first record of this process
	}
	found, err := j.compare(h)
	if err != nil {
		return err
	}
	events = append(events, found...)
	switch {
	case h != nil:
		j.first = h.First
	case len(names) == 0:
		j.first = FirstRef{File: SegmentName(1), Seq: 1, Prev: genesis}
	default:
		if j.first, err = j.firstRef(names[0]); err != nil {
			return fmt.Errorf("trace journal %w", err)
		}
	}
	if j.file == nil {
		var predecessor *Anchor
		if h != nil {
			predecessor = &h.Anchor
		}
		if err := j.newSegment(predecessor); err != nil {
			return fmt.Errorf("trace journal: %w", err)
		}
	}
	for _, e := range events {
		j.opt.Log.Warn("trace journal: "+e.Event, "dir", j.dir, "file", e.File, "bytes", e.Bytes, "expected", e.Expected, "found", e.Found)
		if err := j.note(e); err != nil {
			return fmt.Errorf("trace journal: %w", err)
		}
	}
	j.removeExpired()
	return j.writeHeadAt(j.headNow())
}

// reopen opens a segment for appending after repairing its end. It leaves
// j.file nil, and removes the file, if there is no whole line in it.
func (j *Journal) reopen(name string) (events []Event, err error) {
	path := filepath.Join(j.dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("trace journal: %w", err)
	}
	t, err := readTail(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("trace journal %s: %w", name, err)
	}
	if len(t.torn) > 0 {
		e := Event{Event: EventRepaired, File: name, Bytes: int64(len(t.torn))}
		if t.complete {
			_, err = f.Write([]byte("\n"))
			e.Bytes = 0
			t.size++
		} else {
			sum := sha256.Sum256(t.torn)
			e.SHA256 = hex.EncodeToString(sum[:])
			err = f.Truncate(t.size)
		}
		if err == nil {
			err = f.Sync()
		}
		if events = append(events, e); err != nil {
			f.Close()
			return nil, fmt.Errorf("trace journal %s: repairing the end: %w", name, err)
		}
	}
	if t.last == nil {
		f.Close()
		if t.size > 0 {
			return nil, fmt.Errorf("trace journal %s holds no whole record; move the file away to go on without it", name)
		}
		return events, os.Remove(path)
	}
	j.file, j.name, j.size = f, name, t.size
	j.seq, j.hash = t.last.Seq, t.last.Hash
	if j.to.IsZero() { // else a failed start has added records
		j.to = t.last.Time()
	}
	if t.damaged {
		events = append(events, Event{Event: EventDamaged, File: name, Found: &Anchor{name, j.seq, j.hash}})
	}
	return events, nil
}

// compare checks that the anchored record is in the journal. If it is missing,
// the journal continues after the anchor, so that the gap stays visible.
func (j *Journal) compare(h *head) ([]Event, error) {
	found := Anchor{File: j.name, Seq: j.seq, Hash: j.hash}
	switch {
	case h == nil && j.seq == 1 && j.interrupted: // the first start ended before it wrote the head
		return nil, nil
	case h == nil && j.seq > 0:
		return []Event{{Event: EventNoHead, Found: &found}}, nil
	case h == nil, h.Seq == j.seq && h.Hash == j.hash:
		return nil, nil
	case h.Seq < j.seq:
		ok, err := j.continues(h.Anchor)
		if err != nil || ok {
			return nil, err
		}
		return []Event{{Event: EventRewritten, Expected: &h.Anchor, Found: &found}}, nil
	}
	j.seq, j.hash = h.Seq, h.Hash
	return []Event{{Event: EventGap, Expected: &h.Anchor, Found: &found}}, nil
}

// continues reports whether the file of an anchor has the anchored record or the one after it.
func (j *Journal) continues(a Anchor) (ok bool, err error) {
	hash := []byte(a.Hash)
	err = ReadLines(filepath.Join(j.dir, a.File), 0, func(line []byte, _ int64, whole bool) bool {
		if whole && bytes.Contains(line, hash) { // as its hash or its prev
			r := intactRecord(line)
			ok = r != nil && (r.Seq == a.Seq && r.Hash == a.Hash || r.Seq == a.Seq+1 && r.Prev == a.Hash)
		}
		return !ok
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("trace journal %s: %w", a.File, err)
	}
	return ok, nil
}

// dropRetired removes segments that retention had given up when the process ended. It believes
// the head only if the first record of the segment that the head calls the oldest confirms it.
func (j *Journal) dropRetired(names []string, first FirstRef) []string {
	if !slices.Contains(names, first.File) || names[0] == first.File {
		return names
	}
	if found, err := j.firstRef(first.File); err != nil || found != first {
		j.opt.Log.Error("trace retention: files are kept, their successor is not the one that the head names", "dir", j.dir, "file", first.File)
		return names
	}
	for names[0] != first.File {
		j.removeSegment(names[0])
		names = names[1:]
	}
	return names
}

// firstRef returns the reference to a segment as the oldest one.
func (j *Journal) firstRef(name string) (FirstRef, error) {
	r, err := FirstRecord(filepath.Join(j.dir, name))
	if err != nil {
		return FirstRef{}, fmt.Errorf("%s: %w", name, err)
	}
	return FirstRef{File: name, Seq: r.Seq, Prev: r.Prev}, nil
}

// removeUnfinished removes the files of erasures that did not come to their end.
func (j *Journal) removeUnfinished() {
	entries, _ := os.ReadDir(j.dir)
	for _, e := range entries {
		if _, ok := SegmentSeq(strings.TrimSuffix(e.Name(), tmpSuffix)); ok && strings.HasSuffix(e.Name(), tmpSuffix) {
			os.Remove(filepath.Join(j.dir, e.Name()))
		}
	}
}

type tail struct {
	last     *Record // the last whole line with a right hash, nil if none
	damaged  bool    // a whole line with a wrong hash follows last
	size     int64   // up to and with the last newline
	torn     []byte  // the bytes after the last newline
	complete bool    // torn is an intact record that lacks only its newline
}

// readTail reads backwards to the last intact record.
func readTail(f *os.File) (t tail, err error) {
	fi, err := f.Stat()
	if err != nil {
		return t, err
	}
	for n := int64(64 << 10); ; n *= 2 {
		start := max(0, fi.Size()-n)
		buf := make([]byte, fi.Size()-start)
		if _, err := f.ReadAt(buf, start); err != nil && !errors.Is(err, io.EOF) {
			return t, err
		}
		if t = tailOf(buf, start); t.last != nil || start == 0 {
			return t, nil
		}
	}
}

// tailOf analyses buf, the end of a file from offset start on.
func tailOf(buf []byte, start int64) (t tail) {
	end := bytes.LastIndexByte(buf, '\n') + 1
	t.torn = buf[end:]
	t.size = start + int64(end)
	if start > 0 && end == 0 {
		return t
	}
	if r := intactRecord(t.torn); r != nil {
		t.last, t.complete = r, true
		t.size = start + int64(len(buf))
		return t
	}
	for end > 0 {
		from := bytes.LastIndexByte(buf[:end-1], '\n') + 1
		if from == 0 && start > 0 {
			return t // its beginning is not in buf
		}
		if t.last = intactRecord(buf[from : end-1]); t.last != nil {
			return t
		}
		t.damaged = true
		end = from
	}
	return t
}
