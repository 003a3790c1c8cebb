package config

import (
	"maps"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/foldgate/foldgate/interceptor"
)

// Results is about results too large for their place; see
// docs/results.md.
type Results struct {
	// MainThreshold is the largest result delivered whole in main, in tokens.
	MainThreshold int `yaml:"main_threshold"`
	// BranchFraction is the part of its budget that one result may take of a
	// branch.
	BranchFraction float64 `yaml:"branch_fraction"`
	// PreviewTokens is how large a preview may be.
	PreviewTokens int `yaml:"preview_tokens"`
	// QuotaMB bounds the stored results; over it the oldest are evicted.
	QuotaMB int `yaml:"quota_mb"`
	// TTLHours is how long a stored result is kept.
	TTLHours int `yaml:"ttl_hours"`
	// Tools are rules for single tools, by glob on the names that hosts see.
	// Of several that fit the longest glob counts.
	Tools map[string]FoldRule `yaml:"tools"`
}

// FoldRule is the policy for the results of some tools.
type FoldRule struct {
	// Fold is on or off; empty means on.
	Fold string `yaml:"fold"`
	// Threshold replaces main_threshold and branch_fraction, in tokens; 0
	// leaves them.
	Threshold int `yaml:"threshold"`
}

func defaultResults() Results {
	return Results{
		MainThreshold: 8000, BranchFraction: 0.125, PreviewTokens: 400, QuotaMB: 256, TTLHours: 24,
		Tools: map[string]FoldRule{},
	}
}

func (r Results) validate(bad func(string, string, ...any), oneOf func(string, string, ...string)) {
	if r.MainThreshold < 1 {
		bad("results.main_threshold", "%d is not positive; to fold nothing use tools: {\"**\": {fold: off}}", r.MainThreshold)
	}
	if !(r.BranchFraction > 0 && r.BranchFraction <= 1) {
		bad("results.branch_fraction", "%v is not in (0, 1]", r.BranchFraction)
	}
	if r.PreviewTokens < 100 || r.PreviewTokens > r.MainThreshold {
		bad("results.preview_tokens", "%d is not between 100 and results.main_threshold, %d", r.PreviewTokens, r.MainThreshold)
	}
	if r.QuotaMB < 1 {
		bad("results.quota_mb", "%d is not positive", r.QuotaMB)
	}
	if r.TTLHours < 1 {
		bad("results.ttl_hours", "%d is not positive", r.TTLHours)
	}
	for _, glob := range slices.Sorted(maps.Keys(r.Tools)) {
		at := "results.tools." + glob
		if !doublestar.ValidatePattern(glob) {
			bad(at, "is not a valid glob")
		}
		if fold := r.Tools[glob].Fold; fold != "" {
			oneOf(at+".fold", fold, "on", "off")
		}
		if r.Tools[glob].Threshold < 0 {
			bad(at+".threshold", "%d is negative (0 leaves the defaults)", r.Tools[glob].Threshold)
		}
	}
}

// Rule returns what applies to the tool that hosts see as name.
func (r Results) Rule(name string) interceptor.FoldRule {
	best, found := "", false
	for glob := range r.Tools {
		if MatchTool(glob, name) && (!found || len(glob) > len(best) || (len(glob) == len(best) && glob < best)) {
			best, found = glob, true
		}
	}
	t := r.Tools[best]
	return interceptor.FoldRule{Off: found && t.Fold == "off", Threshold: t.Threshold}
}

// Run limits branch_run.
type Run struct {
	// Allow are globs on the names that hosts see: tools that a batch may call
	// although they do not say that they only read.
	Allow []string `yaml:"allow"`
	// MaxCalls is the most calls of one batch.
	MaxCalls int `yaml:"max_calls"`
}

func (r Run) validate(bad func(string, string, ...any)) {
	for _, glob := range r.Allow {
		if !doublestar.ValidatePattern(glob) {
			bad("run.allow", "%q is not a valid glob", glob)
		}
	}
	if r.MaxCalls < 1 || r.MaxCalls > 1000 {
		bad("run.max_calls", "%d is not between 1 and 1000", r.MaxCalls)
	}
}

// Allows reports whether the configuration names a tool for batches.
func (r Run) Allows(shown string) bool {
	return matchesAny(r.Allow, shown)
}
