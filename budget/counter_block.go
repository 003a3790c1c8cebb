package budget

import (
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
	apostrophe uint64
	cut        uint // the end of what is ASCII, or less
}

// marks has, for each value of a byte, a bit for each set of a block that it is
// in: bit 0 for the first, bit 8 for the second and so on. So the sum of the
// marks of eight bytes, each shifted by its position, has in each of its bytes
// eight positions of one set.
var marks = func() (m [256]uint64) {
	for i := range m {
		c := byte(i)
		for set, in := range [8]bool{
			c|0x20 >= 'a' && c|0x20 <= 'z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == ' ',
			c == '\n' || c == '\r', c == ' ' || c >= '\t' && c <= '\r', c == '\'', c >= 0x80,
		} {
			if in {
				m[i] |= 1 << (8 * set)
			}
		}
	}
	return m
}()

// load fills k from text, which has at least blockSize bytes, of which the first
// n count.
func (k *block) load(text []byte, n uint) {
	var sets [8]uint64
	for i := range sets {
		b := (*[8]byte)(text[8*i:])
		odd := marks[b[1]] + marks[b[3]]<<2 + marks[b[5]]<<4 + marks[b[7]]<<6
		sets[i] = marks[b[0]] + marks[b[2]]<<2 + marks[b[4]]<<4 + marks[b[6]]<<6 + odd<<1
	}
	// Byte i of word j has to become byte j of word i: exchange the halves of words
	// that are four apart, then the quarters, then the bytes.
	const halves, quarters, bytes = 0x00000000ffffffff, 0x0000ffff0000ffff, 0x00ff00ff00ff00ff
	a, e := exchange(sets[0], sets[4], 32, halves)
	b, f := exchange(sets[1], sets[5], 32, halves)
	c, g := exchange(sets[2], sets[6], 32, halves)
	d, h := exchange(sets[3], sets[7], 32, halves)
	a, c = exchange(a, c, 16, quarters)
	b, d = exchange(b, d, 16, quarters)
	e, g = exchange(e, g, 16, quarters)
	f, h = exchange(f, h, 16, quarters)
	k.text, k.cut = text, n
	k.letter, k.small = exchange(a, b, 8, bytes)
	k.digit, k.space = exchange(c, d, 8, bytes)
	k.newline, k.white = exchange(e, f, 8, bytes)
	k.apostrophe, h = exchange(g, h, 8, bytes)
	k.cutAt(h)
}

// exchange puts the parts of b that low selects above those of a, and the others of
// a below those of b; n is how far apart they are.
func exchange(a, b uint64, n uint, low uint64) (uint64, uint64) {
	return a&low | b&low<<n, a>>n&low | b&^low
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
	if k.apostrophe != 0 {
		k.cutContraction(k.letter<<1, 0)
	}
	return starts
}

// splitCL100k is nextCL100k for a block. A contraction is a piece of its own, and
// capitals do not start a word.
func splitCL100k(k *block) uint64 {
	starts, _ := k.pieces(0)
	if k.apostrophe != 0 {
		k.cutContraction(starts, 1)
	}
	return starts
}

// splitGPT2 is nextGPT2 for a block: runs of the same class, with a space before.
func splitGPT2(k *block) uint64 {
	sign := ^(k.letter | k.digit | k.white)
	first := k.letter&^(k.letter<<1) | k.digit&^(k.digit<<1) | sign&^(sign<<1)
	starts := first&^(k.space<<1) | k.white&^(k.white<<1) | k.white&^(k.white>>1)
	if k.apostrophe != 0 {
		k.cutContraction(starts, 1)
	}
	return starts
}

// cutContraction cuts the block after more bytes of the first contraction whose
// apostrophe is in set.
func (k *block) cutContraction(set uint64, more uint) {
	for set &= k.apostrophe; set != 0; set &= set - 1 {
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
