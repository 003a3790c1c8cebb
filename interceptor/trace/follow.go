package trace

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// followInterval is how often [Follow] looks for new records.
const followInterval = 200 * time.Millisecond

// Follow yields the records that f selects, first those that are there, then
// each new one, until ctx ends or yield returns false; it then returns nil.
// With f.Since set to now only new ones come. Chain, Orphans and the tree
// formats need all records and cannot be followed: that is a [*UsageError].
func Follow(ctx context.Context, dir string, f Filter, yield func(*Record) bool) error {
	if err := f.Validate(); err != nil {
		return err
	}
	if f.Chain != "" || f.Orphans {
		return usage("follow", "--chain and --orphans look at all records and cannot follow")
	}
	if f.Limit > 0 {
		yield = limited(f.Limit, yield)
	}
	lib, err := openLibrary(dir)
	if err != nil {
		return err
	}
	more, err := lib.query(f, yield)
	at := lib.end()
	lib.close()
	if err != nil || !more {
		return err
	}
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if more, err := at.read(dir, f, yield); err != nil || !more {
			return err
		}
	}
}

// position is a place between two lines of a journal.
type position struct {
	name   string
	offset int64
}

// end is the place after the last line that the library knows.
func (lib library) end() (at position) {
	if len(lib) > 0 {
		s := lib[len(lib)-1]
		at.name = s.name
		if n := len(s.indexes); n > 0 {
			at.offset = s.indexes[n-1].To
		}
	}
	return at
}

// read yields what has come since the position and moves it.
func (at *position) read(dir string, f Filter, yield func(*Record) bool) (more bool, err error) {
	names, err := segments(dir)
	if err != nil {
		return false, err
	}
	was, _ := segmentFirst(at.name)
	more = true
	for _, name := range names {
		if first, _ := segmentFirst(name); first < was {
			continue
		}
		if name != at.name {
			*at = position{name: name}
		}
		file, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) { // retention was quicker
			continue
		}
		if err != nil {
			return false, err
		}
		err = scanLines(file, at.offset, func(line []byte, start int64, whole bool) bool {
			if !whole {
				return false
			}
			at.offset = start + int64(len(line)) + 1
			if r, _, err := readRecord(line); err == nil && f.matchRecord(r) {
				more = yield(r)
			}
			return more
		})
		file.Close()
		if err != nil || !more {
			return false, err
		}
	}
	return true, nil
}
