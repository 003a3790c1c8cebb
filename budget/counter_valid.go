package budget

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// valid reports whether b is valid UTF-8, as utf8.Valid does. It looks at whole
// characters instead of bytes and finds its way back to eight bytes at once after
// one that is not ASCII, which pays in text that has both.
func valid(b []byte) bool {
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		c := uint32(x)
		switch {
		case x&highs == 0:
			b = b[8:]
		case c&0x80 == 0:
			b = b[bits.TrailingZeros64(x&highs)/8:]
		case c&0xc0e0 == 0x80c0:
			if c&0x1e == 0 { // what fits in a byte
				return false
			}
			b = b[2:]
		case c&0xc0c0f0 == 0x8080e0:
			if top := c & 0x200f; top == 0 || top == 0x200d { // what fits in two bytes, a surrogate
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
