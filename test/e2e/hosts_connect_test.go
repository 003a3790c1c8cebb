//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/testbin"
)

// connectable is a real host, and its file with a server of its own.
type connectable struct {
	name, bin string
	file      string // below the home directory
	text      string // %q is mine
	mine      string // what the server of that name is started with
	list      []string
	// connected matches the line of a server in the host's list.
	connected string
}

// The hosts that npm has. Claude Code's licence keeps it out of package.json: it is tested where
// somebody has installed it there.
func connectables(t *testing.T) []connectable {
	return []connectable{
		{
			"codex", "@openai/" + platform(t, codexTargets) + "/bin/codex", ".codex/config.toml",
			"# my Codex\ncheck_for_update_on_startup = false   # never\n\n[mcp_servers.mine]\ncommand = %q\n", fakeserverBin, []string{"mcp", "list"}, `(?m)^%s .*enabled`,
		}, {
			"opencode", platform(t, opencodePackages) + "/bin/opencode", "config/opencode/opencode.json",
			"{\n  // my opencode\n  \"autoupdate\": false,\n  \"mcp\": {\n      \"mine\": {\"type\": \"local\", \"command\": [%q]},\n  },\n}\n", fakeserverBin, []string{"mcp", "list"}, `✓ \S*%s .*connected`,
		}, {
			"claude-code", "@anthropic-ai/claude-code-linux-x64/claude", ".claude.json",
			"{\n  \"mcpServers\": {\n    \"mine\": {\n      \"type\": \"stdio\",\n      \"command\": %q,\n      \"args\": [],\n      \"env\": {}\n    }\n  }\n}", fakeserverBin, []string{"mcp", "list"}, `%s: .*Connected`,
		}, {
			"gemini", geminiJS, ".gemini/settings.json",
			// It does not speak the fake server's revision.
			"{\n  // my Gemini\n  \"security\": {\"folderTrust\": {\"enabled\": false}},\n  \"mcpServers\": {\n    \"mine\": {\"command\": " + strconv.Quote(node(t)) + ", \"args\": [%q]}\n  }\n}\n",
			module(t, everythingJS), []string{"mcp", "list"}, `%s: .*Connected`,
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
				if h.name == "claude-code" {
					t.Skip(err)
				}
				t.Fatal(err)
			}
			home := t.TempDir()
			file := filepath.Join(home, h.file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf(h.text, h.mine)
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
				if now := content(t, file); strings.Contains(now, h.mine) == (command == "import") {
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
			if upstreams := content(t, config); !strings.Contains(upstreams, h.mine) {
				t.Errorf("the configuration after import:\n%s", upstreams)
			}
		})
	}
}

// A model gets foldgate's tools after import, and its host's own after disconnect.
func TestConnectTools(t *testing.T) {
	t.Parallel()
	t.Run("codex", func(t *testing.T) {
		t.Parallel()
		testConnectTools(t, "codex", ".codex/config.toml", "mcp__%s", mcpServer{command: []string{fakeserverBin}}, func(r *hostRun) { configureCodex(t, r, "model") }, func(r *hostRun) { execCodex(t, r) })
	})
	t.Run("gemini", func(t *testing.T) {
		t.Parallel()
		testConnectTools(t, "gemini", ".gemini/settings.json", "mcp_%s_", mcpServer{command: []string{node(t), module(t, everythingJS)}}, func(r *hostRun) { configureGemini(t, r) }, func(r *hostRun) { runGemini(t, r) })
	})
}

