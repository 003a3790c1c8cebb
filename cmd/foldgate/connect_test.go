package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// connect shows the change, and makes it only if the user agrees; disconnect undoes it.
func TestConnectCommands(t *testing.T) {
	home := t.TempDir()
	for name, value := range map[string]string{"HOME": home, "USERPROFILE": home, "XDG_CONFIG_HOME": filepath.Join(home, ".config"), "AppData": home, "CLAUDE_CONFIG_DIR": ""} {
		t.Setenv(name, value)
	}
	file := filepath.Join(home, "gate.yaml")
	host := filepath.Join(home, ".claude.json")
	before := "{\n  // mine\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\", \"env\": {\"T\": \"ghp_" + "16C7e42F292c6912E7710c83" + "8347Ae178B4a" + "\"}}\n  }\n}\n"
	for path, text := range map[string]string{file: "upstreams: {files: {builtin: files, roots: [.]}}\n", host: before} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	content := func() string {
		text, err := os.ReadFile(host)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	out, errOut, code := runs(t, "connect", "claude-code", "--config", file)
	if code != exitFailed || !strings.Contains(errOut, "add --yes") || content() != before {
		t.Errorf("without a terminal: code %d, %s, the file:\n%s", code, errOut, content())
	}
	says(t, out, `\+    "foldgate": \{`)
	if strings.Contains(out, "16C7e42F") {
		t.Errorf("the difference shows a secret:\n%s", out)
	}
	says(t, succeeds(t, file, "connect", "claude-code", "--yes"), `Claude Code is connected`)
	if after := content(); !strings.Contains(after, `"--config", "`+file) {
		t.Errorf("the file after connect:\n%s", after)
	}
	says(t, succeeds(t, file, "connect", "claude-code", "--yes"), `nothing to change`)
	says(t, succeeds(t, file, "disconnect", "claude-code", "--yes"), `Claude Code is disconnected`)
	if content() != before {
		t.Errorf("the file after disconnect:\n%s", content())
	}
	says(t, succeeds(t, file, "connect", "someone", "--print"), `"command": `)
	if _, errOut, code := runs(t, "connect", "someone", "--config", file); code != exitUsage || !strings.Contains(errOut, "opencode") {
		t.Errorf("an unknown host: code %d, %s", code, errOut)
	}
}
