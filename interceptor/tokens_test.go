package interceptor

import (
	"os"
	"strings"
	"testing"
)

// The documentation names every member that is free.
func TestFreeMembersAreDocumented(t *testing.T) {
	docs, err := os.ReadFile("../docs/results.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(docs), "### What is counted")
	for name := range free {
		if own := strings.HasPrefix(name, "io.github.foldgate/"); own {
			name = "io.github.foldgate/"
		} else {
			name = name[strings.LastIndexByte(name, '/')+1:]
		}
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("docs/results.md does not say that %s is free", name)
		}
	}
}
