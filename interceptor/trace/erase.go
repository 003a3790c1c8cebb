package trace

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Range is the numbers of records that follow each other: the first and the last.
type Range [2]uint64

// Ranges returns the ranges of numbers in any order.
func Ranges(seqs []uint64) (all []Range) {
	for _, seq := range slices.Sorted(slices.Values(seqs)) {
		all = addSeq(all, seq)
	}
	return all
}

// addSeq returns ranges, which ascend, with one number more.
func addSeq(ranges []Range, seq uint64) []Range {
	if n := len(ranges); n > 0 && seq <= ranges[n-1][1]+1 {
		ranges[n-1][1] = max(ranges[n-1][1], seq)
		return ranges
	}
	return append(ranges, Range{seq, seq})
}

// Erasable reports whether [Journal.Erase] can erase the record's payload. It can't erase those of
// the journal's own records.
func (r *Record) Erasable() bool {
	return r.Digest != "" && len(r.Payload) > 0 && r.Kind != KindJournal
}

// rangesAtOnce bounds the ranges of one record about an erasure.
const rangesAtOnce = 20_000

// Erase removes the payloads and salts of the records with these numbers, as far as there are such
// records and they are [Record.Erasable]. Hashes stay what they are, so the chain stays provable. The
// journal first records that by erases them; Verify reports a payload that is missing without such a
// record.
//
// Each file is replaced at once by one without the payloads; records may be appended meanwhile. If
// Erase fails, or the process ends before, some files still have theirs: the same call erases the
// rest. [Journal.Close] lets it finish the file that it is at. A payload that does not fit its hash is
// evidence and stays; that is an error once the others are erased.
func (j *Journal) Erase(seqs []uint64, by string) error {
	seqs = slices.Compact(slices.Sorted(slices.Values(seqs)))
	j.erasing.Lock()
	defer j.erasing.Unlock()
	seqs, names, err := j.announce(seqs, by)
	if err != nil || len(seqs) == 0 {
		return err
	}
	var changed error
	for i, name := range names[:max(len(names)-1, 0)] {
		first, _ := SegmentSeq(name)
		next, _ := SegmentSeq(names[i+1])
		from, _ := slices.BinarySearch(seqs, first)
		to, _ := slices.BinarySearch(seqs, next)
		if from == to {
			continue
		}
		select {
		case <-j.stop:
			return fmt.Errorf("%w; run the erasure again", ErrClosed)
		default:
		}
		kept, err := j.eraseIn(filepath.Join(j.dir, name), seqs[from:to])
		if err != nil {
			return fmt.Errorf("%s: %w; run the erasure again", name, err)
		}
		if kept > 0 && changed == nil {
			changed = fmt.Errorf("%s: the payload of record %d does not fit its hash and was not erased: run foldgate trace verify", name, kept)
		}
	}
	return cmp.Or(syncDir(j.dir), changed)
}

// announce records that the payloads of these records are about to be erased, and returns the numbers of
// those that there are, and the segments. None of the records is in the last segment.
func (j *Journal) announce(seqs []uint64, by string) (present []uint64, names []string, err error) {
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.broken != nil {
		return nil, nil, j.broken
	}
	after, _ := slices.BinarySearch(seqs, j.seq+1) // an announcement would hold for a later record, too
	if seqs = seqs[:after]; after == 0 {
		return nil, nil, nil
	}
	if open, _ := SegmentSeq(j.name); seqs[len(seqs)-1] >= open { // only whole files are rewritten
		if err := j.rotate(); err != nil {
			return nil, nil, err
		}
	}
	for some := range slices.Chunk(Ranges(seqs), rangesAtOnce) {
		if err := j.note(Event{Event: EventErased, Erased: some, By: by}); err != nil {
			return nil, nil, err
		}
	}
	if err := j.sync(); err != nil {
		return nil, nil, err
	}
	if err := j.writeHeadAt(j.headNow()); err != nil {
		return nil, nil, err
	}
	names, err = Segments(j.dir)
	return seqs, names, err
}

// eraseIn replaces the segment by one without the payloads of the records with these numbers. It
// returns the first record that keeps its payload because it does not fit its hash, 0 for none.
func (j *Journal) eraseIn(path string, seqs []uint64) (kept uint64, err error) {
	tmp := path + tmpSuffix // the next start removes one that is left
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer os.Remove(tmp)
	w := bufio.NewWriterSize(f, 256<<10)
	err = ReadLines(path, 0, func(line []byte, _ int64, whole bool) bool {
		if r, p, err := parseLine(line); err == nil && r.Erasable() {
			switch _, chosen := slices.BinarySearch(seqs, r.Seq); {
			case chosen && p.intact(r):
				line = append(line[:p.end], '}')
			case chosen:
				kept = cmp.Or(kept, r.Seq)
			}
		}
		if whole {
			line = append(line, '\n')
		}
		_, failed := w.Write(line) // the next Write and Flush have it, too
		return failed == nil
	})
	if errors.Is(err, fs.ErrNotExist) { // retention was quicker
		f.Close()
		return 0, nil
	}
	if err = cmp.Or(err, w.Flush()); err == nil {
		err = f.Sync()
	}
	if err = cmp.Or(err, f.Close()); err == nil {
		err = j.replace(path, tmp)
	}
	return kept, err
}

// replace gives a segment the content of tmp, unless retention has removed it meanwhile.
func (j *Journal) replace(path, tmp string) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.Rename(tmp, path)
}

// unannounced returns the first of the erased records that no record about an erasure names, 0 for
// none. erased ascend.
func unannounced(erased, announced []Range) uint64 {
	announced = slices.SortedFunc(slices.Values(announced), func(a, b Range) int { return cmp.Compare(a[0], b[0]) })
	i, reach := 0, uint64(0)
	for _, s := range erased {
		for next := s[0]; ; next = reach + 1 {
			for ; i < len(announced) && announced[i][0] <= next; i++ {
				reach = max(reach, announced[i][1])
			}
			if reach < next {
				return next
			}
			if reach >= s[1] {
				break
			}
		}
	}
	return 0
}

// count returns how many numbers are in ranges.
func count(ranges []Range) (n uint64) {
	for _, s := range ranges {
		n += s[1] - s[0] + 1
	}
	return n
}
