package bpe

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// A pattern cuts a text into the pieces that an encoding merges separately. It does the work of a
// backtracking matcher with the published regular expression, in one pass over valid UTF-8.
type pattern struct {
	// next returns the end of the piece of b at i, the start of a character.
	next func(b []byte, i int) int
	// reach holds the classes of characters that decide, at any distance, where a piece before
	// them ends. White space always does.
	reach uint
	// split returns where the pieces of a block start, and cuts the block where that is not certain.
	split func(k *block) (starts uint64)
}

var (
	patternO200k  = pattern{nextO200k, capitals, splitO200k}
	patternCL100k = pattern{nextCL100k, 0, splitCL100k}
	patternGPT2   = pattern{nextGPT2, 0, splitGPT2}
)

// nextO200k cuts by the expression of o200k_base:
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	\p{N}{1,3}
//	 ?[^\s\p{L}\p{N}]+[\r\n/]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func nextO200k(b []byte, i int) int {
	set, w := classAt(b, i)
	if set&(prefixes|letters) != 0 {
		if end := wordO200k(b, i, set, w); end > i {
			return contraction(b, end)
		}
	}
	return notWord(b, i, set, w, '/')
}

// wordO200k matches the first two lines of the expression, without the contraction, at the
// character at i, which has the class set and the width w. It returns i if they do not match.
func wordO200k(b []byte, i int, set uint, w int) int {
	start := i
	if set&prefixes != 0 {
		start += w
	}
	// end is the end of the capitals, last the end of the last character among them that is in
	// both classes of the expression.
	end, last := start, -1
	for {
		s, w := classAt(b, end)
		if s&capitals == 0 {
			if s&smalls != 0 {
				return skip(b, end+w, smalls)
			}
			break
		}
		end += w
		if s&caseless != 0 {
			end = skip(b, end, caseless)
			last = end
		}
	}
	switch {
	case last > 0:
		// No small letter follows. The last character that counts as one ends the word.
		return last
	case set == 1<<classMark:
		// The mark is not the prefix, but the small letter of the expression.
		return start
	case end > start:
		return end
	}
	return i
}

// nextCL100k cuts by the expression of cl100k_base:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)
//	[^\r\n\p{L}\p{N}]?\p{L}+
//	\p{N}{1,3}
//	 ?[^\s\p{L}\p{N}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func nextCL100k(b []byte, i int) int {
	if end := contraction(b, i); end > i {
		return end
	}
	set, w := classAt(b, i)
	switch {
	case set&letters != 0:
		return skip(b, i+w, letters)
	case set&prefixes != 0:
		if next, v := classAt(b, i+w); next&letters != 0 {
			return skip(b, i+w+v, letters)
		}
	}
	return notWord(b, i, set, w, '\n')
}

// notWord matches the last five lines of the expressions of o200k_base and cl100k_base at the
// character at i, which has the class set and the width w. also continues a run of line ends.
func notWord(b []byte, i int, set uint, w int, also byte) int {
	switch {
	case set&numbers != 0:
		return digits(b, i+w)
	case set&symbols != 0:
		return lineEnds(b, skip(b, i+w, symbols), also)
	case b[i] == ' ':
		if next, w := classAt(b, i+1); next&symbols != 0 {
			return lineEnds(b, skip(b, i+1+w, symbols), also)
		}
	}
	return blanks(b, i)
}

// nextGPT2 cuts by the expression of p50k_base and r50k_base:
//
//	's|'t|'re|'ve|'m|'ll|'d
//	 ?\p{L}+
//	 ?\p{N}+
//	 ?[^\s\p{L}\p{N}]+
//	\s+(?!\S)
//	\s+
func nextGPT2(b []byte, i int) int {
	if end := contraction(b, i); end > i && b[i+1] >= 'a' && b[end-1] >= 'a' {
		return end
	}
	start := i
	if b[i] == ' ' {
		start++
	}
	set, w := classAt(b, start)
	for _, run := range [...]uint{letters, numbers, symbols} {
		if set&run != 0 {
			return skip(b, start+w, run)
		}
	}
	return lessLast(b, i, skip(b, i, spaces))
}

// contraction returns the end of an English contraction at i ("'s", "'LL"), or i.
func contraction(b []byte, i int) int {
	if i+1 >= len(b) || b[i] != '\'' {
		return i
	}
	switch c := b[i+1] | 0x20; {
	case c == 's' || c == 't' || c == 'm' || c == 'd':
		return i + 2
	case i+2 == len(b):
	case b[i+2]|0x20 == 'e' && (c == 'r' || c == 'v'), b[i+2]|0x20 == 'l' && c == 'l':
		return i + 3
	}
	return i
}

// digits returns the end of at most two numbers at i.
func digits(b []byte, i int) int {
	for range 2 {
		set, w := classAt(b, i)
		if set&numbers == 0 {
			break
		}
		i += w
	}
	return i
}

