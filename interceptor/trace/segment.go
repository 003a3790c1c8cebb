package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names inside the trace directory. A segment is named for the seq of its first record.
const (
	segmentPrefix = "trace-"
	segmentSuffix = ".jsonl"
	tmpSuffix     = ".tmp" // of a file that is to replace another
	headName      = "head.json"
	lockName      = "lock"
)

// Event is the payload of a [KindJournal] record.
type Event struct {
	Event       string    `json:"event"`                 // one of the Event constants
	Predecessor *Anchor   `json:"predecessor,omitempty"` // the last record of the segment before
	Removed     []Anchor  `json:"removed,omitempty"`     // by retention: the last record of each segment
	File        string    `json:"file,omitempty"`        // the repaired or damaged segment
	Bytes       int64     `json:"bytes,omitempty"`       // torn bytes cut off
	SHA256      string    `json:"sha256,omitempty"`      // of the bytes cut off
	Expected    *Anchor   `json:"expected,omitempty"`    // the last record according to the head file
	Found       *Anchor   `json:"found,omitempty"`       // the last record in the segments
	First       *FirstRef `json:"first,omitempty"`       // the oldest segment after retention
	Erased      []Range   `json:"erased,omitempty"`      // the records with payloads that are about to be erased
	By          string    `json:"by,omitempty"`          // who erases them
	Steady      time.Time `json:"steady,omitzero"`       // when the segment begins, if the clock of the machine was set back
}

// Values of [Event.Event].
const (
	EventBegin     = "begin"     // first record of a segment; names the predecessor's last record
	EventRepaired  = "repaired"  // a torn last line was cut off, or its newline restored
	EventGap       = "gap"       // the head anchors records that are missing
	EventRewritten = "rewritten" // the head anchors another record than the one in its place
	EventDamaged   = "damaged"   // the last line is whole but does not match its hash
	EventNoHead    = "no_head"   // there were records but no head file
	EventResumed   = "resumed"   // records could not be written for a while
	EventRetention = "retention" // old segments are about to be removed
	EventErased    = "erased"    // payloads are about to be erased
)

// Anchor names one record by its place.
type Anchor struct {
	File string `json:"file"`
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// String returns the anchor for a log.
func (a *Anchor) String() string {
	if a == nil {
		return "none"
	}
	return fmt.Sprintf("record %d of %s, %s", a.Seq, a.File, a.Hash)
}

// wholeHash is the form of a hash. A hash that was cut by mistake is refused: it would look as if
// a record had been changed.
var wholeHash = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// ParseAnchor reads SEQ:HASH, as people keep it.
func ParseAnchor(s string) (a Anchor, err error) {
	seq, hash, ok := strings.Cut(s, ":")
	a.Hash = hash
	if a.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil || !ok || a.Seq == 0 || !wholeHash.MatchString(hash) {
		return a, fmt.Errorf("%.100q is not SEQ:HASH, such as 17:sha256: and 64 hexadecimal digits", s)
	}
	return a, nil
}

// FirstRef names the oldest segment that must exist and the hash it continues from.
type FirstRef struct {
	File string `json:"file"`
	Seq  uint64 `json:"seq"`
	Prev string `json:"prev"`
}

// SegmentName returns the name of the segment that begins with this seq.
func SegmentName(first uint64) string {
	return fmt.Sprintf("%s%015d%s", segmentPrefix, first, segmentSuffix)
}

// SegmentSeq returns the seq in a segment's name. ok is false for other names.
func SegmentSeq(name string) (first uint64, ok bool) {
	digits := strings.TrimSuffix(strings.TrimPrefix(name, segmentPrefix), segmentSuffix)
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && n > 0 && SegmentName(n) == name
}

// Segments returns the names of the journal's files in dir, oldest first.
func Segments(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("trace directory %s may not be read: run as the user who runs foldgate: %w", dir, err)
		}
		return nil, fmt.Errorf("trace directory: %w", err)
	}
	var names []string
	for _, e := range entries {
		if _, ok := SegmentSeq(e.Name()); ok && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { // a longer name has a larger seq
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	return names, nil
}

// SegmentOf returns which of [Segments] has a record, "" if it was removed.
func SegmentOf(names []string, seq uint64) (name string) {
	for _, n := range names {
		if first, _ := SegmentSeq(n); first <= seq {
			name = n
		}
	}
	return name
}

// maxLine bounds one line in bytes. maxPayload keeps records far below it; a longer line is damage.
const maxLine = 256 << 20

// ReadLines calls yield for each line of a segment from offset on, until yield returns false. It
// passes the line without its newline and the offset of its beginning. whole is false for a last
// line without a newline: it is being written, or torn. line is valid only during the call.
func ReadLines(path string, offset int64, yield func(line []byte, offset int64, whole bool) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 256<<10), maxLine)
	lines.Split(func(data []byte, atEOF bool) (advance int, token []byte, err error) {
		if n := bytes.IndexByte(data, '\n') + 1; n > 0 {
			return n, data[:n], nil
		}
		if atEOF && len(data) > 0 {
			return len(data), data, nil
		}
		return 0, nil, nil
	})
	for lines.Scan() {
		line, whole := bytes.CutSuffix(lines.Bytes(), []byte("\n"))
		if !yield(line, offset, whole) {
			return nil
		}
		offset += int64(len(lines.Bytes()))
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("at byte %d: line is longer than any record", offset)
	}
	return lines.Err()
}

