package bpe

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// highBits are the high bits of eight bytes.
const highBits = 0x8080808080808080

// valid reports whether b is valid UTF-8, as utf8.Valid does. It reads whole characters, and
// after one that is not ASCII it reads eight bytes at once again, if these are ASCII.
func valid(b []byte) bool {
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		c := uint32(x)
		switch {
		case x&highBits == 0:
			b = b[8:]
		case c&0x80 == 0:
			b = b[bits.TrailingZeros64(x&highBits)/8:]
		case c&0xc0e0 == 0x80c0:
			if c&0x1e == 0 { // fits in one byte
				return false
			}
			b = b[2:]
		case c&0xc0c0f0 == 0x8080e0:
			if top := c & 0x200f; top == 0 || top == 0x200d { // fits in two bytes, or a surrogate
				return false
			}
			b = b[3:]
		case c&0xc0c0c0f8 == 0x808080f0:
			if plane := c&7<<2 | c>>12&3; plane == 0 || plane > 16 {
				return false
			}
			b = b[4:]
		default:
			return false
		}
	}
	return utf8.Valid(b)
}

// decode returns the first character of b, which is valid and not ASCII, and its width.
func decode(b []byte) (rune, int) {
	switch c := b[0]; {
	case c < 0xe0:
		return rune(c&0x1f)<<6 | rune(b[1]&0x3f), 2
	case c < 0xf0:
		_ = b[2]
		return rune(c&0x0f)<<12 | rune(b[1]&0x3f)<<6 | rune(b[2]&0x3f), 3
	}
	_ = b[3]
	return rune(b[0]&0x07)<<18 | rune(b[1]&0x3f)<<12 | rune(b[2]&0x3f)<<6 | rune(b[3]&0x3f), 4
}

// width returns the length of a character that begins with c, not ASCII.
func width(c byte) int {
	switch {
	case c < 0xe0:
		return 2
	case c < 0xf0:
		return 3
	}
	return 4
}
