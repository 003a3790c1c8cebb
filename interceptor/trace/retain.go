package trace

import (
	"os"
	"path/filepath"
	"strings"
)

// retain removes the oldest segments beyond [Options.RetainFiles]. A failure is logged: too many
// segments are no reason to refuse a call. The caller holds writing or is Open.
func (j *Journal) retain() {
	if j.opt.RetainFiles <= 0 {
		return
	}
	names, err := Segments(j.dir)
	if gone := len(names) - j.opt.RetainFiles; err == nil && gone > 0 {
		err = j.removeOldest(names[:gone], names[gone])
	}
	if err != nil {
		j.log.Error("trace retention", "dir", j.dir, "error", err)
	}
}

// removeOldest notes in the chain which segments go, moves the head's anchor to the oldest that
// stays, and only then removes them, so that a crash in between leaves a provable journal.
func (j *Journal) removeOldest(names []string, oldest string) error {
	first, err := j.firstRef(oldest)
	if err != nil {
		return err
	}
	var removed []Anchor
	for _, name := range names {
		a := Anchor{File: name}
		if f, err := os.Open(filepath.Join(j.dir, name)); err == nil {
			if t, err := readTail(f); err == nil && t.last != nil {
				a.Seq, a.Hash = t.last.Seq, t.last.Hash
			}
			f.Close()
		}
		removed = append(removed, a)
	}
	was := j.first
	j.first = first
	err = j.note(Event{Event: EventRetention, Removed: removed, First: &j.first})
	if err == nil {
		err = j.writeHeadAt(j.headNow())
	}
	if err != nil {
		j.first = was
		return err
	}
	for _, name := range names {
		j.removeSegment(name)
	}
	return nil
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