// FirstRecord reads the first record of a segment. A record with a wrong hash is an error.
func FirstRecord(path string) (*Record, error) {
	var r *Record
	err := ReadLines(path, 0, func(line []byte, _ int64, whole bool) bool {
		if whole {
			r = intactRecord(line)
		}
		return false
	})
	if err == nil && r == nil {
		err = errors.New("its first line is not a right record")
	}
	return r, err
}

type head struct {
	Protocol string `json:"protocol"`
	TS       string `json:"ts"`
	Anchor
	First FirstRef `json:"first"`
}

const headProtocol = "foldgate/trace-head.v1"

// readHead returns nil if there is no head file, and an error if the file is not a head.
func readHead(dir string) (*head, error) {
	data, err := os.ReadFile(filepath.Join(dir, headName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trace head: %w", err)
	}
	h := new(head)
	if err := json.Unmarshal(data, h); err != nil {
		return nil, fmt.Errorf("trace head %s: %w", headName, err)
	}
	// Segments are removed because of a head, so its members must fit each other.
	file, ok := SegmentSeq(h.File)
	first, ok2 := SegmentSeq(h.First.File)
	if !ok || !ok2 || h.Protocol != headProtocol || first != h.First.Seq || first > file || file > h.Seq ||
		len(h.Hash) != hashLen || len(h.First.Prev) != hashLen {
		return nil, fmt.Errorf("trace head %s: not a %s anchor", headName, headProtocol)
	}
	return h, nil
}

// Last returns the number of the last record that the journal in dir is known to have had, 0 if that
// is not known.
func Last(dir string) (uint64, error) {
	h, err := readHead(dir)
	if h == nil || err != nil {
		return 0, err
	}
	return h.Seq, nil
}

// writeHead replaces the head file atomically. durable also waits for the disk.
func writeHead(dir string, h *head, durable bool) error {
	h.Protocol = headProtocol
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, headName+tmpSuffix)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("trace head: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if err = cmp.Or(err, f.Close()); err == nil {
		err = os.Rename(tmp, filepath.Join(dir, headName))
	}
	if err != nil {
		return fmt.Errorf("trace head: %w", err)
	}
	return nil
}

// syncDir makes created, renamed and removed names in dir durable. Windows can't sync a directory.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return cmp.Or(d.Sync(), d.Close())
}
