package shellword

import (
	"os/exec"
	"testing"
)

// A shell reads the word as the text.
func TestQuote(t *testing.T) {
	for _, text := range []string{"foldgate.yaml", "/home/me/.config/foldgate.yaml", "my conf.yaml", "it's", "", "~", "$HOME", "größe", "a\"b", "a;b", "*", "a=b", "%x", "a\\b", "-c", "#x"} {
		out, err := exec.Command("sh", "-c", "printf %s "+Quote(text)).Output()
		if err != nil || string(out) != text {
			t.Errorf("%s is read as %q, %v", Quote(text), out, err)
		}
	}
	for _, text := range []string{"foldgate.yaml", "/home/me/.config/foldgate.yaml", "alice@example.com", "./a-b_c,d+e:f"} {
		if got := Quote(text); got != text {
			t.Errorf("Quote(%q) = %s, want it without quotation marks", text, got)
		}
	}
}
