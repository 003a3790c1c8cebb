//go:build unix

package hosts

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe in the place of a host's file is refused: reading it would wait for ever.
func TestPipe(t *testing.T) {
	file := filepath.Join(home(t), "pipe")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	h := known(t, "codex")
	if _, err := h.Connect(file, Server{URL: "http://x/mcp"}, nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
}
