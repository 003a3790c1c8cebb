package budget

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// The patterns of the encodings tell characters apart by these classes.
const (
	classPunct   = iota // neither of the others: punctuation, symbols, controls
	classUpper          // \p{Lu}, \p{Lt}
	classLower          // \p{Ll}
	classOther          // \p{Lm}, \p{Lo}: letters without case
	classMark           // \p{M}
	classNumber         // \p{N}
	classSpace          // \s except the next
	classNewline        // \r and \n
)

// Sets of classes, a bit each.
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

// classes has the class of each code point. It comes from the tables of package
// unicode, which are also those of the regular expressions that tiktoken-go
// uses, so that both move to a new Unicode version at the same time.
var classes [utf8.MaxRune + 1]uint8

var fillClasses = sync.OnceFunc(func() {
	fill := func(class uint8, tables ...*unicode.RangeTable) {
		for _, t := range tables {
			for _, r := range t.R16 {
				for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
					classes[c] = class
				}
			}
			for _, r := range t.R32 {
				for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
					classes[c] = class
				}
			}
		}
	}
	fill(classUpper, unicode.Lu, unicode.Lt)
	fill(classLower, unicode.Ll)
	fill(classOther, unicode.Lm, unicode.Lo)
	fill(classMark, unicode.M)
	fill(classNumber, unicode.N)
	fill(classSpace, unicode.White_Space)
	fill(classNewline, &unicode.RangeTable{R16: []unicode.Range16{{Lo: '\n', Hi: '\r', Stride: '\r' - '\n'}}})
})

// classAt returns the class of the character of b at i, as a set, and its width.
// At the end of b the set is empty.
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

// skip returns the end of the run of characters of b from i on that are in set.
func skip(b []byte, i int, set uint) int {
	for i < len(b) {
		r, w := rune(b[i]), 1
		switch { // as decode does, but without a call
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

// decode returns the first character of b, valid UTF-8 that does not begin with
// ASCII, and its width.
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
