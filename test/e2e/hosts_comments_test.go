//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A host's file with comments behind its servers: after import and a change of the file elsewhere, disconnect
// brings the servers back byte for byte. The differences show servers as the file has them.
func TestDisconnectKeepsComments(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file := filepath.Join(home, "config", "opencode", "opencode.jsonc")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	const theme = "\n  \"theme\": \"system\"\n}\n"
	text := `{
  "mcp": {
    // the first
    "zeta": {"type": "local", "command": ["sh", "-c", "true"], "enabled": true}, // behind zeta
    "alpha": {"type": "local", "command": ["sh", "-c", "exit"], "enabled": true} /* behind alpha */ // and more
    // below
  }, // behind all` + theme
	write(t, file, text)
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(foldgateBin, append(args, "--yes")...)
		cmd.Dir, cmd.Env = home, []string{"PATH=" + os.Getenv("PATH"), "GORACE=" + os.Getenv("GORACE"), "HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, "config")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	config := filepath.Join(home, "gate.yaml")
	write(t, config, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
	for _, command := range []string{"connect", "import"} {
		out := run(command, "opencode", "--config", config)
		if shown := map[string]string{"connect": ` "alpha": {"type": "local", "command": [`, "import": `-    "alpha": {"type": "local", "command": [`}[command]; !strings.Contains(out, shown) {
			t.Errorf("%s shows servers in other words than the file:\n%s", command, out)
		}
		changed := strings.Replace(content(t, file), theme, strings.Replace(theme, "system", "dark", 1), 1)
		write(t, file, changed)
		run("disconnect", "opencode")
		if after, want := content(t, file), strings.Replace(text, "system", "dark", 1); after != want {
			t.Errorf("after %s and disconnect the file is\n%swant\n%s", command, after, want)
		}
		write(t, file, text)
	}
}
