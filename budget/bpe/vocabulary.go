package bpe

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go-loader/assets"
)

const (
	rankBits = 18
	noRank   = 1<<rankBits - 1 // above the rank of every token

	longestToken = 128 // bytes
)

// A vocabulary holds the tokens of an encoding. It never changes.
//
// Byte pair encoding merges, again and again, the leftmost of the adjacent pairs with the lowest
// rank of their joined bytes. In the published vocabularies the last merge that builds a token is
// always the same, of the same two tokens of lower rank (loadVocabulary checks this). So two
// adjacent tokens merge only if they are that pair, and a table from pairs of ranks to ranks,
// without the bytes, is enough.
type vocabulary struct {
	byteRank  [256]uint32
	bytePairs [1 << 16]bytePair    // by the bytes, first<<8 | second
	twos      [1 << 16 / 64]uint64 // a bit for each two bytes: whether they are a token
	threes    [1 << 21 / 64]uint64 // a bit for each three bytes of ASCII: whether they are one
	joins     joins
	pairs     []uint64 // open addressing: left, right and merged rank in 18 bits each
	shift     uint     // from a hash to an index in pairs
	filter    []uint64 // a bit for each slot in four that some key hashes to
	chars     charTable
}

// loadVocabulary loads the vocabulary that tiktoken-go-loader embeds, as OpenAI publishes it: a
// line for each token, in the order of the ranks, with the token in base64 and its rank. The
// tokens before it merge the bytes of a token to the pair that it consists of. loadVocabulary
// reads the file itself: the loader's map of 200,000 strings takes 78 ms of processor time, as
// much as all of loadVocabulary.
func loadVocabulary(name string) *vocabulary {
	fillClasses()
	file, err := assets.Assets.Open(name + ".tiktoken")
	if err != nil {
		panic(err) // embedded
	}
	info, err := file.Stat()
	if err != nil {
		panic(err)
	}
	v := newVocabulary(int(info.Size()) / minLine)
	w := newWindow(longestToken)
	var token [longestToken]byte
	for lines := bufio.NewScanner(file); lines.Scan(); {
		n, rank, err := parseLine(token[:], lines.Bytes())
		if err != nil {
			panic(fmt.Sprintf("vocabulary %s: line %q: %v", name, lines.Bytes(), err))
		}
		if n == 1 {
			v.byteRank[token[0]] = rank
		} else if tokens := w.merge(v, token[:n]); tokens == 2 {
			v.add(token[:n], int(w.starts[1]), w.tokens[0], w.tokens[1], rank)
		} else {
			panic(fmt.Sprintf("vocabulary %s: token %q: merges end in %d parts, want 2", name, token[:n], tokens))
		}
	}
	return v
}

// minLine is at most the mean length of a line in a vocabulary file.
const minLine = 16

// parseLine reads a line of a vocabulary file, and puts the token's n bytes in token.
func parseLine(token, line []byte) (n int, rank uint32, err error) {
	text, number, _ := bytes.Cut(line, []byte(" "))
	if n, err = base64.StdEncoding.Decode(token, text); err != nil {
		return 0, 0, err
	}
	id, err := strconv.ParseUint(string(number), 10, rankBits)
	return n, uint32(id), err
}

// newVocabulary returns an empty vocabulary for about size tokens.
func newVocabulary(size int) *vocabulary {
	log := bits.Len(uint(size - 1))
	v := &vocabulary{
		pairs:  make([]uint64, 1<<log),
		shift:  uint(64 - log),
		filter: make([]uint64, 1<<(log+filterExtra-6)),
	}
	for i := range v.bytePairs {
		v.bytePairs[i], v.chars.ranks[i] = noPair, noRank
	}
	return v
}

// add adds a token that merges from left, its first n bytes, and right.
func (v *vocabulary) add(token []byte, n int, left, right, rank uint32) {
	v.addPair(left, right, rank)
	p := &v.bytePairs[uint(token[n-1])<<8|uint(token[n])]
	if n == 1 {
		p.left = min(p.left, rank)
	}
	if n == len(token)-1 {
		p.right = min(p.right, rank)
	}
	switch {
	case len(token) == 2:
		p.rank = rank
		i := uint(token[0]) | uint(token[1])<<8
		v.twos[i/64] |= 1 << (i % 64)
	case len(token) == 3 && token[0]|token[1]|token[2] < utf8.RuneSelf:
		i := indexThree(uint32(token[0]) | uint32(token[1])<<8 | uint32(token[2])<<16)
		v.threes[i/64] |= 1 << (i % 64)
	}
	v.chars.add(token, n, rank)
	v.joins.add(token)
}

