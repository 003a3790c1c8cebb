package budget

import (
	_ "embed"
	"math/bits"
	"runtime"
	"sync"
)

//go:generate go test -run ^TestTables$ -update .

// A vocabulary file holds, for each rank, the two tokens whose merge makes the
// token of that rank, in 5 bytes: 18 bits of the left one's rank, 18 of the
// right one's, and the flags. A single byte has its value on the left and
// noRank on the right; a rank that is not in use has noRank on both sides.
var (
	//go:embed vocabulary/o200k_base.splits
	o200kSplits string
	//go:embed vocabulary/cl100k_base.splits
	cl100kSplits string
	//go:embed vocabulary/p50k_base.splits
	p50kSplits string
)

const (
	splitBytes = 5
	rankBits   = 18
	noRank     = 1<<rankBits - 1 // ranks above every token
	isChar     = 1 << 36         // flag of a token that is one character, not ASCII, of the basic plane
	isBridge   = 1 << 37         // flag of a token that units has to know of
	isSeam     = 1 << 38         // flag of a token that is the first to join two wide characters
	r50kSize   = 50256           // r50k_base is that much of p50k_base

	longestToken = 128 // bytes
)

// loadVocabulary returns the vocabulary of an encoding, built on first use.
func loadVocabulary(name string) *vocabulary {
	switch name {
	case "o200k_base":
		return loadO200k()
	case "cl100k_base":
		return loadCL100k()
	case "p50k_base":
		return loadP50k()
	case "r50k_base":
		return loadR50k()
	}
	panic("budget: no vocabulary " + name)
}

var (
	loadO200k  = sync.OnceValue(func() *vocabulary { return newVocabulary(o200kSplits, grammarO200k()) })
	loadCL100k = sync.OnceValue(func() *vocabulary { return newVocabulary(cl100kSplits, grammarCL100k()) })
	loadP50k   = sync.OnceValue(func() *vocabulary { return newVocabulary(p50kSplits, grammarGPT2()) })
	loadR50k   = sync.OnceValue(func() *vocabulary {
		return newVocabulary(p50kSplits[:splitBytes*r50kSize], grammarGPT2())
	})
)

// A vocabulary counts the tokens of one encoding. It never changes.
//
// Byte pair encoding merges, again and again, the leftmost of the adjacent pairs
// whose joined bytes have the lowest rank. In the published vocabularies every
// token is built by one last merge, always the same, of two tokens of lower rank
// (the tests hold this). So adjacent tokens merge only where they are just that
// pair, and a table from pairs of ranks to ranks, without any bytes, is enough.
type vocabulary struct {
	grammar   grammar
	byteRank  [256]uint32
	joined    [128][2]uint64 // a bit for each two bytes of ASCII that are a token
	bytePairs []uint32       // rank of the pair of two bytes' ranks, first<<8 | second
	pairs     []uint64       // open addressing: left, right and merged rank in 18 bits each
	shift     uint           // of a hash, to an index in pairs
	filter    []uint64       // a bit for each slot in four that some key hashes to
	units     *units
	idle      chan *worker
	buffer    int // of a stream, in bytes
	window    int // of a run, in bytes
}

// newVocabulary builds the tables from the content of a vocabulary file.
func newVocabulary(splits string, g grammar) *vocabulary {
	fillClasses()
	size := len(splits) / splitBytes
	log := bits.Len(uint(2*size - 1))
	v := &vocabulary{
		grammar:   g,
		buffer:    streamBuffer,
		window:    windowSize,
		units:     newUnits(),
		bytePairs: make([]uint32, 1<<16),
		pairs:     make([]uint64, 1<<log),
		shift:     uint(64 - log),
		filter:    make([]uint64, 1<<(log+filterExtra-6)),
		idle:      make(chan *worker, runtime.GOMAXPROCS(0)),
	}
	for i := range v.bytePairs {
		v.bytePairs[i] = noRank
	}
	var room [2 * longestToken]byte
	for rank := range size {
		left, right, flags := split(splits, rank)
		switch {
		case right != noRank:
			v.addPair(left, right, uint32(rank))
			if left|right < 256 {
				v.bytePairs[left<<8|right] = uint32(rank)
				var room [2]byte
				if b := appendToken(room[:0], splits, rank); b[0]|b[1] < 0x80 {
					v.joined[b[0]][b[1]>>6] |= 1 << (b[1] & 63)
				}
			}
		case left != noRank:
			v.byteRank[left] = uint32(rank)
		}
		if flags&isChar != 0 {
			v.units.addChar(appendToken(nil, splits, rank), uint32(rank))
		}
		if flags&isBridge != 0 {
			v.units.addBridge(appendToken(nil, splits, int(left)), appendToken(nil, splits, int(right)))
		}
		if flags&isSeam != 0 {
			v.units.addSeam(appendToken(room[:0], splits, int(left)), appendToken(room[longestToken:longestToken], splits, int(right)))
		}
	}
	return v
}

// split returns the two parts of a token, and its flags.
func split(splits string, rank int) (left, right uint32, flags uint64) {
	s := splits[splitBytes*rank:][:splitBytes]
	v := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32
	left, right = uint32(v&noRank), uint32(v>>rankBits&noRank)
	if right != noRank {
		flags = v & (isChar | isBridge | isSeam)
	}
	return left, right, flags
}

// appendToken appends the bytes of a token to b.
func appendToken(b []byte, splits string, rank int) []byte {
	left, right, _ := split(splits, rank)
	if right == noRank {
		return append(b, byte(left))
	}
	return appendToken(appendToken(b, splits, int(left)), splits, int(right))
}

// filterExtra is how many more bits of a hash the filter sees than the table.
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
	if left|right < 256 {
		return v.bytePairs[left<<8|right]
	}
	return v.longPair(left, right)
}

// longPair is pair for tokens that are not both single bytes.
func (v *vocabulary) longPair(left, right uint32) uint32 {
	key := uint64(left)<<rankBits | uint64(right)
	h := hashPair(key)
	bit := h >> ((v.shift - filterExtra) & 63)
	if v.filter[bit/64]>>(bit%64)&1 == 0 {
		return noRank
	}
	return v.probe(key, h)
}

// probe looks key, of hash h, up in the table.
func (v *vocabulary) probe(key, h uint64) uint32 {
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
