package control

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// Any body is refused, or read as numbers whose spans are read as the same numbers. No body makes more of
// them than the limit.
func FuzzSpans(f *testing.F) {
	for _, text := range []string{`[[1,3],[7,7]]`, `[[2,1]]`, `[[1,18446744073709551615]]`, `[[18446744073709551614,18446744073709551615]]`, `[[1]]`, `null`, `[[1,15000000],[1,15000000]]`, `{}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		seqs, err := readSpans(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(seqs) > maxErased {
			t.Fatalf("%q: %d records", text, len(seqs))
		}
		want := slices.Compact(slices.Sorted(slices.Values(seqs)))
		body, err := json.Marshal(spansOf(seqs))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readSpans(strings.NewReader(string(body))); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is read as %v, and its spans %s as %v, %v", text, want, body, got, err)
		}
	})
}
