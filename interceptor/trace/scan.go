package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxLine bounds what is read as one line. Options.MaxPayload keeps records
// far below it; a longer line is damage.
const maxLine = 256 << 20

// errLineTooLong is reported for a line beyond maxLine.
var errLineTooLong = errors.New("line is longer than any record")

// scanLines calls yield for every line of f from offset on, with the line
// without its newline and the offset it starts at, until yield returns false.
// A last line without newline is being written, or torn, and passed with
// whole false. line is valid only during the call.
func scanLines(f *os.File, offset int64, yield func(line []byte, at int64, whole bool) bool) error {
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	br := bufio.NewReaderSize(f, 256<<10)
	var long []byte
	for {
		part, err := br.ReadSlice('\n')
		line := part
		if len(long) > 0 || errors.Is(err, bufio.ErrBufferFull) {
			if len(long)+len(part) > maxLine {
				return fmt.Errorf("at byte %d: %w", offset, errLineTooLong)
			}
			long = append(long, part...)
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			line = long
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err != nil {
			if len(line) > 0 {
				yield(line, offset, false)
			}
			return nil
		}
		next := offset + int64(len(line))
		if !yield(line[:len(line)-1], offset, true) {
			return nil
		}
		offset, long = next, long[:0]
	}
}

// firstRecord reads the first record of a segment.
func firstRecord(path string) (*Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r *Record
	err = scanLines(f, 0, func(line []byte, _ int64, whole bool) bool {
		if whole {
			r = rightRecord(line)
		}
		return false
	})
	if err == nil && r == nil {
		err = errors.New("its first line is not a right record")
	}
	return r, err
}
