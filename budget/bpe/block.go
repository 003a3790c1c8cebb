package bpe

import "math/bits"

const blockSize = 64

// A block is 64 bytes of text, from the start of a piece, as sets of positions: bit i is for byte
// i. In ASCII and letters of two bytes, the classes of the characters and their neighbours decide
// where pieces start. So a few operations on these sets find the pieces of the whole block, without
// a branch for each character, as in simdjson and parabix.
//
// A block begins where a piece does, so it does not depend on the text before it. It is cut at
// its end, and at text that the sets cannot express. Only pieces with a certain end before the
// cut count.
type block struct {
	text       []byte // continues after the block
	letter     uint64
	small      uint64 // small letters
	digit      uint64
	space      uint64 // ' '
	newline    uint64 // \r and \n
	white      uint64 // all white space
	apostrophe uint64
	wide       uint64 // bytes that are not ASCII
	cut        uint   // the end of the text that the sets express
}

// marks has, for each byte value, the sets of a block that it is in: bit 0 for the first set, bit
// 8 for the second and so on. Add the marks of eight bytes, each shifted by its position: each
// byte of the sum has eight positions of one set.
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

// load fills k from the first n bytes of text, which has at least blockSize bytes.
func (k *block) load(text []byte, n uint) {
	at := (*[blockSize]byte)(text)
	var sets [8]uint64
	for i := 0; i < blockSize; i += 8 {
		high := (marks[at[i+7]]*2+marks[at[i+6]])*4 + marks[at[i+5]]*2 + marks[at[i+4]]
		low := (marks[at[i+3]]*2+marks[at[i+2]])*4 + marks[at[i+1]]*2 + marks[at[i]]
		sets[i/8] = high<<4 + low
	}
	// Transpose the bytes, so that byte i of word j becomes byte j of word i: exchange the halves
	// of words that are four apart, then the quarters, then the bytes.
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
	if k.wide = h; h != 0 {
		k.addLetters()
	}
}

// addLetters adds letters of two bytes, in upper or lower case, to the sets. It cuts the block at
// the first other character that is not ASCII.
func (k *block) addLetters() {
	for wide := k.wide; wide != 0; {
		i := bits.TrailingZeros64(wide)
		c := k.text[i]
		class := classes[rune(c&0x1f)<<6|rune(k.text[i+1]&0x3f)]
		if c >= firstCaseless || class != classUpper && class != classLower {
			k.cutAt(wide)
			return
		}
		both := uint64(3) << uint(i)
		k.letter |= both
		if class == classLower {
			k.small |= both
		}
		wide &^= both
	}
}

// Latin, Greek and Cyrillic letters begin with a byte below firstCaseless.
const firstCaseless = 0xd4

// worthBlock reports whether the eight bytes of w, the start of a text, have only ASCII and bytes
// below firstCaseless.
func worthBlock(w uint64) bool {
	const ones = 0x0101010101010101
	return (w&(0x7f*ones)+(0x100-firstCaseless)*ones)&w&(0x80*ones) == 0
}

// exchange swaps the parts of a that low does not select with the parts of b, n bits lower, that
// low selects.
func exchange(a, b uint64, n uint, low uint64) (uint64, uint64) {
	differ := (a>>n ^ b) & low
	return a ^ differ<<n, b ^ differ
}

// cutAt cuts the block at the first position in set.
func (k *block) cutAt(set uint64) { k.cut = min(k.cut, uint(bits.TrailingZeros64(set))) }

// certain returns the starts of pieces that do not depend on the text after the block. White
// space up to the cut may be one piece or several.
func (k *block) certain(starts uint64) uint64 {
	white := k.white << (blockSize - k.cut)
	n := k.cut - uint(bits.LeadingZeros64(^white))
	if n < k.cut {
		n++ // the white space starts a piece
	}
	return starts & (1<<n - 1)
}

// splitO200k is nextO200k for a block. A contraction belongs to the word before it.
func splitO200k(k *block) uint64 {
	starts, swallowed := k.pieces(k.small)
	if swallowed != 0 {
		// A slash after line ends that follow a sign belongs to the piece of the sign.
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

// splitCL100k is nextCL100k for a block. A contraction is a piece, a capital does not start one.
func splitCL100k(k *block) uint64 {
	starts, _ := k.pieces(0)
	if k.apostrophe != 0 {
		k.cutContraction(starts, 1)
	}
	return starts
}

// splitGPT2 is nextGPT2 for a block: runs of one class, with the space before.
func splitGPT2(k *block) uint64 {
	sign := ^(k.letter | k.digit | k.white)
	first := k.letter&^(k.letter<<1) | k.digit&^(k.digit<<1) | sign&^(sign<<1)
	starts := first&^(k.space<<1) | k.white&^(k.white<<1) | k.white&^(k.white>>1)
	if k.apostrophe != 0 {
		k.cutContraction(starts, 1)
	}
	return starts
}

// cutContraction cuts the block at the first contraction in set, or more bytes after that.
func (k *block) cutContraction(set uint64, more uint) {
	for set &= k.apostrophe; set != 0; set &= set - 1 {
		i := bits.TrailingZeros64(set)
		if contraction(k.text, i) > i {
			k.cut = min(k.cut, uint(i)+more)
			return
		}
	}
}

// pieces returns where the pieces of a block start, apart from contractions, in o200k_base, or,
// without small letters, in cl100k_base. swallowed are the line ends that belong to the signs
// before them.
func (k *block) pieces(small uint64) (starts, swallowed uint64) {
	blank := k.white &^ k.newline
	sign := ^(k.letter | k.digit | k.white)

	// A run of signs is a piece, with the space before it. But a single sign without a space
	// belongs to the letter after it.
	signs := sign &^ (sign << 1) &^ (k.space << 1)
	prefix := signs&(k.letter>>1) | blank

	// A word starts a piece if it has no prefix. So does a capital after a small letter.
	words := k.letter&^(k.letter<<1)&^(prefix<<1) | k.letter&^small&(small<<1)

	// Three digits are a piece. Runs are short, so steps of three are faster than the sums below.
	digits := k.digit &^ (k.digit << 1)
	third := k.digit & (k.digit << 1) & (k.digit << 2) & (k.digit << 3)
	for more := digits << 3 & third; more != 0; more = more << 3 & third {
		digits |= more
	}

	// Line ends after signs belong to the signs. Adding the first bit of a run to the run clears
	// the run.
	after := k.newline & (sign << 1)
	swallowed = k.newline &^ (k.newline + after)

	// Other white space is a piece up to its last line end. The blanks after that are one too,
	// without the last, which belongs to the next piece.
	white := k.white &^ swallowed
	line := k.newline &^ swallowed
	indent := blank & (line << 1)
	last := blank &^ (k.white >> 1)
	if indent != 0 {
		// Blanks before another line end start no piece. A sum carries their first bit to the
		// character after them.
		k.cutAt((blank + indent) &^ blank & line)
	}
	starts = signs | words | digits | white&^(white<<1) | indent | last
	return starts, swallowed
}
