// Package bpe counts the tokens of text by byte pair encoding, as tiktoken does, at a cost linear
// in the text.
//
// A pattern cuts the text into pieces: one by one (pattern.go), or in ASCII 64 bytes at a time
// (block.go), where the words of a long identifier count as pieces, too (joins.go). Each piece
// merges on its own by the pairs of the vocabulary (vocabulary.go, merge.go). A worker caches the
// counts of short pieces (cache.go). A long piece merges in windows (longmerge.go), a piece of
// CJK characters in parts that no token joins (cjk.go). A Stream counts text that arrives in parts
// (stream.go).
package bpe

import (
	"encoding/binary"
	"math"
	"math/bits"
	"runtime"
	"sync"
)

// The tokenizers of OpenAI's encodings, the newest first.
var (
	O200kBase  = newTokenizer("o200k_base", patternO200k)
	CL100kBase = newTokenizer("cl100k_base", patternCL100k)
	P50kBase   = newTokenizer("p50k_base", patternGPT2)
	R50kBase   = newTokenizer("r50k_base", patternGPT2)
)

// A Tokenizer counts the tokens of texts in one encoding. Its counts are equal to tiktoken's,
// with the names of special tokens as ordinary text. Each byte that is not part of a character
// counts as U+FFFD. The first count loads the vocabulary. A Tokenizer is safe for concurrent use.
type Tokenizer struct {
	pattern    pattern
	vocabulary func() *vocabulary
	idle       chan *worker
	buffer     int // of a stream, in bytes
	window     int // of a long merge, in bytes
}

func newTokenizer(name string, p pattern) *Tokenizer {
	return &Tokenizer{
		pattern:    p,
		vocabulary: sync.OnceValue(func() *vocabulary { return loadVocabulary(name) }),
		idle:       make(chan *worker, runtime.GOMAXPROCS(0)),
		buffer:     streamBuffer,
		window:     windowSize,
	}
}

// Count returns the number of tokens in b. It does not keep b.
func (t *Tokenizer) Count(b []byte) int { return t.count(b, math.MaxInt) }

// Exceeds reports whether b has more than n tokens. It stops counting as soon as it knows, unless b is not
// valid UTF-8.
func (t *Tokenizer) Exceeds(b []byte, n int) bool {
	return n < maxTokens*len(b) && t.count(b, n) > n
}

// maxTokens bounds the tokens of one byte: alone it counts as U+FFFD, which has three bytes.
const maxTokens = 3

// count returns the number of tokens in b, or some number above limit if they are more.
func (t *Tokenizer) count(b []byte, limit int) int {
	w := t.worker()
	defer t.release(w)
	if valid(b) {
		tokens, _ := w.count(b, len(b), limit)
		return tokens
	}
	s := &w.stream
	s.begin(t, w)
	s.Write(b)
	s.end()
	return s.tokens
}

// A worker holds the buffers of one goroutine that counts, and its cache.
type worker struct {
	pattern pattern
	v       *vocabulary
	cache   cache
	tokens  [longPiece + 2]uint32
	starts  [longPiece + 2]int32
	merger  *longMerge
	block   block
	last    [2 * blockRoom]byte // the end of a text, with zeros after it
	text    []byte              // of a stream
	stream  Stream              // for text that is not valid UTF-8
}

// worker returns a worker for the caller alone. The caller releases it.
func (t *Tokenizer) worker() *worker {
	select {
	case w := <-t.idle:
		return w
	default:
		v := t.vocabulary()
		return &worker{pattern: t.pattern, v: v, merger: newLongMerge(v, t.window)}
	}
}

func (t *Tokenizer) release(w *worker) {
	w.block.text = nil // not to keep the text
	select {
	case t.idle <- w:
	default:
	}
}

