package trace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Query yields the records of the journal in dir that f selects, in the order
// of the journal, until yield returns false. It may run beside the writer: it
// sees what was committed when it came to the end. Missing indexes are built,
// and kept if the directory may be written. A [*UsageError] means that f is
// malformed. Lines that are no records are passed over; [Verify] names them.
func Query(dir string, f Filter, yield func(*Record) bool) error {
	if err := f.Validate(); err != nil {
		return err
	}
	if f.Limit > 0 {
		yield = limited(f.Limit, yield)
	}
	if f.NoIndex && f.Chain == "" && !f.Orphans {
		return queryFiles(dir, f, yield, false)
	}
	lib, err := openLibrary(dir)
	if err != nil {
		return err
	}
	defer lib.close()
	switch {
	case f.Chain != "":
		return lib.queryChain(f, yield)
	case f.Orphans:
		return lib.queryOrphans(f, yield)
	}
	_, err = lib.query(f, yield)
	return err
}

// Recent is [Query] without an index, for what is near the end of a long journal:
// it passes over the files whose successor begins before f.Since. What was
// written there just before the clock was set back it does not see.
func Recent(dir string, f Filter, yield func(*Record) bool) error {
	if err := f.Validate(); err != nil {
		return err
	}
	return queryFiles(dir, f, yield, true)
}

func limited(n int, yield func(*Record) bool) func(*Record) bool {
	return func(r *Record) bool {
		n--
		return yield(r) && n > 0
	}
}

// query yields matching records and reports whether yield wants more.
func (lib library) query(f Filter, yield func(*Record) bool) (more bool, err error) {
	for _, s := range lib {
		for _, x := range s.indexes {
			rows, err := f.rows(x)
			if err != nil {
				return false, err
			}
			for _, row := range rows {
				r, err := s.record(x, row)
				if err != nil {
					return false, err
				}
				if r != nil && f.matchRecord(r) && !yield(r) {
					return false, nil
				}
			}
		}
	}
	return true, nil
}

// queryFiles reads every line and trusts nothing else; recent passes over files
// that should be too old.
func queryFiles(dir string, f Filter, yield func(*Record) bool, recent bool) error {
	names, err := segments(dir)
	if err != nil {
		return err
	}
	for i, name := range names {
		if recent && i+1 < len(names) && f.endsBefore(filepath.Join(dir, names[i+1])) {
			continue
		}
		more := true
		err := scanFile(filepath.Join(dir, name), func(r *Record) bool {
			more = !f.matchRecord(r) || yield(r)
			return more
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // retention may remove a file under us
			return err
		}
		if !more {
			return nil
		}
	}
	return nil
}

// endsBefore reports whether all records before a file are too old, as far as
// clocks go forward: its first record is.
func (f *Filter) endsBefore(next string) bool {
	if f.Since.IsZero() {
		return false
	}
	r, err := firstRecord(next)
	return err == nil && micros(r.TS) < f.Since.UnixMicro()
}

// scanFile yields the records of one file.
func scanFile(path string, yield func(*Record) bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return scanLines(file, 0, func(line []byte, _ int64, whole bool) bool {
		if !whole {
			return false
		}
		r, _, err := readRecord(line)
		return err != nil || yield(r)
	})
}
