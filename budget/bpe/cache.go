package bpe

import "encoding/binary"

// Lengths of pieces and sizes of the cache. 15 bytes and two numbers fit in 16 bytes, 62 bytes
// and two numbers in 64. Most pieces of text are short words.
const (
	shortPiece = 15
	longPiece  = 62
	shortBits  = 15
	longBits   = 11
)

// A cache holds the number of tokens of pieces that a worker counted. Newer ones displace older.
type cache struct {
	short [1 << shortBits][2]shortEntry
	long  [1 << longBits]longEntry
}

// A shortKey holds a piece of at most shortPiece bytes, and its length in the highest four bits.
type shortKey struct{ low, high uint64 }

// A shortEntry is a shortKey and, in the next four bits, the tokens. A zero entry is empty.
type shortEntry shortKey

// A longEntry holds a piece of at most longPiece bytes and its number of tokens.
type longEntry struct {
	length, tokens uint8
	text           [longPiece]byte
}

// masks selects the bytes of a piece of each length from 16 bytes.
var masks = func() (m [16]shortKey) {
	for i := range m {
		m[i].low = 1<<(8*uint(i)) - 1
		if i > 8 {
			m[i].high = 1<<(8*uint(i-8)) - 1
		}
	}
	return m
}()

func newShortKey(text *[16]byte, n uint) shortKey {
	m := &masks[n&15]
	return shortKey{
		binary.LittleEndian.Uint64(text[:8]) & m.low,
		binary.LittleEndian.Uint64(text[8:])&m.high | uint64(n)<<60,
	}
}

// shortKeyAt returns the key of the n bytes of b at i.
func shortKeyAt(b []byte, i, n int) shortKey {
	if i+16 <= len(b) {
		return newShortKey((*[16]byte)(b[i:]), uint(n))
	}
	var end [16]byte
	copy(end[:], b[i:])
	return newShortKey(&end, uint(n))
}

func (c *cache) entries(k shortKey) *[2]shortEntry {
	h := (k.low ^ k.high*0xff51afd7ed558ccd) * 0x9e3779b97f4a7c15
	return &c.short[(h^h>>32)>>7&(1<<shortBits-1)]
}

func (e shortEntry) get(k shortKey) (tokens int, ok bool) {
	return int(e.high >> 56 & 0xf), e.low == k.low && e.high&^(0xf<<56) == k.high
}

// first looks k up in the first of its entries, where most pieces are found.
func (c *cache) first(k shortKey) (tokens int, ok bool) { return c.entries(k)[0].get(k) }

func (w *worker) shortTokens(k shortKey, piece []byte) int {
	e := w.cache.entries(k)
	if tokens, ok := e[0].get(k); ok {
		return tokens
	}
	if tokens, ok := e[1].get(k); ok {
		e[0], e[1] = e[1], e[0]
		return tokens
	}
	tokens := w.merge(piece)
	// A new piece displaces the second entry, until it is found there. So words that repeat are
	// safe from random text, which does not.
	place := 0
	if e[0].high != 0 {
		place = 1
	}
	e[place] = shortEntry{k.low, k.high | uint64(tokens)<<56}
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