// indexThree returns the place in threes of the low three bytes of text. Bytes that differ only in the
// last one are neighbours.
func indexThree(text uint32) uint32 {
	return text&0x7f<<14 | text>>8&0x7f<<7 | text>>16&0x7f
}

// isTwo returns 1 if the low two bytes of text are a token, and else 0.
func (v *vocabulary) isTwo(text uint32) int {
	i := text & 0xffff
	return int(v.twos[i/64] >> (i % 64) & 1)
}

// isThree returns 1 if the low three bytes of text, all ASCII, are a token, and else 0.
func (v *vocabulary) isThree(text uint32) int {
	i := indexThree(text)
	return int(v.threes[i/64] >> (i % 64) & 1)
}

// filterExtra is how many more bits of a hash the filter uses than the table. Without the filter
// unseen text takes 6 % longer, base64 25 to 40 %.
const filterExtra = 2

func hashPair(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 }

func (v *vocabulary) addPair(left, right, merged uint32) {
	key := uint64(left)<<rankBits | uint64(right)
	h := hashPair(key)
	bit := h >> (v.shift - filterExtra)
	v.filter[bit/64] |= 1 << (bit % 64)
	i := h >> v.shift
	for v.pairs[i] != 0 {
		i = (i + 1) & uint64(len(v.pairs)-1)
	}
	v.pairs[i] = key<<rankBits | uint64(merged)
}

// pair returns the rank of the token that left and right merge to, or noRank.
func (v *vocabulary) pair(left, right uint32) uint32 {
	key := uint64(left)<<rankBits | uint64(right)
	h := hashPair(key)
	bit := h >> ((v.shift - filterExtra) & 63)
	if v.filter[bit/64]>>(bit%64)&1 == 0 {
		return noRank
	}
	for i := h >> (v.shift & 63); ; {
		e := v.pairs[i]
		if e == 0 {
			return noRank
		}
		if e>>rankBits == key {
			return uint32(e & noRank)
		}
		i = (i + 1) & uint64(len(v.pairs)-1)
	}
}

// A bytePair holds three ranks about two bytes. Each is noRank if there is no such token.
type bytePair struct {
	rank  uint32 // of the token of the two
	left  uint32 // the lowest of a token that merges from the first byte and a text with the second
	right uint32 // the lowest of a token that merges from a text with the first byte and the second
}

var noPair = bytePair{noRank, noRank, noRank}

// bytePair returns the pair of the byte of text at i and the next one.
func (v *vocabulary) bytePair(text []byte, i int) bytePair {
	if i+1 >= len(text) {
		return noPair
	}
	return v.bytePairs[uint(text[i])<<8|uint(text[i+1])]
}

// start fills tokens with tokens from which text merges, and starts with the place of each, and
// returns their number. Both slices need room for len(text). The text may begin and end within a
// character.
//
// The tokens are bytes, whole CJK characters (see charTable), and certain pairs of bytes. A pair
// is certain if its rank is lower than that of all tokens that could take one of its bytes away:
// tokens of its first byte and text before it, or of its second byte and text after it. Pairs
// merge in the order of their ranks, so none of these tokens comes first. This saves half of the
// merges of English.
func (v *vocabulary) start(text []byte, tokens []uint32, starts []int32) int {
	n := 0
	before, pair := noPair, v.bytePair(text, 0)
	second := 0              // 1 if the byte at i is the second of a certain pair
	end, bridged := 0, false // whether a bridge may join the characters that meet at end
	for i := 0; i < len(text); i++ {
		if isCJK(text[i]) && i+3 <= len(text) {
			r, _ := decode(text[i:])
			if rank := v.chars.ranks[r] & noRank; rank != noRank {
				if i != end {
					bridged = v.bridgedAt(text, i)
				}
				whole := !bridged
				end = i + 3
				bridged = v.bridgedAt(text, end)
				if whole && !bridged {
					tokens[n], starts[n] = rank, int32(i)
					n++
					i += 2
					before, pair = v.bytePair(text, i), v.bytePair(text, i+1)
					continue
				}
			}
		}
		next := v.bytePair(text, i+1)
		certain := (pair.rank - min(before.right, next.left)) >> 31 // 1 or 0, without a branch
		first := v.byteRank[text[i]]
		tokens[n], starts[n] = first^(first^pair.rank)&-certain, int32(i)
		n += 1 - second
		second = int(certain)
		before, pair = pair, next
	}
	return n
}

