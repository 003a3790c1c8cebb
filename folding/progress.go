package folding

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// progressFile has the tokens and calls of active branches, a page for each. A charge writes a page,
// which costs less than a transaction of the database. A process that is killed has done the write of a
// page or not. A page begins with its checksum, since a machine that fails may do half of it. An active
// branch whose page is lost counts as spent.
type progressFile struct {
	mu    sync.Mutex // guards the fields below
	file  *os.File
	pages map[string]int64 // by the branch's id
	free  []int64
	used  int64  // pages that the file has
	line  []byte // that was written last
}

// progress is the content of a page.
type progress struct {
	ID       string   `json:"id"`
	Used     int      `json:"used"`
	Activity Activity `json:"activity"`
}

const pageSize = 4096

// openProgress opens or creates the file, and gives the active branches what it has of them.
func openProgress(path string, active []Branch) (_ *progressFile, err error) {
	f := &progressFile{pages: map[string]int64{}}
	if f.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		f.file.Close()
		return nil, err
	}
	found := map[string]int64{}
	for ; f.used*pageSize < int64(len(raw)); f.used++ {
		found[decodeProgress(raw[f.used*pageSize:]).ID] = f.used
	}
	for _, b := range active {
		if page, ok := found[b.ID]; ok {
			f.pages[b.ID] = page
		}
	}
	for page := range f.used {
		p := decodeProgress(raw[page*pageSize:])
		if at, ok := f.pages[p.ID]; !ok || at != page {
			f.free = append(f.free, page)
		}
	}
	for _, b := range active {
		if _, ok := f.pages[b.ID]; ok {
			continue
		}
		if len(raw) > 0 { // else the database is of a version that had no such file, or is a copy without it
			b.BudgetUsed = b.BudgetTotal
		}
		if err := f.add(b); err != nil {
			f.file.Close()
			return nil, err
		}
	}
	return f, nil
}

// decodeProgress returns the content of the page at the start of raw, without an id if there is none.
func decodeProgress(raw []byte) (p progress) {
	sum, rest, _ := strings.Cut(string(raw[:min(len(raw), pageSize)]), " ")
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
	page := f.used
	if n := len(f.free); n > 0 {
		page, f.free = f.free[n-1], f.free[:n-1]
	} else {
		f.used++
	}
	f.pages[id] = page
}

// write stores what b has used and called. It does nothing for a branch without a page: its end is stored.
func (f *progressFile) write(b Branch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	page, ok := f.pages[b.ID]
	if !ok {
		return nil
	}
	f.line = appendProgress(f.line[:0], progress{b.ID, b.BudgetUsed, b.Activity})
	_, err := f.file.WriteAt(f.line, page*pageSize)
	return err
}

// appendProgress appends the line of a page with p, in JSON behind its checksum.
func appendProgress(line []byte, p progress) []byte {
	const noSum = "00000000 "
	o, a := rawjson.Appender{B: append(append(line, noSum...), '{')}, &p.Activity
	o.Text("id", p.ID)
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
	page, ok := f.pages[b.ID]
	if !ok {
		return nil
	}
	raw := make([]byte, pageSize)
	n, err := f.file.ReadAt(raw, page*pageSize)
	if err != nil && err != io.EOF {
		return err
	}
	if p := decodeProgress(raw[:n]); p.ID == b.ID {
		b.BudgetUsed, b.Activity = p.Used, p.Activity
	} else {
		b.BudgetUsed = b.BudgetTotal
	}
	return nil
}

// remove takes the page of a branch whose end is stored, and empties it: it may have the text of an error.
func (f *progressFile) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	page, ok := f.pages[id]
	if !ok {
		return
	}
	delete(f.pages, id)
	f.free = append(f.free, page)
	_, _ = f.file.WriteAt(make([]byte, pageSize), page*pageSize) // a page of no active branch is not read
}
