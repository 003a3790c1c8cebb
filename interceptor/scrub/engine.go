package scrub

import (
	"math"
	"slices"
	"strings"
	"sync"
)

// An engine finds what gitleaks' detector finds. What it holds does not change
// after newEngine, but for the free scratches.
type engine struct {
	set      *ruleSet
	matcher  *matcher
	literals []use // by literal of the matcher
	plans    [][]*plan
	numPlans int
	shortest int   // no match of a rule has fewer bytes
	always   []int // rules that no keyword of the matcher switches on

	// All keywords, for texts in which keywords and anchors are sought apart.
	keywords *matcher
	enables  []int // by literal of keywords: the rule it switches on

	mu   sync.Mutex
	free []*scratch
}

// A use is what a literal means.
type use struct {
	enables []int // rules that it switches on
	anchors []int // plans of which it is an anchor
}

func newEngine(set *ruleSet) (*engine, error) {
	e := &engine{set: set, plans: make([][]*plan, len(set.rules)), shortest: math.MaxInt}
	b := builder{engine: e, index: map[string]int{}}
	for i, r := range set.rules {
		b.addRule(i, r)
	}
	for _, a := range set.allow {
		b.addAllowlist(a)
	}
	var err error
	if e.matcher, err = newMatcher(b.texts); err != nil {
		return nil, err
	}
	e.keywords, err = newMatcher(b.words)
	return e, err
}

// A builder fills an engine.
type builder struct {
	*engine
	texts []string // by literal
	index map[string]int
	words []string // all keywords
}

// use returns the use of a literal.
func (b *builder) use(literal string) *use {
	n, ok := b.index[literal]
	if !ok {
		n = len(b.texts)
		b.index[literal] = n
		b.texts = append(b.texts, literal)
		b.literals = append(b.literals, use{})
	}
	return &b.literals[n]
}

// addPlan gives p its number and, if it is to be found by them, looks for its
// anchors.
func (b *builder) addPlan(p *plan, anchored bool) {
	if p.id >= 0 {
		return // of an allow-list of several rules
	}
	p.id = b.numPlans
	b.numPlans++
	if p.anchor == nil || !anchored {
		return
	}
	for _, l := range p.anchor.sights() {
		u := b.use(l)
		u.anchors = append(u.anchors, p.id)
	}
}

func (b *builder) addAllowlist(a *allowlist) {
	if a.anywhere != nil {
		a.anywhere.first = true
		b.addPlan(a.anywhere, false)
	}
	if a.inLine != nil {
		a.inLine.first = true
		b.addPlan(a.inLine, true)
	}
}

func (b *builder) addRule(i int, r *rule) {
	r.index = i
	least, _ := lengths(r.tree)
	b.shortest = min(b.shortest, least)
	b.plans[i] = newPlans(r.tree)
	for _, p := range b.plans[i] {
		b.addPlan(p, true)
		if p.gate != nil {
			b.addPlan(p.gate.rest, false)
		}
	}
	for _, a := range r.allow {
		b.addAllowlist(a)
	}
	if len(r.keywords) == 0 || slices.ContainsFunc(r.keywords, odd) {
		b.always = append(b.always, i)
		return
	}
	for _, k := range b.switches(r) {
		u := b.use(k)
		u.enables = append(u.enables, i)
	}
	for _, k := range r.keywords {
		b.words = append(b.words, k)
		b.enables = append(b.enables, i)
	}
}

// switches returns the literals one of which is in every text that r is
// switched on by and matches in: its keywords, or its anchors if each of them
// holds a keyword. A keyword of two letters is nearly everywhere.
func (e *engine) switches(r *rule) []string {
	var anchors []string
	for _, p := range e.plans[r.index] {
		if p.anchor == nil {
			return r.keywords
		}
		for _, l := range p.anchor.sights() {
			if !slices.ContainsFunc(r.keywords, func(k string) bool { return strings.Contains(l, k) }) {
				return r.keywords
			}
			anchors = append(anchors, l)
		}
	}
	if anchors == nil {
		return r.keywords
	}
	return anchors
}

// odd reports whether keyword is not for the matcher: too short, or with
// letters that it does not fold.
func odd(keyword string) bool { return len(keyword) < minLiteral || !ascii(keyword) }
