package regexset

import (
	"encoding/binary"
	"strings"
	"unsafe"
)

// Literals is a set of literals that are searched for at once, without regard to the case of
// ASCII letters. Each literal has a window, three of its bytes that are rare in texts. The search
// looks for the windows, by the low five bits of each byte, and compares the literals of those that it finds.
type Literals struct {
	// pairs has, by the low bits of two bytes, those of the bytes before them with which they are a
	// window, and, in the high half, those of the bytes behind them.
	pairs   [1 << (2 * codeBits)]uint64
	first   [1 << (3 * codeBits)]uint32 // by the low bits of a window: its first entry
	entries []entry                     // by window
	texts   []string
}

const (
	codeBits  = 5
	code      = 1<<codeBits - 1
	maxOffset = 8 // of a window in a literal
)

// An entry is a literal. Its first eight bytes are compared at once: a word of the text, with the
// bits of fold set, which make letters lower-case, and the bits of mask kept, must be value.
type entry struct {
	value, fold, mask uint64
	literal           int32
	size              int32 // of the literal
	offset            uint8 // of the window
	last              bool  // of its window
}

// Searchable reports whether [Literals] can have literal: two bytes or more, all ASCII.
func Searchable(literal string) bool { return len(literal) >= minLiteral && ASCII(literal) }

// NewLiterals returns a set of searchable literals in lower case.
func NewLiterals(literals []string) *Literals {
	m := &Literals{texts: literals}
	windows := map[int][]entry{}
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
			for c := range 1 << codeBits { // any byte may follow
				w := windowAt(l+string(rune(c)), 0)
				windows[w] = append(windows[w], e)
			}
			continue
		}
		for k := range min(len(l)-2, maxOffset+1) {
			if often(l[k:k+3]) < often(l[e.offset:e.offset+3]) {
				e.offset = uint8(k)
			}
		}
		w := windowAt(l, int(e.offset))
		windows[w] = append(windows[w], e)
	}
	for w, some := range windows {
		before, first, second, after := w&code, w>>codeBits, w&(code|code<<codeBits), w>>(2*codeBits)
		m.pairs[first] |= 1 << before
		m.pairs[second] |= 1 << (after + 1<<codeBits)
		m.first[w] = uint32(len(m.entries))
		m.entries = append(m.entries, some...)
		m.entries[len(m.entries)-1].last = true
	}
	return m
}

// windowAt returns the low bits of the three bytes of s from byte i on.
func windowAt(s string, i int) int {
	return int(s[i]&code) | int(s[i+1]&code)<<codeBits | int(s[i+2]&code)<<(2*codeBits)
}

// often says roughly how often the bytes of s are in texts.
func often(s string) (n int) {
	const letters = "kvbywgfpmucdlhrsnioate " // the rest is rare
	for i := range len(s) {
		n += 6 + strings.IndexByte(letters, s[i])
	}
	return n
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

// blockSize is the number of bytes whose work the limit is told of at once.
const blockSize = 1 << 16

// block appends the literals that begin in the next block of text, from byte i on, and returns its end.
func (m *Literals) block(text string, i int, found []literalHit) (int, []literalHit) {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	begin, end := i, min(i+blockSize, len(b))
	windows := b[:min(end+maxOffset+2, len(b))] // of literals that begin before the end
	for i = m.next(windows, i); i < len(windows); i = m.next(windows, i+1) {
		w := word(b, i)
		for n := int(m.first[w&code|w>>3&(code<<codeBits)|w>>6&(code<<(2*codeBits))]); n < len(m.entries); n++ {
			x := &m.entries[n]
			at := i - int(x.offset)
			if uint(at-begin) < uint(end-begin) && (word(b, at)|x.fold)&x.mask == x.value && at+int(x.size) <= len(b) &&
				(x.size <= 8 || equalFold(b[at+8:], m.texts[x.literal][8:])) {
				found = appendInOrder(found, literalHit{x.literal, int32(at)})
			}
			if x.last {
				break
			}
		}
	}
	return end, found
}

// appendInOrder appends a hit before those that begin behind it. They are found later if their windows are.
func appendInOrder(found []literalHit, f literalHit) []literalHit {
	found = append(found, f)
	for n := len(found) - 1; n > 0 && found[n-1].at > f.at; n-- {
		found[n-1], found[n] = found[n], found[n-1]
	}
	return found
}

// next returns the first place from byte i on where a window may be, or len(b).
func (m *Literals) next(b []byte, i int) int {
	rest := b[i:]
	for len(rest) >= 8 {
		w := binary.LittleEndian.Uint64(rest) & 0x1f1f1f1f1f1f1f1f
		two := w>>8&0x001f001f001f001f | w>>11&0x03e003e003e003e0 // bytes 1 and 2, 3 and 4, 5 and 6
		behind := w | 1<<codeBits*0x0101010101010101
		pairs := m.pairs[two&1023]
		if pairs>>(w&63)&1 != 0 {
			return len(b) - len(rest)
		}
		if pairs>>(behind>>24&63)&1 != 0 {
			return len(b) - len(rest) + 1
		}
		pairs = m.pairs[two>>16&1023]
		if pairs>>(w>>16&63)&1 != 0 {
			return len(b) - len(rest) + 2
		}
		if pairs>>(behind>>40&63)&1 != 0 {
			return len(b) - len(rest) + 3
		}
		pairs = m.pairs[two>>32&1023]
		if pairs>>(w>>32&63)&1 != 0 {
			return len(b) - len(rest) + 4
		}
		if pairs>>(behind>>56)&1 != 0 {
			return len(b) - len(rest) + 5
		}
		rest = rest[6:]
	}
	for i = len(b) - len(rest); i < len(b); i++ {
		w := word(b, i) & 0x1f1f1f
		if m.pairs[w>>8&code|w>>11&(code<<codeBits)]>>(w&63)&1 != 0 {
			break
		}
	}
	return i
}

// word returns the eight bytes of b from i on, or zeros after its end.
func word(b []byte, i int) uint64 {
	if i+8 <= len(b) {
		return binary.LittleEndian.Uint64(b[i : i+8 : i+8])
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
