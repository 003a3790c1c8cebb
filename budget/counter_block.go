package budget

import (
	"encoding/binary"
	"math/bits"
)

// blockSize is how many bytes a block holds.
const blockSize = 64

// A block is the text from the start of a piece on, as sets of positions: bit i
// stands for byte i. Where all of it is ASCII, the classes of the characters and
// of their neighbours tell where every piece starts, for the whole block in a few
// operations on these sets and without a branch for each character. (Reading text
// by sets of positions is the idea of simdjson and of the parabix tools.)
//
// A block never has to know what precedes it, as it begins where a piece does. At
// its end, and where it meets what the sets cannot express, it is cut: only the
// pieces that start before and whose end is certain are taken.
type block struct {
	text       []byte // goes on after the block
	letter     uint64
	small      uint64 // small letters
	digit      uint64
	space      uint64 // ' ' alone
	newline    uint64 // \r and \n
	white      uint64 // all white space
	apostrophe bool   // whether there is one
	cut        uint   // the end of what is ASCII, or less
}

const (
	each  = 0x0101010101010101 // eight bytes of the same value
	highs = 0x80 * each        // the high bits of eight bytes
)

// between returns the high bits of the bytes of x that are from lo to hi, all ASCII.
func between(x uint64, lo, hi byte) uint64 {
	return (x + each*uint64(0x80-lo)) &^ (x + each*uint64(0x7f-hi)) & highs
}

// equal returns the high bits of the bytes of x that are c, all ASCII.
func equal(x uint64, c byte) uint64 {
	return (highs - (x ^ each*uint64(c))) & highs
}

// gather moves the high bits of eight bytes to the lowest eight bits.
func gather(x uint64) uint64 {
	const toTop = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28 | 1<<35 | 1<<42 | 1<<49
	return x * toTop >> 56
}

// load fills k from text, which has at least blockSize bytes, of which the first
// n count.
func (k *block) load(text []byte, n uint) {
	var letter, small, digit, space, newline, white, quote, all uint64
	b := (*[blockSize]byte)(text)
	for i := 0; i < blockSize; i += 8 {
		x := binary.LittleEndian.Uint64(b[i&(blockSize-8):])
		all |= x
		x &^= highs
		alpha := between(x|0x20*each, 'a', 'z')
		blank := equal(x, ' ')
		line := equal(x, '\n') | equal(x, '\r')
		quote |= equal(x, '\'')
		letter |= gather(alpha) << i
		small |= gather(alpha&(x<<2)) << i // 0x20, moved to the high bit
		digit |= gather(between(x, '0', '9')) << i
		space |= gather(blank) << i
		newline |= gather(line) << i
		white |= gather(blank|between(x, '\t', '\r')) << i
	}
	*k = block{text, letter, small, digit, space, newline, white, quote != 0, n}
	if all&highs != 0 {
		k.cutAt(k.find(func(c byte) bool { return c >= 0x80 }))
	}
}

// find returns the positions of the bytes that is holds of.
func (k *block) find(is func(byte) bool) (set uint64) {
	for i, c := range k.text[:blockSize] {
		if is(c) {
			set |= 1 << i
		}
	}
	return set
}

// cutAt cuts the block at the first of the positions in set.
func (k *block) cutAt(set uint64) { k.cut = min(k.cut, uint(bits.TrailingZeros64(set))) }

// certain returns those of the starts of pieces that hold whatever follows the
// block. White space that goes on to the cut may be one piece or several.
func (k *block) certain(starts uint64) uint64 {
	white := k.white << (blockSize - k.cut)
	n := k.cut - uint(bits.LeadingZeros64(^white))
	if n < k.cut {
		n++ // it does start a piece
	}
	return starts & (1<<n - 1)
}

// A splitter returns where the pieces of a block start, and cuts it where that is
// not certain.
type splitter func(k *block) (starts uint64)

// splitO200k is nextO200k for a block. A contraction belongs to the word before.
func splitO200k(k *block) uint64 {
	starts, swallowed := k.pieces(k.small)
	if swallowed != 0 {
		// A slash after the line ends that a sign takes along goes with them.
		next := swallowed << 1 &^ k.newline
		for next &^= k.letter | k.digit | k.white; next != 0; next &= next - 1 {
			if i := bits.TrailingZeros64(next); k.text[i] == '/' {
				k.cutAt(next)
				break
			}
		}
	}
	if k.apostrophe {
		k.cutContraction(k.letter<<1, 0)
	}
	return starts
}

// splitCL100k is nextCL100k for a block. A contraction is a piece of its own, and
// capitals do not start a word.
func splitCL100k(k *block) uint64 {
	starts, _ := k.pieces(0)
	if k.apostrophe {
		k.cutContraction(starts, 1)
	}
	return starts
}

// splitGPT2 is nextGPT2 for a block: runs of the same class, with a space before.
func splitGPT2(k *block) uint64 {
	sign := ^(k.letter | k.digit | k.white)
	first := k.letter&^(k.letter<<1) | k.digit&^(k.digit<<1) | sign&^(sign<<1)
	starts := first&^(k.space<<1) | k.white&^(k.white<<1) | k.white&^(k.white>>1)
	if k.apostrophe {
		k.cutContraction(starts, 1)
	}
	return starts
}

// cutContraction cuts the block after more bytes of the first contraction whose
// apostrophe is in set.
func (k *block) cutContraction(set uint64, more uint) {
	set &= k.find(func(c byte) bool { return c == '\'' })
	for ; set != 0; set &= set - 1 {
		i := bits.TrailingZeros64(set)
		if contraction(k.text, i) > i {
			k.cut = min(k.cut, uint(i)+more)
			return
		}
	}
}

// pieces returns where the pieces of a block start in o200k_base, or, without
// small letters, in cl100k_base, apart from contractions; and the line ends
// that the signs before them take along.
func (k *block) pieces(small uint64) (starts, swallowed uint64) {
	blank := k.white &^ k.newline
	sign := ^(k.letter | k.digit | k.white)

	// A run of signs is a piece, with the space before. But a single sign without
	// one goes with the letter after it.
	signs := sign &^ (sign << 1) &^ (k.space << 1)
	prefix := signs&(k.letter>>1) | blank

	// A word starts a piece unless it has a prefix; within it, a capital after
	// a small letter does.
	words := k.letter&^(k.letter<<1)&^(prefix<<1) | k.letter&^small&(small<<1)

	// Digits go by three. A sum carries a bit over a run, see below; here the
	// runs are so short that steps of three are faster.
	digits := k.digit &^ (k.digit << 1)
	third := k.digit & (k.digit << 1) & (k.digit << 2) & (k.digit << 3)
	for more := digits << 3 & third; more != 0; more = more << 3 & third {
		digits |= more
	}

	// Line ends after signs belong to them: adding the first of a run to the
	// run clears it.
	after := k.newline & (sign << 1)
	swallowed = k.newline &^ (k.newline + after)

	// Other white space is a piece up to its last line end. What follows is one
	// too, less its last blank, which is left to what comes next.
	white := k.white &^ swallowed
	line := k.newline &^ swallowed
	indent := blank & (line << 1)
	last := blank &^ (k.white >> 1)
	if indent != 0 {
		// Blanks before another line end start no piece: a sum carries their
		// first bit to what follows them.
		k.cutAt((blank + indent) &^ blank & line)
	}
	starts = signs | words | digits | white&^(white<<1) | indent | last
	return starts, swallowed
}
