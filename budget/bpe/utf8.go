package bpe

import (
	"encoding/binary"
	"unicode/utf8"
)

// valid is utf8.Valid, in less time for text that is not all ASCII.
func valid(b []byte) bool {
	const top = 0x8080808080808080 // the highest bit of each byte
	i := 0
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i : i+8])
		if w&top == 0 {
			rest := b[i+8:]
			for len(rest) >= 32 {
				x := binary.LittleEndian.Uint64(rest) | binary.LittleEndian.Uint64(rest[8:])
				y := binary.LittleEndian.Uint64(rest[16:]) | binary.LittleEndian.Uint64(rest[24:])
				if (x|y)&top != 0 {
					break
				}
				rest = rest[32:]
			}
			i = len(b) - len(rest)
			continue
		}
		// By their highest bit, the bytes that begin a character of two bytes or more.
		first := w & (w << 1) & top
		switch {
		case first&(w<<2) == 0: // no character of three or more
			// Each first byte is before a byte that continues a character, and above 0xc1.
			if w&top&^first != first<<8 || first&^(w&0x1e1e1e1e1e1e1e1e+0x7e7e7e7e7e7e7e7e) != 0 {
				return utf8.Valid(b[i:])
			}
			i += 8 - int(first>>63) // this one continues after the eight bytes
		case w&0xc0c0f0 == 0x8080e0 && w&0x200f != 0 && w&0x200f != 0x200d:
			i += 3
		default:
			r, size := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && size == 1 {
				return false
			}
			i += size
		}
	}
	return utf8.Valid(b[i:])
}
