package budget

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/corpus"
)

var testEncodings = []string{"o200k_base", "cl100k_base", "p50k_base", "r50k_base"}

func mustCounter(tb testing.TB, name string) *Counter {
	tb.Helper()
	c, err := NewCounter(name)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestNewCounter(t *testing.T) {
	for name, want := range map[string]string{
		"o200k_base":             "o200k_base",
		"o200k_harmony":          "o200k_harmony",
		"p50k_edit":              "p50k_edit",
		"gpt2":                   "gpt2",
		"gpt-4":                  "cl100k_base",
		"gpt-4-0314":             "cl100k_base",
		"gpt-4o":                 "o200k_base",
		"gpt-4o-mini":            "o200k_base",
		"ft:gpt-4o-mini:acme::7": "o200k_base",
		"ft:gpt-4:acme":          "cl100k_base",
		"gpt-oss-120b":           "o200k_harmony",
		"text-davinci-003":       "p50k_base",
		"davinci":                "r50k_base",
	} {
		if got := mustCounter(t, name).Name(); got != want {
			t.Errorf("NewCounter(%q).Name() = %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"", "o200k", "claude-5", "gpt-4*", "gpt-", "davinci-003"} {
		_, err := NewCounter(name)
		if err == nil {
			t.Errorf("NewCounter(%q) succeeded, want an error", name)
			continue
		}
		for _, known := range append(slices.Sorted(maps.Keys(tokenizers)), "gpt-4o") {
			if !strings.Contains(err.Error(), known) {
				t.Errorf("NewCounter(%q): error does not list %q", name, known)
			}
		}
	}
}

func TestExceeds(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for _, name := range testEncodings {
		plain := mustCounter(t, name)
		for _, scale := range []float64{1, 0.01, 0.37, 1.15, 100} {
			c, err := plain.WithScale(scale)
			if err != nil {
				t.Fatal(err)
			}
			for range 300 {
				text := corpus.Adversarial(rng, 40)
				total := c.Count(text)
				for _, n := range []int{-1, 0, total - 1, total, total + 1, 1 << 60} {
					if got := c.Exceeds(text, n); got != (total > n) {
						t.Fatalf("%s: Exceeds(%q, %d) = %v with %d tokens", c.Name(), text, n, got, total)
					}
				}
			}
		}
	}
	for _, scale := range []float64{0, -1, 0.009, 101} {
		if _, err := mustCounter(t, "gpt-4o").WithScale(scale); err == nil {
			t.Errorf("WithScale(%v) succeeded, want an error", scale)
		}
	}
}

// TestTruncateScaled holds that a scaled counter cuts where its encoding does at the most tokens
// with a scaled count within the limit.
func TestTruncateScaled(t *testing.T) {
	for i, name := range testEncodings {
		rng := rand.New(rand.NewPCG(uint64(i), 8))
		plain := mustCounter(t, name)
		c, err := plain.WithScale(1.3)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			text := corpus.Adversarial(rng, 60)
			n := rng.IntN(c.Count(text)+3) - 1
			most := 0
			for math.Ceil(float64(most+1)*1.3) <= float64(n) {
				most++
			}
			want, _ := plain.Truncate(text, most)
			kept, tokens := c.Truncate(text, n)
			if kept != want || tokens != c.Count(kept) || tokens > max(n, 0) {
				t.Fatalf("%s: Truncate(%q, %d) = %q, %d, want %q, %d", c.Name(), text, n, kept, tokens, want, c.Count(want))
			}
		}
	}
}

// TestStreamScaled holds that a scaled stream counts as Count does.
func TestStreamScaled(t *testing.T) {
	c, err := mustCounter(t, "gpt-4o").WithScale(1.15)
	if err != nil {
		t.Fatal(err)
	}
	text := corpus.Mixed(200 << 10)
	s := c.Stream()
	if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("Write = %d, %v", n, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Tokens(), c.Count(text); got != want {
		t.Errorf("Tokens() = %d, Count = %d", got, want)
	}
}

// TestDownloadsNothing holds that tiktoken-go serves its tables of models alone:
// anything else of it could download a vocabulary.
func TestDownloadsNothing(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "tiktoken" {
				used[s.Sel.Name] = true
			}
		}
		return true
	})
	if want := []string{"MODEL_PREFIX_TO_ENCODING", "MODEL_TO_ENCODING"}; !slices.Equal(slices.Sorted(maps.Keys(used)), want) {
		t.Errorf("names.go uses %v of tiktoken-go, want %v", slices.Sorted(maps.Keys(used)), want)
	}
}
