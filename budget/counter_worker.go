package budget

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const (
	fewTokens = 40             // most tokens that mergeFew is faster for
	blockRoom = blockSize + 16 // what is read of a text for a block
)

// highs are the high bits of eight bytes.
const highs = 0x8080808080808080

// A worker is what one goroutine needs to count: room to merge, and a bounded
// memory of what pieces counted, since text repeats itself.
type worker struct {
	v      *vocabulary
	shorts [1 << shortBits][2]shortEntry
	longs  [1 << longBits]longEntry
	tokens [longPiece + 2]uint32
	starts [longPiece + 2]int32
	run    *run
	block  block
	last   [2 * blockRoom]byte // the end of a text, with zeros after it
	text   []byte              // of a stream
	long   *long               // of a stream
	stream Stream              // for text that is not counted at once
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
	w.block.text = nil // not to keep what was counted
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
		if ahead := b[end:]; len(ahead) >= 8 && binary.LittleEndian.Uint64(ahead)&highs == 0 {
			t, n, cut := w.countBlock(ahead, bound-end)
			tokens += t
			end += n
			if !cut {
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

// countBlock counts the pieces of the block at the start of b that are certain
// and end at bound or before, in n bytes. If it was cut, the next piece is not
// one for a block.
func (w *worker) countBlock(b []byte, bound int) (tokens, n int, cut bool) {
	k, size := &w.block, uint(blockSize)
	text := b
	if len(b) < blockRoom {
		text = w.last[:]
		copied := copy(text, b)
		clear(text[copied:])
		size = uint(min(copied, blockSize))
	}
	k.load(text, size)
	starts := k.certain(w.v.grammar.split(k))
	if bound < blockSize {
		starts &= 2<<uint(bound) - 1
	}
	n = bits.Len64(starts) - 1

	// Pieces of one byte are one token, pieces of two are one or two.
	long := starts &^ (starts >> 1) &^ (1 << uint(n))
	two := long & (starts >> 2)
	long &^= two
	tokens = bits.OnesCount64(starts) - 1 - bits.OnesCount64(long) + bits.OnesCount64(two)
	for ; two != 0; two &= two - 1 {
		i := bits.TrailingZeros64(two) & (blockSize - 1)
		tokens -= int(w.v.joined[text[i]&0x7f][text[i+1]>>6&1] >> (text[i+1] & 63) & 1)
	}
	for ; long != 0; long &= long - 1 {
		i := uint(bits.TrailingZeros64(long)) & (blockSize - 1)
		length := uint(bits.TrailingZeros64(starts>>i>>1)) + 1
		if length > shortPiece {
			tokens += w.longTokens(b[i : i+length])
			continue
		}
		key := (*[16]byte)(text[i:])
		low := binary.LittleEndian.Uint64(key[:]) & masks[length].low
		high := binary.LittleEndian.Uint64(key[8:])&masks[length].high | uint64(length)<<60
		e := &w.shorts[shortHash(low, high)]
		if e[0].low == low && e[0].high&^(0xf<<56) == high {
			tokens += int(e[0].high >> 56 & 0xf)
			continue
		}
		tokens += w.short(low, high, b[i:i+length])
	}
	return tokens, n, k.cut < size || n == 0 || len(b) <= blockSize
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
	case isWide(b[end-3]):
		return w.wideTokens(b[i:end], limit)
	}
	return w.partTokens(b[i:end], limit)
}

// partTokens counts text that merges on its own, of more than shortPiece bytes.
func (w *worker) partTokens(part []byte, limit int) int {
	if len(part) <= longPiece {
		return w.longTokens(part)
	}
	return w.runTokens(part, limit)
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

// merge counts a piece of at most longPiece bytes.
func (w *worker) merge(piece []byte) int {
	var all byte
	for i, c := range piece {
		all |= c
		w.tokens[i] = w.v.byteRank[c]
	}
	n := len(piece)
	if n == 3 && all < utf8.RuneSelf {
		return w.v.mergeThree(w.tokens[0], w.tokens[1], w.tokens[2])
	}
	if all >= utf8.RuneSelf {
		n = w.v.start(piece, w.tokens[:], w.starts[:])
	}
	if n > fewTokens {
		return w.run.current.merge(w.v, piece)
	}
	return w.v.mergeFew(w.tokens[:n])
}
