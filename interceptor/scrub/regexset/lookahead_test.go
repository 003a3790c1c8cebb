package regexset

import (
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/regexsample"

	"github.com/zricethezav/gitleaks/v8/config"
)

// noLimit lets a scan take as long as it likes.
type noLimit struct{}

func (noLimit) Spend(int) error { return nil }

// corpus returns some two hundred expressions that people have written: those
// in the default configuration of gitleaks.
func corpus(t testing.TB) []*Expr {
	t.Helper()
	var all []*Expr
	for _, m := range regexp.MustCompile(`(?m)^regex = '''(.*)'''$`).FindAllStringSubmatch(config.DefaultConfig, -1) {
		all = append(all, parse(t, m[1]))
	}
	if len(all) < 200 {
		t.Fatalf("the corpus has %d expressions, want 200", len(all))
	}
	return all
}

func parse(t testing.TB, expr string) *Expr {
	t.Helper()
	x, err := Parse(expr)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func trees(exprs ...*Expr) []*syntax.Regexp {
	var all []*syntax.Regexp
	for _, x := range exprs {
		all = append(all, x.tree)
	}
	return all
}

// TestLookaheadLosesNothing: wherever an expression matches, its lookahead lets
// it pass.
func TestLookaheadLosesNothing(t *testing.T) {
	exprs := corpus(t)
	lookaheads, matches, turned := 0, 0, 0
	for i, x := range exprs {
		set, err := New([]Pattern{{Expr: x}})
		if err != nil {
			t.Fatal(err)
		}
		sam := regexsample.New(uint64(i))
		scratch := set.NewScratch()
		for _, p := range set.patterns[0].plans {
			if p.lookahead == nil {
				continue
			}
			lookaheads++
			for range 5 {
				text := sam.Text(trees(exprs[0]), 100) + sam.Text(trees(exprs[0], x, x, x), 600)
				m, o := lookaheadAt(t, scratch, p, text)
				matches, turned = matches+m, turned+o
			}
		}
	}
	if lookaheads < 100 || matches < 1000 || turned < 100000 {
		t.Errorf("%d lookaheads, %d matches, %d places turned away: want more of each", lookaheads, matches, turned)
	}
}

// lookaheadAt tries the lookahead of p at every place of text, and returns how
// many matches there are and how many places it turned away.
func lookaheadAt(t *testing.T, scratch *Scratch, p *plan, text string) (matches, turned int) {
	t.Helper()
	if err := scratch.Scan(text, noLimit{}); err != nil {
		t.Fatal(err)
	}
	c, _ := scratch.cursor(p)
	for i := range len(text) {
		if inside(text, i) {
			continue
		}
		open := c.near.lets(text, i)
		if open {
			var err error
			if open, err = c.passes(scratch); err != nil {
				t.Fatal(err)
			}
		}
		end, err := c.dfa.end(text, i, noLimit{}, true)
		switch {
		case err != nil:
			t.Fatal(err)
		case end >= 0 && !open:
			t.Fatalf("%s matches %q, but its lookahead turns it away at %d of %q", p.tail.tree, text[i:end], i, text)
		case end >= 0:
			matches++
		case !open:
			turned++
		}
	}
	return matches, turned
}

// TestValuesSameAsRegexp: expressions with a long value that counts its bytes, in rows of short texts, have the matches
// of package regexp. Many have a lookahead for the value.
func TestValuesSameAsRegexp(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	value := func() string {
		class := pick(`[a-z]`, `[a-z=]`, `[\w.=-]`, `[^;\s]`, `(?i:[a-k])`, `.`)
		return class + pick(`{9,66}`, `{20,90}`, `{70}`, `{3,80}`, `{8,}`, `{1,9}`)
	}
	const exprs = 400
	valued, matches := 0, 0
	for range exprs {
		expr := pick(`key`, `(?:key|pwd)`, `(?i)key`) + pick(`=`, `[=:]`, `=?:`, ` ?=`) + pick(``, `[= ]{0,5}`, `"?`) +
			"(" + value() + pick("", "|"+value()+"={0,3}", "|"+value()+"|"+value()) + ")" + pick(`;`, `[;\s]`, `(?:[;\s]|$)`, `(?:;|\\n|$)`, `(?m:$)`, `\b`, `$`, ``)
		x := parse(t, expr)
		set, err := New([]Pattern{{Expr: x}})
		if err != nil {
			t.Fatal(err)
		}
		if l := set.patterns[0].plans[0].lookahead; l != nil && l.values != nil {
			valued++
		}
		scratch := set.NewScratch()
		for range 8 {
			var b strings.Builder
			for b.Len() < 300 {
				unit := pick("key=", "pwd=", "key:", "KEY==", "a", "key=\u212a", "=", "key= ", "key=abcdefgh") + pick("", "ab", ".", "\u00e9")
				b.WriteString(strings.Repeat(unit, 1+r.IntN(40)) + pick("", ";", "\n", " ", `\n`, "\""))
			}
			text := b.String()[:r.IntN(b.Len()+1)]
			if err := scratch.Scan(text, noLimit{}); err != nil {
				t.Fatal(err)
			}
			got, err := scratch.FindAll(0)
			if err != nil {
				t.Fatal(err)
			}
			want := x.regexp().FindAllStringIndex(text, -1)
			matches += len(want)
			if !slices.EqualFunc(got, want, func(g Span, w []int) bool { return g.Start == w[0] && g.End == w[1] }) {
				t.Fatalf("%s in %q: %v, want %v", expr, text, got, want)
			}
		}
	}
	if valued < exprs/5 || matches < 1000 {
		t.Errorf("%d of %d expressions have a lookahead for the value, and there are %d matches: want more", valued, exprs, matches)
	}
}

// TestLookaheadWithoutLimit: a repetition without a limit may be very long.
func TestLookaheadWithoutLimit(t *testing.T) {
	long := strings.Repeat("aB3dE5gH7jK1mN2pQ4sT", 75_000)
	text := "token ey" + long + ".ey" + long + "." + long + " "
	set, err := New([]Pattern{{Expr: parse(t, `\b(ey[a-zA-Z0-9]{17,}\.ey[a-zA-Z0-9\/\\_-]{17,}\.(?:[a-zA-Z0-9\/\\_-]{10,}={0,2})?)(?:[\x60'"\s;]|\\[nr]|$)`)}})
	if err != nil {
		t.Fatal(err)
	}
	scratch := set.NewScratch()
	if err := scratch.Scan(text, noLimit{}); err != nil {
		t.Fatal(err)
	}
	all, err := scratch.FindAll(0)
	if err != nil || len(all) != 1 || all[0].End-all[0].Start < 2*len(long) {
		t.Errorf("FindAll = %v, %v in a token of %d bytes, want it as one match", all, err, len(text))
	}
}

// A large text leaves no more behind than the scan of the next one needs.
func TestLargeTextIsForgotten(t *testing.T) {
	set, err := New([]Pattern{{Expr: parse(t, `api_key\W\d`), Keywords: []string{"key"}}})
	if err != nil {
		t.Fatal(err)
	}
	scratch := set.NewScratch()
	text := strings.Repeat("api_key ", maxKept/4+1)
	if err := scratch.Scan(text, noLimit{}); err != nil {
		t.Fatal(err)
	}
	if cap(scratch.hits[1])*4 <= maxKept {
		t.Fatalf("%d hits, want more than are kept", len(scratch.hits[1]))
	}
	scratch.Reset()
	if most := cap(scratch.hits[1]); most*4 > maxKept {
		t.Errorf("after %d bytes like %q, %d are kept in one piece, want at most %d", len(text), text[:8], most*4, maxKept)
	}
}

// randomText returns a text of samples of expressions and of noise.
func randomText(r *rand.Rand, sam regexsample.Sampler, exprs []*Expr) string {
	const noise = "\u212a\u017f\u0130\xff\xe2\u00e9\u65e5 \n\r\tabkKsSiI01_=.-:\"'"
	var b strings.Builder
	for range r.IntN(12) {
		switch r.IntN(4) {
		case 0:
			b.WriteString(sam.Of(exprs[r.IntN(len(exprs))].tree))
		case 1:
			x := sam.Of(exprs[r.IntN(len(exprs))].tree)
			b.WriteString(x[:r.IntN(len(x)+1)])
		default:
			for range r.IntN(6) {
				i := r.IntN(len(noise))
				b.WriteString(noise[i : i+1+r.IntN(min(3, len(noise)-i))])
			}
		}
	}
	return b.String()
}

// TestHitsTurnedAway: a hit within a word is none of an expression that begins at a boundary; a branch
// of an alternation has its lookahead.
func TestHitsTurnedAway(t *testing.T) {
	for expr, hits := range map[string]int{
		`\bs\.[a-z0-9]{5}`: 1,
		`s\.[a-z0-9]{5}`:   2,
		`(?:s\.t|url)[a-z]{4,9}[|;]|(?:s\.tab|url)  `: 1,
		`(?:s\.t|url)[a-z]{4,9}[|;]|(?:s\.tab|url) `:  2,
	} {
		set, err := New([]Pattern{{Expr: parse(t, expr)}})
		if err != nil {
			t.Fatal(err)
		}
		scratch := set.NewScratch()
		if err := scratch.Scan("this.table is s.table| ", noLimit{}); err != nil {
			t.Fatal(err)
		}
		if got := len(scratch.hits[set.patterns[0].plans[0].hits]); got != hits {
			t.Errorf("%s: %d hits are left, want %d", expr, got, hits)
		}
	}
}
