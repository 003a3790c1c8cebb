package budget

import "encoding/binary"

const (
	shortPiece = 15 // longest piece that a shortEntry holds
	longPiece  = 62 // longest piece that a longEntry holds
	shortBits  = 15
	longBits   = 11
)

// A shortEntry holds up to 15 bytes of a piece, and in its top byte their number
// and the number of tokens, which is no larger.
type shortEntry struct{ low, high uint64 }

// A longEntry holds a piece of up to 62 bytes and the number of its tokens.
type longEntry struct {
	length, tokens uint8
	text           [longPiece]byte
}

// masks has the bytes of a piece in its first eight bytes and in the eight after.
var masks = func() (m [16]struct{ low, high uint64 }) {
	for i := range m {
		m[i].low = 1<<(8*uint(i)) - 1
		if i > 8 {
			m[i].high = 1<<(8*uint(i-8)) - 1
		}
	}
	return m
}()

// shortTokens counts the piece of n <= shortPiece bytes at i.
func (w *worker) shortTokens(b []byte, i, n int) int {
	var low, high uint64
	if i+16 <= len(b) {
		low, high = binary.LittleEndian.Uint64(b[i:]), binary.LittleEndian.Uint64(b[i+8:])
	} else {
		var last [16]byte
		copy(last[:], b[i:])
		low, high = binary.LittleEndian.Uint64(last[:]), binary.LittleEndian.Uint64(last[8:])
	}
	low, high = low&masks[n].low, high&masks[n].high|uint64(n)<<60
	return w.short(low, high, b[i:i+n])
}

// shortHash returns the index of the entries for a short piece.
func shortHash(low, high uint64) uint64 {
	h := (low ^ high*0xff51afd7ed558ccd) * 0x9e3779b97f4a7c15
	return (h ^ h>>32) >> 7 & (1<<shortBits - 1)
}

// short counts a piece of at most shortPiece bytes, with the key low, high. Two
// entries are for pieces of the same hash; the first is for one that came again.
func (w *worker) short(low, high uint64, piece []byte) int {
	e := &w.shorts[shortHash(low, high)]
	if e[0].low == low && e[0].high&^(0xf<<56) == high {
		return int(e[0].high >> 56 & 0xf)
	}
	found := e[1]
	if found.low != low || found.high&^(0xf<<56) != high {
		// Random text consists of pieces that never come again. They displace
		// each other, and not the words that do.
		tokens := w.merge(piece)
		place := 0
		if e[0].high != 0 {
			place = 1
		}
		e[place] = shortEntry{low, high | uint64(tokens)<<56}
		return tokens
	}
	e[0], e[1] = found, e[0]
	return int(found.high >> 56 & 0xf)
}

// longTokens counts a piece of more than shortPiece and at most longPiece bytes.
func (w *worker) longTokens(piece []byte) int {
	h := uint64(len(piece))
	for rest := piece; ; rest = rest[8:] {
		if len(rest) <= 8 {
			h = (h ^ binary.LittleEndian.Uint64(piece[len(piece)-8:])) * 0x9e3779b97f4a7c15
			break
		}
		h = (h ^ binary.LittleEndian.Uint64(rest)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	e := &w.longs[h>>(64-longBits)]
	if int(e.length) == len(piece) && string(e.text[:len(piece)]) == string(piece) {
		return int(e.tokens)
	}
	e.length = uint8(copy(e.text[:], piece))
	e.tokens = uint8(w.merge(piece))
	return int(e.tokens)
}
