package regexset

import (
	"math/bits"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

const (
	minLiteral   = 2  // bytes; shorter literals are everywhere
	longEnough   = 3  // bytes; shorter literals are lengthened
	maxLiteral   = 16 // bytes of a literal that are searched for
	maxLiterals  = 64 // of one required set
	maxLonger    = 96 // of one required set that is lengthened
	maxRepeatLit = 4  // copies of a repeated literal
	maxClass     = 8  // characters of a class in a literal
	maxSlack     = 64 // starts that one literal hit leaves open
)

// required is a set of literals, in lower case. Every match of an expression contains one, lo to
// hi bytes after its start. The opposite does not hold: their search ignores case.
type required struct {
	literals []string
	lo, hi   int
	search   []string // the literals, short ones with each letter that may follow
}

// findRequired returns the best required literals of x, or nil.
func findRequired(x *syntax.Regexp) *required {
	if set := exactly(x); set != nil {
		if r := (&required{literals: set, search: set}); r.usable() {
			return r
		}
		return nil
	}
	switch x.Op {
	case syntax.OpLiteral:
		if set := literal(x.Rune[:min(len(x.Rune), maxLiteral)]); set != nil {
			return &required{literals: set, search: set}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return findRequired(x.Sub[0])
	case syntax.OpRepeat:
		if x.Min > 0 {
			return findRequired(x.Sub[0])
		}
	case syntax.OpAlternate:
		return requiredOfAny(x.Sub)
	case syntax.OpConcat:
		return requiredOfSequence(x.Sub)
	}
	return nil
}

func requiredOfAny(branches []*syntax.Regexp) *required {
	all := &required{lo: unlimited}
	for _, b := range branches {
		r := findRequired(b)
		if r == nil {
			return nil
		}
		all.literals = union(all.literals, r.literals)
		all.search = union(all.search, r.search)
		all.lo, all.hi = min(all.lo, r.lo), max(all.hi, r.hi)
	}
	if len(all.literals) > maxLiterals || !all.usable() {
		return nil
	}
	if len(all.search) > maxLonger {
		all.search = all.literals
	}
	return all
}

// requiredOfSequence chooses among the elements of a concatenation and runs of small sets.
func requiredOfSequence(subs []*syntax.Regexp) *required {
	var best *required
	try := func(r *required, lo, hi int) {
		if r == nil {
			return
		}
		shifted := &required{r.literals, r.lo + lo, min(r.hi+hi, unlimited), r.search}
		if shifted.usable() && (best == nil || shifted.worth() > best.worth()) {
			best = shifted
		}
	}
	exact := make([][]string, len(subs))
	for i, x := range subs {
		exact[i] = exactly(x)
	}
	lo, hi := 0, 0
	for i, x := range subs {
		run := []string{""}
		for k, set := range exact[i:] {
			if run = product(run, set); run == nil {
				if k == 0 {
					try(findRequired(x), lo, hi)
				}
				break
			}
			try(&required{literals: run, search: lengthen(run, subs[i+k+1:])}, lo, hi)
		}
		least, most := lengths(x, utf8.UTFMax)
		lo, hi = min(lo+least, unlimited), min(hi+most, unlimited)
	}
	return best
}

// lengthen returns the literals of a run, short ones with each letter that may begin the elements
// after the run. If there are too many it returns the run. Without it keyword-dense lines are
// searched 8 % slower, source 17 %.
func lengthen(run []string, next []*syntax.Regexp) []string {
	if n := shortest(run); n < minLiteral || n >= longEnough {
		return run
	}
	first := byteSet{lower: true}
	if empty := first.addFirst(concat(next...)); empty || first.end || first.has[utf8.RuneSelf] {
		return run
	}
	var longer []string
	for _, l := range run {
		if len(l) >= longEnough {
			longer = append(longer, l)
			continue
		}
		for c, has := range first.has {
			if has {
				longer = append(longer, l+string(rune(c)))
			}
		}
	}
	if len(longer) > maxLonger {
		return run
	}
	return longer
}

// usable reports whether the literals are long enough and leave few starts open.
func (r *required) usable() bool {
	return len(r.literals) > 0 && shortest(r.literals) >= minLiteral && r.hi-r.lo <= maxSlack
}

// worth is higher for literals that are found in fewer places, roughly.
func (r *required) worth() int {
	return 8*min(shortest(r.literals), 8) - 4*bits.Len(uint(len(r.literals))) - (r.hi - r.lo)
}

func shortest(literals []string) int {
	n := maxLiteral
	for _, l := range literals {
		n = min(n, len(l))
	}
	return n
}

// exactly returns all that x matches, in lower case, or nil if that is no small set in ASCII.
func exactly(x *syntax.Regexp) []string {
	switch x.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return []string{""}
	case syntax.OpLiteral:
		return literal(x.Rune)
	case syntax.OpCharClass:
		return classLiterals(x.Rune)
	case syntax.OpCapture:
		return exactly(x.Sub[0])
	case syntax.OpQuest:
		return repeated(x.Sub[0], 0, 1)
	case syntax.OpRepeat:
		return repeated(x.Sub[0], x.Min, x.Max)
	case syntax.OpConcat:
		all := []string{""}
		for _, s := range x.Sub {
			if all = product(all, exactly(s)); all == nil {
				break
			}
		}
		return all
	case syntax.OpAlternate:
		var all []string
		for _, s := range x.Sub {
			set := exactly(s)
			if all = union(all, set); set == nil || len(all) > maxLiterals {
				return nil
			}
		}
		return all
	}
	return nil
}

// literal is exactly for a sequence of runes.
func literal(runes []rune) []string {
	if len(runes) > maxLiteral {
		return nil
	}
	b := make([]byte, len(runes))
	for i, r := range runes {
		var ok bool
		if b[i], ok = foldASCII(r); !ok {
			return nil
		}
	}
	return []string{string(b)}
}

// classLiterals is exactly for a class of at most maxClass characters.
func classLiterals(ranges []rune) []string {
	var set []string
	for i := 0; i+1 < len(ranges); i += 2 {
		if ranges[i+1]-ranges[i] >= 2*maxClass { // too many, even if each letter is there in both cases
			return nil
		}
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			c, ok := foldASCII(r)
			if set = union(set, []string{string(c)}); !ok || len(set) > maxClass {
				return nil
			}
		}
	}
	return set
}

