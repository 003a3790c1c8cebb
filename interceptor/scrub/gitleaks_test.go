package scrub

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/regexsample"

	"github.com/rs/zerolog"
	"github.com/zricethezav/gitleaks/v8/detect"
)

// reference is gitleaks' own detector with its default rules.
func reference(t testing.TB) *detect.Detector {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled)
	d, err := detect.NewDetectorDefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	d.IgnoreGitleaksAllow = true
	return d
}

// A report is all that both detectors say about a finding.
type report struct {
	rule, match, secret                        string
	startLine, endLine, startColumn, endColumn int
}

func (r report) compare(o report) int {
	return cmp.Or(cmp.Compare(r.startLine, o.startLine), cmp.Compare(r.startColumn, o.startColumn),
		cmp.Compare(r.rule, o.rule), cmp.Compare(r.secret, o.secret), cmp.Compare(r.match, o.match))
}

func theirs(d *detect.Detector, text string) []report {
	var out []report
	for _, f := range d.DetectString(text) {
		out = append(out, report{f.RuleID, f.Match, f.Secret, f.StartLine, f.EndLine, f.StartColumn, f.EndColumn})
	}
	slices.SortFunc(out, report.compare)
	return out
}

func ours(t testing.TB, s *Scrubber, text string) []report {
	t.Helper()
	var out []report
	x := s.begin(context.Background())
	defer x.end()
	hits, err := x.find(text)
	if err != nil {
		t.Fatal(err)
	}
	hits, _ = x.reported(hits)
	for _, h := range hits {
		if !h.rule.own {
			at := x.locate(h.gitleaks)
			out = append(out, report{
				h.rule.ID, text[h.match.Start:h.match.End], text[h.secret.Start:h.secret.End],
				at.startLine, at.endLine, at.startColumn, at.endColumn,
			})
		}
	}
	slices.SortFunc(out, report.compare)
	return out
}

// defaultTrees returns the expressions of gitleaks' rules.
func defaultTrees(s *Scrubber) []*syntax.Regexp {
	var trees []*syntax.Regexp
	for _, r := range s.rules.active {
		if !r.own {
			trees = append(trees, treeOf(r))
		}
	}
	return trees
}

func treeOf(r *rule) *syntax.Regexp {
	tree, err := syntax.Parse(r.Regex, syntax.Perl)
	if err != nil {
		panic(err) // it was parsed before
	}
	return tree
}

// TestSameFindingsAsGitleaks compares with gitleaks' detector. The texts hold
// samples of all its rules. FOLDGATE_SCRUB_MB sets how much is compared, and
// FOLDGATE_SCRUB_SEED where it starts.
func TestSameFindingsAsGitleaks(t *testing.T) {
	size, seed := 50_000, uint64(1)
	if mb, err := strconv.ParseFloat(os.Getenv("FOLDGATE_SCRUB_MB"), 64); err == nil {
		size = int(mb * 1e6)
	}
	if n, err := strconv.ParseUint(os.Getenv("FOLDGATE_SCRUB_SEED"), 10, 64); err == nil {
		seed = n
	}
	s, d := newScrubber(t, Options{}), reference(t)
	trees := defaultTrees(s)
	seen := map[string]int{}
	total, findings := 0, 0
	for n := seed; total < size; n++ {
		text := mixture(trees, n)
		total += len(text)
		findings += compareOne(t, s, d, text, seen, fmt.Sprintf("seed %d", n))
	}
	t.Logf("%d bytes, %d findings of %d rules, 0 differences", total, findings, len(seen))
}

// mixture returns the text of a seed, of samples of some of the expressions.
func mixture(trees []*syntax.Regexp, seed uint64) string {
	sam := regexsample.New(seed)
	some := trees
	if k := sam.IntN(3); k > 0 {
		some = nil
		for range 3 * k {
			some = append(some, trees[sam.IntN(len(trees))])
		}
	}
	return sam.Text(some, 1+sam.IntN(12000))
}

