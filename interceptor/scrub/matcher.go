package scrub

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

const (
	hashBits = 15
	// hashMul spreads three letters over the hash.
	hashMul = 0x9E3779B1
	lower8  = 0x2020202020202020
)

// A matcher finds literals in text, without regard to the case of ASCII
// letters. It looks up every three bytes in a bitmap; few pass, and those are
// compared with the literals that hold these three bytes.
type matcher struct {
	bitmap  [1 << hashBits / 64]uint64
	first   [1 << hashBits]uint16 // index+1 in entries of the first with this hash
	entries []entry
	texts   []string
}

// An entry is a literal at one of its threes.
type entry struct {
	literal int
	offset  int // of the three bytes in the literal
	next    uint16
}

// newMatcher returns a matcher for literals, which are in lower case and of at
// least two bytes. It fails where there are more than it can hold.
func newMatcher(literals []string) (*matcher, error) {
	m := &matcher{texts: literals}
	for i, l := range literals {
		if len(l) < 3 {
			// Any byte may follow, also in its folded form.
			for c := range 256 {
				m.add(i, 0, hash(uint64(l[0])|uint64(l[1])<<8|uint64(c)<<16))
			}
			continue
		}
		at := rarest(l)
		m.add(i, at, hash(uint64(l[at])|uint64(l[at+1])<<8|uint64(l[at+2])<<16))
	}
	if len(m.entries) > math.MaxUint16 {
		return nil, fmt.Errorf("rules: %d keywords and literals are too many: leave out those of one or two letters", len(literals))
	}
	return m, nil
}

func (m *matcher) add(literal, offset int, h uint32) {
	for e := m.first[h]; e != 0; e = m.entries[e-1].next {
		if x := m.entries[e-1]; x.literal == literal && x.offset == offset {
			return
		}
	}
	m.entries = append(m.entries, entry{literal, offset, m.first[h]})
	m.first[h] = uint16(len(m.entries))
	m.bitmap[h>>6] |= 1 << (h & 63)
}

// hash of the low three bytes of w, letters of either case alike. (Some other
// bytes become alike too; literals are compared in the end.)
func hash(w uint64) uint32 {
	return uint32((w|lower8)&0xFFFFFF) * hashMul >> (32 - hashBits)
}

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
		h0 := uint32(w&0xFFFFFF) * hashMul >> (32 - hashBits)
		h1 := uint32(w>>8&0xFFFFFF) * hashMul >> (32 - hashBits)
		h2 := uint32(w>>16&0xFFFFFF) * hashMul >> (32 - hashBits)
		h3 := uint32(w>>24&0xFFFFFF) * hashMul >> (32 - hashBits)
		set := m.bitmap[h0>>6]>>(h0&63)&1 | m.bitmap[h1>>6]>>(h1&63)&1<<1 |
			m.bitmap[h2>>6]>>(h2&63)&1<<2 | m.bitmap[h3>>6]>>(h3&63)&1<<3
		for ; set != 0; set &= set - 1 {
			k := bits.TrailingZeros64(set)
			found = m.verify(text, i+k, hash(w>>(8*k)), found)
		}
	}
	if i+8 <= len(b) {
		return i, found
	}
	for ; i < len(text); i++ {
		var w uint64
		for k := min(3, len(text)-i) - 1; k >= 0; k-- {
			w = w<<8 | uint64(text[i+k])
		}
		if h := hash(w); m.bitmap[h>>6]>>(h&63)&1 != 0 {
			found = m.verify(text, i, h, found)
		}
	}
	return i, found
}

// any reports whether text holds a literal.
func (m *matcher) any(text string) bool {
	var found []sighting
	for at := 0; at < len(text) && len(found) == 0; {
		at, found = m.look(text, at, found)
	}
	return len(found) > 0
}

// verify appends the literals that have hash h at byte i of text.
func (m *matcher) verify(text string, i int, h uint32, found []sighting) []sighting {
	for e := m.first[h]; e != 0; {
		x := &m.entries[e-1]
		if l, at := m.texts[x.literal], i-x.offset; at >= 0 && at+len(l) <= len(text) && equalFold(text[at:at+len(l)], l) {
			found = append(found, sighting{int32(x.literal), int32(at)})
		}
		e = x.next
	}
	return found
}

// equalFold reports whether s, of the length of lower, is lower but for the
// case of ASCII letters.
func equalFold(s, lower string) bool {
	for i := range len(lower) {
		c := s[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
