package budget

import (
	"encoding/binary"
	"unicode/utf8"
)

const (
	fewTokens  = 40 // most tokens that mergeFew is faster for
	shortPiece = 15 // longest piece that a shortEntry holds
	longPiece  = 62 // longest piece that a longEntry holds
	shortBits  = 15
	longBits   = 11
)

// A worker is what one goroutine needs to count: room to merge, and a bounded
// memory of what pieces counted, since text repeats itself.
type worker struct {
	v      *vocabulary
	shorts [1 << shortBits][2]shortEntry
	longs  [1 << longBits]longEntry
	tokens [longPiece + 2]uint32
	starts [longPiece + 2]int32
	run    *run
	text   []byte // of a stream
	long   *long  // of a stream
	stream Stream // for text that is not counted at once
}

// A shortEntry holds up to 15 bytes of a piece, and in its top byte their number
// and the number of tokens, which is no larger.
type shortEntry struct{ low, high uint64 }

// A longEntry holds a piece of up to 62 bytes and the number of its tokens.
type longEntry struct {
	length, tokens uint8
	text           [longPiece]byte
}

// worker returns a worker for the caller alone, who gives it back by release.
func (v *vocabulary) worker() *worker {
	select {
	case w := <-v.idle:
		return w
	default:
		return &worker{v: v, run: newRun(v, v.window)}
	}
}

func (v *vocabulary) release(w *worker) {
	select {
	case v.idle <- w:
	default:
	}
}

// count counts the pieces of b, a text of valid UTF-8, that end at bound or
// before, until they have more than limit tokens. It returns how many tokens it
// counted, in how many bytes. If they are more than limit it may have counted
// only some of the tokens of the last piece.
func (w *worker) count(b []byte, bound, limit int) (tokens, end int) {
	g := &w.v.grammar
	for end < len(b) && tokens <= limit {
		if i := end + 16; i < bound {
			if n, low, high := g.ascii.word((*[17]byte)(b[end:])); n > 0 {
				tokens += w.short(low, high|uint64(n)<<60, b[end:end+n])
				end += n
				continue
			}
		}
		i := g.next(b, end)
		if i > bound {
			break
		}
		tokens += w.pieceTokens(b, end, i, limit-tokens)
		end = i
	}
	return tokens, end
}

// pieceTokens counts the piece from i to end, until it has more than limit tokens.
func (w *worker) pieceTokens(b []byte, i, end, limit int) int {
	switch n := end - i; {
	case n == 1:
		return 1
	case n == 2:
		if w.v.pair(w.v.byteRank[b[i]], w.v.byteRank[b[i+1]]) == noRank {
			return 2
		}
		return 1
	case n <= shortPiece:
		return w.shortTokens(b, i, n)
	case n <= longPiece:
		return w.longTokens(b[i:end])
	}
	return w.runTokens(b[i:end], limit)
}

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
	if n <= 8 {
		low, high = low&(1<<(8*uint(n))-1), 0
	} else {
		high &= 1<<(8*uint(n-8)) - 1
	}
	high |= uint64(n) << 60
	return w.short(low, high, b[i:i+n])
}

// short counts a piece of at most shortPiece bytes, with the key low, high. Two
// entries are for pieces of the same hash, the one used later first.
func (w *worker) short(low, high uint64, piece []byte) int {
	h := (low ^ high*0xff51afd7ed558ccd) * 0x9e3779b97f4a7c15
	e := &w.shorts[(h^h>>32)>>7&(1<<shortBits-1)]
	if e[0].low == low && e[0].high&^(0xf<<56) == high {
		return int(e[0].high >> 56 & 0xf)
	}
	found := e[1]
	if found.low != low || found.high&^(0xf<<56) != high {
		found = shortEntry{low, high | uint64(w.merge(piece))<<56}
	}
	e[0], e[1] = found, e[0]
	return int(found.high >> 56 & 0xf)
}

// runTokens counts a piece of any length, until it has more than limit tokens.
func (w *worker) runTokens(piece []byte, limit int) int {
	const part = 4 << 10
	w.run.reset()
	for len(piece) > part {
		w.run.write(piece[:part])
		if w.run.count > limit {
			return w.run.count
		}
		piece = piece[part:]
	}
	w.run.write(piece)
	return w.run.finish()
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

// merge counts a piece of at most longPiece bytes.
func (w *worker) merge(piece []byte) int {
	var all byte
	for i, c := range piece {
		all |= c
		w.tokens[i] = w.v.byteRank[c]
	}
	n := len(piece)
	if all >= utf8.RuneSelf {
		n = w.v.start(piece, w.tokens[:], w.starts[:])
	}
	if n > fewTokens {
		return w.run.current.merge(w.v, piece)
	}
	return w.v.mergeFew(w.tokens[:n])
}
