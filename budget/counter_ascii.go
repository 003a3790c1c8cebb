package budget

import (
	"encoding/binary"
	"math/bits"
)

// asciiWords finds the most frequent pieces without looking at single bytes:
// words of ASCII letters, with the character before that the pattern takes along.
type asciiWords struct {
	// prefix is 8, the bits of a byte, for a character that a word takes along.
	prefix [256]uint8
	// camel says that a capital after a small letter starts a new word.
	camel bool
	// suffix is a character after which the end of a word is not certain.
	suffix byte
}

// Eight bytes of the same value, and the high bits of eight bytes.
const (
	each = 0x0101010101010101
	high = 0x80 * each
)

// between returns the high bits of the bytes of x that are from lo to hi, all ASCII.
func between(x uint64, lo, hi byte) uint64 {
	low := x &^ high
	return (low + each*uint64(0x80-lo)) &^ (low + each*uint64(0x7f-hi)) &^ x & high
}

// ends returns the high bits of the bytes of x that are no letters or, in camel
// case, a capital after a small letter. The byte before x is in the high bit of
// smallBefore if it is a small letter. It also returns the small letters.
func (a *asciiWords) ends(x, smallBefore uint64) (ends, small uint64) {
	small = between(x, 'a', 'z')
	capital := between(x, 'A', 'Z')
	ends = high &^ (small | capital)
	if a.camel {
		ends |= capital & (small<<8 | smallBefore>>56)
	}
	return ends, small
}

// word returns the length of the word at the start of b and its bytes, the first
// lowest, if it has at most 15; else 0. The text goes on after b.
func (a *asciiWords) word(b *[17]byte) (n int, low, high uint64) {
	low = binary.LittleEndian.Uint64(b[:])
	prefix := uint(a.prefix[b[0]])
	ends, small := a.ends(low>>prefix, 0)
	letters := uint(bits.TrailingZeros64(ends)) &^ 7
	n = int(letters+prefix) / 8
	switch {
	case letters == 0:
		return 0, 0, 0
	case n < 8:
		low &= 1<<(8*uint(n)) - 1
	default:
		high = binary.LittleEndian.Uint64(b[8:])
		ends, _ = a.ends(high, small<<prefix)
		if ends == 0 {
			return 0, 0, 0
		}
		more := uint(bits.TrailingZeros64(ends)) &^ 7
		n = 8 + int(more)/8
		high &= 1<<more - 1
	}
	if next := b[n&15]; next >= 0x80 || next == a.suffix {
		return 0, 0, 0
	}
	return n, low, high
}

// asciiPrefixes returns the prefixes of words among the classes of set, but not except.
func asciiPrefixes(set uint, except byte) (prefix [256]uint8) {
	fillClasses()
	for c := range byte(0x80) {
		if set>>classes[c]&1 != 0 && c != except {
			prefix[c] = 8
		}
	}
	return prefix
}

func grammarO200k() grammar {
	words := asciiWords{prefix: asciiPrefixes(prefixes, 0x80), camel: true, suffix: '\''}
	return grammar{nextO200k, longO200k, capitals, words}
}

func grammarCL100k() grammar {
	return grammar{nextCL100k, longCL100k, 0, asciiWords{prefix: asciiPrefixes(prefixes, '\''), suffix: 0x80}}
}

func grammarGPT2() grammar {
	words := asciiWords{suffix: 0x80}
	words.prefix[' '] = 8
	return grammar{nextGPT2, longGPT2, 0, words}
}
