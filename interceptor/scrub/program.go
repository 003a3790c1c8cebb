package scrub

import (
	"regexp/syntax"
	"slices"
	"sort"
	"unicode"
	"unicode/utf8"
)

// What comes before or after a position, as far as \b, ^ and $ can tell.
const (
	kindOther = iota
	kindWord
	kindNewline
	kindEdge // begin or end of the text
)

// A program is an expression compiled for automata: the instructions of the
// standard library, and a partition of all runes into classes that it cannot
// tell apart. It does not change once it is made.
type program struct {
	inst    []syntax.Inst
	start   uint32
	looks   bool // has assertions
	classes int  // the last one stands for the end of the text
	ascii   [utf8.RuneSelf]uint8
	bounds  []rune  // first runes of the intervals, ascending
	class   []uint8 // of the interval
	kind    []uint8 // of the class
	takes   [][]bool
	set     []int // of an instruction: index in takes
}

// newProgram compiles tree. It reports false where there are more classes than
// an automaton of ours has room for.
func newProgram(tree *syntax.Regexp) (*program, bool) {
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, false
	}
	p := &program{inst: prog.Inst, start: uint32(prog.Start), set: make([]int, len(prog.Inst))}
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
	return p, p.classify(distinct)
}

// appendCuts appends the runes at which what in takes may change.
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

// classify gives intervals that all instructions treat alike one class.
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

func (p *program) classOf(r rune) uint8 {
	return p.class[sort.Search(len(p.bounds), func(i int) bool { return p.bounds[i] > r })-1]
}

func kindOf(r rune) uint8 {
	switch {
	case r == '\n':
		return kindNewline
	case syntax.IsWordChar(r):
		return kindWord
	}
	return kindOther
}

// kindBefore returns the kind of what is before byte i. Only ASCII matters, so
// one byte tells.
func kindBefore(text string, i int) uint8 {
	if i == 0 {
		return kindEdge
	}
	return kindOf(rune(text[i-1]))
}

// assertions returns what holds between two kinds.
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