// count counts the pieces of b, which is valid UTF-8, that end at bound or before, until they
// have more than limit tokens. It returns the number of their tokens and the end of the last one.
// If the number is above limit, some tokens of the last piece may be missing from it.
func (w *worker) count(b []byte, bound, limit int) (tokens, end int) {
	for end < len(b) && tokens <= limit {
		if ahead := b[end:]; len(ahead) >= 8 && worthBlock(binary.LittleEndian.Uint64(ahead)) {
			t, n, cut := w.countBlock(ahead, bound-end)
			tokens += t
			end += n
			if !cut {
				continue
			}
		}
		i := w.pattern.next(b, end)
		if i > bound {
			break
		}
		tokens += w.pieceTokens(b, end, i, limit-tokens)
		end = i
	}
	return tokens, end
}

// blockRoom is the number of bytes that counting a block may read.
const blockRoom = blockSize + 16

// countBlock counts the pieces of the block at the start of b that are certain and end at bound
// or before. n is the end of the last one. If cut is true, the next piece needs the pattern's
// function for one piece.
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
	if k.cut == 0 {
		return 0, 0, true
	}
	starts := k.certain(w.v.joins.cut(k, w.pattern.split(k)))
	if bound < blockSize {
		starts &= 2<<uint(bound) - 1
	}
	n = bits.Len64(starts) - 1

	// A piece of one byte is one token. The other pieces follow by length.
	inside := (1<<uint(n) - 1) &^ starts // bytes that do not start a piece
	pieces := starts &^ (1 << uint(n))
	long := pieces & (inside >> 1)
	two := long &^ (inside >> 2)
	long &= inside >> 2
	three := long &^ (inside >> 3) &^ (k.wide | k.wide>>1 | k.wide>>2)
	long &^= three
	tokens = bits.OnesCount64(pieces &^ (inside >> 1))
	at := (*[blockRoom]byte)(text)
	for ; two != 0; two &= two - 1 {
		i := bits.TrailingZeros64(two) & (blockSize - 1)
		tokens += 2 - w.v.isTwo(binary.LittleEndian.Uint32(at[i:]))
	}
	for ; three != 0; three &= three - 1 {
		// Two of three bytes merge if they are a token, and then merge with the third if all
		// three are one.
		i := bits.TrailingZeros64(three) & (blockSize - 1)
		t := binary.LittleEndian.Uint32(at[i:])
		tokens += 3 - (w.v.isTwo(t) | w.v.isTwo(t>>8)) - w.v.isThree(t)
	}
	for ; long != 0; long &= long - 1 {
		i := uint(bits.TrailingZeros64(long)) & (blockSize - 1)
		switch length := uint(bits.TrailingZeros64(starts>>i>>1)) + 1; {
		case length <= smallPiece:
			key := newSmallKey((*[8]byte)(at[i:]), length)
			cached, ok := w.cache.entries(key)[0].get(key) // without a call
			if !ok {
				cached = w.smallTokens(key, b[i:i+length])
			}
			tokens += cached
		case length <= shortPiece:
			tokens += w.shortTokens(text, int(i), int(length))
		default:
			tokens += w.longTokens(b[i : i+length])
		}
	}
	return tokens, n, k.cut < size || n == 0 || len(b) <= blockSize
}

// pieceTokens counts the piece from i to end, until it has more than limit tokens.
func (w *worker) pieceTokens(b []byte, i, end, limit int) int {
	if end-i > shortPiece && isCJK(b[end-3]) {
		return w.cjkTokens(b[i:end], limit)
	}
	return w.partTokens(b, i, end, limit)
}

// partTokens counts the text from i to end, which merges alone, up to more than limit tokens.
func (w *worker) partTokens(b []byte, i, end, limit int) int {
	switch n := end - i; {
	case n <= shortPiece:
		return w.shortTokens(b, i, n)
	case n <= longPiece:
		return w.longTokens(b[i:end])
	}
	return w.merger.tokensOf(b[i:end], limit)
}

func (w *worker) merge(piece []byte) int {
	n := w.v.start(piece, w.tokens[:], w.starts[:])
	return w.v.mergeFew(w.tokens[:n])
}
