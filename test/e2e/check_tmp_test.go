//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// foldgate check needs no directory for temporary files if there is a state directory, and leaves nothing there.
func TestCheckWithoutTmp(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
	state := filepath.Join(g.dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := g.command("check")
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(g.dir, "none"))
	if out, err := cmd.Output(); err != nil {
		t.Fatalf("%v\n%s%s", err, out, g.log.String())
	}
	if left, err := os.ReadDir(state); err != nil || len(left) != 0 {
		t.Errorf("the check left %v, %v", left, err)
	}
}
