package trace

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// retain removes the oldest segments beyond [Options.Retain]. It notes in the chain which
// segments go, moves the head's anchor to the oldest that stays, and only then removes them, so
// that a crash in between leaves a provable journal. A failure is logged: too many segments are
// no reason to refuse a call. The caller holds writing or is Open.
func (j *Journal) retain() {
	if j.opt.Retain == (Retention{}) {
		return
	}
	names, err := Segments(j.dir)
	if err != nil {
		j.log.Error("trace retention", "dir", j.dir, "error", err)
		return
	}
	gone := j.retired(names)
	if gone == 0 {
		return
	}
	var removed []Anchor
	for _, name := range names[:gone] {
		a := Anchor{File: name}
		if f, err := os.Open(filepath.Join(j.dir, name)); err == nil {
			if t, err := readTail(f); err == nil && t.last != nil {
				a.Seq, a.Hash = t.last.Seq, t.last.Hash
			}
			f.Close()
		}
		removed = append(removed, a)
	}
	r, err := FirstRecord(filepath.Join(j.dir, names[gone]))
	if err != nil {
		j.log.Error("trace retention", "file", names[gone], "error", err)
		return
	}
	was := j.first
	j.first = FirstRef{File: names[gone], Seq: r.Seq, Prev: r.Prev}
	err = j.note(Event{Event: EventRetention, Removed: removed, First: &j.first})
	if err == nil {
		err = j.writeHeadAt(j.headNow())
	}
	if err != nil {
		j.first = was
		j.log.Error("trace retention", "dir", j.dir, "error", err)
		return
	}
	for _, name := range names[:gone] {
		j.removeSegment(name)
	}
}

// retired returns how many of the oldest segments are beyond the bounds.
func (j *Journal) retired(names []string) int {
	var total int64
	b, now := j.opt.Retain, j.opt.Now()
	for i, name := range slices.Backward(names) {
		fi, err := os.Stat(filepath.Join(j.dir, name))
		if err != nil {
			continue
		}
		total += fi.Size()
		if i < len(names)-1 && (b.Files > 0 && len(names)-i > b.Files ||
			b.Bytes > 0 && total > b.Bytes ||
			b.Age > 0 && now.Sub(fi.ModTime()) > b.Age) {
			return i + 1
		}
	}
	return 0
}

func (j *Journal) removeSegment(name string) {
	path := filepath.Join(j.dir, name)
	if err := os.Remove(path); err != nil {
		j.log.Error("trace retention", "file", name, "error", err)
		return
	}
	j.log.Info("trace file removed by retention", "file", name)
}

// removeOldIndexes removes the index files of earlier versions of foldgate.
func (j *Journal) removeOldIndexes() {
	entries, _ := os.ReadDir(j.dir)
	for _, e := range entries {
		base, rest, _ := strings.Cut(e.Name(), segmentSuffix)
		if _, ok := SegmentSeq(base + segmentSuffix); ok && (rest == ".idx" || strings.HasPrefix(rest, ".tmp")) {
			os.Remove(filepath.Join(j.dir, e.Name()))
		}
	}
}
