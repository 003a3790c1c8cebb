package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

// An index narrows a query to the lines that may match; the lines themselves
// decide. It covers a range of one journal file and has, column by column: the
// offsets of the lines, their times and flags; for each text column a number a
// line and the dictionary of those numbers; and three sorted tables, from the
// hash of an id to its line, and from the hash of a correlation and of a
// JSON-RPC id to the lines that have it. It is kept beside the journal file, and may be deleted.

// The text columns.
const (
	colContext = iota
	colKind
	colSession
	colPrincipal
	colServer
	colTool
	colFrom
	colTo // all receivers, joined by NUL
	numCols
)

// The tables.
const (
	tableIDs          = "ids"
	tableCorrelations = "correlations"
	tableRPC          = "rpc"
)

const (
	indexMagic = "fgtidx1\n"
	entryBytes = 12 // of a table: hash, row
)

// indexHeader precedes the sections, as JSON after the magic and its length.
type indexHeader struct {
	From     int64            `json:"from"` // the range of the journal file, in bytes
	To       int64            `json:"to"`
	Rows     int              `json:"rows"`
	MinTime  int64            `json:"min_time"` // in microseconds since 1970
	MaxTime  int64            `json:"max_time"`
	LastHash string           `json:"last_hash"` // of the last line
	Sections map[string]int64 `json:"sections"`  // name to length, in the order of sectionNames
}

// index reads an encoded index of any size piece by piece.
type index struct {
	indexHeader
	name  string // of the file, "" in memory
	r     io.ReaderAt
	start map[string]int64
}

// damaged says what to do about an index that was good enough to be opened.
func (x *index) damaged(what error) error {
	if x.name == "" {
		return fmt.Errorf("the journal was changed while it was read (%w): ask again", what)
	}
	return fmt.Errorf("index %s is damaged (%w): delete it, it is rebuilt; --no-index does without", x.name, what)
}

func dictName(col int) string { return fmt.Sprintf("dict%d", col) }
func colName(col int) string  { return fmt.Sprintf("col%d", col) }

var sectionNames = sync.OnceValue(func() []string {
	names := []string{"offsets", "times", "flags"}
	for c := range numCols {
		names = append(names, colName(c), dictName(c))
	}
	return append(names, tableIDs, tableCorrelations, tableRPC)
})

// openIndex reads the header of an encoded index of size bytes.
func openIndex(r io.ReaderAt, size int64) (*index, error) {
	var fixed [len(indexMagic) + 4]byte
	if _, err := r.ReadAt(fixed[:], 0); err != nil || string(fixed[:len(indexMagic)]) != indexMagic {
		return nil, errors.New("not an index")
	}
	n := int64(binary.LittleEndian.Uint32(fixed[len(indexMagic):]))
	if n > size {
		return nil, errors.New("index header is too long")
	}
	head := make([]byte, n)
	if _, err := r.ReadAt(head, int64(len(fixed))); err != nil {
		return nil, fmt.Errorf("index header: %w", err)
	}
	x := &index{r: r, start: map[string]int64{}}
	if err := json.Unmarshal(head, &x.indexHeader); err != nil {
		return nil, fmt.Errorf("index header: %w", err)
	}
	at := int64(len(fixed)) + n
	for _, name := range sectionNames() {
		length, ok := x.Sections[name]
		if !ok || length < 0 || length > size-at {
			return nil, fmt.Errorf("index section %s is missing or cut", name)
		}
		x.start[name] = at
		at += length
	}
	fits := at == size && x.Rows >= 0
	width := map[string]int64{"times": 8, "offsets": 4, "flags": 2}
	for c := range numCols {
		width[colName(c)] = 4
	}
	for name, n := range width {
		fits = fits && x.Sections[name] == int64(x.Rows)*n
	}
	if !fits {
		return nil, errors.New("index has a wrong length")
	}
	return x, nil
}

func (x *index) section(name string) ([]byte, error) {
	b := make([]byte, x.Sections[name])
	if _, err := x.r.ReadAt(b, x.start[name]); err != nil && !errors.Is(err, io.EOF) {
		return nil, x.damaged(fmt.Errorf("section %s: %w", name, err))
	}
	return b, nil
}

// dict returns the values of a text column; a line has the number of one.
func (x *index) dict(col int) ([]string, error) {
	b, err := x.section(dictName(col))
	if err != nil {
		return nil, err
	}
	text := string(b)
	var values []string
	for len(text) > 0 {
		n, w := binary.Uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) { // #nosec G115: w <= len(b)
			return nil, x.damaged(errors.New("dictionary"))
		}
		end := w + int(n) // #nosec G115: n <= len(b)
		values = append(values, text[w:end])
		text, b = text[end:], b[end:]
	}
	return values, nil
}

// lookup returns the rows of a table that have key's hash, in order. Other
// keys may have the same hash.
func (x *index) lookup(table, key string) ([]uint32, error) {
	want, start := hash64(key), x.start[table]
	n := int(x.Sections[table] / entryBytes)
	var failed error
	entry := func(i int) (hash uint64, row uint32) {
		var b [entryBytes]byte
		if _, err := x.r.ReadAt(b[:], start+int64(i)*entryBytes); err != nil && !errors.Is(err, io.EOF) {
			failed = err
		}
		return binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint32(b[8:])
	}
	i := sort.Search(n, func(i int) bool { h, _ := entry(i); return h >= want })
	var rows []uint32
	for ; i < n && failed == nil; i++ {
		h, row := entry(i)
		if h != want {
			break
		}
		if len(rows) == 0 || rows[len(rows)-1] != row {
			rows = append(rows, row)
		}
	}
	if failed != nil {
		return nil, x.damaged(failed)
	}
	return rows, nil
}

// offset returns where row's line begins and where it ends, newline included.
func (x *index) offset(row uint32) (from, to int64, err error) {
	var b [8]byte
	last := int(row) == x.Rows-1
	want := b[:]
	if last {
		want = b[:4]
	}
	if int(row) >= x.Rows {
		return 0, 0, x.damaged(errors.New("row is out of range"))
	}
	if _, err := x.r.ReadAt(want, x.start["offsets"]+int64(row)*4); err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, x.damaged(err)
	}
	from, to = int64(binary.LittleEndian.Uint32(b[:])), x.To
	if !last {
		to = int64(binary.LittleEndian.Uint32(b[4:]))
	}
	if from < 0 || to <= from || to-from > maxLine {
		return 0, 0, x.damaged(errors.New("offsets"))
	}
	return from, to, nil
}

// hash64 is FNV-1a: stable between processes. Whoever forges collisions only
// makes a lookup read more lines.
func hash64(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// micros reads a time stamp; 0 if it is not one.
func micros(ts string) int64 {
	t, err := time.Parse(time.RFC3339Nano, ts)
	if err != nil {
		return 0
	}
	return t.UnixMicro()
}

// checkIndex compares a journal file's index with what the file gives. No
// index is fine.
func checkIndex(path string) error {
	name := path + indexSuffix
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("its index: %w", err)
	}
	x, err := openIndex(bytes.NewReader(data), int64(len(data)))
	if err == nil {
		var again []byte
		again, err = buildIndex(path, x.From, x.To)
		if err == nil && !bytes.Equal(again, data) {
			err = errors.New("it differs from what the file gives")
		}
	}
	if err != nil {
		return fmt.Errorf("its index %s: %w; delete it, it is rebuilt", name[strings.LastIndexByte(name, os.PathSeparator)+1:], err)
	}
	return nil
}
