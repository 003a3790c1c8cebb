package scrub

import (
	"math"
	"slices"
	"sort"
	"strings"
)

// A span is a range of bytes of a text.
type span struct{ start, end int }

// A hit is a secret that a rule found.
type hit struct {
	rule   *rule
	match  span // what the whole expression matched, without line breaks around it
	secret span // the group that holds the secret; empty if it did not take part
	placed span // where gitleaks has the match
	at     location
	line   span // gitleaks' notion of the match's line
	found  bool // at and line are known
	open   bool // line is the whole text, as it is for gitleaks after the last line break
}

// A location counts lines from 0 and columns from 1, with gitleaks' habit of
// counting a line break as the first byte of the line that it begins.
type location struct{ startLine, endLine, startColumn, endColumn int }

// A site is one text under examination, with what is found out about it only
// when a rule matches.
type site struct {
	text     string
	set      *ruleSet
	scratch  *scratch
	limit    *limit
	scanned  bool // the scratch knows the line breaks
	verdicts map[verdict]bool
	ends     map[*plan][]int32 // by place of the plan's anchor; see inLine
}

// A verdict is what an allow-list says about a line.
type verdict struct {
	list *allowlist
	line span
}

// inspect decides whether the match of r at m is a secret. It follows
// gitleaks step by step; all steps only ever reject, so the cheap ones go first.
func (t *site) inspect(r *rule, m span) (hit, bool, error) {
	match := t.text[m.start:m.end]
	// gitleaks trims line breaks off the match and places it as if only its
	// end had moved. The match is located as gitleaks does, but what is
	// redacted is where the text really is.
	lead := len(match) - len(strings.TrimLeft(match, "\n"))
	match = strings.Trim(match, "\n")
	h := hit{rule: r, match: span{m.start + lead, m.start + lead + len(match)}}
	secret, err := t.secretOf(r, h.match)
	if err != nil {
		return h, false, err
	}
	h.secret = span{secret.start + h.match.start, secret.end + h.match.start}
	if r.entropy != 0 && entropy(t.text[h.secret.start:h.secret.end]) <= r.entropy {
		return h, false, nil
	}
	h.placed = span{m.start, m.start + len(match)}
	if r.certain {
		h.locate(t)
		return h, true, nil
	}
	for _, lists := range [2][]*allowlist{r.allow, t.set.allow} {
		for _, a := range lists {
			if yes, err := a.allows(t, &h); yes || err != nil {
				return h, false, err
			}
		}
	}
	h.locate(t)
	return h, true, nil
}

// locate finds line and columns of the match as gitleaks places it.
func (h *hit) locate(t *site) {
	if h.found {
		return
	}
	h.found = true
	m, nl := h.placed, t.lineBreaks()
	// The n-th line ends at the n-th line break and, but for the first one,
	// starts with the one before.
	begin := func(n int) int {
		if n == 0 {
			return 0
		}
		return int(nl[n-1])
	}
	first := sort.Search(len(nl), func(i int) bool { return int(nl[i]) > m.start })
	last := sort.Search(len(nl), func(i int) bool { return int(nl[i]) >= m.end })
	if last < len(nl) && begin(last) < m.end {
		h.at.endLine, h.at.endColumn = last, m.end-begin(last)
	}
	if first < len(nl) {
		h.at.startLine, h.at.startColumn = first, m.start-begin(first)+1
		if h.at.endColumn == 0 || last < first {
			h.at.endLine = first
		}
		h.line = span{begin(first), int(nl[h.at.endLine])}
	} else {
		// After the last line break gitleaks takes the line from the
		// beginning of the text.
		prev := begin(len(nl))
		h.at = location{len(nl), len(nl), m.start - prev + 1, m.end - prev}
		h.line, h.open = span{0, len(t.text)}, true
		if i := strings.IndexAny(t.text[m.end:], "\r\n"); i >= 0 {
			h.line.end = m.end + i
		}
	}
	h.line.end = max(h.line.end, m.end)
}

// lineBreaks returns the positions of all line breaks. As in gitleaks a text
// without any has one at its end.
func (t *site) lineBreaks() []int32 {
	if t.scanned {
		return t.scratch.lines
	}
	t.scanned = true
	lines := t.scratch.lines[:0]
	for at := 0; ; at++ {
		i := strings.IndexByte(t.text[at:], '\n')
		if i < 0 {
			break
		}
		at += i
		lines = append(lines, int32(at))
	}
	if len(lines) == 0 {
		lines = append(lines, int32(len(t.text)))
	}
	t.scratch.lines = lines
	return lines
}

// holds reports whether an expression of a matches in part, taken alone.
func (t *site) holds(a *allowlist, part span) (bool, error) {
	text := t.text[part.start:part.end]
	if text == "" {
		return false, nil
	}
	d := t.scratch.dfa(a.anywhere)
	if d == nil {
		return a.expr().MatchString(text), nil
	}
	d.forget()
	end, err := d.end(text, 0, t.limit)
	return end >= 0, err
}

// verdict is holds for a line. Many findings may share a long one, so what
// came of it is kept.
func (t *site) verdict(a *allowlist, line span) (bool, error) {
	v := verdict{a, line}
	yes, known := t.verdicts[v]
	if !known {
		var err error
		if yes, err = t.holds(a, line); err != nil {
			return false, err
		}
		if t.verdicts == nil {
			t.verdicts = map[verdict]bool{}
		}
		t.verdicts[v] = yes
	}
	return yes, nil
}

// inLine reports whether p, which does not look around, matches in line.
// Lines may be long, many and overlap, so for each place of p's anchor the
// first end of a match there or at a later place is computed once.
func (t *site) inLine(p *plan, line span) (bool, error) {
	places := t.scratch.hits[p.id]
	ends, known := t.ends[p]
	if !known {
		slices.Sort(places)
		d := t.scratch.dfa(p)
		ends = make([]int32, len(places)+1)
		ends[len(places)] = math.MaxInt32
		for i := len(places) - 1; i >= 0; i-- {
			ends[i] = ends[i+1]
			end, err := d.end(t.text, int(places[i]), t.limit)
			if err != nil {
				return false, err
			}
			if end >= 0 {
				ends[i] = min(ends[i], int32(end))
			}
		}
		if t.ends == nil {
			t.ends = map[*plan][]int32{}
		}
		t.ends[p] = ends
	}
	first, _ := slices.BinarySearch(places, int32(line.start))
	return int(ends[first]) <= line.end, nil
}

// entropy returns the Shannon entropy of s in bits a character. As in gitleaks
// characters are counted and divided by the number of bytes.
func entropy(s string) float64 {
	var counts [128]int
	var others map[rune]int
	for _, c := range s {
		if c < 128 {
			counts[c]++
			continue
		}
		if others == nil {
			others = map[rune]int{}
		}
		others[c]++
	}
	var e float64
	inv := 1 / float64(len(s))
	add := func(n int) {
		f := float64(n) * inv
		e -= f * math.Log2(f)
	}
	for _, n := range counts {
		if n > 0 {
			add(n)
		}
	}
	for _, n := range others {
		add(n)
	}
	return e
}