// repeated is exactly for least to most copies of x.
func repeated(x *syntax.Regexp, least, most int) []string {
	if most < 0 || most > maxRepeatLit {
		return nil
	}
	set := exactly(x)
	if set == nil {
		return nil
	}
	if sameLength := !slices.ContainsFunc(set, func(l string) bool { return len(l) != len(set[0]) }); sameLength {
		count := 0 // of the copies, which are all different; most rules of gitleaks have too many
		for n, power := 0, 1; n <= most; n, power = n+1, power*len(set) {
			if n >= least {
				count += power
			}
		}
		if count > maxLiterals {
			return nil
		}
	}
	var all []string
	power := []string{""}
	for n := 0; power != nil && len(all) <= maxLiterals; n++ {
		if n >= least {
			all = union(all, power)
		}
		if n == most && len(all) <= maxLiterals {
			return all
		}
		power = product(power, set)
	}
	return nil
}

// product returns every a followed by every b, or nil: if that is nothing, too much or too long.
func product(a, b []string) []string {
	if n := len(a) * len(b); n == 0 || n > maxLiterals {
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

// union appends what is in b and not in a.
func union(a, b []string) []string {
	for _, y := range b {
		if !slices.Contains(a, y) {
			a = append(a, y)
		}
	}
	return a
}

// unlimited stands for a length without a limit, in bytes.
const unlimited = 1e6

// lengths returns how many bytes x matches at least and at most. A byte that is not UTF-8 reads
// as U+FFFD, so a rune that is not ASCII counts as 1 byte or more. widest is the most bytes of a rune
// of the text: 1 if it is ASCII.
func lengths(x *syntax.Regexp, widest int) (lo, hi int) {
	switch x.Op {
	case syntax.OpLiteral:
		for _, r := range x.Rune {
			n := utf8.RuneLen(r)
			for f := unicode.SimpleFold(r); f != r && x.Flags&syntax.FoldCase != 0; f = unicode.SimpleFold(f) {
				n = max(n, utf8.RuneLen(f))
			}
			hi += min(max(n, 1), widest)
		}
		return len(x.Rune), hi
	case syntax.OpCharClass:
		if n := len(x.Rune); n > 0 && utf8.ValidRune(x.Rune[n-1]) {
			return 1, min(utf8.RuneLen(x.Rune[n-1]), widest)
		}
		return 1, widest
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1, widest
	case syntax.OpCapture:
		return lengths(x.Sub[0], widest)
	case syntax.OpStar:
		return 0, unlimited
	case syntax.OpPlus:
		lo, _ = lengths(x.Sub[0], widest)
		return lo, unlimited
	case syntax.OpQuest:
		_, hi = lengths(x.Sub[0], widest)
		return 0, hi
	case syntax.OpRepeat:
		lo, hi = lengths(x.Sub[0], widest)
		if x.Max < 0 {
			return min(lo*x.Min, unlimited), unlimited
		}
		return min(lo*x.Min, unlimited), min(hi*x.Max, unlimited)
	case syntax.OpConcat:
		for _, s := range x.Sub {
			a, b := lengths(s, widest)
			lo, hi = min(lo+a, unlimited), min(hi+b, unlimited)
		}
		return lo, hi
	case syntax.OpAlternate:
		lo = unlimited
		for _, s := range x.Sub {
			a, b := lengths(s, widest)
			lo, hi = min(lo, a), max(hi, b)
		}
		return lo, hi
	}
	return 0, 0 // assertions, the empty match, no match
}

// A byteSet is a set of bytes of UTF-8 text, and maybe the end of the text. It contains all bytes that are not
// ASCII or none of them. If lower is set, it contains characters in lower case as fold leaves them.
type byteSet struct {
	has   [256]bool
	end   bool
	lower bool
}

// add adds the bytes of o.
func (b *byteSet) add(o *byteSet) {
	for c, has := range o.has {
		b.has[c] = b.has[c] || has
	}
	b.end = b.end || o.end
}

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

// addFirst adds the bytes that matches of x may begin with, and the end of the text if x may match "" only there.
// It reports whether x may match "" elsewhere.
func (b *byteSet) addFirst(x *syntax.Regexp) (empty bool) {
	switch x.Op {
	case syntax.OpNoMatch:
		return false
	case syntax.OpEndText:
		b.end = true
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
	if c, ok := foldASCII(lo); ok && lo == hi && b.lower {
		b.has[c] = true
		return
	}
	for r := lo; r <= min(hi, utf8.RuneSelf-1); r++ {
		c := byte(r)
		if b.lower {
			c, _ = foldASCII(r)
		}
		b.has[c] = true
	}
	for c := utf8.RuneSelf; c < len(b.has) && hi >= utf8.RuneSelf; c++ {
		b.has[c] = true
	}
}

// narrow reports whether b has at most n bytes, and none in common with o.
func (b *byteSet) narrow(n int, o *byteSet) bool {
	for c, has := range b.has {
		if has {
			n--
		}
		if has && o.has[c] {
			return false
		}
	}
	return n >= 0
}

// foldASCII returns the lower-case ASCII letter that r is or that fold puts in its place.
func foldASCII(r rune) (byte, bool) {
	switch {
	case r == '\u212a':
		return 'k', true
	case r == '\u017f':
		return 's', true
	case r == '\u0130':
		return 'i', true
	case r >= utf8.RuneSelf:
		return 0, false
	}
	return byte(unicode.ToLower(r)), true
}
