package trace

import (
	"os"
	"path/filepath"
)

// Query yields the records of the journal in dir that f selects, in the order
// of the journal, until yield returns false. It may run beside the writer: it
// sees what was committed when it came to the end. A [*UsageError] means that
// f is malformed. Lines that are no records are passed over; [Verify] names them.
func Query(dir string, f Filter, yield func(*Record) bool) error {
	if err := f.Validate(); err != nil {
		return err
	}
	names, err := segments(dir)
	if err != nil {
		return err
	}
	n, more := 0, true
	for _, name := range names {
		if !more {
			break
		}
		err := scanFile(filepath.Join(dir, name), 0, func(r *Record) bool {
			if f.matchRecord(r) {
				n++
				more = yield(r) && (f.Limit == 0 || n < f.Limit)
			}
			return more
		})
		if err != nil && !os.IsNotExist(err) { // retention may remove a file under us
			return err
		}
	}
	return nil
}

// scanFile yields the records of one file from offset on.
func scanFile(path string, offset int64, yield func(*Record) bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return scanLines(file, offset, func(line []byte, _ int64, whole bool) bool {
		if !whole {
			return false
		}
		r, err := ParseRecord(line)
		return err != nil || yield(r)
	})
}
