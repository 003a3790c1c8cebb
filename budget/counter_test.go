package budget

import (
	"slices"
	"strings"
	"testing"
)

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
		for _, known := range slices.Concat(Encodings(), Models()) {
			if !strings.Contains(err.Error(), known) {
				t.Errorf("NewCounter(%q): error does not list %q", name, known)
			}
		}
	}
}
