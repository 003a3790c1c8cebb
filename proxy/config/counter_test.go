package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Gateways and commands count with the one counter of the configuration, which has its scale: no other
// file makes one.
func TestOneCounter(t *testing.T) {
	c := Default()
	one, err := c.Budget.Counter()
	if err != nil {
		t.Fatal(err)
	}
	c.Budget.Scale = 2
	two, err := c.Budget.Counter()
	if err != nil {
		t.Fatal(err)
	}
	if a, b := one.Count("some words"), two.Count("some words"); b != 2*a {
		t.Errorf("the scale 2 makes %d of %d tokens", b, a)
	}
	for _, dir := range []string{"../../cmd", "../../interceptor", ".."} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == filepath.Join("..", "config") {
				return err
			}
			if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "budget.NewCounter(") {
				t.Errorf("%s makes a counter, %v: use the one of the configuration", path, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
