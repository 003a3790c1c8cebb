package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/config"
)

// newHome makes a home directory for the test, without hosts.
func newHome(t *testing.T) string {
	home := t.TempDir()
	for name, value := range map[string]string{"HOME": home, "USERPROFILE": home, "XDG_CONFIG_HOME": filepath.Join(home, ".config"), "AppData": home, "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": ""} {
		t.Setenv(name, value)
	}
	return home
}

// connect shows the change, and makes it only if the user agrees; disconnect undoes it.
func TestConnectCommands(t *testing.T) {
	home := newHome(t)
	file := filepath.Join(home, "gate.yaml")
	host := filepath.Join(home, ".claude.json")
	before := "{\n  // mine\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\", \"env\": {\"T\": \"ghp_" + "16C7e42F292c6912E7710c83" + "8347Ae178B4a" + "\"}}\n  }\n}\n"
	for path, text := range map[string]string{file: "upstreams: {files: {builtin: files, roots: [.]}}\n", host: before} {
		write(t, path, text)
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
	t.Setenv("XDG_CONFIG_HOME", "/proc/nodir") // nobody can make it
	if _, errOut, code := runs(t, "connect", "claude-code", "--config", file, "--yes"); code != exitFailed || !strings.Contains(errOut, host+" was not changed, as what disconnect needs can't be written: mkdir ") || content() != before {
		t.Errorf("without a place for the backup: code %d, %s, the file:\n%s", code, errOut, content())
	}
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, ".config"))
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
	if out, errOut, code := runs(t, "connect", "vs-code", "--print", "--config", file); code != 0 || !strings.Contains(out, `"command": `) || errOut != "vs-code is no known host; did you mean vscode?\n" {
		t.Errorf("a name like that of a host: code %d, %s%s", code, out, errOut)
	}
	for path, want := range map[string]string{"/mcp": "", "/gate/mcp": "", "/foo": "a gateway answers at /mcp, not at /foo", "/mcp/": "not at /mcp/"} {
		if _, errOut, code := runs(t, "connect", "cursor", "--print", "--url", "http://127.0.0.1:1"+path); code != 0 || (want == "") != (errOut == "") || !strings.Contains(errOut, want) {
			t.Errorf("the path %s: code %d, %s", path, code, errOut)
		}
	}
	for tools, want := range map[string]bool{"{mode: search}": true, "{mode: search, always: [files__*]}": false, "{mode: auto}": false} {
		write(t, file, "upstreams: {files: {builtin: files, roots: [.]}}\ntools: "+tools+"\n")
		if entry := succeeds(t, file, "connect", "claude-code", "--print"); strings.Contains(entry, `"alwaysLoad": true`) != want {
			t.Errorf("tools %s: %s", tools, entry)
		}
	}
	// Nothing is changed before all is known to be possible.
	t.Chdir(home)
	elsewhere := filepath.Join(home, "none.yaml")
	for command, want := range map[string]string{
		"connect claude-code nonesuch --yes --config " + file:           "nonesuch",
		"disconnect claude-code nonesuch --yes --config " + file:        "nonesuch",
		"import claude-cod --yes --config " + elsewhere:                 "claude-code",
		"connect claude-cod --config " + elsewhere:                      "did you mean claude-code",
		"connect claude-code windsurf --project --yes --config " + file: "Windsurf has no file of a project",
		"connect claude-code codex --subagent --yes --config " + file:   "no subagent for Codex",
		"connect claude-code --yes --url ftp://x.example":               "http or https",
		"connect claude-code --yes --url 127.0.0.1:8787":                "http or https",
		"connect claude-code --yes --url https:///mcp":                  "http or https",
	} {
		if _, errOut, code := runs(t, strings.Fields(command)...); code != exitUsage || !strings.Contains(errOut, want) || content() != before {
			t.Errorf("%s: code %d, %s, the file:\n%s", command, code, errOut, content())
		}
	}
	listens := filepath.Join(home, "listens.yaml")
	write(t, listens, "listen: 127.0.0.1:8787\nprincipals: {a: {token: 0123456789abcdef}}\nupstreams: {files: {builtin: files, roots: [.]}}\n")
	for command, want := range map[string]string{
		"connect cursor claude-desktop --print":                                  "Claude Desktop starts programs only, and " + listens + " has listen",
		"connect cursor claude-desktop --yes":                                    "Claude Desktop starts programs only, and " + listens + " has listen",
		"import claude-desktop --yes":                                            "Claude Desktop starts programs only, and " + listens + " has listen",
		"connect cursor claude-desktop --print --url http://x.example/mcp":       "Claude Desktop starts programs only; leave --url out",
		"connect cursor zed --print":                                             "foldgate connect zed --url http://127.0.0.1:8787/mcp connects it",
		"connect zed --print --url http://x.example/mcp --token-variable A_NAME": "foldgate connect zed --url http://x.example/mcp connects it",
	} {
		out, errOut, code := runs(t, append(strings.Fields(command), "--config", listens)...)
		if code != exitUsage || !strings.Contains(errOut, want) || out != "" {
			t.Errorf("%s: code %d, %s%s", command, code, out, errOut)
		}
	}
	if _, err := os.Stat(filepath.Join(home, ".cursor")); err == nil {
		t.Error("Cursor is connected")
	}
	if _, err := os.Stat(".mcp.json"); err == nil {
		t.Error("the project is connected")
	}
	says(t, succeeds(t, file, "connect", "claude-code", "claude-code", "--yes"), `Claude Code is connected`)
	if _, errOut, code := runs(t, "connect", "someone", "--config", file); code != exitUsage || !strings.Contains(errOut, "opencode") {
		t.Errorf("an unknown host: code %d, %s", code, errOut)
	}
}

