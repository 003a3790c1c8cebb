package regexset

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// An Expr is a parsed regular expression. It is compiled when it is first used: of many
// expressions most never match, and compiling takes most of the time of a start-up.
type Expr struct {
	tree   *syntax.Regexp // with its repetitions as they are written
	groups int
	regexp func() *regexp.Regexp
}

// Parse parses an expression in the syntax of package regexp.
func Parse(expr string) (*Expr, error) {
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, err
	}
	return &Expr{tree, tree.MaxCap(), sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}, nil
}

// NumSubexp returns the number of capturing groups.
func (x *Expr) NumSubexp() int { return x.groups }

// Searchable returns an error if a pattern with the expression can't be for [Search], as no bound
// would hold for its time.
func (x *Expr) Searchable() error {
	if least, _ := lengths(x.tree, utf8.UTFMax); least == 0 {
		return errEmpty
	}
	if !newProgram(x.tree).compile() {
		return errClasses
	}
	return nil
}

var (
	errEmpty   = errors.New("matches the empty string: make a part of it mandatory, such as + instead of *")
	errClasses = errors.New("tells more than 254 kinds of characters apart: use larger character classes")
)

// MatchString reports whether s contains a match.
func (x *Expr) MatchString(s string) bool { return x.regexp().MatchString(s) }

// A Use says how a [Set] applies a pattern.
type Use int

const (
	// Search: [Scratch.FindAll] returns the matches in the scanned text; see [Expr.Searchable].
	Search Use = iota
	// Test: [Scratch.Match] tests short parts of the scanned text.
	Test
	// TestLines is Test for parts that may be long, many and overlapping.
	TestLines
)

// A Pattern is one expression of a [Set].
type Pattern struct {
	Expr *Expr
	Use  Use
	// Keywords are for Search. If there are any, the pattern has matches only in texts that
	// contain a keyword after strings.ToLower.
	Keywords []string
}

// A Set is a compiled set of patterns. It is safe for concurrent use.
type Set struct {
	patterns   []pattern
	programs   int // number of them
	literals   *Literals
	uses       []use   // by literal
	unfiltered []int   // patterns that no literal makes a candidate
	inexact    bool    // one of them has keywords
	gates      []*gate // by list of hits, nil for none; list 0 is empty
	minLen     int     // bytes of the shortest match; shorter texts are not scanned
}

type pattern struct {
	Pattern
	plans    []*plan  // for Search; TestLines has one, for its literals
	test     *program // for Test and TestLines: the first end of a match in a text
	filter   []string // for Search; see filterOf
	required bool     // every match contains a literal of filter
}

// A use is what one literal is searched for.
type use struct {
	patterns []int  // a text with the literal may match them
	lists    []int  // of hits that have it
	sieve    *sieve // of these lists; nil for none
	inWords  bool   // of matches that begin with it, one may begin within a word
	sign     bool   // see Scratch.HasSign
	word     int    // its first bytes that are in words; see gate
}

// New compiles patterns. It fails if one for Search matches the empty string. signs are searchable literals for
// [Scratch.HasSign], in lower case.
func New(patterns []Pattern, signs ...string) (*Set, error) {
	s := &Set{patterns: make([]pattern, len(patterns)), gates: make([]*gate, 1), minLen: math.MaxInt}
	sought := map[string]bool{} // all literals
	number := func(p *program) {
		p.index = s.programs
		s.programs++
	}
	for i, in := range patterns {
		p := &s.patterns[i]
		p.Pattern = in
		tree := in.Expr.tree
		least, _ := lengths(tree, utf8.UTFMax)
		if in.Use == Search && least == 0 {
			return nil, fmt.Errorf("pattern %d %w", i, errEmpty)
		}
		if in.Use != Test {
			s.minLen = min(s.minLen, least)
		}
		switch in.Use {
		case Search:
			p.plans = newPlans(tree)
		case TestLines:
			p.plans = []*plan{newPlan(tree)}
		}
		for _, plan := range p.plans {
			number(plan.tail)
			if l := plan.lookahead; l != nil {
				number(l.rest)
				for _, v := range l.values {
					number(v.rest)
				}
			}
			if plan.required == nil {
				continue
			}
			for _, l := range plan.required.search {
				sought[l] = true
			}
		}
		if in.Use != Search {
			anyText := &syntax.Regexp{Op: syntax.OpStar, Flags: syntax.NonGreedy, Sub: []*syntax.Regexp{{Op: syntax.OpAnyChar}}} // (?s:.*?)
			p.test = newProgram(concat(anyText, tree))
			p.test.earliest = true
			number(p.test)
			continue
		}
		if p.filter, p.required = p.filterOf(); len(p.filter) == 0 {
			s.unfiltered = append(s.unfiltered, i)
			s.inexact = s.inexact || len(in.Keywords) > 0
		}
		for _, l := range p.filter {
			sought[l] = true
		}
	}
	s.search(sought, signs)
	return s, nil
}