// TestMatchThatDoesNotMatchAlone: what an expression matches in a text it may
// not match alone. Then the literal hits behind it are not tried.
func TestMatchThatDoesNotMatchAlone(t *testing.T) {
	s, d := newScrubber(t, Options{}), reference(t)
	compareOne(t, s, d, mixture(defaultTrees(s), 2313), map[string]int{}, "seed 2313")
}

// compareOne fails where the findings in text differ, and returns their number.
func compareOne(t *testing.T, s *Scrubber, d *detect.Detector, text string, seen map[string]int, name string) int {
	t.Helper()
	want, got := theirs(d, text), ours(t, s, text)
	if !slices.Equal(got, want) {
		for i := 0; i < max(len(got), len(want)); i++ {
			switch {
			case i >= len(got):
				t.Fatalf("%s: gitleaks finds also %+v", name, want[i])
			case i >= len(want):
				t.Fatalf("%s: gitleaks does not find %+v", name, got[i])
			case got[i] != want[i]:
				t.Fatalf("%s: finding %d of %d/%d is\n%+v, gitleaks has\n%+v", name, i, len(got), len(want), got[i], want[i])
			}
		}
	}
	for _, r := range want {
		seen[r.rule]++
	}
	return len(want)
}

// TestEveryDefaultRule compares each rule alone, at the start, in the middle
// and at the end of a text and around multiples of the automaton's stride.
func TestEveryDefaultRule(t *testing.T) {
	s, d := newScrubber(t, Options{}), reference(t)
	seen := map[string]int{}
	const stride = 64 // of the automata of package regexset
	for i, r := range s.rules.active {
		if r.own {
			continue
		}
		sam := regexsample.New(uint64(i))
		for n := 0; n < 40 && (n < 2 || seen[r.ID] < 3); n++ {
			x := " " + sam.Of(treeOf(r)) + " "
			pad := ""
			for len(pad) < sam.IntN(2*stride) {
				pad += "lorem ipsum\n"
			}
			for _, text := range []string{x[1:] + pad, pad + x + pad, pad + x[:len(x)-1], r.Keywords[0] + "\n" + x} {
				compareOne(t, s, d, text, seen, r.ID)
			}
		}
		if seen[r.ID] == 0 {
			t.Errorf("rule %s: no sample of it was found by gitleaks", r.ID)
		}
	}
}

// TestTokensBeforeSigns: the tokens of gitleaks' rules are found in prose, tables, HTML and URLs, too, where gitleaks misses
// the end that it asks for.
func TestTokensBeforeSigns(t *testing.T) {
	s := newScrubber(t, Options{})
	rules, texts := 0, 0
	for i, r := range s.rules.rules {
		token, ends := strings.CutSuffix(r.Regex, textEnds[0])
		if !ends || r.own || r.generic {
			continue
		}
		tree, err := syntax.Parse(token, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		sam := regexsample.New(uint64(i))
		found := 0
		for n := 0; n < 60 && found < 3; n++ {
			match := sam.Of(tree)
			hits := hitsOf(t, s, match+";")
			if len(hits) == 0 || hits[0].rule.ID != r.ID || hits[0].match.End != len(match)+1 {
				continue
			}
			found++
			secret := match[hits[0].secret.Start:]
			for _, behind := range []string{", x", ".", ") x", "] x", "</td>", "|", "*", "/x", ":x", "!", "?a=b", "@x", "#x", "\u2026", "\x00", `\t`, `\"`} {
				texts++
				if got, _, err := s.Text(t.Context(), match+behind); err != nil || strings.Contains(got, secret) {
					t.Errorf("%s: Text(%q) = %q, %v", r.ID, match+behind, got, err)
				}
			}
		}
		if found > 0 {
			rules++
		}
	}
	if rules < 90 {
		t.Errorf("tokens of %d rules were tried, want more", rules)
	}
	t.Logf("%d texts with tokens of %d rules", texts, rules)
}
