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

// A key or value of many bytes does not make a fault long. Its place and its remedy stay.
func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("ü", 50_000)
	file := filepath.Join(t.TempDir(), "c.yaml")
	for text, want := range map[string]string{
		long + ": 1\n":                    "use one of listen, ",
		"listen: " + long + "\n":          "line 1: listen: \"üü.*is not host:port, such as 127.0.0.1:8787$",
		"upstreams: {" + long + ": {}}\n": "line 1: upstreams.üü.*…",
		"principals: {a: {token: ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ0bD2fG4hJ6, team: " + long + "}}\n": "principals.a",
		"results: {on_injection: ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ0bD2fG4hJ6" + long + "}\n":          `REDACTED.*is not one of off, log, flag, block$`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(file)
		if err == nil {
			t.Errorf("%.60s…: no fault", text)
			continue
		}
		for line := range strings.Lines(err.Error()) {
			if len(line) > 2000 {
				t.Errorf("%.60s…: a fault of %d bytes", text, len(line))
			}
		}
		if !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("%.60s…: %.3000v, want %s", text, err, want)
		}
	}
}
