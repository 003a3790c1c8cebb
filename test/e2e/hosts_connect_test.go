//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/testbin"
)

// connectable is a real host, and its file with a server of its own.
type connectable struct {
	name, bin string
	file      string // below the home directory
	text      string // %q is the program of the server "mine"
	list      []string
	// connected matches the line of a server in the host's list.
	connected string
}

// The hosts that npm has. Claude Code's licence and Gemini CLI's size keep them out of package.json:
// they are tested where somebody has installed them there.
func connectables(t *testing.T) []connectable {
	return []connectable{
		{
			"codex", "@openai/" + platform(t, codexTargets) + "/bin/codex", ".codex/config.toml",
			"# my Codex\ncheck_for_update_on_startup = false   # never\n\n[mcp_servers.mine]\ncommand = %q\n", []string{"mcp", "list"}, `(?m)^%s .*enabled`,
		}, {
			"opencode", platform(t, opencodePackages) + "/bin/opencode", "config/opencode/opencode.json",
			"{\n  // my opencode\n  \"autoupdate\": false,\n  \"mcp\": {\n      \"mine\": {\"type\": \"local\", \"command\": [%q]},\n  },\n}\n", []string{"mcp", "list"}, `✓ \S*%s .*connected`,
		}, {
			"claude-code", "@anthropic-ai/claude-code-linux-x64/claude", ".claude.json",
			"{\n  \"mcpServers\": {\n    \"mine\": {\n      \"type\": \"stdio\",\n      \"command\": %q,\n      \"args\": [],\n      \"env\": {}\n    }\n  }\n}", []string{"mcp", "list"}, `%s: .*Connected`,
		}, {
			"gemini", "@google/gemini-cli/bundle/gemini.js", ".gemini/settings.json",
			"{\n  // my Gemini\n  \"security\": {\"folderTrust\": {\"enabled\": false}},\n  \"mcpServers\": {\n    \"mine\": {\"command\": %q}\n  }\n}\n", []string{"mcp", "list"}, `%s: .*Connected`,
		},
	}
}

// Real hosts list foldgate after connect, and only their own servers, from the same bytes, after
// disconnect. import moves their servers behind foldgate, and disconnect brings them back.
func TestConnect(t *testing.T) {
	t.Parallel()
	for _, h := range connectables(t) {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			bin, err := testbin.Module(h.bin)
			if err != nil {
				if h.name == "claude-code" || h.name == "gemini" {
					t.Skip(err)
				}
				t.Fatal(err)
			}
			home := t.TempDir()
			file := filepath.Join(home, h.file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf(h.text, fakeserverBin)
			write(t, file, text)
			config := filepath.Join(home, "gate.yaml")
			write(t, config, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
			run := func(program string, args ...string) string {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				if strings.HasSuffix(program, ".js") {
					program, args = node(t), append([]string{program}, args...)
				}
				cmd := exec.CommandContext(ctx, program, args...)
				cmd.Dir = home
				cmd.Env = []string{
					"PATH=" + os.Getenv("PATH"), "GORACE=" + os.Getenv("GORACE"), "HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, "config"),
					"XDG_DATA_HOME=" + filepath.Join(home, "data"), "XDG_CACHE_HOME=" + filepath.Join(home, "cache"), "XDG_STATE_HOME=" + filepath.Join(home, "state"),
					"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "DISABLE_AUTOUPDATER=1",
					"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "NO_PROXY=127.0.0.1,localhost",
				}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s %q: %v\n%s", filepath.Base(program), args, err, out)
				}
				return regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(string(out), "")
			}
			lists := func(when string, servers map[string]bool) {
				t.Helper()
				list := run(bin, h.list...)
				for name, there := range servers {
					if got := regexp.MustCompile(fmt.Sprintf(h.connected, name)).MatchString(list); got != there {
						t.Errorf("%s: %s listed: %t, want %t, in\n%s", when, name, got, there, list)
					}
				}
			}
			// The bytes that foldgate must bring back are those that the host leaves when it starts.
			lists("before", map[string]bool{"mine": true, "foldgate": false})
			for _, command := range []string{"connect", "import"} {
				before := content(t, file)
				run(foldgateBin, command, h.name, "--config", config, "--yes")
				if now := content(t, file); strings.Contains(now, fakeserverBin) == (command == "import") {
					t.Errorf("%s left\n%s", command, now)
				}
				rewrites := content(t, file)
				lists("after "+command, map[string]bool{"mine": command == "connect", "foldgate": true})
				same := content(t, file) == rewrites
				out := run(foldgateBin, "disconnect", h.name, "--yes")
				if after := content(t, file); same && after != before {
					t.Errorf("disconnect after %s left\n%s\nof\n%s\n%s", command, after, before, out)
				}
			}
			lists("after disconnect", map[string]bool{"mine": true, "foldgate": false})
			if upstreams := content(t, config); !strings.Contains(upstreams, fakeserverBin) {
				t.Errorf("the configuration after import:\n%s", upstreams)
			}
		})
	}
}

// A model gets foldgate's tools after connect and import, and its host's own after disconnect.
func TestConnectTools(t *testing.T) {
	t.Parallel()
	say := llmstub.Say("done")
	r := newHostRun(t, llmstub.Agent{Name: "main", Play: llmstub.Script(say, say, say)})
	r.servers["mine"] = mcpServer{command: []string{fakeserverBin}}
	configureCodex(t, r, "model")
	file, config := filepath.Join(r.home, ".codex", "config.toml"), filepath.Join(r.home, "gate.yaml")
	write(t, config, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
	before := content(t, file)
	foldgate := func(args ...string) {
		t.Helper()
		cmd := exec.Command(foldgateBin, append(args, "codex", "--yes")...)
		cmd.Env = append(os.Environ(), "HOME="+r.home, "XDG_CONFIG_HOME="+filepath.Join(r.home, "config"), "CODEX_HOME=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	offers := func(want, not string) {
		t.Helper()
		execCodex(t, r)
		all := r.stub.Requests("main")
		if tools := string(all[len(all)-1].Body); !strings.Contains(tools, want) || strings.Contains(tools, not) {
			t.Errorf("the model is offered %q; want %s and not %s", all[len(all)-1].Tools, want, not)
		}
	}
	offers("mcp__mine", "mcp__foldgate")
	foldgate("import", "--config", config)
	offers("mcp__foldgate", "mcp__mine")
	foldgate("disconnect")
	if after := content(t, file); after != before {
		t.Errorf("disconnect left\n%s\nof\n%s", after, before)
	}
	offers("mcp__mine", "mcp__foldgate")
}

// content returns a file's text.
func content(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
