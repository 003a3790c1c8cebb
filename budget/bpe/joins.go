package bpe

import (
	"encoding/binary"
	"math/bits"
)

// joins is a set of four letters around a capital, as "stRe" in "firstRequest". It has those of
// which some token has all, or the middle two and what else fits between its ends.
//
// cl100k_base, p50k_base and r50k_base do not cut a piece before a capital, and long identifiers
// recur less than their words. Where no token joins two words, none merges them, so they count
// one by one. That holds for nine of ten words.
type joins [1 << 20 / 64]uint64

// cut adds to starts the words of pieces in a block that begin with a capital and that no token
// joins with the text before them.
func (j *joins) cut(k *block, starts uint64) uint64 {
	small := k.small &^ k.wide
	capital := k.letter &^ (k.small | k.wide)
	for set := capital & (small << 1) & (small << 2) & (small >> 1) &^ starts; set != 0; set &= set - 1 {
		i := bits.TrailingZeros64(set) & (blockSize - 1)
		at := joinIndex(binary.LittleEndian.Uint32(k.text[i-2:]))
		starts |= (1 &^ (j[at/64] >> (at % 64))) << i
	}
	return starts
}

// add adds the letters of a token.
func (j *joins) add(token []byte) {
	for i := 1; i < len(token); i++ {
		if token[i-1] < 'a' || token[i-1] > 'z' || token[i] < 'A' || token[i] > 'Z' {
			continue
		}
		for ends := range 26 * 26 {
			text := [4]byte{byte('a' + ends/26), token[i-1], token[i], byte('a' + ends%26)}
			if (i == 1 || token[i-2] == text[0]) && (i+1 == len(token) || token[i+1] == text[3]) {
				at := joinIndex(binary.LittleEndian.Uint32(text[:]))
				j[at/64] |= 1 << (at % 64)
			}
		}
	}
}

// joinIndex returns the place in a set of the letters of text, five bits of each.
func joinIndex(text uint32) uint32 {
	return text&0x1f | text>>3&0x3e0 | text>>6&0x7c00 | text>>9&0xf8000
}
