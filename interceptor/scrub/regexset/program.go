package regexset

import (
	"regexp/syntax"
	"slices"
	"sort"
	"sync"
	"unicode"
	"unicode/utf8"
)

// A program is an expression compiled for a [dfa]: the instructions of package regexp, and a
// partition of all runes into classes that the instructions can't tell apart.
type program struct {
	tree     *syntax.Regexp
	index    int  // in the Set
	minLen   int  // bytes of the shortest match
	earliest bool // a run ends at the first end of a match, not the preferred one

	once    sync.Once
	ok      bool
	inst    []syntax.Inst
	start   uint32
	looks   bool // has assertions
	classes int  // the last one is the end of the text
	ascii   [utf8.RuneSelf]uint8
	bounds  []rune   // first runes of the intervals, ascending
	class   []uint8  // by interval
	kind    []uint8  // by class
	takes   [][]bool // by set and class: do the instructions of the set read the class?
	set     []int    // by instruction
}

// newProgram returns a program that is compiled when it is first needed.
func newProgram(tree *syntax.Regexp) *program {
	least, _ := lengths(tree, utf8.UTFMax)
	return &program{tree: tree, minLen: least}
}

// compile compiles the program once. It reports false if a DFA has no room for its classes.
func (p *program) compile() bool {
	p.once.Do(func() {
		prog, err := syntax.Compile(p.tree.Simplify())
		if err != nil {
			return
		}
		p.inst, p.start, p.set = prog.Inst, uint32(prog.Start), make([]int, len(prog.Inst))
		cuts := []rune{0, '\n', '\n' + 1, '0', '9' + 1, 'A', 'Z' + 1, '_', '_' + 1, 'a', 'z' + 1, utf8.RuneSelf}
		var distinct []*syntax.Inst
		for i := range prog.Inst {
			in := &prog.Inst[i]
			switch in.Op {
			case syntax.InstEmptyWidth:
				p.looks = true
			case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
				cuts = appendCuts(cuts, in)
				at := slices.IndexFunc(distinct, func(d *syntax.Inst) bool {
					return d.Op == in.Op && d.Arg == in.Arg && slices.Equal(d.Rune, in.Rune)
				})
				if at < 0 {
					at = len(distinct)
					distinct = append(distinct, in)
				}
				p.set[i] = at
			}
		}
		slices.Sort(cuts)
		p.bounds = slices.Compact(cuts)
		p.ok = p.classify(distinct)
	})
	return p.ok
}

// appendCuts appends the runes at which the set of runes that in reads may begin or end.
func appendCuts(cuts []rune, in *syntax.Inst) []rune {
	if len(in.Rune) == 1 {
		r := in.Rune[0]
		cuts = append(cuts, r, r+1)
		if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				cuts = append(cuts, f, f+1)
			}
		}
		return cuts
	}
	for i := 0; i+1 < len(in.Rune); i += 2 {
		cuts = append(cuts, in.Rune[i], in.Rune[i+1]+1)
	}
	return cuts
}

// classify puts intervals that all instructions treat alike into one class.
func (p *program) classify(distinct []*syntax.Inst) bool {
	p.takes = make([][]bool, len(distinct))
	known := map[string]uint8{}
	key := make([]byte, len(distinct)+1)
	for _, first := range p.bounds {
		key[0] = kindOf(first)
		for i, in := range distinct {
			key[i+1] = 0
			if in.MatchRune(first) {
				key[i+1] = 1
			}
		}
		c, ok := known[string(key)]
		if !ok {
			if len(known) == 254 {
				return false
			}
			c = uint8(len(known))
			known[string(key)] = c
			p.kind = append(p.kind, key[0])
			for i := range distinct {
				p.takes[i] = append(p.takes[i], key[i+1] == 1)
			}
		}
		p.class = append(p.class, c)
	}
	p.kind = append(p.kind, kindEdge)
	for i := range distinct {
		p.takes[i] = append(p.takes[i], false)
	}
	p.classes = len(p.kind)
	for r := range rune(utf8.RuneSelf) {
		p.ascii[r] = p.classOf(r)
	}
	return true
}

func (p *program) classAt(text string, i int) (class uint8, size int) {
	if c := text[i]; c < utf8.RuneSelf {
		return p.ascii[c], 1
	}
	r, size := utf8.DecodeRuneInString(text[i:])
	return p.classOf(r), size
}

func (p *program) classOf(r rune) uint8 {
	return p.class[sort.Search(len(p.bounds), func(i int) bool { return p.bounds[i] > r })-1]
}

// The kinds of characters that \b, ^ and $ tell apart.
const (
	kindOther = iota
	kindWord
	kindNewline
	kindEdge // begin or end of the text
)

// kindBefore returns the kind of the character before byte i. Kinds differ in ASCII only.
func kindBefore(text string, i int) uint8 {
	if i == 0 {
		return kindEdge
	}
	return kindOfByte[text[i-1]]
}

var kindOfByte = func() (kinds [256]uint8) {
	for c := range kinds {
		kinds[c] = kindOf(rune(c))
	}
	return kinds
}()

func kindOf(r rune) uint8 {
	switch {
	case r == '\n':
		return kindNewline
	case syntax.IsWordChar(r):
		return kindWord
	}
	return kindOther
}

// assertions returns the assertions that hold between characters of two kinds.
func assertions(before, after uint8) syntax.EmptyOp {
	var op syntax.EmptyOp
	switch before {
	case kindEdge:
		op |= syntax.EmptyBeginText | syntax.EmptyBeginLine
	case kindNewline:
		op |= syntax.EmptyBeginLine
	}
	switch after {
	case kindEdge:
		op |= syntax.EmptyEndText | syntax.EmptyEndLine
	case kindNewline:
		op |= syntax.EmptyEndLine
	}
	if (before == kindWord) != (after == kindWord) {
		return op | syntax.EmptyWordBoundary
	}
	return op | syntax.EmptyNoWordBoundary
}
