//go:build linux && !race

package injection

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/cputime"
)

// A text takes a small part of the time of its expressions one after the other.
func TestRatioToExpressions(t *testing.T) {
	const most = 1. / 10
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "src/net/http/transport.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all []*regexp.Regexp
	for _, order := range orders {
		all = append(all, regexp.MustCompile(order))
	}
	const times = 10
	r := cputime.Ratio(5, func() {
		for range times {
			Find(string(text))
		}
	}, func() {
		for _, x := range all {
			x.Find(text)
		}
	}) / times
	if r > most {
		t.Errorf("a text takes 1/%.0f of the time of the expressions, want at most 1/%.0f", 1/r, 1/most)
	}
	t.Logf("1/%.0f of the time of the expressions", 1/r)
}
