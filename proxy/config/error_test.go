package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestErrorsHaveNoSecrets puts a token in the place of each value and key of a configuration.
func TestErrorsHaveNoSecrets(t *testing.T) {
	const token = "ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ0bD2fG4hJ6"
	example, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(example), "\nupstreams:\n", `
upstreams:
  a:
    command: [sh]
    cwd: .
    env: {A: b}
    prefix: x
  b:
    url: http://127.0.0.1:1/
    headers: {x-a: b}
    tools:
      allow: ["*"]
`, 1)
	value, key := regexp.MustCompile(`(?m)^( *[a-z_]+: )([^\s#].*)$`), regexp.MustCompile(`(?m)^( *)([a-z_]+):`)
	file := filepath.Join(t.TempDir(), "c.yaml")
	quoted := 0
	for _, places := range [][][]int{value.FindAllStringSubmatchIndex(text, -1), key.FindAllStringSubmatchIndex(text, -1)} {
		for _, at := range places {
			if err := os.WriteFile(file, []byte(text[:at[4]]+token+text[at[5]:]), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(file)
			if err == nil {
				continue
			}
			if strings.Contains(err.Error(), token) {
				t.Errorf("in the place of %q: %v", text[at[2]:at[5]], err)
			}
			if strings.Contains(err.Error(), "[REDACTED:") {
				quoted++
			}
		}
	}
	if quoted < 50 {
		t.Errorf("%d faults quoted the token, want 50 at least", quoted)
	}
}