// waiting is an input that nothing comes from. Its first read is interrupted.
type waiting struct{ interrupt func() }

func (w waiting) Read([]byte) (int, error) {
	w.interrupt()
	select {}
}

// Ctrl-C ends a command that waits for an answer or a text.
func TestInterrupt(t *testing.T) {
	home := newHome(t)
	file := filepath.Join(home, "gate.yaml")
	write(t, file, "upstreams: {files: {builtin: files, roots: [.]}}\n")
	before := isTerminal
	isTerminal = func(stream any) bool { _, ok := stream.(waiting); return ok }
	t.Cleanup(func() { isTerminal = before })
	for command, want := range map[string]string{"connect claude-code": "nothing was changed", "count": "interrupted", "scrub": "interrupted", "trace verify --export -": "interrupted"} {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		var errOut strings.Builder
		code := run(ctx, append(strings.Fields(command), "--config", file), waiting{interrupt}, io.Discard, &errOut)
		if code != exitFailed || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: code %d, %s", command, code, errOut.String())
		}
	}
	if _, err := os.Stat(filepath.Join(home, ".claude.json")); err == nil {
		t.Error("connect changed the host")
	}
}

// A command that a signal ends says so, and no more: what it did not come to has not failed.
func TestInterruptedWork(t *testing.T) {
	file := filepath.Join(newHome(t), "gate.yaml")
	dir := filepath.Join(filepath.Dir(file), ".foldgate", "trace")
	write(t, file, "upstreams: {files: {builtin: files, roots: [.]}}\n")
	j, err := trace.Open(dir, trace.Options{})
	if err == nil {
		err = errors.Join(j.Append(&trace.Record{From: "host:x", Kind: trace.KindRequest + "ping"}), j.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, command := range []string{
		"check", "doctor", "doctor --json", "trace", "trace --no-index", "trace show 1", "trace contexts", "trace verify", "trace verify --export " + dir + "/trace-000000000000001.jsonl",
		"trace erase --seq 1 --yes", "stats",
	} {
		var out, errOut strings.Builder
		if code := run(ctx, append(strings.Fields(command), "--config", file), strings.NewReader(""), &out, &errOut); code != exitFailed || out.String() != "" || errOut.String() != "foldgate: interrupted\n" {
			t.Errorf("%s: code %d, %s%s", command, code, out.String(), errOut.String())
		}
	}
}

// connect installs the subagent on request, and disconnect removes it unless somebody has changed it.
func TestSubagent(t *testing.T) {
	home := newHome(t)
	t.Chdir(home)
	file := filepath.Join(home, "foldgate.yaml")
	write(t, file, "upstreams: {files: {builtin: files, roots: [.]}}\n")
	for host, at := range map[string][2]string{"claude-code": {".claude/agents", ".claude/agents"}, "opencode": {".config/opencode/agents", ".opencode/agents"}} {
		for i, flags := range [][]string{{"--yes"}, {"--yes", "--project"}} {
			agent := filepath.Join(home, filepath.FromSlash(at[i]), "fold-explorer.md")
			install, remove := append([]string{"connect", host, "--subagent"}, flags...), append([]string{"disconnect", host}, flags...)
			says(t, succeeds(t, file, install...), `is given the subagent`)
			if text, err := os.ReadFile(agent); err != nil || !strings.Contains(string(text), "branch_create") {
				t.Errorf("%s %q: %v", host, flags, err)
			}
			says(t, succeeds(t, file, install...), `nothing to change in .*fold-explorer`)
			succeeds(t, file, remove...)
			if _, err := os.Stat(agent); err == nil {
				t.Errorf("%s %q: disconnect has left %s", host, flags, agent)
			}
			write(t, agent, "mine")
			if _, errOut, code := runs(t, append(install, "--config", file)...); code != exitUsage || !strings.Contains(errOut, "another text") {
				t.Errorf("%s %q with a file of the user: code %d, %s", host, flags, code, errOut)
			}
			succeeds(t, file, remove...)
			if text, err := os.ReadFile(agent); err != nil || string(text) != "mine" {
				t.Errorf("%s %q: the user's file is %q, %v", host, flags, text, err)
			}
			_ = os.Remove(agent)
		}
	}
	if _, errOut, code := runs(t, "connect", "codex", "--subagent", "--yes", "--config", file); code != exitUsage || !strings.Contains(errOut, "no subagent for Codex") {
		t.Errorf("codex: code %d, %s", code, errOut)
	}
}

// import makes a configuration that loads, keeps secrets out of it and out of what it prints, and
// changes nothing if the configuration would have an error.
func TestImportCommand(t *testing.T) {
	home := newHome(t)
	put := func(path, text string) {
		t.Helper()
		write(t, path, text)
	}
	content := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	file, env, host := filepath.Join(home, "gate.yaml"), filepath.Join(home, "gate.env"), filepath.Join(home, ".claude.json")
	for _, command := range [][]string{{"import", "cursor", "--yes"}, {"import", "cursor", "codex"}} {
		if out := succeeds(t, file, command...); !strings.Contains(out, "Cursor has no servers: foldgate connect cursor adds foldgate") || !strings.HasSuffix(out, "There is nothing to change.\n") {
			t.Errorf("%v: %s", command, out)
		}
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) > 0 {
		t.Errorf("the import of no servers wrote %v, %v", entries, err)
	}
	before := "{\"mcpServers\": {\"a\": {\"command\": \"sh\", \"env\": {\"A_PASSWORD\": \"hush \\\"hush\"}}, \"old\": {\"type\": \"sse\", \"url\": \"https://x.example/sse\"}, \"chat\": {\"type\": \"ws\", \"url\": \"https://x.example\"}}}"
	put(host, before)
	out, errOut, code := runs(t, "import", "claude-code", "--config", file)
	if code != exitFailed || !strings.Contains(errOut, "add --yes") || content(host) != before {
		t.Errorf("without a terminal: code %d, %s, the file:\n%s", code, errOut, content(host))
	}
	if strings.Contains(out, "hush") {
		t.Errorf("import prints a secret:\n%s", out)
	}
	if _, err := os.Stat(env); err == nil {
		t.Error("import without --yes wrote the environment file")
	}
	says(t, succeeds(t, file, "import", "claude-code", "--yes"), `a becomes the upstream a`, `old becomes the upstream old`, `chat stays in Claude Code: its type is "ws"`)
	if c, err := config.Load(file); err != nil || c.Upstreams["old"].URL != "https://x.example/sse" || c.Upstreams["a"].Env["A_PASSWORD"] != `hush "hush` {
		t.Errorf("the configuration %v\n%s", err, content(file))
	}
	if info, err := os.Stat(env); err != nil || info.Mode().Perm() != 0o600 || strings.Contains(content(file), "hush") || strings.Contains(content(host), "hush") {
		t.Errorf("a secret is in the configuration or the host, or others can read it: %v, %v", info, err)
	}
	says(t, succeeds(t, file, "import", "claude-code", "--yes"), `nothing to change`)
	for _, command := range []string{"disconnect", "import", "disconnect", "connect", "disconnect"} { // the environment file has the values now
		if out := succeeds(t, file, command, "claude-code", "--yes"); strings.Contains(out, "hush") {
			t.Errorf("%s prints a secret:\n%s", command, out)
		}
	}
	if content(host) != before {
		t.Errorf("disconnect left\n%s", content(host))
	}

	flow := filepath.Join(home, "flow.yaml")
	put(flow, "# mine\nupstreams: {files: {builtin: files, roots: [.]}}\n")
	if _, errOut, code := runs(t, "import", "claude-code", "--yes", "--config", flow); code != exitFailed || content(host) != before ||
		!strings.HasSuffix(errOut, flow+": line 2: the entries of \"upstreams\" must stand on lines of their own, so that one can be added. Write:\nupstreams:\n  files: {...}\n") {
		t.Errorf("a configuration with its upstreams in one line: code %d, %s", code, errOut)
	}

	// Servers that foldgate refuses keep no other from being imported, and leave no secret behind.
	put(host, `{"mcpServers": {"b": {"url": "https://b.example/mcp", "headers": {"a b": "c", "X-Token": "hidden-token"}}, "c": {"url": "c.example", "env": {}},
		"d": {"url": "https://d.example/mcp"}, "e": {"url": "https://e.example/mcp", "headers": {"X": "${NO_SUCH_VARIABLE}"}}, "f": {"url": "https://f.example/mcp"}}}`)
	says(t, succeeds(t, file, "import", "claude-code", "--yes"), `b stays in Claude Code: upstreams.b.headers.a b: `, `c stays in Claude Code: upstreams.c.url: "c.example" is not an http or https URL`,
		`d becomes the upstream d`, `e stays in Claude Code: it uses the variable NO_SUCH_VARIABLE, which is not set here`, `f becomes the upstream f`)
	c, err := config.Load(file)
	if err != nil || c.Upstreams["d"] == nil || c.Upstreams["f"] == nil || c.Upstreams["b"] != nil || strings.Contains(content(env), "hidden-token") {
		t.Errorf("the configuration %v\n%s\n%s", err, content(file), content(env))
	}
	if now := content(host); !strings.Contains(now, "hidden-token") || strings.Contains(now, "d.example") || !strings.Contains(now, "foldgate") {
		t.Errorf("the host has\n%s", now)
	}
}

// What connect, disconnect and import print has no secret of a server, however the host's file
// spells it, and shows what is none.
func TestHostSecrets(t *testing.T) {
	home := newHome(t)
	t.Setenv("V", "v")
	file := filepath.Join(home, "gate.yaml")
	for path, text := range map[string]string{
		file:                            "env_file: gate.env\nlisten: 127.0.0.1:1\nupstreams:\n  files: {builtin: files, roots: [.]} # true\n",
		filepath.Join(home, "gate.env"): "MODE=true\n",
		filepath.Join(home, ".claude.json"): `{"mcpServers": {
  "a": {"command": "sh", "env": {"A_COOKIE": "pa$$hush"}}, "b": {"command": "sh", "env": {"A_COOKIE": "hush${"}},
  "c": {"url": "https://x.example", "headers": {"X": "Basic hush${V}"}}, "d": {"url": "https://x.example", "oauth": {"clientSecret": "hush"}},
  "e": {"command": "sh", "env": {"A_COOKIE": "hush\u0026\/"}},
  "f": {"command": "npx --token hush"}, "g": {"command": "sh", "env": {"X": "${A-B:-hush}"}}}}`,
		filepath.Join(home, ".codex", "config.toml"):           "[mcp_servers.a]\ncommand = 'sh'\nenv = {A_COOKIE = 'hush\"\\'}\n",
		filepath.Join(home, ".config", "goose", "config.yaml"): "extensions:\n  a:\n    cmd: sh\n    envs: {A_COOKIE: 'hush''s'}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	for _, host := range []string{"claude-code", "codex", "goose"} {
		for _, command := range []string{"connect", "disconnect", "import", "disconnect"} {
			out := succeeds(t, file, command, host, "--yes")
			if strings.Contains(out, "hush") {
				t.Errorf("%s prints a secret:\n%s", command, out)
			}
			says(t, out, `foldgate`)
			if command == "import" {
				says(t, out, `\+  a(-\d)?:\n\+    command: \["sh"\]\n\+    env:\n\+      A_COOKIE: "\$\{`)
				if host == "claude-code" {
					says(t, out, `# true`)
				}
			}
		}
	}
}

// The configuration can be named by FOLDGATE_CONFIG, and run takes it as an argument.
func TestConfigurationNames(t *testing.T) {
	t.Run("missing in the environment", func(t *testing.T) {
		t.Setenv("FOLDGATE_CONFIG", "/nope.yaml")
		if _, errOut, code := runs(t, "check"); code != exitUsage || !strings.HasPrefix(errOut, "foldgate: FOLDGATE_CONFIG: /nope.yaml: there is no such file") {
			t.Errorf("code %d, %s", code, errOut)
		}
		if _, errOut, _ := runs(t, "check", "--config", "/nope.yaml"); strings.Contains(errOut, "FOLDGATE_CONFIG") {
			t.Errorf("with a flag: %s", errOut)
		}
	})
	file := filepath.Join(t.TempDir(), "gate.yaml")
	write(t, file, "nonsense: 1\n")
	if _, errOut, code := runs(t, "run", file); code != exitUsage || !strings.Contains(errOut, file+": line 1: nonsense") {
		t.Errorf("run FILE: code %d, %s", code, errOut)
	}
	if _, errOut, code := runs(t, "run", file, "--config", file); code != exitUsage || !strings.Contains(errOut, "named twice") {
		t.Errorf("run FILE --config FILE: code %d, %s", code, errOut)
	}
	t.Setenv("FOLDGATE_CONFIG", file)
	for _, args := range [][]string{{"run"}, {"check"}} {
		if _, errOut, code := runs(t, args...); code != exitUsage || !strings.Contains(errOut, file+": line 1: nonsense") {
			t.Errorf("%q with FOLDGATE_CONFIG: code %d, %s", args, code, errOut)
		}
	}
	other := filepath.Join(t.TempDir(), "other.yaml")
	if _, errOut, code := runs(t, "init", other); code != 0 {
		t.Errorf("init FILE with FOLDGATE_CONFIG: code %d, %s", code, errOut)
	}
	if _, errOut, code := runs(t, "init", other, "--config", file); code != exitUsage || !strings.Contains(errOut, "named twice") {
		t.Errorf("init FILE --config FILE: code %d, %s", code, errOut)
	}
}
