package bpe

import (
	"math"
	"math/bits"
	"slices"
)

// mergeFew merges at most 64 tokens in place and returns their number. It looks at all pairs for
// each merge, which is fastest for few.
func (v *vocabulary) mergeFew(tokens []uint32) int {
	var keys [64]uint32 // rank of a token's pair with the next one, then its index
	n := len(tokens)
	const none = math.MaxUint32
	for i := range n - 1 {
		keys[i] = v.pair(tokens[i], tokens[i+1])<<6 | uint32(i)
	}
	keys[(n-1)&63] = none
	for i := n; i < (n+3)&^3; i++ {
		keys[i&63] = none
	}
	left := uint64(1)<<uint(n) - 1 // a bit for each token that remains
	for {
		a, b := uint32(none), uint32(none)
		for i := 0; i < n; i += 4 {
			k := (*[4]uint32)(keys[i:])
			a, b = min(a, k[0], k[1]), min(b, k[2], k[3])
		}
		best := min(a, b)
		merged, i := best>>6, best&63
		if merged >= noRank {
			return bits.OnesCount64(left)
		}
		// The next token is gone, and i pairs with the one after it.
		after := left >> i >> 1
		skip := uint32(bits.TrailingZeros64(after)) + 1
		left &^= 1 << ((i + skip) & 63)
		keys[(i+skip)&63] = none
		tokens[i] = merged
		keys[i] = none
		if after &= after - 1; after != 0 {
			next := i + uint32(bits.TrailingZeros64(after)) + 1
			keys[i] = v.pair(merged, tokens[next&63])<<6 | i
		}
		if before := left & (1<<i - 1); before != 0 {
			prev := uint32(bits.Len64(before)) - 1
			keys[prev] = v.pair(tokens[prev&63], merged)<<6 | prev
		}
	}
}

// groupSize is the number of pairs of a window in one group.
const groupSize = 16

// noKey is the lowest key of a pair that does not merge.
const noKey = noRank << 32

// A window merges a text of at most its size. It keeps the lowest pair of each group of pairs.
type window struct {
	tokens []uint32
	starts []int32 // places of the tokens in the text
	next   []int32 // index of the next token, or the number of tokens
	prev   []int32
	keys   []uint64 // rank of a token's pair with the next one, then its index
	lowest []uint64 // key of each group
}

func newWindow(size int) *window {
	return &window{
		tokens: make([]uint32, size),
		starts: make([]int32, size),
		next:   make([]int32, size+1),
		prev:   make([]int32, size+1),
		keys:   make([]uint64, size+groupSize),
		lowest: make([]uint64, size/groupSize+1),
	}
}

// merge merges text and returns the number of tokens: the first of w.tokens, at w.starts.
func (w *window) merge(v *vocabulary, text []byte) int {
	n := v.start(text, w.tokens, w.starts)
	groups := w.link(v, n)
	for {
		best := uint64(noKey)
		for _, k := range w.lowest[:groups] {
			best = min(best, k)
		}
		if best >= noKey {
			break
		}
		i, merged := int(uint32(best)), uint32(best>>32)
		j := int(w.next[i])
		k := int(w.next[j])
		w.tokens[i] = merged
		w.next[i], w.prev[k] = int32(k), int32(i)
		w.keys[j] = noKey
		w.keys[i] = noKey
		if k < n {
			w.keys[i] = uint64(v.pair(merged, w.tokens[k]))<<32 | uint64(i)
		}
		if i > 0 {
			h := int(w.prev[i])
			w.keys[h] = uint64(v.pair(w.tokens[h], merged))<<32 | uint64(h)
			if h/groupSize != i/groupSize {
				w.lower(h / groupSize)
			}
		}
		w.lower(i / groupSize)
		if j/groupSize != i/groupSize {
			w.lower(j / groupSize)
		}
	}
	left := 0
	for i := 0; i < n; i = int(w.next[i]) {
		w.tokens[left], w.starts[left] = w.tokens[i], w.starts[i]
		left++
	}
	return left
}

// link prepares the n tokens for merging and returns the number of groups.
func (w *window) link(v *vocabulary, n int) (groups int) {
	for i := range n {
		w.next[i], w.prev[i+1] = int32(i+1), int32(i)
		w.keys[i] = noKey
		if i+1 < n {
			w.keys[i] = uint64(v.pair(w.tokens[i], w.tokens[i+1]))<<32 | uint64(i)
		}
	}
	groups = (n + groupSize - 1) / groupSize
	for i := n; i < groups*groupSize; i++ {
		w.keys[i] = noKey
	}
	for g := range groups {
		w.lower(g)
	}
	return groups
}

// lower finds the lowest key of a group again.
func (w *window) lower(group int) {
	w.lowest[group] = slices.Min(w.keys[group*groupSize:][:groupSize])
}