// search notes what each literal is searched for. A gate turns most hits away, so its plans take the
// hits of a literal with which theirs begin, if that is sought anyway.
func (s *Set) search(sought map[string]bool, signs []string) {
	var literals []string
	index, lists := map[string]int{}, map[string]int{}
	useOf := func(literal string, gated bool) *use {
		for n := longEnough; gated && n < len(literal); n++ {
			if sought[literal[:n]] {
				literal = literal[:n]
			}
		}
		n, ok := index[literal]
		if !ok {
			n = len(literals)
			index[literal] = n
			literals = append(literals, literal)
			s.uses = append(s.uses, use{word: wordEnd(literal, 0)})
		}
		return &s.uses[n]
	}
	for i := range s.patterns {
		p := &s.patterns[i]
		gated, inWords := p.required, !p.required
		for _, plan := range p.plans {
			atBoundary := p.Use == Search && plan.atBoundary() // a part is tested alone
			gated, inWords = gated && plan.gated(), inWords || !atBoundary
			if plan.required == nil {
				continue
			}
			key := fmt.Sprintf("%t %t %q", plan.gated(), atBoundary, plan.required.search)
			if plan.hits = lists[key]; plan.hits == 0 {
				plan.hits = len(s.gates)
				lists[key] = plan.hits
				s.gates = append(s.gates, nil)
				if plan.gated() {
					s.gates[plan.hits] = &gate{}
				}
				for _, l := range plan.required.search {
					u := useOf(l, plan.gated())
					u.inWords = u.inWords || !atBoundary
					if !slices.Contains(u.lists, plan.hits) {
						u.lists = append(u.lists, plan.hits)
					}
				}
			}
			if g := s.gates[plan.hits]; g != nil {
				g.plans = append(g.plans, plan)
			}
		}
		for _, l := range p.filter {
			u := useOf(l, gated)
			u.patterns = append(u.patterns, i)
			u.inWords = u.inWords || inWords
		}
	}
	for _, l := range signs {
		u := useOf(l, false)
		u.sign, u.inWords = true, true
	}
	sieves := map[string]*sieve{}
	for i := range s.uses {
		u := &s.uses[i]
		key := fmt.Sprint(u.lists)
		if len(u.lists) > 0 && sieves[key] == nil {
			sieves[key] = newSieve(u.lists, s.gates)
		}
		u.sieve = sieves[key]
	}
	s.literals = NewLiterals(literals)
}

// filterOf returns literals of which every text with a keyword and a match contains one, or nil:
// the required literals of the plans if each implies a keyword, or else the keywords. Short
// keywords are in nearly every text.
func (p *pattern) filterOf() (literals []string, isRequired bool) {
	var required []string
	for _, plan := range p.plans {
		if plan.required == nil {
			required = nil
			break
		}
		required = append(required, plan.required.search...)
	}
	if required != nil && !slices.ContainsFunc(required, func(l string) bool { return !p.hasKeyword(l) }) {
		return required, true
	}
	if slices.ContainsFunc(p.Keywords, func(k string) bool { return !Searchable(k) }) {
		return nil, false
	}
	return p.Keywords, false
}

// hasKeyword reports whether the pattern's keywords let it match in a text.
func (p *pattern) hasKeyword(lower string) bool {
	return len(p.Keywords) == 0 ||
		slices.ContainsFunc(p.Keywords, func(k string) bool { return strings.Contains(lower, k) })
}

// MinLen returns the number of bytes below which no text has a match.
func (s *Set) MinLen() int { return s.minLen }

// Filtered reports whether every text with a match has a literal of [Scratch.LiteralHits].
func (s *Set) Filtered() bool { return len(s.unfiltered) == 0 }

func concat(subs ...*syntax.Regexp) *syntax.Regexp {
	return &syntax.Regexp{Op: syntax.OpConcat, Sub: subs}
}
