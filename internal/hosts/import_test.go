package hosts

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// importer returns one for an empty configuration. No text looks like a secret to it.
func importer() *Importer {
	return &Importer{Values: map[string]string{}, Secret: func(text string) bool { return strings.Contains(text, "sk-live") }}
}

// Each host's spelling of servers becomes the same upstreams.
func TestImport(t *testing.T) {
	dir := home(t)
	program := filepath.Join(dir, "server")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SET_HERE", "x")
	const upstreams = `upstreams:
  one:
    command: ["PROGRAM", "-y", "a$$b"]
    env:
      API_TOKEN: "${API_TOKEN}"
      MODE: "fast"
`
	const remote = `  two:
    url: "https://two.example/mcp"
    headers:
      Authorization: "HEADER"
`
	hidden, variable := `${TWO_AUTHORIZATION}`, `Bearer ${SET_HERE}`
	for name, tt := range map[string]struct{ text, header string }{
		"claude-code":    {`{"mcpServers": {"one": {"type": "stdio", "command": "PROGRAM", "args": ["-y", "a$b"], "env": {"API_TOKEN": "p$w", "MODE": "fast"}}, "two": {"type": "http", "url": "https://two.example/mcp", "headers": {"Authorization": "Bearer ${SET_HERE}"}}, "foldgate": {"command": "y"}}}`, variable},
		"claude-desktop": {`{"mcpServers": {"one": {"command": "PROGRAM", "args": ["-y", "a$b"], "env": {"API_TOKEN": "p$w", "MODE": "fast"}}}}`, ""},
		"vscode":         {`{"servers": {"one": {"type": "stdio", "command": "PROGRAM", "args": ["-y", "a$b"], "env": {"API_TOKEN": "p$w", "MODE": "fast"}}, /* c */ "two": {"type": "http", "url": "https://two.example/mcp", "headers": {"Authorization": "Bearer ${env:SET_HERE}"}},}}`, variable},
		"cursor":         {`{"mcpServers": {"one": {"command": "PROGRAM", "args": ["-y", "a$b"], "env": {"API_TOKEN": "p$w", "MODE": "fast"}}, "two": {"url": "https://two.example/mcp", "headers": {"Authorization": "Bearer abc"}}}}`, hidden},
		"windsurf":       {`{"mcpServers": {"one": {"command": "PROGRAM", "args": ["-y", "a$b"], "env": {"API_TOKEN": "p$w", "MODE": "fast"}, "disabled": false}, "two": {"serverUrl": "https://two.example/mcp", "headers": {"Authorization": "Bearer abc"}}}}`, hidden},
		"codex":          {"[mcp_servers.one]\ncommand = 'PROGRAM'\nargs = ['-y', 'a$b']\n[mcp_servers.one.env]\nAPI_TOKEN = 'p$w'\nMODE = 'fast'\n[mcp_servers.two]\nurl = 'https://two.example/mcp'\nbearer_token_env_var = 'SET_HERE'\n", variable},
		"opencode":       {`{"mcp": {"one": {"type": "local", "command": ["PROGRAM", "-y", "a$b"], "environment": {"API_TOKEN": "p$w", "MODE": "fast"}, "enabled": true}, "two": {"type": "remote", "url": "https://two.example/mcp", "headers": {"Authorization": "Bearer {env:SET_HERE}"}}}}`, variable},
		"gemini":         {`{"mcpServers": {"one": {"command": "PROGRAM", "args": ["-y", "a${UNSET_HERE:-$}b"], "env": {"API_TOKEN": "p${UNSET_HERE:-$}w", "MODE": "fast"}}, "two": {"httpUrl": "https://two.example/mcp", "headers": {"Authorization": "Bearer $SET_HERE"}}}}`, variable},
		"zed":            {`{"context_servers": {"one": {"source": "custom", "command": "PROGRAM", "args": ["-y", "a$b"], "env": {"API_TOKEN": "p$w", "MODE": "fast"}}, "two": {"url": "https://two.example/mcp", "headers": {"Authorization": "Bearer abc"}}}}`, hidden},
		"goose":          {"extensions:\n  one:\n    type: stdio\n    name: one\n    cmd: PROGRAM\n    args: [-y, a$b]\n    envs: {API_TOKEN: p$w, MODE: fast}\n    enabled: true\n    timeout: 300\n  two:\n    type: streamable_http\n    name: two\n    uri: https://two.example/mcp\n    headers: {Authorization: Bearer abc}\n    enabled: true\n", hidden},
	} {
		h, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		text := []byte(strings.ReplaceAll(tt.text, "PROGRAM", program))
		file := put(t, text)
		im := importer()
		done, err := im.Import(h, file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := upstreams
		if tt.header != "" {
			want += strings.Replace(remote, "HEADER", tt.header, 1)
		}
		if got := strings.ReplaceAll(string(im.Config), program, "PROGRAM"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s\n%+v", name, got, want, done)
		}
		if im.Values["API_TOKEN"] != "p$w" || tt.header == hidden && im.Values["TWO_AUTHORIZATION"] != "Bearer abc" {
			t.Errorf("%s: variables %q", name, im.Values)
		}
		// Again, into the same configuration: all are known, nothing is added.
		before := bytes.Clone(im.Config)
		again, err := im.Import(h, file)
		if err != nil || !bytes.Equal(im.Config, before) || slices.ContainsFunc(again, func(i Imported) bool { return !i.Twin }) {
			t.Errorf("%s again: %v, %+v\n%s", name, err, again, im.Config)
		}
		var moved []string
		for _, i := range done {
			moved = append(moved, i.Name)
		}
		connect(t, h, file, started, moved...)
		if now := get(t, file); bytes.Contains(now, []byte(program)) {
			t.Errorf("%s: a server is left in\n%s", name, now)
		}
		if !disconnect(t, h, file) || !bytes.Equal(get(t, file), text) {
			t.Errorf("%s: disconnect left\n%s", name, get(t, file))
		}
	}
}

// What foldgate can't start or call stays in the host, with a reason.
func TestImportKeeps(t *testing.T) {
	home(t)
	h, err := Find("claude-code")
	if err != nil {
		t.Fatal(err)
	}
	for entry, want := range map[string]string{
		`{"type": "sse", "url": "https://x.example"}`:          `its type is "sse"`,
		`{"command": "no-such-program-at-all"}`:                `can't be run here`,
		`{"command": "sh", "disabled": true}`:                  "turned off",
		`{"command": "sh", "args": ["${input:token}"]}`:        "only Claude Code can fill in",
		`{"command": "sh", "args": ["${workspaceFolder}/x"]}`:  "not set here",
		`{"command": "sh", "env": {"A": "${NOT_SET_AT_ALL}"}}`: "NOT_SET_AT_ALL, which is not set here",
		`{"command": "sh", "cwd": "relative"}`:                 "working directory",
		`{"command": "sh", "url": "https://x.example"}`:        "or both",
		`{}`: "no command",
		`7`:  "no command",
		`{"type": "http", "url": "https://x.example", "headers": {"A": "${X Y}"}}`: "only Claude Code",
	} {
		im := importer()
		done, err := im.Import(h, put(t, []byte(`{"mcpServers": {"a": `+entry+`}}`)))
		if err != nil || len(done) != 1 || done[0].Key != "" || !strings.Contains(done[0].Note, want) || len(im.Config) > 0 || len(im.Values) > 0 {
			t.Errorf("%s: %+v, %v, want %q; configuration %s", entry, done, err, want, im.Config)
		}
	}
}

// Secrets leave the configuration wherever they stand, and no two of them share a name.
func TestImportSecrets(t *testing.T) {
	home(t)
	h, err := Find("claude-code")
	if err != nil {
		t.Fatal(err)
	}
	im := importer()
	im.Config = []byte("# mine\nupstreams:\n    a b:   # odd\n        command: [x]\n\nlisten: 127.0.0.1:1\n")
	im.Values["A_TOKEN"] = "other"
	_, err = im.Import(h, put(t, []byte(`{"mcpServers": {
		"a": {"command": "sh", "args": ["--token=hush1", "--api-key", "hush2", "--verbose", "plain", "x-sk-live-hush3"], "env": {"A_TOKEN": "hush4", "PASSWORD": "hush5$$", "LEVEL": "plain"}},
		"a!": {"command": "sh", "env": {"A_TOKEN": "hush6"}},
		"9 é": {"url": "https://user:hush7@x.example/mcp"}
	}}`)))
	if err != nil {
		t.Fatal(err)
	}
	if config := string(im.Config); strings.Contains(config, "hush") || strings.Count(config, "plain") != 2 || !strings.HasPrefix(config, "# mine\nupstreams:\n    a b:   # odd\n") || !strings.HasSuffix(config, "\n\nlisten: 127.0.0.1:1\n") {
		t.Errorf("the configuration:\n%s", config)
	}
	var values []string
	for _, v := range im.Values {
		values = append(values, v)
	}
	slices.Sort(values)
	if want := []string{"https://user:hush7@x.example/mcp", "hush1", "hush2", "hush4", "hush5$$", "hush6", "other", "x-sk-live-hush3"}; !slices.Equal(values, want) {
		t.Errorf("values %q, want %q", values, want)
	}
}
