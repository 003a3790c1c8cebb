package trace

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// builder collects the columns of an index.
type builder struct {
	indexHeader
	offsets, times, flags  []byte
	cols                   [numCols][]byte
	dicts                  [numCols][]byte
	numbers                [numCols]map[string]uint32
	ids, correlations, rpc []entry
}

type entry struct {
	hash uint64
	row  uint32
}

// buildIndex returns the encoded index of a journal file's bytes from..to,
// which must be line borders; to < 0 is up to the last whole line. Equal
// ranges give equal bytes.
func buildIndex(path string, from, to int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := &builder{}
	b.From, b.To, b.MinTime = from, from, math.MaxInt64
	for c := range b.numbers {
		b.numbers[c] = map[string]uint32{}
	}
	var row lineHeader
	err = scanLines(f, from, func(line []byte, at int64, whole bool) bool {
		end := at + int64(len(line)) + 1
		if !whole || to >= 0 && end > to || end > math.MaxUint32 {
			return false
		}
		b.To = end
		row.parse(line)
		b.add(&row, at)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("index of %s: %w", filepath.Base(path), err)
	}
	return b.encode()
}

func (b *builder) add(h *lineHeader, at int64) {
	row := uint32(b.Rows) // #nosec G115: fewer rows than bytes, which fit
	b.Rows++
	b.offsets = binary.LittleEndian.AppendUint32(b.offsets, uint32(at)) // #nosec G115: checked by buildIndex
	ts := micros(string(h.ts))
	b.times = binary.LittleEndian.AppendUint64(b.times, uint64(ts)) // #nosec G115: bits are kept
	b.MinTime, b.MaxTime = min(b.MinTime, ts), max(b.MaxTime, ts)
	b.flags = binary.LittleEndian.AppendUint16(b.flags, h.flags)
	b.LastHash = string(h.hash)
	for c, value := range h.text {
		n, ok := b.numbers[c][string(value)]
		if !ok {
			n = uint32(len(b.numbers[c])) // #nosec G115: at most one a row
			b.numbers[c][string(value)] = n
			b.dicts[c] = binary.AppendUvarint(b.dicts[c], uint64(len(value)))
			b.dicts[c] = append(b.dicts[c], value...)
		}
		b.cols[c] = binary.LittleEndian.AppendUint32(b.cols[c], n)
	}
	if len(h.id) > 0 {
		b.ids = append(b.ids, entry{hash64(string(h.id)), row})
	}
	for _, id := range h.correlations {
		b.correlations = append(b.correlations, entry{hash64(id), row})
	}
	for _, id := range h.rpc {
		b.rpc = append(b.rpc, entry{hash64(id), row})
	}
}

func encodeTable(entries []entry) []byte {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.row, b.row))
	})
	out := make([]byte, 0, len(entries)*entryBytes)
	for _, e := range entries {
		out = binary.LittleEndian.AppendUint64(out, e.hash)
		out = binary.LittleEndian.AppendUint32(out, e.row)
	}
	return out
}

func (b *builder) encode() ([]byte, error) {
	parts := map[string][]byte{"offsets": b.offsets, "times": b.times, "flags": b.flags,
		"ids": encodeTable(b.ids), "correlations": encodeTable(b.correlations), "rpc": encodeTable(b.rpc)}
	for c := range numCols {
		parts[colName(c)], parts[dictName(c)] = b.cols[c], b.dicts[c]
	}
	b.Sections = map[string]int64{}
	size := 0
	for name, part := range parts {
		b.Sections[name] = int64(len(part))
		size += len(part)
	}
	head, err := json.Marshal(b.indexHeader)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, size+len(head)+len(indexMagic)+4)
	out = append(out, indexMagic...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(head))) // #nosec G115: a few hundred bytes
	out = append(out, head...)
	for _, name := range sectionNames() {
		out = append(out, parts[name]...)
	}
	return out, nil
}

// saveIndex puts an index beside its journal file, whole or not at all, and
// reports whether it did. Who may only read the directory goes on without.
func saveIndex(path string, data []byte) bool {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+indexTemp+"*") // 0600
	if err != nil {
		return false
	}
	_, err = tmp.Write(data)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path+indexSuffix)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return false
	}
	if _, err := os.Stat(path); err != nil { // retention was quicker, and does not come back for it
		os.Remove(path + indexSuffix)
	}
	return true
}
