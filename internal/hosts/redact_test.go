package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No diff of connect, disconnect or import shows a secret of a server, wherever it stands in the
// server and however the file spells it.
func TestDiffRedacts(t *testing.T) {
	dir := home(t)
	if err := os.WriteFile(filepath.Join(dir, "npx"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("V", "v")
	secret := func(text string) bool { return strings.Contains(text, "sk-live") }

	escape := func(s, form string, of ...string) string {
		for _, c := range of {
			s = strings.ReplaceAll(s, c, fmt.Sprintf(form, c[0]))
		}
		return s
	}
	json := func(s string) []string {
		q := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
		return []string{`"` + q + `"`, `"` + strings.ReplaceAll(q, "/", `\/`) + `"`, `"` + escape(q, `\u%04x`, "&", "h", "$") + `"`}
	}
	yaml := func(s string) []string {
		all := append(json(s), `"`+escape(strings.Trim(json(s)[0], `"`), `\x%02x`, "h", "&")+`"`, "|-\n            "+strings.ReplaceAll(s, "\n", "\n            "))
		if !strings.Contains(s, "\n") {
			all = append(all, "'"+strings.ReplaceAll(s, "'", "''")+"'", ">-\n            "+s)
		}
		return all
	}
	toml := func(s string) []string {
		all := append(json(s)[:1], `"""`+strings.ReplaceAll(s, `\`, `\\`)+`"""`, `"`+escape(strings.Trim(json(s)[0], `"`), `\u%04x`, "h", "&")+`"`)
		if !strings.Contains(s, "'") {
			all = append(all, "'''"+s+"'''")
		}
		return all
	}
	// %s is a value, spelled. Each place is a server's text.
	formats := map[string]struct {
		host, file string
		spell      func(string) []string
		places     []string
	}{
		"JSON": {"claude-code", "{\n  \"mcpServers\": {\n    \"a\": {\n      %s\n    }\n  }\n}\n", json, []string{
			`"command": "npx", "env": {"ANY": %s}`, `"command": "npx", "env": {"ANY": %s}, "env": {}`, `"command": "npx", // %s` + "\n" + `"args": []`,
			`"url": "https://x.example", "headers": {"X": %s}`, `"command": "npx", "oauth": {"clientSecret": %s}`, `"command": "npx", "x": [{"apiKey": %s}]`,
			`"command": "npx", "args": ["--api-key", %s]`, `"command": ["npx", "--pass", %s]`, `"url": "https://x.example", "bearer_token_env_var": %s`,
		}},
		"TOML": {"codex", "[mcp_servers.a]\n%s\n", toml, []string{
			"command = 'npx'\n[mcp_servers.a.env]\nANY = %s", "command = 'npx'\nenv = {ANY = %s}", "command = 'npx'\nenv.ANY = %s", "url = 'https://x.example'\nhttp_headers = {X = %s}", "url = 'https://x.example'\nbearer_token_env_var = %s",
			"command = 'npx'\n[mcp_servers.a.oauth]\nclient_secret = %s", "command = 'npx'\nargs = ['--token', %s]", "[mcp_servers]\nb = {command = 'npx', env = {ANY = %s}}", "command = 'npx'\n[[mcp_servers.a.x]]\napi_key = %s",
		}},
		"YAML": {"goose", "extensions:\n  a:\n    %s\n", yaml, []string{
			"cmd: npx\n    envs:\n      ANY: %s", "cmd: npx\n    oauth:\n      client_secret: %s", "uri: https://x.example\n    headers:\n      X: %s", "cmd: npx\n    args:\n      - --token\n      - %s", "cmd: npx\n    x:\n      - api_key: %s",
		}},
	}
	n := 0
	for name, f := range formats {
		h := known(t, f.host)
		for _, value := range []string{"hush", "pa$$hush9", "Xk${hush", "Basic hush${V}", "${V:-hush}", "{env:V}hush", "{env:{env:V}hush}", "X: hush", "hush/&é", `hush"hush`, `hush\hush`, "it's hush", "one\nhush"} {
			for _, spelled := range f.spell(value) {
				for _, place := range f.places {
					if strings.Contains(spelled, "\n") && strings.Contains(place, "//") {
						continue
					}
					text := fmt.Sprintf(f.file, fmt.Sprintf(place, spelled))
					if _, err := h.syntax.decode([]byte(text)); err != nil {
						continue // such as a text of lines in an inline table
					}
					n++
					file := put(t, []byte(text))
					im := &Importer{Projects: none, Values: map[string]string{}, Secret: secret}
					done, err := im.Import(h, file)
					if err != nil {
						t.Fatalf("%v\n%s", err, text)
					}
					diffs, err := im.Diff("foldgate.yaml", nil, im.Config)
					if strings.Contains(place, "ANY") { // to import, no secret
						diffs = ""
					}
					for _, imported := range [][]Imported{nil, done} {
						c, errC := h.Connect(file, started, imported)
						if errC != nil {
							t.Fatalf("%v\n%s", errC, text)
						}
						d, errD := c.Diff(secret)
						back := &Change{File: c.File, host: h, Before: c.After, After: c.Before}
						b, errB := back.Diff(secret)
						if err != nil || errD != nil || errB != nil {
							t.Fatalf("%v, %v, %v\n%s", err, errD, errB, text)
						}
						diffs += d + b
					}
					for _, part := range []string{"hush", `us\u`, "\\u0068", "\\x68", "word9", "Xk", "Basic"} {
						if strings.Contains(diffs, part) && !(strings.Contains(place, "bearer_token") && value == "hush") { // a name of a variable
							t.Errorf("%s: the diffs show %q of\n%s\n-----\n%s", name, part, text, diffs)
							break
						}
					}
					if !strings.Contains(diffs, Entry) {
						t.Errorf("%s: the diffs don't show foldgate's entry:\n%s", name, diffs)
					}
				}
			}
		}
	}
	if n < 300 {
		t.Errorf("only %d files", n)
	}
}

// Nor does one show what a comment has of a server that somebody disabled.
func TestDiffRedactsComments(t *testing.T) {
	home(t)
	for host, text := range map[string]string{
		"opencode": "{\n  \"mcp\": {\n    // \"old\": {\"environment\": {\"ANY\": \"hush1\"}},\r\n    \"a\": {\"type\": \"local\", \"command\": [\"npx\"]}, // shown\n    /* \"b\": {\n      \"command\": \"hush2\"\n    } */\n    \"c\": {\"type\": \"local\", \"command\": [\"npx\"]} // token=hush3\n    // \"ANY\": \"hush4\"\n  }\n}\n",
		"codex":    "[mcp_servers.a]\ncommand = 'npx'\n\n# shown\n# [mcp_servers.old.env]\n# ANY = 'hush1'\n",
		"goose":    "extensions:\n  a:\n    type: stdio\n    cmd: npx\n  # shown\n  # old:\n  #   envs:\n  #     ANY: hush1\n",
	} {
		h := known(t, host)
		c, err := h.Connect(put(t, []byte(text)), started, nil)
		if err != nil {
			t.Fatal(err)
		}
		d, err := c.Diff(func(string) bool { return false })
		if err != nil || strings.Contains(d, "hush") || !strings.Contains(d, "shown") || !strings.Contains(d, Entry) {
			t.Errorf("%s: %v\n%s", host, err, d)
		}
	}
}

// Arguments, addresses and names tell of secrets.
func TestHides(t *testing.T) {
	r := redactor{secret: func(string) bool { return false }}
	for text, want := range map[string]bool{
		"--api-key hush": true, "--pass hush": true, "-H X: hush": true, "--header X: hush": true, "-e A=hush": true, "--env A=hush": true, " --env=A=hush": true, " --header=X: hush": true,
		" DB_PASS=hush": true, " --db-pass=hush": true, " --token=hush": true, ` {"apiKey": "hush"}`: true, " Authorization: hush": true, " https://x.example/?api_key=hush": true, " postgres://u:hush@x/y": true,
		" npx --token hush": true, "--token -hush": true, "--use-auth --verbose": false, "-y @x/auth-server": false, "-e GITHUB_TOKEN": false, "--header X": false, "--api-key ${V}": false, " --token=${V}": false, " --compass=north": false, " https://auth.example:80/x": false, " key": false, "--env prod": false,
	} {
		before, text, _ := strings.Cut(text, " ")
		if got := r.hides([]string{"args"}, before, text); got != want {
			t.Errorf("%q %q is a secret: %t", before, text, got)
		}
	}
}

// A diff shows what is no secret.
func TestDiffShows(t *testing.T) {
	home(t)
	h := known(t, "claude-code")
	file := put(t, []byte(`{"mcpServers": {"a": {"type": "http", "url": "https://auth.example:8080/mcp", "timeout": 30, "trust": true, "headers": {"Authorization": "Bearer ${V}", "X": "{env:V}"}},
		"b": {"command": "npx", "args": ["-y", "@x/auth-server", "--token=${V}"], "bearer_token_env_var": "B_TOKEN", "env": {"DEBUG": true}, "includeTools": ["get_token"]}}}`))
	c, err := h.Connect(file, called, []Imported{{Key: "a", Entry: entry{"mcpServers", "a"}}, {Key: "b", Entry: entry{"mcpServers", "b"}}})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := c.Diff(func(string) bool { return false }); err != nil || strings.Contains(text, "REDACTED") || !strings.Contains(text, "Bearer ${FOLDGATE_TOKEN}") || !strings.Contains(text, `"timeout": 30`) {
		t.Errorf("%v\n%s", err, text)
	}
	const before, after = "upstreams:\n  a:\n    command: [x] # mine\n", "upstreams:\n  a:\n    command: [x] # mine\n  b:\n    command: [\"y\", \"--key=${B_KEY}\"]\n    env:\n      MODE: \"true\"\n      B_TOKEN: \"${B_TOKEN}\"\n"
	if text, err := importer().Diff("f", []byte(before), []byte(after)); err != nil || !strings.Contains(text, "     command: [x] # mine\n+  b:\n+    command: [\"y\", \"--key=${B_KEY}\"]\n+    env:\n+      MODE: \"true\"\n+      B_TOKEN: \"${B_TOKEN}\"\n") {
		t.Errorf("the configuration: %v\n%s", err, text)
	}
}
