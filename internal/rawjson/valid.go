package rawjson

import (
	"encoding/binary"
	"math/bits"
)

// Valid reports whether b is exactly one JSON value, at most maxDepth deep. It checks foreign bytes
// for the rest of the package. Like encoding/json it accepts any bytes from 0x20 up inside strings,
// UTF-8 or not.
//
// It reads b once and without recursion, a string 16 bytes at a time. Every message passes here,
// and json.Valid took a third of the time of a call.
func Valid(b []byte, maxDepth int) bool {
	open := make([]byte, 0, 64) // '{' and '[' around i; real messages need no more
	i := space(b, 0)
	for {
		// A value begins at i.
		if i >= len(b) {
			return false
		}
		switch c := b[i]; c {
		case '{', '[':
			if len(open) >= maxDepth {
				return false
			}
			open = append(open, c)
			i = space(b, i+1)
			if i < len(b) && b[i] == c+2 { // } and ] follow { and [ by two
				break
			}
			if c == '{' {
				if i = colon(b, validString(b, i)); i < 0 {
					return false
				}
			}
			continue
		default:
			if i = validScalar(b, i); i < 0 {
				return false
			}
			i = space(b, i)
		}
		// A value ended before i, or its container ends at i.
		for {
			if len(open) == 0 {
				return i == len(b)
			}
			if i >= len(b) {
				return false
			}
			last := open[len(open)-1]
			c := b[i]
			i = space(b, i+1)
			if c == ',' {
				if last == '{' {
					if i = colon(b, validString(b, i)); i < 0 {
						return false
					}
				}
				break
			}
			if c != last+2 {
				return false
			}
			open = open[:len(open)-1]
		}
	}
}

// validScalar returns the index after the scalar that starts at i, or -1.
func validScalar(b []byte, i int) int {
	if b[i] == '"' {
		return validString(b, i)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if len(b)-i >= len(word) && string(b[i:i+len(word)]) == word {
			return i + len(word)
		}
	}
	return validNumber(b, i)
}

// validNumber returns the index after the number that starts at i, or -1.
func validNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	end := digits(b, i)
	if end == i || (b[i] == '0' && end > i+1) {
		return -1
	}
	i = end
	if i < len(b) && b[i] == '.' {
		if end = digits(b, i+1); end == i+1 {
			return -1
		}
		i = end
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if end = digits(b, i); end == i {
			return -1
		}
		i = end
	}
	return i
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// validString returns the index after the string literal at i, or -1 without one.
func validString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; ; {
		if i = plain(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			_, n := Unescape(b[i:])
			if n == 0 {
				return -1
			}
			i += n
		default: // a control character
			return -1
		}
	}
}

// plain returns the index of the first quote, backslash or control character at i or after it, or
// len(b). It tests 16 bytes at once: 8 are slower in long strings, and 32 in short ones.
func plain(b []byte, i int) int {
	for ; i+16 <= len(b); i += 16 {
		two := b[i : i+16 : i+16]
		if lo, hi := special(two), special(two[8:]); lo != 0 {
			return i + bits.TrailingZeros64(lo)/8
		} else if hi != 0 {
			return i + 8 + bits.TrailingZeros64(hi)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < 0x20 || c == '"' || c == '\\' {
			return i
		}
	}
	return len(b)
}

// special returns the first eight bytes of b with the high bit set in each quote, backslash or
// control character, and no other bit set. In a byte, x-k borrows into the high bit if x is below
// k, x^c is 0 if x is c, and x^2 maps '"' to 0x20 and control characters below it. A borrow may
// also mark bytes after the first marked one, but none before.
func special(b []byte) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	x := binary.LittleEndian.Uint64(b)
	return (((x ^ ones*2) - ones*0x21) | ((x ^ ones*'\\') - ones)) &^ x & high
}
