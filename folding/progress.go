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
	used  int64 // pages that the file has
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
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(text))
	return hex.EncodeToString(sum)
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
	p := progress{b.ID, b.BudgetUsed, b.Activity}
	text, err := json.Marshal(p)
	if len(text) > pageSize-16 { // names of many bytes
		p.Activity.Tools = nil
		text, err = json.Marshal(p)
	}
	if err != nil {
		return err
	}
	line := append(make([]byte, 0, len(text)+10), checksum(text)...)
	line = append(append(append(line, ' '), text...), '\n')
	f.mu.Lock()
	defer f.mu.Unlock()
	page, ok := f.pages[b.ID]
	if !ok {
		return nil
	}
	_, err = f.file.WriteAt(line, page*pageSize)
	return err
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
