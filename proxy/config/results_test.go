package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/policy"
)

func TestFoldRuleOfATool(t *testing.T) {
	c, faults := parseText("", []byte(`
results:
  tools:
    "**": {threshold: 100}
    files__*: {threshold: 2000}
    files__read_*: {fold: off}
    files__read_b*: {fold: "on", threshold: 7}
`), noEnv)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for name, want := range map[string]interceptor.FoldRule{
		"db__query":        {Threshold: 100},
		"files__grep":      {Threshold: 2000},
		"files__read_file": {Off: true},
		"files__read_blob": {Threshold: 7},
	} {
		if d := cmp.Diff(want, c.Results.Rule(name)); d != "" {
			t.Errorf("rule(%s) (-want +got):\n%s", name, d)
		}
	}
	if d := cmp.Diff(interceptor.FoldRule{}, Default().Results.Rule("any__tool")); d != "" {
		t.Errorf("without rules (-want +got):\n%s", d)
	}
}

func TestResultsFaults(t *testing.T) {
	for text, want := range map[string]string{
		"results: {main_threshold: 0}":           "results.main_threshold",
		"results: {branch_fraction: 1.5}":        "results.branch_fraction",
		"results: {branch_fraction: .nan}":       "results.branch_fraction",
		"results: {preview_tokens: 99}":          "results.preview_tokens",
		"results: {main_threshold: 300}":         "results.main_threshold",
		"results: {main_threshold: -5}":          "results.main_threshold",
		"results: {preview_tokens: 8001}":        "results.preview_tokens",
		"results: {quota_mb: 0}":                 "results.quota_mb",
		"results: {ttl_hours: 0}":                "results.ttl_hours",
		`results: {tools: {"[": {fold: off}}}`:   "results.tools.[",
		"results: {tools: {a: {fold: maybe}}}":   "results.tools.a.fold",
		"results: {tools: {a: {threshold: -1}}}": "results.tools.a.threshold",
		"results: {tools: {a: {treshold: 1}}}":   "treshold",
		`run: {allow: ["["]}`:                    "run.allow",
		"run: {max_calls: 0}":                    "run.max_calls",
		"tools: {mode: all}":                     "tools.mode",
		`tools: {always: ["["]}`:                 "tools.always",
		"tools: {auto_tokens: 0}":                "tools.auto_tokens",
	} {
		faults := parseFaults(t, text)
		if len(faults) != 1 || faults[0].Line != 1 || !strings.Contains(faults[0].Key, want) {
			t.Errorf("%s: faults %v, want one, of %s in line 1", text, faults, want)
		}
	}
}

// The name of a tool is no path: a server does not get it past a glob with a slash.
func TestGlobsOnNamesWithSlashes(t *testing.T) {
	const name = "files/delete/all"
	for _, glob := range []string{"*", "**", "*delete*", "files/*", "files/*/a?l", "files?delete*", "files[/]delete/all", `files\/delete/*`, "{files,x}/*"} {
		if (policy.Globs{Deny: []string{glob}}).Selects(name) {
			t.Errorf("deny %q shows %s", glob, name)
		}
		if !(Batch{Allow: []string{glob}}).Allows(name) {
			t.Errorf("allow %q does not allow %s", glob, name)
		}
		if !(Results{Tools: map[string]FoldRule{glob: {Fold: "off"}}}).Rule(name).Off {
			t.Errorf("the rule of %q is not for %s", glob, name)
		}
	}
	for _, glob := range []string{"delete*", "files/", "files/delete", "files*x", "f/*"} {
		if !(policy.Globs{Deny: []string{glob}}).Selects(name) {
			t.Errorf("deny %q hides %s", glob, name)
		}
	}
}
