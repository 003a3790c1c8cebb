package scrub

import (
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// unlimited stands for a length without a limit, in bytes.
const unlimited = 1e6

// lengths returns how many bytes x matches at least and at most.
func lengths(x *syntax.Regexp) (lo, hi int) {
	switch x.Op {
	case syntax.OpLiteral:
		for _, r := range x.Rune {
			a, b := runeLengths(r, r, x.Flags&syntax.FoldCase != 0)
			lo, hi = lo+a, hi+b
		}
		return lo, hi
	case syntax.OpCharClass:
		lo, hi = utf8.UTFMax, 1
		for i := 0; i+1 < len(x.Rune); i += 2 {
			a, b := runeLengths(x.Rune[i], x.Rune[i+1], false)
			lo, hi = min(lo, a), max(hi, b)
		}
		return lo, hi
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1, utf8.UTFMax
	case syntax.OpCapture:
		return lengths(x.Sub[0])
	case syntax.OpStar:
		return 0, unlimited
	case syntax.OpPlus:
		lo, _ = lengths(x.Sub[0])
		return lo, unlimited
	case syntax.OpQuest:
		_, hi = lengths(x.Sub[0])
		return 0, hi
	case syntax.OpRepeat:
		lo, hi = lengths(x.Sub[0])
		if x.Max < 0 {
			return min(lo*x.Min, unlimited), unlimited
		}
		return min(lo*x.Min, unlimited), min(hi*x.Max, unlimited)
	case syntax.OpConcat:
		for _, s := range x.Sub {
			a, b := lengths(s)
			lo, hi = min(lo+a, unlimited), min(hi+b, unlimited)
		}
		return lo, hi
	case syntax.OpAlternate:
		lo = unlimited
		for _, s := range x.Sub {
			a, b := lengths(s)
			lo, hi = min(lo, a), max(hi, b)
		}
		return lo, hi
	}
	return 0, 0 // assertions, the empty match, no match
}

// runeLengths returns the shortest and longest encoding of the runes from a to
// b. A byte that is not UTF-8 reads as U+FFFD and is one byte long.
func runeLengths(a, b rune, fold bool) (lo, hi int) {
	lo, hi = utf8.RuneLen(a), utf8.RuneLen(b)
	if lo < 0 {
		lo = 1 // a surrogate, which no text holds
	}
	if hi < 0 {
		hi = utf8.UTFMax
	}
	if a <= utf8.RuneError && utf8.RuneError <= b {
		lo = 1
	}
	if fold {
		for f := unicode.SimpleFold(a); f != a; f = unicode.SimpleFold(f) {
			lo, hi = min(lo, utf8.RuneLen(f)), max(hi, utf8.RuneLen(f))
		}
	}
	return lo, hi
}

// A byteSet is a set of bytes of UTF-8 text. It has either all bytes that are
// not ASCII or none of them.
type byteSet [256]bool

// addAll adds the bytes that matches of x may consist of.
func (b *byteSet) addAll(x *syntax.Regexp) {
	switch x.Op {
	case syntax.OpLiteral:
		for _, r := range x.Rune {
			b.addLetter(r, x.Flags)
		}
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.addFirst(x)
	default:
		for _, s := range x.Sub {
			b.addAll(s)
		}
	}
}

// addFirst adds the bytes that matches of x may begin with, and reports whether
// x may match nothing.
func (b *byteSet) addFirst(x *syntax.Regexp) (empty bool) {
	switch x.Op {
	case syntax.OpNoMatch:
		return false
	case syntax.OpLiteral:
		if len(x.Rune) == 0 {
			return true
		}
		b.addLetter(x.Rune[0], x.Flags)
		return false
	case syntax.OpCharClass:
		for i := 0; i+1 < len(x.Rune); i += 2 {
			b.addRange(x.Rune[i], x.Rune[i+1])
		}
		return false
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.addRange(0, unicode.MaxRune)
		return false
	case syntax.OpConcat:
		for _, s := range x.Sub {
			if !b.addFirst(s) {
				return false
			}
		}
		return true
	case syntax.OpAlternate:
		for _, s := range x.Sub {
			empty = b.addFirst(s) || empty
		}
		return empty
	case syntax.OpCapture, syntax.OpPlus:
		return b.addFirst(x.Sub[0])
	case syntax.OpStar, syntax.OpQuest:
		b.addFirst(x.Sub[0])
		return true
	case syntax.OpRepeat:
		return b.addFirst(x.Sub[0]) || x.Min == 0
	}
	return true // assertions and the empty match
}

// addLetter adds a rune of a literal.
func (b *byteSet) addLetter(r rune, flags syntax.Flags) {
	b.addRange(r, r)
	if flags&syntax.FoldCase == 0 {
		return
	}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		b.addRange(f, f)
	}
}

func (b *byteSet) addRange(lo, hi rune) {
	for r := lo; r <= min(hi, utf8.RuneSelf-1); r++ {
		b[r] = true
	}
	for c := utf8.RuneSelf; c < len(b) && hi >= utf8.RuneSelf; c++ {
		b[c] = true
	}
}

func (b *byteSet) size() int {
	n := 0
	for _, has := range b {
		if has {
			n++
		}
	}
	return n
}

// meets reports whether b and o have a byte in common.
func (b *byteSet) meets(o *byteSet) bool {
	for c := range b {
		if b[c] && o[c] {
			return true
		}
	}
	return false
}