func testConnectTools(t *testing.T, host, file, called string, mine mcpServer, configure, run func(*hostRun)) {
	r := newHostRun(t, llmstub.Agent{Name: "main", Play: llmstub.Script(llmstub.Say("done"))}) // in each session
	r.servers["mine"] = mine
	configure(r)
	file, config := filepath.Join(r.home, filepath.FromSlash(file)), filepath.Join(r.home, "gate.yaml")
	write(t, config, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
	before := content(t, file)
	foldgate := func(args ...string) {
		t.Helper()
		cmd := exec.Command(foldgateBin, append(args, host, "--yes")...)
		cmd.Env = append(os.Environ(), "HOME="+r.home, "XDG_CONFIG_HOME="+filepath.Join(r.home, "config"), "CODEX_HOME=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	// A host does not wait long for a server that starts: on a busy machine its first session can lack
	// the tools.
	offers := func(want, not string) {
		t.Helper()
		for tries := 1; ; tries++ {
			run(r)
			all := r.stub.Requests("main")
			if len(all) == 0 {
				t.Fatal("the host asked its model nothing")
			}
			last := all[len(all)-1] // its body: Codex's names have no server
			if strings.Contains(string(last.Body), fmt.Sprintf(called, not)) {
				t.Errorf("the model is offered %q, also those of %s", last.Tools, not)
			}
			if strings.Contains(string(last.Body), fmt.Sprintf(called, want)) {
				return
			}
			if tries == 6 || t.Failed() {
				t.Fatalf("after %d sessions the model is offered %q, and nothing of %s", tries, last.Tools, want)
			}
		}
	}
	offers("mine", "foldgate")
	foldgate("import", "--config", config)
	offers("foldgate", "mine")
	foldgate("disconnect")
	if after := content(t, file); after != before {
		t.Errorf("disconnect left\n%s\nof\n%s", after, before)
	}
	offers("mine", "foldgate")
}

// From a host with six servers from npm to the first call through foldgate: import, what the host
// then starts, and a call. It reports the time.
func TestFirstCall(t *testing.T) {
	home := t.TempDir()
	write(t, filepath.Join(home, "note.txt"), "a note of 17 bytes")
	servers := map[string]any{}
	for n := range 3 { // that differ: the same server would be one upstream
		dir := filepath.Join(home, fmt.Sprint("dir", n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		servers[fmt.Sprint("files", n)] = map[string]any{"command": node(t), "args": []string{module(t, filesystemJS), dir, home}}
		servers[fmt.Sprint("every", n)] = map[string]any{"command": node(t), "args": []string{module(t, everythingJS)}, "env": map[string]string{"N": fmt.Sprint(n)}}
	}
	host := filepath.Join(home, ".claude.json")
	write(t, host, jsonText(map[string]any{"mcpServers": servers}))
	environment := []string{"PATH=" + os.Getenv("PATH"), "GORACE=" + os.Getenv("GORACE"), "HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, "config")}

	begin := time.Now()
	cmd := exec.Command(foldgateBin, "import", "claude-code", "--yes")
	cmd.Dir, cmd.Env = home, environment
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	imported := time.Since(begin)
	var file struct {
		McpServers map[string]struct {
			Command string
			Args    []string
		}
	}
	if err := json.Unmarshal([]byte(content(t, host)), &file); err != nil || len(file.McpServers) != 1 {
		t.Fatalf("%v, the host starts %v", err, file.McpServers)
	}
	entry := file.McpServers["foldgate"]
	cmd = exec.Command(entry.Command, entry.Args...)
	var log buffer
	cmd.Dir, cmd.Env, cmd.Stderr = home, environment, &log
	ctx := testContext(t)
	c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
	if err == nil {
		_, err = c.Start(ctx)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	defer c.Close()
	for n := range 3 {
		var listed time.Duration
		if n == 0 {
			listed = time.Since(begin)
		}
		r, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"files%d__read_text_file","arguments":{"path":%q}}`, n, filepath.Join(home, "note.txt")))
		if err != nil || !strings.Contains(string(r.Result), "a note of 17 bytes") {
			t.Fatalf("the call: %v, %s\n%s", err, r.Result, log.String())
		}
		if n == 0 {
			t.Logf("from six configured servers to the first call %s: import took %s, foldgate was initialized after %s", time.Since(begin).Round(time.Millisecond), imported.Round(time.Millisecond), listed.Round(time.Millisecond))
		}
	}
}

// configureGemini writes Gemini CLI's settings, with the servers of r.
func configureGemini(t *testing.T, r *hostRun) {
	servers := map[string]any{}
	for name, s := range r.servers {
		servers[name] = map[string]any{"command": s.command[0], "args": s.command[1:]}
	}
	dir := filepath.Join(r.home, ".gemini")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "settings.json"), "// my Gemini\n"+jsonText(map[string]any{
		"security": map[string]any{"folderTrust": map[string]any{"enabled": false}, "auth": map[string]any{"selectedType": "gemini-api-key"}},
		"general":  map[string]any{"enableAutoUpdate": false}, "privacy": map[string]any{"usageStatisticsEnabled": false},
		"mcpServers": servers,
	}))
}

// runGemini runs Gemini CLI without a terminal. It then offers its model the tools of servers only
// if nobody has to be asked about them.
func runGemini(t *testing.T, r *hostRun) {
	r.command(t, node(t), []string{module(t, geminiJS), "--model", "m", "--approval-mode", "yolo", "--prompt", "find why more payments fail"},
		"GEMINI_API_KEY=none", "GOOGLE_GEMINI_BASE_URL="+r.stub.URL())
}

const geminiJS = "@google/gemini-cli/bundle/gemini.js"

// content returns a file's text.
func content(t *testing.T, file string) string { return string(read(t, file)) }
