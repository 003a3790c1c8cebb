package trace

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// indexTail is how much of the file being written is indexed in memory by each
// query before its index on the disk is made anew.
const indexTail = 16 << 20

// shelf is one journal file and the indexes that together cover its whole lines.
type shelf struct {
	name    string
	file    *os.File
	indexes []*index
	onDisk  *os.File // of the first index, nil if it is in memory
	window  []byte   // the last piece read
	at      int64    // its offset
}

// library is a journal opened for questions.
type library []*shelf

// openLibrary opens the files of a journal, oldest first, and builds what
// indexes are missing.
func openLibrary(dir string) (library, error) {
	names, err := segments(dir)
	if err != nil {
		return nil, err
	}
	var lib library
	for i, name := range names {
		s, err := openShelf(filepath.Join(dir, name), i < len(names)-1)
		if errors.Is(err, fs.ErrNotExist) { // retention was quicker
			continue
		}
		if err != nil {
			lib.close()
			return nil, err
		}
		lib = append(lib, s)
	}
	return lib, nil
}

func (lib library) close() {
	for _, s := range lib {
		s.close()
	}
}

func (s *shelf) close() {
	s.file.Close() // opened for reading: nothing can be lost
	if s.onDisk != nil {
		s.onDisk.Close()
	}
}

// openShelf opens a journal file. sealed files are not written any more.
func openShelf(path string, sealed bool) (*shelf, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &shelf{name: filepath.Base(path), file: f}
	if err := s.openIndexes(path, sealed); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *shelf) openIndexes(path string, sealed bool) error {
	fi, err := s.file.Stat()
	if err != nil {
		return err
	}
	covered := s.openOnDisk(path)
	rest := fi.Size() - covered
	if rest == 0 {
		return nil
	}
	from, save := covered, false
	if sealed || rest > indexTail { // make it anew, over all
		if s.onDisk != nil {
			s.onDisk.Close()
		}
		s.onDisk, s.indexes = nil, nil
		from, save = 0, true
	}
	data, err := buildIndex(path, from, -1)
	if err != nil {
		return err
	}
	if save && saveIndex(path, data) && s.openOnDisk(path) > 0 {
		return nil // the copy in memory is not needed
	}
	x, err := openIndex(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	s.indexes = append(s.indexes, x)
	return nil
}

// openOnDisk opens the index beside the file if it is there and belongs to it,
// and returns how much of the file it covers.
func (s *shelf) openOnDisk(path string) (covered int64) {
	f, err := os.Open(path + indexSuffix)
	if err != nil {
		return 0
	}
	if fi, err := f.Stat(); err == nil {
		if x, err := openIndex(f, fi.Size()); err == nil && s.belongs(x) {
			x.name = s.name + indexSuffix
			s.onDisk, s.indexes = f, []*index{x}
			return x.To
		}
	}
	f.Close()
	return 0
}

// belongs reports whether an index was made of this file: its last line must be there.
func (s *shelf) belongs(x *index) bool {
	if x.From != 0 || x.Rows == 0 {
		return false
	}
	line, err := s.line(x, uint32(x.Rows-1)) // #nosec G115: fewer rows than bytes, which fit
	if err != nil {
		return false
	}
	var h lineHeader
	h.parse(line)
	return string(h.hash) == x.LastHash
}

// line returns row's line without its newline, valid until the next call. It
// reads ahead where lines are asked for in order.
func (s *shelf) line(x *index, row uint32) ([]byte, error) {
	from, to, err := x.offset(row)
	if err != nil {
		return nil, err
	}
	end := s.at + int64(len(s.window))
	if from < s.at || to > end {
		size := to - from
		if near := from - end; s.window != nil && near >= -int64(len(s.window)) && near < 16<<10 {
			size = max(size, 256<<10)
		}
		if int64(cap(s.window)) < size {
			s.window = make([]byte, size)
		}
		n, err := s.file.ReadAt(s.window[:size], from)
		s.window, s.at = s.window[:n], from
		if int64(n) < to-from {
			return nil, x.damaged(err)
		}
	}
	return s.window[from-s.at : to-s.at-1], nil
}

// record reads row's record; nil where the line is none.
func (s *shelf) record(x *index, row uint32) (*Record, error) {
	line, err := s.line(x, row)
	if err != nil {
		return nil, err
	}
	r, _, err := readRecord(line)
	if err != nil {
		return nil, nil //nolint:nilerr // Verify names such lines
	}
	return r, nil
}
