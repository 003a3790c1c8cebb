package bpe

// isCJK reports whether c begins a character of three bytes, U+0800 to U+FFFF: Chinese, Japanese,
// Korean, and many scripts of India and its neighbours.
//
// Text in these scripts has few blanks, so a piece is a whole clause that hardly occurs twice.
// But few pairs of these characters are together in any token. If no token joins two neighbours,
// no merge does, since each merge makes a token. So a piece is cut between such neighbours, and
// its parts are counted one by one: they are short and occur again.
func isCJK(c byte) bool { return c&0xf0 == 0xe0 }

// cjkTokens counts a piece that ends with a CJK character, until it has more than limit tokens.
func (w *worker) cjkTokens(piece []byte, limit int) (tokens int) {
	chars := &w.v.chars
	start := 0
	before := rune(0) // the last character, or 0 if it is not CJK
	for i := 0; i < len(piece) && tokens <= limit; {
		c := piece[i]
		if !isCJK(c) {
			_, w := classAt(piece, i)
			before = 0
			i += w
			continue
		}
		after := rune(c&0x0f)<<12 | rune(piece[i+1]&0x3f)<<6 | rune(piece[i+2]&0x3f)
		if before != 0 && !chars.cjkPair(before, after) && !chars.bridged(before, after, piece[i-1], c) {
			if i-start == 3 && chars.ranks[before]&noRank != noRank {
				tokens++
			} else {
				tokens += w.partTokens(piece, start, i, limit-tokens)
			}
			start = i
		}
		before = after
		i += 3
	}
	if tokens > limit {
		return tokens
	}
	return tokens + w.partTokens(piece, start, len(piece), limit-tokens)
}

// cjkPairBits is the binary logarithm of the size of the set of pairs, in bits.
const cjkPairBits = 19

// cjkPair reports whether some token may join the two characters.
func (t *charTable) cjkPair(before, after rune) bool {
	h := cjkPairHash(before, after)
	return t.cjkPairs[h/64]>>(h%64)&1 != 0
}

func cjkPairHash(before, after rune) uint32 {
	return (uint32(before)<<16 | uint32(after)) * 0x9e3779b1 >> (32 - cjkPairBits)
}
