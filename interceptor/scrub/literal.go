package scrub

import (
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

const (
	maxLiterals  = 64 // of one anchor
	maxLiteral   = 16 // bytes of a literal that are looked at
	maxRepeatLit = 4  // copies of a repeated literal
)

// exactly returns all that x matches, in lower case, if that is a small set of
// ASCII strings.
func exactly(x *syntax.Regexp) ([]string, bool) {
	switch x.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return []string{""}, true
	case syntax.OpLiteral:
		return literal(x.Rune)
	case syntax.OpCharClass:
		return classLiterals(x.Rune)
	case syntax.OpCapture:
		return exactly(x.Sub[0])
	case syntax.OpQuest:
		set, ok := exactly(x.Sub[0])
		return union([]string{""}, set), ok && len(set) < maxLiterals
	case syntax.OpRepeat:
		return repeated(x)
	case syntax.OpConcat:
		all := []string{""}
		for _, s := range x.Sub {
			set, ok := exactly(s)
			if !ok {
				return nil, false
			}
			if all = product(all, set); all == nil {
				return nil, false
			}
		}
		return all, true
	case syntax.OpAlternate:
		var all []string
		for _, s := range x.Sub {
			set, ok := exactly(s)
			if !ok {
				return nil, false
			}
			if all = union(all, set); len(all) > maxLiterals {
				return nil, false
			}
		}
		return all, true
	}
	return nil, false
}

func literal(runes []rune) ([]string, bool) {
	if len(runes) > maxLiteral {
		return nil, false
	}
	b := make([]byte, len(runes))
	for i, r := range runes {
		c, ok := foldASCII(r)
		if !ok {
			return nil, false
		}
		b[i] = c
	}
	return []string{string(b)}, true
}

// foldASCII returns the lower-case ASCII letter that r is, or is equal to
// without case: U+212A and U+017F are k and s.
func foldASCII(r rune) (byte, bool) {
	switch {
	case r == '\u212a':
		return 'k', true
	case r == '\u017f':
		return 's', true
	case r >= utf8.RuneSelf:
		return 0, false
	}
	return byte(unicode.ToLower(r)), true
}

func classLiterals(ranges []rune) ([]string, bool) {
	var set []string
	for i := 0; i+1 < len(ranges); i += 2 {
		if ranges[i+1]-ranges[i] > 4 {
			return nil, false
		}
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			c, ok := foldASCII(r)
			if !ok {
				return nil, false
			}
			set = union(set, []string{string(c)})
		}
	}
	return set, len(set) > 0 && len(set) <= 4
}

func repeated(x *syntax.Regexp) ([]string, bool) {
	if x.Max < 0 || x.Max > maxRepeatLit {
		return nil, false
	}
	set, ok := exactly(x.Sub[0])
	if !ok {
		return nil, false
	}
	var all []string
	power := []string{""}
	for n := 0; n <= x.Max; n++ {
		if n >= x.Min {
			all = union(all, power)
		}
		if power = product(power, set); power == nil || len(all) > maxLiterals {
			return nil, false
		}
	}
	return all, true
}

// product returns every a followed by every b, or nil if that is too much.
func product(a, b []string) []string {
	if len(a)*len(b) > maxLiterals {
		return nil
	}
	out := make([]string, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			if len(x)+len(y) > maxLiteral {
				return nil
			}
			if xy := x + y; !slices.Contains(out, xy) {
				out = append(out, xy)
			}
		}
	}
	return out
}

func union(a, b []string) []string {
	a = slices.Clip(a)
	for _, y := range b {
		if !slices.Contains(a, y) {
			a = append(a, y)
		}
	}
	return a
}
