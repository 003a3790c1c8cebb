package regexset

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/regexsample"
)

// TestSameAsRegexp: sets of generated expressions find in generated texts what
// package regexp finds.
func TestSameAsRegexp(t *testing.T) {
	found := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 9))
		var patterns []Pattern
		var exprs []*Expr
		for range 1 + r.IntN(8) {
			x := parse(t, randomExpr(r))
			exprs = append(exprs, x)
			p := Pattern{Expr: x, Use: Use(r.IntN(3))}
			if x.Searchable() != nil {
				p.Use = 1 + Use(r.IntN(2))
			}
			for p.Use == Search && r.IntN(3) == 0 {
				p.Keywords = append(p.Keywords, []string{"k", "ab", "key", "s=", "i0", "\u00e9"}[r.IntN(6)])
			}
			patterns = append(patterns, p)
		}
		set, err := New(patterns)
		if err != nil {
			t.Fatal(err)
		}
		scratch, sam := set.NewScratch(), regexsample.New(seed)
		for range 20 {
			found += compare(t, set, scratch, randomText(r, sam, exprs), r)
		}
	}
	if found < 10000 {
		t.Errorf("%d matches, want more", found)
	}
}

// TestRulesSameAsRegexp: expressions in the form of rules, a name, what may follow it, a sign and a value,
// find what package regexp finds, also where words, characters that fold and the ends of the text are near.
func TestRulesSameAsRegexp(t *testing.T) {
	found, gated, atBoundary := 0, 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 12))
		var patterns []Pattern
		var exprs []*Expr
		for range 1 + r.IntN(8) {
			x := parse(t, randomRule(r))
			if x.Searchable() != nil {
				continue
			}
			exprs = append(exprs, x)
			patterns = append(patterns, Pattern{Expr: x, Use: Use(r.IntN(5) / 3)})
		}
		if len(exprs) == 0 {
			continue
		}
		set, err := New(patterns)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range set.patterns {
			for _, plan := range p.plans {
				if plan.gated() {
					gated++
				}
				if plan.atBoundary() {
					atBoundary++
				}
			}
		}
		scratch, sam := set.NewScratch(), regexsample.New(seed)
		for range 20 {
			found += compare(t, set, scratch, ruleText(r, sam, exprs), r)
		}
	}
	if found < 4000 || gated < 200 || atBoundary < 200 {
		t.Errorf("%d matches, %d gates, %d plans at a boundary: want more of each", found, gated, atBoundary)
	}
}

// TestFindFromSameAsRegexp: matches that may overlap are what package regexp finds from each place on.
func TestFindFromSameAsRegexp(t *testing.T) {
	found := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 13))
		expr := randomRule(r)
		if r.IntN(3) == 0 {
			expr = randomExpr(r)
		}
		x := parse(t, expr)
		if x.Searchable() != nil {
			continue
		}
		set, err := New([]Pattern{{Expr: x}})
		if err != nil {
			t.Fatal(err)
		}
		scratch, sam := set.NewScratch(), regexsample.New(seed)
		for range 4 {
			text := ruleText(r, sam, []*Expr{x})
			if !ASCII(text) || len(text) > 200 {
				continue
			}
			step := 1 + r.IntN(6)
			next := func(_ string, m Span) int { return min(m.Start+step, m.End) }
			var want []Span
			for at := 0; at <= len(text); {
				y, err := regexp.Compile(fmt.Sprintf(`\A(?s:.{%d}.*?)(%s)`, at, expr))
				if err != nil {
					break
				}
				m := y.FindStringSubmatchIndex(text)
				if m == nil {
					break
				}
				s := Span{m[2], m[3]}
				want = append(want, s)
				at = next(text, s)
			}
			if err := scratch.Scan(text, noLimit{}); err != nil {
				t.Fatal(err)
			}
			var got []Span
			if slices.Contains(scratch.Candidates(), 0) {
				if got, err = scratch.FindFrom(0, next); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("FindFrom of %q in %q, %d bytes on, = %v, want %v", expr, text, step, got, want)
			}
			found += len(got)
		}
	}
	if found < 500 {
		t.Errorf("%d matches, want more", found)
	}
}

