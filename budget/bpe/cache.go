package bpe

import "encoding/binary"

// Lengths of pieces and sizes of the cache. 7 bytes and two numbers fit in 8 bytes, 15 bytes and
// two numbers in 16, 62 bytes and two numbers in 64. Most pieces of text are short words.
const (
	smallPiece = 7
	shortPiece = 15
	longPiece  = 62
	smallBits  = 15
	shortBits  = 14
	longBits   = 12
)

// A cache holds the number of tokens of pieces that a worker counted. Newer ones displace older.
type cache struct {
	small [1 << smallBits][2]smallEntry
	short [1 << shortBits][2]shortEntry
	long  [1 << longBits]longEntry
}

// A smallKey holds a piece of at most smallPiece bytes and, in the next three bits, its length.
type smallKey uint64

// A smallEntry is a smallKey and, in the highest bits, the tokens. A zero entry is empty.
type smallEntry uint64

// tokenShift is the number of bits below the tokens in a smallEntry.
const tokenShift = 59

// A shortKey holds a longer piece of at most shortPiece bytes, and its length in the highest four
// bits.
type shortKey struct{ low, high uint64 }

// A shortEntry is a shortKey and, in the next four bits, the tokens. A zero entry is empty.
type shortEntry shortKey

// A longEntry holds a piece of at most longPiece bytes and its number of tokens.
type longEntry struct {
	length, tokens uint8
	text           [longPiece]byte
}

func newSmallKey(text *[8]byte, n uint) smallKey {
	other := 64 - 8*n
	return smallKey(binary.LittleEndian.Uint64(text[:])<<other>>other | uint64(n)<<56)
}

func newShortKey(text *[16]byte, n uint) shortKey {
	other := 128 - 8*n
	return shortKey{
		binary.LittleEndian.Uint64(text[:8]),
		binary.LittleEndian.Uint64(text[8:])<<other>>other | uint64(n)<<60,
	}
}

func (e smallEntry) get(k smallKey) (tokens int, ok bool) {
	differ := uint64(e) ^ uint64(k)
	return int(differ >> tokenShift), differ<<(64-tokenShift) == 0
}

func (e shortEntry) get(k shortKey) (tokens int, ok bool) {
	return int(e.high >> 56 & 0xf), e.low == k.low && e.high&^(0xf<<56) == k.high
}

func (c *cache) entries(k smallKey) *[2]smallEntry {
	return &c.small[uint64(k)*0x9e3779b97f4a7c15>>(64-smallBits)]
}

// add adds an entry of a new piece. It displaces the second one, until it is found there. So words
// that repeat are safe from random text, which does not.
func add[E comparable](entries *[2]E, e E) {
	var empty E
	if entries[0] == empty {
		entries[0] = e
	} else {
		entries[1] = e
	}
}

// shortTokens counts the n bytes of b at i, at most shortPiece.
func (w *worker) shortTokens(b []byte, i, n int) int {
	var end [16]byte
	text := &end
	if i+16 <= len(b) {
		text = (*[16]byte)(b[i:])
	} else {
		copy(end[:], b[i:])
	}
	if n <= smallPiece {
		return w.smallTokens(newSmallKey((*[8]byte)(text[:]), uint(n)), b[i:i+n])
	}
	k := newShortKey(text, uint(n))
	h := (k.low ^ k.high*0xff51afd7ed558ccd) * 0x9e3779b97f4a7c15
	e := &w.cache.short[(h^h>>32)>>7&(1<<shortBits-1)]
	if tokens, ok := e[0].get(k); ok {
		return tokens
	}
	if tokens, ok := e[1].get(k); ok {
		e[0], e[1] = e[1], e[0]
		return tokens
	}
	tokens := w.merge(b[i : i+n])
	add(e, shortEntry{k.low, k.high | uint64(tokens)<<56})
	return tokens
}

// smallTokens counts a piece of at most smallPiece bytes, which has the key k.
func (w *worker) smallTokens(k smallKey, piece []byte) int {
	e := w.cache.entries(k)
	if tokens, ok := e[0].get(k); ok {
		return tokens
	}
	if tokens, ok := e[1].get(k); ok {
		e[0], e[1] = e[1], e[0]
		return tokens
	}
	tokens := w.merge(piece)
	add(e, smallEntry(k)|smallEntry(tokens)<<tokenShift)
	return tokens
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
	e := &w.cache.long[h>>(64-longBits)]
	if int(e.length) == len(piece) && string(e.text[:len(piece)]) == string(piece) {
		return int(e.tokens)
	}
	e.length = uint8(copy(e.text[:], piece))
	e.tokens = uint8(w.merge(piece))
	return int(e.tokens)
}
