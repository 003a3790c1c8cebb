package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Names inside the trace directory. A segment is named for its first record's seq.
const (
	segmentPrefix = "trace-"
	segmentSuffix = ".jsonl"
	indexSuffix   = ".idx"
	indexTemp     = ".tmp" // an index that is being written
	headName      = "head.json"
	lockName      = "lock"
)

// KindJournal is the kind of the records that the journal writes about itself:
// the first of each file, repairs, gaps and retention. Payload: [Event].
const KindJournal = "system/journal"

// Event is the payload of a [KindJournal] record.
type Event struct {
	Event       string    `json:"event"`                 // one of the Event constants
	Predecessor *Anchor   `json:"predecessor,omitempty"` // the last record of the file before
	Removed     []Anchor  `json:"removed,omitempty"`     // by retention: each file's last record
	File        string    `json:"file,omitempty"`        // that was repaired or is damaged
	Bytes       int64     `json:"bytes,omitempty"`       // torn bytes cut off
	SHA256      string    `json:"sha256,omitempty"`      // of the bytes cut off
	Expected    *Anchor   `json:"expected,omitempty"`    // the last record by the head file
	Found       *Anchor   `json:"found,omitempty"`       // the last record that is there
	First       *FirstRef `json:"first,omitempty"`       // the oldest file after retention
}

// Values of [Event.Event].
const (
	EventBegin     = "begin"     // first record of a file; names the predecessor's last record
	EventRepaired  = "repaired"  // a torn last line was cut off, or its newline restored
	EventGap       = "gap"       // the head anchors records that are not there
	EventRewritten = "rewritten" // the head anchors another record than the one in its place
	EventDamaged   = "damaged"   // the last line is whole but not what its hash says
	EventNoHead    = "no_head"   // records were there but no head file
	EventResumed   = "resumed"   // records could not be written for a while
	EventRetention = "retention" // old files are about to be removed
)

// Anchor names one record by its place.
type Anchor struct {
	File string `json:"file"`
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// FirstRef names the oldest file that must exist and the hash it continues from.
type FirstRef struct {
	File string `json:"file"`
	Seq  uint64 `json:"seq"`
	Prev string `json:"prev"`
}

// head is the content of the head file.
type head struct {
	Protocol string `json:"protocol"`
	TS       string `json:"ts"`
	Anchor
	First FirstRef `json:"first"`
}

const headProtocol = "foldgate/trace-head.v1"

func segmentName(first uint64) string {
	return fmt.Sprintf("%s%015d%s", segmentPrefix, first, segmentSuffix)
}

// segmentFirst returns the seq in a segment's name.
func segmentFirst(name string) (uint64, bool) {
	s, ok := strings.CutPrefix(name, segmentPrefix)
	s, ok2 := strings.CutSuffix(s, segmentSuffix)
	if !ok || !ok2 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && n > 0 && segmentName(n) == name
}

// segments lists the journal's files, oldest first.
func segments(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("trace directory %s may not be read: run as the user who runs foldgate: %w", dir, err)
		}
		return nil, fmt.Errorf("trace directory: %w", err)
	}
	var names []string
	for _, e := range entries {
		if _, ok := segmentFirst(e.Name()); ok && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	sort.Slice(names, func(i, k int) bool {
		a, _ := segmentFirst(names[i])
		b, _ := segmentFirst(names[k])
		return a < b
	})
	return names, nil
}

// readHead returns nil where there is no head file, and an error where it is
// there but not a head.
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
	if h.Protocol != headProtocol || !h.agrees() {
		return nil, fmt.Errorf("trace head %s: not a %s anchor", headName, headProtocol)
	}
	return h, nil
}

// agrees reports whether what h says can be true: files are given up by it.
func (h *head) agrees() bool {
	file, ok := segmentFirst(h.File)
	first, ok2 := segmentFirst(h.First.File)
	return ok && ok2 && first == h.First.Seq && first <= file && file <= h.Seq &&
		len(h.Hash) == hashLen && len(h.First.Prev) == hashLen
}

// writeHead replaces the head file atomically. durable also waits for the disk.
func writeHead(dir string, h *head, durable bool) error {
	h.Protocol = headProtocol
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, headName+".tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("trace head: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, headName))
	}
	if err != nil {
		return fmt.Errorf("trace head: %w", err)
	}
	return nil
}

// syncDir makes created, renamed and removed names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
