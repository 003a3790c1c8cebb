package scrub

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"unsafe"
)

const (
	hashBits = 16
	// hashMul spreads the low three bytes of a word over the hash; what is
	// above them is multiplied out of it.
	hashMul = 0x9E3779B1 << 8 & math.MaxUint32
	lower8  = 0x2020202020202020
)

// A matcher finds literals in text, without regard to the case of ASCII
// letters. It looks up every three bytes in a bitmap; few pass, and those are
// compared with the literals that hold these three bytes.
type matcher struct {
	bitmap  [1 << hashBits / 64]uint64
	first   [1 << hashBits / 2]uint16 // by hash/2: index+1 of its first entry
	entries []entry
	texts   []string
}

// An entry is a literal at one of its threes. Its first eight bytes are
// compared at once: with the bits of fold set, which are those that make
// letters lower-case, and those of mask kept, the text must be value.
type entry struct {
	value, fold, mask uint64
	literal           int32
	offset            int32 // of the three bytes in the literal
	size              int32 // of the literal
	more              bool  // the next entry is of the same hash
}

// newMatcher returns a matcher for literals, which are in lower case and of at
// least two bytes. It fails where there are more than it can hold.
func newMatcher(literals []string) (*matcher, error) {
	m := &matcher{texts: literals}
	buckets := map[uint32][]entry{}
	add := func(e entry, three uint64) {
		h := hash(three)
		m.bitmap[h>>6] |= 1 << (h & 63)
		if !slices.Contains(buckets[h/2], e) {
			buckets[h/2] = append(buckets[h/2], e)
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
		if len(l) < 3 {
			// Any byte may follow.
			for c := range 256 {
				add(e, e.value|uint64(c)<<16)
			}
			continue
		}
		at := rarest(l)
		e.offset = int32(at)
		add(e, uint64(l[at])|uint64(l[at+1])<<8|uint64(l[at+2])<<16)
	}
	for _, h := range slices.Sorted(maps.Keys(buckets)) {
		bucket := buckets[h]
		m.first[h] = uint16(len(m.entries) + 1)
		for k := range bucket {
			bucket[k].more = k+1 < len(bucket)
		}
		m.entries = append(m.entries, bucket...)
	}
	if len(m.entries) >= math.MaxUint16 {
		return nil, fmt.Errorf("rules: %d keywords and literals are too many: leave out those of one or two letters", len(literals))
	}
	return m, nil
}

// hash of the low three bytes of w, letters of either case alike. (Some other
// bytes become alike too; literals are compared in the end.)
func hash(w uint64) uint32 { return uint32(w|lower8) * hashMul >> (32 - hashBits) }

// common holds, by letter, how common it is in text, in rough steps.
const common = "82459336712547741779423131"

// rarest returns the offset of the three bytes of l that are the least common
// in text, by its letters.
func rarest(l string) int {
	best, at := 1<<30, 0
	for i := 0; i+3 <= len(l); i++ {
		weight := 1
		for _, c := range []byte(l[i : i+3]) {
			if c >= 'a' && c <= 'z' {
				weight *= int(common[c-'a'] - '0')
			} else {
				weight *= 2
			}
		}
		if weight < best {
			best, at = weight, i
		}
	}
	return at
}

// A sighting is a literal at a place of a text.
type sighting struct{ literal, at int32 }

// blockSize is how much of a text a matcher looks at in one go.
const blockSize = 1 << 16

// look appends to found the literals around the next block of text from byte i
// on, and returns where the block ends: at len(text) for the last one. Places
// of one literal come in ascending order.
func (m *matcher) look(text string, i int, found []sighting) (int, []sighting) {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	end := min(i+blockSize, len(b)-7)
	for ; i < end; i += 4 {
		w := binary.LittleEndian.Uint64(b[i:]) | lower8
		h0 := uint32(w) * hashMul >> (32 - hashBits)
		h1 := uint32(w>>8) * hashMul >> (32 - hashBits)
		h2 := uint32(w>>16) * hashMul >> (32 - hashBits)
		h3 := uint32(w>>24) * hashMul >> (32 - hashBits)
		if m.bitmap[h0>>6]&(1<<(h0&63)) != 0 {
			found = m.verify(b, i, h0, found)
		}
		if m.bitmap[h1>>6]&(1<<(h1&63)) != 0 {
			found = m.verify(b, i+1, h1, found)
		}
		if m.bitmap[h2>>6]&(1<<(h2&63)) != 0 {
			found = m.verify(b, i+2, h2, found)
		}
		if m.bitmap[h3>>6]&(1<<(h3&63)) != 0 {
			found = m.verify(b, i+3, h3, found)
		}
	}
	if i+8 <= len(b) {
		return i, found
	}
	for ; i < len(b); i++ {
		if h := hash(word(b, i)); m.bitmap[h>>6]&(1<<(h&63)) != 0 {
			found = m.verify(b, i, h, found)
		}
	}
	return i, found
}

// word returns the eight bytes of b from i on; zeros follow its end.
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

// any reports whether text holds a literal.
func (m *matcher) any(text string) bool {
	var found []sighting
	for at := 0; at < len(text) && len(found) == 0; {
		at, found = m.look(text, at, found)
	}
	return len(found) > 0
}

// verify appends the literals that have a three of hash h at byte i of b.
func (m *matcher) verify(b []byte, i int, h uint32, found []sighting) []sighting {
	for k := int(m.first[h/2]) - 1; k >= 0; k++ {
		x := &m.entries[k]
		at := i - int(x.offset)
		if at >= 0 && at+int(x.size) <= len(b) && (word(b, at)|x.fold)&x.mask == x.value &&
			(x.size <= 8 || equalFold(b[at+8:], m.texts[x.literal][8:])) {
			found = append(found, sighting{x.literal, int32(at)})
		}
		if !x.more {
			break
		}
	}
	return found
}

// equalFold reports whether b begins with lower, but for the case of ASCII
// letters.
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