// bridgedAt reports whether a bridge may join the characters that meet at place i of text.
func (v *vocabulary) bridgedAt(text []byte, i int) bool {
	if i == 0 || i == len(text) {
		return false
	}
	before, size := utf8.DecodeLastRune(text[:i])
	after, w := utf8.DecodeRune(text[i:])
	if before == utf8.RuneError && size == 1 || after == utf8.RuneError && w == 1 {
		return true // part of a character
	}
	return v.chars.bridged(before, after, text[i-1], text[i])
}

// A charTable lets merging start from whole CJK characters instead of bytes, which saves two thirds
// of the work in Chinese. This is exact for a character that is a token, if its bytes cannot
// merge with those of a neighbour before they merge with each other. The tokens that first join a
// part of a character to its neighbour are bridges. They are few. Pairs of neighbours with a
// bridge between them are in a set, which may hold more pairs, but never less.
type charTable struct {
	// ranks has, for each code point of the basic plane, its rank or noRank, and whether bridges
	// has keys with it as the character before or after.
	ranks [1 << 16]uint32
	// bridges is a set of hashes of neighbours.
	bridges [1 << 11]uint64
	// cjkPairs is a set of hashes of two CJK characters that some token joins.
	cjkPairs [1 << cjkPairBits / 64]uint64
}

// Flags of a rank in a charTable.
const (
	bridgesAfter  = 1 << 30
	bridgesBefore = 1 << 31
)

// add adds a token that merges from its first n bytes and the others.
func (t *charTable) add(token []byte, n int, rank uint32) {
	if r, w := utf8.DecodeRune(token); w == len(token) && w == 3 {
		t.ranks[r] = t.ranks[r]&^noRank | rank
	}
	left, right := token[:n], token[n:]
	if !utf8.RuneStart(right[0]) {
		return
	}
	before, size := utf8.DecodeLastRune(left)
	whole := before != utf8.RuneError || size > 1
	after, _ := utf8.DecodeRune(right)
	last, first := left[n-1], right[0]
	switch {
	case whole && utf8.FullRune(right):
		if size == 3 && len(right) >= 3 && isCJK(first) {
			h := cjkPairHash(before, after)
			t.cjkPairs[h/64] |= 1 << (h % 64)
		}
	case whole:
		t.setBridge(bridge(0, uint32(before), first))
		t.ranks[before&0xffff] |= bridgesAfter
	case utf8.FullRune(right):
		t.setBridge(bridge(1, uint32(after), last))
		t.ranks[after&0xffff] |= bridgesBefore
	default:
		t.setBridge(bridge(2, uint32(last), first))
	}
}

// bridged reports whether a bridge may join two characters that meet at bytes last and first.
func (t *charTable) bridged(before, after rune, last, first byte) bool {
	return t.hasBridge(bridge(2, uint32(last), first)) ||
		t.ranks[before&0xffff]&bridgesAfter != 0 && t.hasBridge(bridge(0, uint32(before), first)) ||
		t.ranks[after&0xffff]&bridgesBefore != 0 && t.hasBridge(bridge(1, uint32(after), last))
}

func (t *charTable) setBridge(hash uint32) { t.bridges[hash>>21] |= 1 << (hash >> 15 & 63) }

func (t *charTable) hasBridge(hash uint32) bool { return t.bridges[hash>>21]>>(hash>>15&63)&1 != 0 }

// bridge returns the hash of a bridge: of a byte and the character or byte on its other side.
func bridge(side, other uint32, b byte) uint32 {
	return (side<<30 | other<<8 | uint32(b)) * 0x9e3779b1
}