// TestSubmatchesBehindPrefix: a literal that is within a word of the text may begin the match alone.
func TestSubmatchesBehindPrefix(t *testing.T) {
	set, err := New([]Pattern{{Expr: parse(t, `[\w.-]{0,5}?\bkey[a-z](.)`)}})
	if err != nil {
		t.Fatal(err)
	}
	if n := compare(t, set, set.NewScratch(), "monkeyx.keyy=", nil); n != 1 {
		t.Errorf("%d matches, want 1", n)
	}
}

// TestLiteralsWithBlanks: a literal with a blank is not the two literals around it.
func TestLiteralsWithBlanks(t *testing.T) {
	text := "the private key 0123456789abcdef0123456789abcdef, private 0123456789abcdef0123456789abcdef and key\t0123456789abcdef0123456789abcdef"
	exprs := []string{`private key\s*([0-9a-f]{32})`, `(?:private|key)\s*([0-9a-f]{32})`}
	for range 2 {
		var patterns []Pattern
		for _, e := range exprs {
			patterns = append(patterns, Pattern{Expr: parse(t, e)})
		}
		set, err := New(patterns)
		if err != nil {
			t.Fatal(err)
		}
		if n := compare(t, set, set.NewScratch(), text, nil); n != 4 {
			t.Errorf("%q have %d matches, want 4", exprs, n)
		}
		slices.Reverse(exprs)
	}
}

// TestCorpusSameAsRegexp: expressions that people have written find what package
// regexp finds.
func TestCorpusSameAsRegexp(t *testing.T) {
	exprs := corpus(t)
	r, sam := rand.New(rand.NewPCG(1, 9)), regexsample.New(1)
	found := 0
	for part := range slices.Chunk(exprs, 20) {
		var patterns []Pattern
		for i, x := range part {
			p := Pattern{Expr: x, Use: []Use{Search, Search, Search, Test, TestLines}[i%5]}
			if x.Searchable() != nil {
				p.Use = Test
			}
			patterns = append(patterns, p)
		}
		set, err := New(patterns)
		if err != nil {
			t.Fatal(err)
		}
		scratch := set.NewScratch()
		for range 6 {
			found += compare(t, set, scratch, sam.Text(trees(part...), 1000), r)
		}
	}
	if found < 300 {
		t.Errorf("%d matches, want more", found)
	}
}

// FuzzSameAsRegexp: any expression finds in any text what package regexp finds.
func FuzzSameAsRegexp(f *testing.F) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 10))
		x := parse(f, randomExpr(r))
		f.Add(x.regexp().String(), randomText(r, regexsample.New(seed), []*Expr{x}), seed)
	}
	f.Fuzz(func(t *testing.T, expr, text string, seed uint64) {
		x, err := Parse(expr)
		if _, invalid := regexp.Compile(expr); (err != nil) != (invalid != nil) {
			t.Fatalf("Parse(%q) = %v, but package regexp says %v", expr, err, invalid)
		}
		if err != nil || len(expr) > 200 {
			return
		}
		for _, use := range []Use{Search, Test, TestLines} {
			if use == Search && x.Searchable() != nil {
				continue
			}
			set, err := New([]Pattern{{Expr: x, Use: use}})
			if err != nil {
				return // too many literals
			}
			compare(t, set, set.NewScratch(), text, rand.New(rand.NewPCG(seed, 11)))
		}
	})
}

