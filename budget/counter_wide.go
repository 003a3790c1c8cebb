package budget

// A wide character is one of three bytes, U+0800 to U+FFFF: Chinese, Japanese,
// Korean, and many scripts of India and its neighbours. Text in them has few
// blanks, so that a piece is a whole clause that has hardly been seen before, but
// few pairs of them stand together in any token. Where two neighbours do not, no
// merge ever joins them: each merge makes a token. So the parts between such places
// are counted one by one, which is not much for short parts that come again.
func isWide(c byte) bool { return c&0xf0 == 0xe0 }

// seamBits is the binary logarithm of the size of the set of seams, in bits.
const seamBits = 17

func seamHash(before, after rune) uint32 {
	return (uint32(before)<<16 | uint32(after)) * 0x9e3779b1 >> (32 - seamBits)
}

// seam returns the two wide characters that the merge of two tokens joins first.
// A merge with only some bytes of one of them is a bridge instead.
func seam(left, right []byte) (pair [2]rune, ok bool) {
	n := len(left)
	if n < 3 || len(right) < 3 || !isWide(left[n-3]) || !isWide(right[0]) {
		return pair, false
	}
	before, _ := decode(left[n-3:])
	after, _ := decode(right)
	return [2]rune{before, after}, true
}

// addSeam notes that some token joins two wide characters.
func (u *units) addSeam(left, right []byte) {
	pair, _ := seam(left, right)
	h := seamHash(pair[0], pair[1])
	u.seams[h/64] |= 1 << (h % 64)
}

// wideTokens counts a piece of which the last character is wide, until it has
// more than limit tokens.
func (w *worker) wideTokens(piece []byte, limit int) (tokens int) {
	u := w.v.units
	start := 0
	before := rune(0) // if the last character was not wide
	for i := 0; i < len(piece) && tokens <= limit; {
		c := piece[i]
		if !isWide(c) {
			before = 0
			i++
			if c >= 0xc0 {
				i += width(c) - 1
			}
			continue
		}
		after := rune(c&0x0f)<<12 | rune(piece[i+1]&0x3f)<<6 | rune(piece[i+2]&0x3f)
		if h := seamHash(before, after); before != 0 && u.seams[h/64]>>(h%64)&1 == 0 && !u.bridged(before, after, piece[i-1], c) {
			// No merge joins any bytes of the two.
			if i-start == 3 && u.chars[before]&noRank != noRank {
				tokens++
			} else {
				tokens += w.countPart(piece, start, i, limit-tokens)
			}
			start = i
		}
		before = after
		i += 3
	}
	if tokens > limit {
		return tokens
	}
	return tokens + w.countPart(piece, start, len(piece), limit-tokens)
}

// countPart counts the part from start to end.
func (w *worker) countPart(piece []byte, start, end, limit int) int {
	if end-start <= shortPiece {
		return w.shortTokens(piece, start, end-start)
	}
	return w.partTokens(piece[start:end], limit)
}
