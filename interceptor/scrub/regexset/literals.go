package regexset

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"
)

const (
	hashBits = 15
	// hashMul spreads the low three bytes of a word over the hash, and drops those above.
	hashMul = 0x9E3779B1 << 8 & math.MaxUint32
	lower8  = 0x2020202020202020
	low8    = 0x0707070707070707
)

// Literals is a set of literals that are searched for at once, without regard to the case of
// ASCII letters. The search looks up each four bytes of a text: the first three by their hash, the
// fourth in a bitmap. Few pass, and those are compared with the literals of this hash.
type Literals struct {
	fourth  [1 << hashBits]uint8  // by hash: a bit for the low three bits of each fourth byte
	index   [1 << hashBits]uint16 // by hash: of its entries
	entries [][]entry
	texts   []string
}

// An entry is a literal. Its first eight bytes are compared at once: a word of the text, with the
// bits of fold set, which make letters lower-case, and the bits of mask kept, must be value.
type entry struct {
	value, fold, mask uint64
	literal           int32
	size              int32 // of the literal
}

// Searchable reports whether [Literals] can have literal: two bytes or more, all ASCII.
func Searchable(literal string) bool { return len(literal) >= minLiteral && ASCII(literal) }

// NewLiterals returns a set of searchable literals in lower case.
func NewLiterals(literals []string) *Literals {
	m := &Literals{texts: literals}
	add := func(e entry, three uint64) {
		h := hash(three | lower8)
		if m.fourth[h] == 0 {
			m.index[h] = uint16(len(m.entries))
			m.entries = append(m.entries, nil)
		}
		if of := &m.entries[m.index[h]]; !slices.Contains(*of, e) {
			*of = append(*of, e)
		}
		if m.fourth[h] |= 1 << (e.value >> 24 & 7); e.size < 4 {
			m.fourth[h] = math.MaxUint8 // any byte may follow
		}
	}
	for i, l := range literals {
		e := entry{literal: int32(i), size: int32(len(l))}
		for k := range min(len(l), 8) {
			e.value |= uint64(l[k]) << (8 * k)
			e.mask |= 0xff << (8 * k)
			if l[k] >= 'a' && l[k] <= 'z' {
				e.fold |= 0x20 << (8 * k)
			}
		}
		if len(l) >= 3 {
			add(e, e.value)
			continue
		}
		for c := range 256 { // any byte may follow
			add(e, e.value|uint64(c)<<16)
		}
	}
	return m
}

// Contains reports whether text contains one of the literals.
func (m *Literals) Contains(text string) bool {
	var buf [8]literalHit
	found := buf[:0]
	for at := 0; at < len(text) && len(found) == 0; {
		at, found = m.block(text, at, found)
	}
	return len(found) > 0
}

type literalHit struct{ literal, at int32 }

// scan calls hit for each literal in text, in the order of their places. buf is its memory.
func (m *Literals) scan(text string, limit Limit, buf *[]literalHit, hit func(literalHit)) error {
	for at := 0; at < len(text); {
		if at > 0 {
			if err := limit.Check(); err != nil {
				return err
			}
		}
		at, *buf = m.block(text, at, (*buf)[:0])
		for _, f := range *buf {
			hit(f)
		}
	}
	return nil
}

// blockSize is the number of bytes between checks of the time.
const blockSize = 1 << 16

// block appends the literals that begin in the next block of text, from byte i on, and returns its end.
func (m *Literals) block(text string, i int, found []literalHit) (int, []literalHit) {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	end := min(i+blockSize, len(b))
	part := b[:min(end+7, len(b))]
	for {
		if i = m.next(part, i); i >= end {
			return end, found
		}
		w := word(b, i)
		entries := m.entries[m.index[hash(w|lower8)]]
		for k := range entries {
			x := &entries[k]
			if (w|x.fold)&x.mask == x.value && i+int(x.size) <= len(b) && (x.size <= 8 || equalFold(b[i+8:], m.texts[x.literal][8:])) {
				found = append(found, literalHit{x.literal, int32(i)})
			}
		}
		i++
	}
}

// next returns the first place from byte i on where a literal may begin, or len(b).
func (m *Literals) next(b []byte, i int) int {
	rest := b[i:]
	for len(rest) >= 8 {
		w := binary.LittleEndian.Uint64(rest) | lower8
		low := w & low8
		if m.mayBegin(w, low>>24) {
			return len(b) - len(rest)
		}
		if m.mayBegin(w>>8, low>>32) {
			return len(b) - len(rest) + 1
		}
		if m.mayBegin(w>>16, low>>40) {
			return len(b) - len(rest) + 2
		}
		if m.mayBegin(w>>24, low>>48) {
			return len(b) - len(rest) + 3
		}
		rest = rest[4:]
	}
	for i = len(b) - len(rest); i < len(b); i++ {
		if w := word(b, i) | lower8; m.mayBegin(w, w>>24&7) {
			break
		}
	}
	return i
}

// mayBegin reports whether a literal may begin with the low three bytes of w and then a byte with the low
// three bits of fourth, of which the next two are 0.
func (m *Literals) mayBegin(w, fourth uint64) bool {
	return uint32(m.fourth[hash(w)])>>(fourth&31)&1 != 0
}

// word returns the eight bytes of b from i on, or zeros after its end.
func word(b []byte, i int) uint64 {
	if i+8 <= len(b) {
		return binary.LittleEndian.Uint64(b[i:])
	}
	var w uint64
	for k := len(b) - 1; k >= i; k-- {
		w = w<<8 | uint64(b[k])
	}
	return w
}

// equalFold reports whether b begins with lower, without regard to the case of ASCII letters.
func equalFold(b []byte, lower string) bool {
	for i := range len(lower) {
		c := b[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// hash hashes the low three bytes of w, with the bits of lower8. So letters of either case have the same
// hash, and some other bytes; the literals are compared in the end.
func hash(w uint64) uint32 { return uint32(w) * hashMul >> (32 - hashBits) }
