package rawjson

import (
	"encoding/binary"
	"math/bits"
)

// Valid reports whether b is exactly one JSON value, at most maxDepth deep.
// It is the check for foreign bytes that the rest of the package relies on. As
// encoding/json it takes any bytes from 0x20 up inside strings, UTF-8 or not.
//
// It reads b once and without recursion, a string 16 bytes at a time; every
// message passes here, and json.Valid was a third of the cost of a call.
func Valid(b []byte, maxDepth int) bool {
	var open stack
	i := space(b, 0)
	for {
		// A value begins at i.
		if i >= len(b) {
			return false
		}
		switch c := b[i]; c {
		case '{', '[':
			if open.depth >= maxDepth {
				return false
			}
			open.push(c == '{')
			i = space(b, i+1)
			if i < len(b) && b[i] == c+2 { // } and ] follow { and [ by two
				break
			}
			if c == '{' {
				i = validKey(b, i)
			}
			if i < 0 {
				return false
			}
			continue
		default:
			if i = validScalar(b, i); i < 0 {
				return false
			}
			i = space(b, i)
		}
		// A value ended before i, or its container is about to at i.
		for {
			if open.depth == 0 {
				return i == len(b)
			}
			if i >= len(b) {
				return false
			}
			object := open.top()
			c := b[i]
			i = space(b, i+1)
			if c == ',' {
				if object {
					if i = validKey(b, i); i < 0 {
						return false
					}
				}
				break
			}
			if object && c != '}' || !object && c != ']' {
				return false
			}
			open.depth--
		}
	}
}

// stack remembers of every open container whether it is an object.
type stack struct {
	depth int
	few   [32]uint64 // a bit per level: real messages need no allocation
	more  []uint64   // the levels beyond
}

func (s *stack) word(level int) *uint64 {
	if i := level / 64; i < len(s.few) {
		return &s.few[i]
	}
	return &s.more[level/64-len(s.few)]
}

func (s *stack) push(object bool) {
	if s.depth%64 == 0 && s.depth/64 >= len(s.few)+len(s.more) {
		s.more = append(s.more, 0)
	}
	w, bit := s.word(s.depth), uint64(1)<<(s.depth%64)
	*w &^= bit
	if object {
		*w |= bit
	}
	s.depth++
}

func (s *stack) top() bool {
	d := s.depth - 1
	return *s.word(d)&(1<<(d%64)) != 0
}

// validKey returns the index of the value that follows the key at i, or -1.
func validKey(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	if i = validString(b, i); i < 0 {
		return -1
	}
	if i = space(b, i); i >= len(b) || b[i] != ':' {
		return -1
	}
	return space(b, i+1)
}

// validScalar returns the index after the scalar that starts at i, or -1.
func validScalar(b []byte, i int) int {
	switch b[i] {
	case '"':
		return validString(b, i)
	case 't':
		return validWord(b, i, "true")
	case 'f':
		return validWord(b, i, "false")
	case 'n':
		return validWord(b, i, "null")
	}
	return validNumber(b, i)
}

func validWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
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

// validString returns the index after the string literal at i, or -1.
func validString(b []byte, i int) int {
	for i++; ; {
		if i = plain(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			if i = validEscape(b, i); i < 0 {
				return -1
			}
		default: // a control character
			return -1
		}
	}
}

// validEscape returns the index after the escape sequence at i, or -1.
func validEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return -1
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if i+6 > len(b) {
			return -1
		}
		for _, c := range b[i+2 : i+6] {
			if c-'0' > 9 && c|0x20-'a' > 5 {
				return -1
			}
		}
		return i + 6
	}
	return -1
}

// plain returns the index of the first byte at or after i that is a quote, a
// backslash or a control character, or len(b). It tests 16 bytes at once: 8
// are slower in long strings, and 32 in short ones.
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

// special sets the high bit of each of the first eight bytes that is a quote, a
// backslash or a control character: x-k borrows into the high bit of a byte
// below k, x^c is 0 where x is c, and x^2 takes '"' to 0x20 and leaves control
// characters below. A borrow may also mark bytes above a marked one, never the
// first.
func special(b []byte) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	x := binary.LittleEndian.Uint64(b)
	return (((x ^ ones*2) - ones*0x21) | ((x ^ ones*'\\') - ones)) &^ x & high
}