// compare compares what the patterns of a set find in text with what package
// regexp finds, and returns the number of matches.
func compare(t *testing.T, set *Set, scratch *Scratch, text string, r *rand.Rand) (found int) {
	t.Helper()
	if err := scratch.Scan(text, noLimit{}); err != nil {
		t.Fatal(err)
	}
	for i := range set.patterns {
		p := &set.patterns[i]
		x := p.Expr.regexp()
		if p.Use != Search {
			for range 4 {
				a, b := boundary(text, r.IntN(len(text)+1)), boundary(text, r.IntN(len(text)+1))
				in := Span{min(a, b), max(a, b)}
				got, err := scratch.Match(i, in)
				if want := x.MatchString(text[in.Start:in.End]); err != nil || got != want {
					t.Fatalf("Match(%q, %q) = %v, %v, want %v; text %q, use %d", x, text[in.Start:in.End], got, err, want, text, p.Use)
				}
				if got {
					found++
				}
			}
			continue
		}
		var want, got []Span
		lower := strings.ToLower(text)
		if len(p.Keywords) == 0 || slices.ContainsFunc(p.Keywords, func(k string) bool { return strings.Contains(lower, k) }) {
			for _, m := range x.FindAllStringIndex(text, -1) {
				want = append(want, Span{m[0], m[1]})
			}
		}
		if slices.Contains(scratch.Candidates(), i) {
			var err error
			if got, err = scratch.FindAll(i); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(want, got) {
			t.Fatalf("matches of %q with %q in %q are %v, want %v", x, p.Keywords, text, got, want)
		}
		found += len(got)
		for _, m := range got {
			want, got := x.FindStringSubmatchIndex(text[m.Start:m.End]), []int(nil)
			got, err := scratch.Submatches(i, m)
			if err != nil || (want == nil) != (got == nil) || want != nil && !slices.Equal(want[2:], got[2:]) {
				t.Fatalf("Submatches(%q, %q) = %v, %v, want %v", x, text[m.Start:m.End], got, err, want)
			}
		}
	}
	return found
}

// boundary returns the first place from i on that is not within a character.
func boundary(text string, i int) int {
	for i < len(text) && inside(text, i) {
		i++
	}
	return i
}

// randomExpr returns an expression that is dense with what the engine treats
// specially: literals, lazy prefixes, assertions, letters that fold to ASCII.
func randomExpr(r *rand.Rand) string {
	flags := []string{"", "", "(?i)", "(?s)", "(?m)", "(?im)"}[r.IntN(6)]
	prefix := []string{"", "", `[a-z_]{0,5}?`, `\w{0,3}?[\w.-]{0,4}?`}[r.IntN(4)]
	return flags + prefix + randomAlternation(r, 3)
}

func randomAlternation(r *rand.Rand, depth int) string {
	var branches []string
	for range 1 + r.IntN(3)*r.IntN(2) {
		var b strings.Builder
		for range 1 + r.IntN(4) {
			b.WriteString(randomFactor(r, depth))
		}
		branches = append(branches, b.String())
	}
	return strings.Join(branches, "|")
}

func randomFactor(r *rand.Rand, depth int) string {
	atoms := []string{
		"key", "ab", "s=", "i", "K", "token", "0", "_", `\.`, ".", `\w`, `\s`, `\d`, `[a-k]`, `[^a]`, `[\s=:]`, `[A-Z0-9]`,
		"\u00e9", "\u212a", "\u017f", "\u0130", `[\x{212a}k]`, `\x{fffd}`, `\b`, `\B`, "^", "$", `\z`, "",
	}
	atom := atoms[r.IntN(len(atoms))]
	switch {
	case depth > 0 && r.IntN(3) == 0:
		open := []string{"(", "(?:", "(?i:"}[r.IntN(3)]
		atom = open + randomAlternation(r, depth-1) + ")"
	case atom == "" || strings.ContainsAny(atom, "^$") && !strings.HasPrefix(atom, "[") || strings.HasPrefix(strings.ToLower(atom), `\b`) || atom == `\z`:
		return atom
	case len(atom) > 1 && atom[0] != '\\' && atom[0] != '[' && atom[0] < 0x80:
		return atom
	}
	switch r.IntN(6) {
	case 0:
		atom += []string{"*", "+", "?"}[r.IntN(3)]
	case 1:
		lo := r.IntN(3)
		atom += fmt.Sprintf("{%d,%d}", lo, lo+r.IntN(4))
	default:
		return atom
	}
	if r.IntN(3) == 0 {
		atom += "?"
	}
	return atom
}

// ruleText returns a text of samples of expressions and of what may stand around them.
func ruleText(r *rand.Rand, sam regexsample.Sampler, exprs []*Expr) string {
	parts := []string{"\u212a", "\u017f", "\u0130", "\xff", "\xe2\x84", "\u00e9", " ", "\n", "\r\n", "\t", "a", "k", "K", "s", "S", "_", "=", ".", "-", ":", "\"", "key", "KEY", "\u212aey", "to\u212aen", "\u017fecret", "sec", "secret"}
	var b strings.Builder
	for range 1 + r.IntN(8) {
		switch r.IntN(4) {
		case 0, 1:
			s := sam.Of(exprs[r.IntN(len(exprs))].tree)
			if r.IntN(3) == 0 {
				s = strings.NewReplacer("k", "\u212a", "s", "\u017f").Replace(s)
			}
			if r.IntN(3) == 0 {
				s = s[:r.IntN(len(s)+1)]
			}
			b.WriteString(s)
		default:
			for range r.IntN(3) {
				b.WriteString(parts[r.IntN(len(parts))])
			}
			if r.IntN(20) == 0 {
				b.WriteString(strings.Repeat(parts[r.IntN(len(parts))], r.IntN(130)))
			}
		}
	}
	s := b.String()
	if r.IntN(4) == 0 && len(s) > 64 {
		s = s[:64]
	}
	return s
}

// randomRule returns an expression in the form of a rule.
func randomRule(r *rand.Rand) string {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	branch := func() string {
		return pick(`\b`, `\b`, ``, `\B`, `(?:\b|_)`, `(?:^|\b)`, `(?m:^)`, `\b`) +
			pick("key", "secret", "sk-", "to.k", "(?:key|token)", "k[eE]y", "s=t", "secretkey", "key-id", "sec", "k=", "(?:s|k)ey", "se(?:c|k)", "tok en") +
			pick("", `[\w.-]{0,9}`, `\w*`, `[a-z]{1,3}`, `[_k]?`, `[ \t]*`, `.{0,5}`, `\w{4,9}`, `(?:s|_id)?`) +
			pick("=", "[:=]", `["']`, `\s*[:=]\s*`, `["' ]{0,2}=`, `\|`, "", "(?: =|  )", `\.`, `(?:$|=)`, `(?:\b|:)`) +
			pick("(a)?", `(\w+)`, `([a-z]{2,5})`, `(?:(x)|(y))*`, `\d`, "", `(.)`, `([^"]+)"`, `(\w{3})\b`, `(\S+)(?:\s|$)`)
	}
	x := branch()
	for range r.IntN(3) * r.IntN(2) {
		x += "|" + branch()
	}
	if r.IntN(4) == 0 {
		x = `\b(` + x + `)(?:[^\w-]|$)`
	}
	if r.IntN(5) == 0 {
		x = `[\w.-]{0,5}?(?:` + x + ")"
	}
	return pick("", "(?i)", "(?i)") + x
}

// TestSigns finds each sign in any place of a text, also within a word, and forgets it with the next text.
func TestSigns(t *testing.T) {
	expr, err := Parse(`\bkey=[0-9]{3}`)
	if err != nil {
		t.Fatal(err)
	}
	signs := []string{"=3d", "=\n"}
	set, err := New([]Pattern{{Expr: expr}}, signs...)
	if err != nil {
		t.Fatal(err)
	}
	c := set.NewScratch()
	for _, sign := range append(signs, "=3D", "=3", "\n", "=\r\n", "key=") {
		want := slices.Contains(signs, strings.ToLower(sign))
		for at := range 40 {
			text := strings.Repeat("a", at) + sign + "word with key=123 \u017f"
			if err := c.Scan(text, noLimit{}); err != nil {
				t.Fatal(err)
			}
			if c.HasSign() != want {
				t.Errorf("a text with %q at byte %d: HasSign is %t", sign, at, !want)
			}
		}
		if err := c.Scan("a text without a sign", noLimit{}); err != nil || c.HasSign() {
			t.Errorf("a text without a sign: %t, %v", c.HasSign(), err)
		}
	}
}
