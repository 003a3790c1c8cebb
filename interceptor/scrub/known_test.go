package scrub

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is known to be a secret is found whatever it looks like, and no
// allow-list, default or the user's, lets it through.
func TestKnown(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.toml")
	if err := os.WriteFile(rules, []byte("[allowlist]\nregexes = ['''.*''']\n[extend]\ndisabledRules = [\"foldgate-token\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const id = "br_0b8d1f7e-52f3-4b1c-9f7a-3d2e1c0b9a8f"
	known := []string{"correct.horse+battery", "correct.horse+battery-staple", "this-is-false-or-null", id, "abcdefghijklmnopqrstuvwxyz"}
	s := newScrubber(t, Options{Rules: rules, Known: known})
	const mark = "[REDACTED:foldgate-token]"
	for _, k := range known {
		for _, form := range []string{k, base64.StdEncoding.EncodeToString([]byte(k)), hex.EncodeToString([]byte(k)), strings.ReplaceAll(k, "e", "%65")} {
			got, found, err := s.Text(context.Background(), "before "+form+" after")
			if err != nil || got != "before "+mark+" after" || len(found) != 1 || found[0].Rule != "foldgate-token" {
				t.Errorf("Text(%q) = %q, %v, %v, want it redacted", form, got, found, err)
			}
		}
		doc, _, err := s.JSON(context.Background(), []byte(`{"a":["`+k+`"],"`+k+`":1}`))
		if err != nil || strings.Contains(string(doc), k) {
			t.Errorf("JSON with %q = %s, %v", k, doc, err)
		}
	}
	// In pieces, or in another case, it is not the secret.
	for _, other := range []string{"correct.horse", "CORRECT.HORSE+BATTERY", "correctXhorse+battery"} {
		if got, _, err := s.Text(context.Background(), other); err != nil || got != other {
			t.Errorf("Text(%q) = %q, %v, want it as it is", other, got, err)
		}
	}
	for _, bad := range []string{"", "x", "pässwörter-für-alle"} {
		if _, err := New(Options{Known: []string{bad}}); err == nil {
			t.Errorf("New(Known: %q) = nil error", bad)
		}
	}
}