// lineEnds returns the end of the run of \r, \n and also at i.
func lineEnds(b []byte, i int, also byte) int {
	for i < len(b) && (b[i] == '\n' || b[i] == '\r' || b[i] == also) {
		i++
	}
	return i
}

// blanks matches \s*[\r\n]+|\s+(?!\S)|\s+ at i, which has white space.
func blanks(b []byte, i int) int {
	end := skip(b, i, spaces)
	for last := end; last > i; last-- {
		if c := b[last-1]; c == '\n' || c == '\r' {
			return last
		}
	}
	return lessLast(b, i, end)
}

// lessLast matches \s+(?!\S)|\s+ for white space from i to end. Its last character belongs to the
// next piece, unless the text ends there or it is the only one.
func lessLast(b []byte, i, end int) int {
	if end == len(b) {
		return end
	}
	_, w := utf8.DecodeLastRune(b[i:end])
	if end-w > i {
		return end - w
	}
	return end
}

// Classes of characters in the expressions.
const (
	classPunct   = iota // none of the others: punctuation, symbols, controls
	classUpper          // \p{Lu}, \p{Lt}
	classLower          // \p{Ll}
	classOther          // \p{Lm}, \p{Lo}: letters without case
	classMark           // \p{M}
	classNumber         // \p{N}
	classSpace          // \s without classNewline
	classNewline        // \r and \n
)

// Sets of classes, a bit for each class.
const (
	letters  = 1<<classUpper | 1<<classLower | 1<<classOther
	capitals = 1<<classUpper | 1<<classOther | 1<<classMark // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	smalls   = 1<<classLower | 1<<classOther | 1<<classMark // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	caseless = 1<<classOther | 1<<classMark
	numbers  = 1 << classNumber
	symbols  = 1<<classPunct | 1<<classMark // [^\s\p{L}\p{N}]
	spaces   = 1<<classSpace | 1<<classNewline
	prefixes = symbols | 1<<classSpace // [^\r\n\p{L}\p{N}]
)

// classes has the class of each code point, from the tables of package unicode. The regular
// expressions of tiktoken-go use the same tables, so both change to a new Unicode version at the
// same time.
var classes [utf8.MaxRune + 1]uint8

var fillClasses = sync.OnceFunc(func() {
	fill := func(class uint8, tables ...*unicode.RangeTable) {
		set := func(lo, hi, stride uint32) {
			for c := lo; c <= hi; c += stride {
				classes[c] = class
			}
		}
		for _, t := range tables {
			for _, r := range t.R16 {
				set(uint32(r.Lo), uint32(r.Hi), uint32(r.Stride))
			}
			for _, r := range t.R32 {
				set(r.Lo, r.Hi, r.Stride)
			}
		}
	}
	fill(classUpper, unicode.Lu, unicode.Lt)
	fill(classLower, unicode.Ll)
	fill(classOther, unicode.Lm, unicode.Lo)
	fill(classMark, unicode.M)
	fill(classNumber, unicode.N)
	fill(classSpace, unicode.White_Space)
	classes['\n'], classes['\r'] = classNewline, classNewline
})

// classAt returns the class of the character at i as a set, and its width, or 0, 0 at the end.
func classAt(b []byte, i int) (set uint, width int) {
	if i >= len(b) {
		return 0, 0
	}
	if c := b[i]; c < utf8.RuneSelf {
		return 1 << (classes[c] & 7), 1
	}
	r, w := decode(b[i:])
	return 1 << (classes[r] & 7), w
}

// skip returns the end of the run of characters of b at i with a class in set.
func skip(b []byte, i int, set uint) int {
	for i < len(b) {
		r, w := rune(b[i]), 1
		switch { // decode, without a call
		case r < utf8.RuneSelf:
		case r < 0xe0:
			r, w = r&0x1f<<6|rune(b[i+1]&0x3f), 2
		case r < 0xf0:
			r, w = r&0x0f<<12|rune(b[i+1]&0x3f)<<6|rune(b[i+2]&0x3f), 3
		default:
			r, w = decode(b[i:])
		}
		if set>>(classes[r]&7)&1 == 0 {
			break
		}
		i += w
	}
	return i
}

// decode returns the first character of b, which is valid and not ASCII, and its width.
func decode(b []byte) (rune, int) {
	switch c := b[0]; {
	case c < 0xe0:
		return rune(c&0x1f)<<6 | rune(b[1]&0x3f), 2
	case c < 0xf0:
		_ = b[2]
		return rune(c&0x0f)<<12 | rune(b[1]&0x3f)<<6 | rune(b[2]&0x3f), 3
	}
	_ = b[3]
	return rune(b[0]&0x07)<<18 | rune(b[1]&0x3f)<<12 | rune(b[2]&0x3f)<<6 | rune(b[3]&0x3f), 4
}
