package folding

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/internal/mapped"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// progressFile has the tokens and calls of active branches, a page for each. A charge writes a line to
// the page, which costs less than a transaction of the database.
//
//   - The first write of a process, and that of a long line, replaces the page: a process that is killed
//     has done it or not.
//   - Later writes go to memory, in turns to the two halves of the page, so that one half is always whole.
//   - A line begins with its checksum. The newer of two valid lines counts.
//   - An active branch without a valid line counts as spent, also if the file is gone.
type progressFile struct {
	mu     sync.Mutex // guards the fields below
	file   *os.File
	memory mapped.Memory
	pages  map[string]*page // by the branch's id
	free   []int64
	used   int64  // pages that the file has
	line   []byte // that was written last
}

// page is the page of a branch.
type page struct {
	number int64
	writes int
	half   int64 // that has the newest line: 0 or 1
	ready  bool  // the process has written all of the page, and the other half is free
}

// progress is the content of a line.
type progress struct {
	ID       string   `json:"id"`
	Write    int      `json:"write"` // page.writes, from 1
	Used     int      `json:"used"`
	Activity Activity `json:"activity"`
}

const (
	pageSize = 4096
	halfPage = pageSize / 2
	inMemory = 4096 // pages; others are written whole
)

// openProgress opens or creates the file, and gives the active branches what it has of them.
func openProgress(path string, active []Branch) (_ *progressFile, err error) {
	f := &progressFile{pages: map[string]*page{}}
	if f.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		f.file.Close()
		return nil, err
	}
	f.memory = mapped.Open(f.file, inMemory*pageSize)
	found := map[string]*page{}
	var ids []string // by page
	for ; f.used*pageSize < int64(len(raw)); f.used++ {
		p := decodePage(raw[f.used*pageSize:])
		ids = append(ids, p.ID)
		found[p.ID] = &page{number: f.used, writes: p.Write}
	}
	for _, b := range active {
		if at, ok := found[b.ID]; ok {
			f.pages[b.ID] = at
		}
	}
	for number, id := range ids {
		if at, ok := f.pages[id]; !ok || at.number != int64(number) {
			f.free = append(f.free, int64(number))
		}
	}
	for _, b := range active {
		if _, ok := f.pages[b.ID]; ok {
			continue
		}
		spend(&b)
		if err := f.add(b); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// decodePage returns the newer line of the page at the start of raw, without an id if there is none.
func decodePage(raw []byte) (p progress) {
	raw = raw[:min(len(raw), pageSize)]
	for at := 0; at < len(raw); at += halfPage {
		if line := decodeProgress(raw[at:]); line.Write > p.Write {
			p = line
		}
	}
	return p
}

// decodeProgress returns the content of the line at the start of raw, without an id if there is none.
func decodeProgress(raw []byte) (p progress) {
	sum, rest, _ := strings.Cut(string(raw), " ")
	text, _, _ := strings.Cut(rest, "\n")
	if sum != checksum([]byte(text)) || json.Unmarshal([]byte(text), &p) != nil {
		return progress{}
	}
	return p
}

func checksum(text []byte) string {
	sum := binary.BigEndian.AppendUint32(make([]byte, 0, 4), crc32.ChecksumIEEE(text))
	return string(hex.AppendEncode(make([]byte, 0, 8), sum))
}

// add gives a branch a page and writes it.
func (f *progressFile) add(b Branch) error {
	f.take(b.ID)
	err := f.write(b)
	if err != nil {
		f.remove(b.ID)
	}
	return err
}

// take gives a branch a page.
func (f *progressFile) take(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.pages[id]; ok {
		return
	}
	number := f.used
	if n := len(f.free); n > 0 {
		number, f.free = f.free[n-1], f.free[:n-1]
	} else {
		f.used++
	}
	f.pages[id] = &page{number: number}
}

// write stores what b has used and called. It does nothing for a branch without a page: its end is stored.
func (f *progressFile) write(b Branch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.pages[b.ID]
	if !ok {
		return nil
	}
	at.writes++
	f.line = appendProgress(f.line[:0], progress{b.ID, at.writes, b.BudgetUsed, b.Activity})
	other, length := 1-at.half, int64(len(f.line))
	if at.ready && length <= halfPage && f.memory.Do(at.number*pageSize+other*halfPage, length, func(b []byte) bool { return copy(b, f.line) > 0 }) {
		at.half = other
		return nil
	}
	f.line = append(f.line, make([]byte, pageSize-length)...)
	_, err := f.file.WriteAt(f.line, at.number*pageSize)
	at.half, at.ready = 0, err == nil && length <= halfPage
	return err
}

// appendProgress appends a line with p, in JSON behind its checksum.
func appendProgress(line []byte, p progress) []byte {
	const noSum = "00000000 "
	o, a := rawjson.Appender{B: append(append(line, noSum...), '{')}, &p.Activity
	o.Text("id", p.ID)
	o.Number("write", int64(p.Write))
	o.Number("used", int64(p.Used))
	o.Key("activity")
	o.B = append(o.B, '{')
	o.Number("calls", int64(a.Calls))
	o.Number("failed", int64(a.Failed))
	o.Number("in_flight", int64(a.InFlight))
	o.Number("lost", int64(a.Lost))
	if len(a.Tools) > 0 {
		o.Key("tools")
		o.B = append(o.B, '[')
		for _, t := range a.Tools {
			o.B = append(o.B, '{')
			o.Text("tool", t.Tool)
			o.Number("calls", int64(t.Calls))
			o.B = append(o.B, "},"...)
		}
		o.B[len(o.B)-1] = ']'
	}
	o.Number("model_input", int64(a.ModelInput))
	o.Number("model_output", int64(a.ModelOutput))
	o.Text("last_error", a.LastError)
	out := append(o.B, "}}\n"...)
	if len(out)-len(line) > pageSize { // names of many bytes
		a.Tools = nil
		return appendProgress(line, p)
	}
	copy(out[len(line):], checksum(out[len(line)+len(noSum):len(out)-1]))
	return out
}

// read replaces what the database knows of an active branch by what its page says.
func (f *progressFile) read(b *Branch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.pages[b.ID]
	if !ok {
		return nil
	}
	raw := make([]byte, pageSize)
	n, err := f.file.ReadAt(raw, at.number*pageSize)
	if err != nil && err != io.EOF {
		return err
	}
	if p := decodePage(raw[:n]); p.ID == b.ID {
		b.BudgetUsed, b.Activity = p.Used, p.Activity
	} else {
		spend(b)
	}
	return nil
}

// spend makes a branch count as spent: nothing says what it has used.
func spend(b *Branch) {
	b.BudgetUsed, b.Activity.LastError = b.BudgetTotal, "what the branch has used is lost: its line in foldgate.db.progress is missing or damaged"
}

// remove takes the page of a branch whose end is stored, and empties it: it may have the text of an error.
func (f *progressFile) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.pages[id]
	if !ok {
		return
	}
	delete(f.pages, id)
	f.free = append(f.free, at.number)
	_, _ = f.file.WriteAt(make([]byte, pageSize), at.number*pageSize) // a page of no active branch is not read
}

// Close closes the file.
func (f *progressFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memory.Close()
	f.memory = nil
	return f.file.Close()
}
