package hosts

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// importer returns one for an empty configuration. No text looks like a secret to it.
func importer() *Importer {
	return &Importer{Projects: none, Values: map[string]string{}, Secret: func(text string) bool { return strings.Contains(text, "sk-live") }}
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
		h := known(t, name)
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
	h := known(t, "claude-code")
	for entry, want := range map[string]string{
		`{"type": "ws", "url": "https://x.example"}`:           `its type is "ws"`,
		`{"command": "no-such-program-at-all"}`:                `can't be run here`,
		`{"command": "sh", "disabled": true}`:                  "turned off",
		`{"command": "sh", "args": ["${input:token}"]}`:        "only Claude Code can fill in",
		`{"command": "sh", "args": ["${workspaceFolder}/x"]}`:  "not set here",
		`{"command": "sh", "env": {"A": "${NOT_SET_AT_ALL}"}}`: "NOT_SET_AT_ALL, which is not set here",
		`{"command": "sh", "cwd": "relative"}`:                 "working directory",
		`{"command": "sh", "url": "https://x.example"}`:        "or both",
		`{"args": ["sh", "-y"]}`:                               "no command",
		`{"command": "", "args": ["sh"]}`:                      "no command",
		`{}`:                                                   "no command",
		`7`:                                                    "no command",
		`{"type": "http", "url": "https://x.example", "headers": {"A": "${X Y}"}}`: "only Claude Code",
		// Of the wrong kind.
		`{"command": "sh", "args": [1, null, "z"]}`:                   "its args is not a list of texts",
		`{"command": "sh", "args": "-y"}`:                             "its args is not a list of texts",
		`{"command": "sh", "args": [["a"]]}`:                          "its args is not a list of texts",
		`{"command": ["sh", {}]}`:                                     "its command is not a list of texts",
		`{"command": 7, "args": ["x"]}`:                               "its command is not a text",
		`{"command": "sh", "env": {"Z": null}}`:                       "its env is not a table of texts",
		`{"command": "sh", "env": {"L": ["a"]}}`:                      "its env is not a table of texts",
		`{"command": "sh", "env": ["A=b"]}`:                           "its env is not a table of texts",
		`{"command": "sh", "cwd": 7}`:                                 "its cwd is not a text",
		`{"url": ["https://x.example"]}`:                              "its url is not a text",
		`{"url": "https://x.example", "headers": {"A": {}}}`:          "its headers is not a table of texts",
		`{"url": "https://x.example", "type": 7}`:                     "its type is not a text",
		`{"command": "sh", "disabled": "yes"}`:                        "its disabled is not true or false",
		`{"command": "sh", "env_vars": [{"name": "A"}]}`:              "its env_vars is not a list of texts",
		`{"url": "https://x.example", "bearer_token_env_var": ["A"]}`: "its bearer_token_env_var is not a text",
	} {
		im := importer()
		done, err := im.Import(h, put(t, []byte(`{"mcpServers": {"a": `+entry+`}}`)))
		if err != nil || len(done) != 1 || done[0].Key != "" || !strings.Contains(done[0].Note, want) || len(im.Config) > 0 || len(im.Values) > 0 {
			t.Errorf("%s: %+v, %v, want %q; configuration %s", entry, done, err, want, im.Config)
		}
	}
}

// Numbers are texts for programs, null is an absent setting, and a time limit is told as lost.
func TestImportOtherKinds(t *testing.T) {
	home(t)
	h := known(t, "vscode")
	im := importer()
	done, err := im.Import(h, put(t, []byte(`{"servers": {"a": {"command": "sh", "args": [1e2, true], "env": {"PORT": 8080}, "cwd": null, "timeout": 7}}}`)))
	if err != nil || len(done) != 1 || done[0].Note != "" || !slices.Equal(done[0].Lost, []string{"timeout"}) {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := string(im.Config); !strings.Contains(got, `["sh", "1e2", "true"]`) || !strings.Contains(got, `PORT: "8080"`) {
		t.Error(got)
	}
}

// Secrets leave the configuration wherever they stand, and no two of them share a name.
func TestImportSecrets(t *testing.T) {
	home(t)
	h := known(t, "claude-code")
	im := importer()
	im.Config = []byte("# mine\nupstreams:\n    a b:   # odd\n        command: [x]\n\nlisten: 127.0.0.1:1\n")
	im.Values["A_TOKEN"] = "other"
	_, err := im.Import(h, put(t, []byte(`{"mcpServers": {
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

// Claude Code keeps servers of single projects in the user's file. Those of the chosen projects are
// imported like the others, the rest of the file stays, and disconnect brings all back, also after
// the host has written its file again.
func TestImportProjects(t *testing.T) {
	dir := home(t)
	t.Setenv("PATH", dir)
	if err := os.WriteFile(filepath.Join(dir, "npx"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := known(t, "claude-code")
	places := []entry{{"mcpServers"}, {"projects", "/home/ann/a b", "mcpServers"}, {"projects", "/home/ann/c", "mcpServers"}}
	moved := 0
	for seed := range uint64(30) {
		g := generator{rand.New(rand.NewPCG(seed, 50))}
		part := func() string { return strings.Trim(g.jsonc("mcpServers", g.servers()), "\ufeff\n") }
		text := strings.TrimSuffix(part(), "}")
		if !strings.HasSuffix(strings.TrimSpace(text), ",") {
			text += ","
		}
		text += "\n\"projects\": {\"/home/ann/a b\": " + part() + ",\n  \"/home/ann/c\": " + part() + "}}\n"
		file := put(t, []byte(text))
		before, err := h.syntax.decode([]byte(text))
		if err != nil {
			continue // the generator has ended a part with a line comment
		}
		for _, chosen := range [][]entry{places[:1], places[:2], places} {
			im := importer()
			im.Projects = func(dir string) bool {
				return slices.ContainsFunc(chosen, func(p entry) bool { return p[1%len(p)] == dir })
			}
			done, err := im.Import(h, file)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			c, err := h.Connect(file, started, done)
			if err == nil {
				err = c.Write()
			}
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			after, err := h.syntax.decode(get(t, file))
			if err != nil {
				t.Fatal(err)
			}
			for i, place := range places {
				for name := range lookup(before, place) {
					at := slices.IndexFunc(done, func(in Imported) bool { return slices.Equal(in.Entry, append(slices.Clone(place), name)) })
					if (at >= 0) != (i < len(chosen)) {
						t.Errorf("seed %d: %s of %q is imported: %t", seed, name, place, at >= 0)
					}
					_, stays := lookup(after, place)[name]
					if goes := at >= 0 && done[at].Key != ""; goes == stays {
						t.Errorf("seed %d: %s of %q, imported %t, stays %t", seed, name, place, goes, stays)
					} else if goes {
						moved++
					}
				}
			}
			rewritten := append(get(t, file), '\n')
			if !disconnect(t, h, file) || string(get(t, file)) != text {
				t.Fatalf("seed %d: disconnect left\n%s\nof\n%s", seed, get(t, file), text)
			}
			if c, err = h.Connect(file, started, done); err == nil {
				err = c.Write()
			}
			if err == nil {
				err = os.WriteFile(file, rewritten, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if disconnect(t, h, file) {
				t.Fatalf("seed %d: a changed file counts as unchanged", seed)
			}
			is, err := h.syntax.decode(get(t, file))
			for _, m := range []map[string]any{before, is} { // empty mappings may be gone, or left
				for _, place := range places {
					strip(m, append(slices.Clone(place), Entry))
				}
			}
			if err != nil || !reflect.DeepEqual(before, is) {
				t.Fatalf("seed %d: %v, disconnect left\n%s\nof\n%s", seed, err, get(t, file), text)
			}
			before, _ = h.syntax.decode([]byte(text))
			write(t, file, text)
		}
	}
	if moved < 100 {
		t.Errorf("only %d servers were moved", moved)
	}
}

// A server that names a file from its project's directory is started there.
func TestImportDirectory(t *testing.T) {
	dir := home(t)
	write(t, filepath.Join(dir, "server.js"), "")
	h := known(t, "claude-code")
	const two = `{"here": {"command": "sh", "args": ["server.js"]}, "anywhere": {"command": "sh", "args": ["-y", "server"]}}`
	for text, project := range map[string]string{`{"mcpServers": ` + two + `}`: dir, `{"projects": {"` + dir + `": {"mcpServers": ` + two + `}}}`: ""} {
		im := importer()
		im.Dir, im.Projects = project, func(d string) bool { return d == dir }
		if _, err := im.Import(h, put(t, []byte(text))); err != nil || strings.Count(string(im.Config), `cwd: "`+dir+`"`) != 1 || !strings.Contains(string(im.Config), "\"server.js\"]\n    cwd:") {
			t.Errorf("%s: %v\n%s", text, err, im.Config)
		}
	}
}

// The current project is that of the directory, or of the repository that it is in.
func TestCurrent(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(root, "a", "b")
	for _, dir := range []string{filepath.Join(root, ".git"), below} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(below)
	of, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{below: true, root: true, filepath.Join(root, "a"): false, filepath.Dir(root): false} {
		if of(dir) != want {
			t.Errorf("%s is the current project: %t", dir, of(dir))
		}
	}
}

// A server that came back after an import, and was imported again, is put back once.
func TestDisconnectAfterTwoImports(t *testing.T) {
	f := filepath.Join(home(t), "mcp.json")
	h := known(t, "cursor")
	moved := []Imported{{Key: "a", Entry: entry{"mcpServers", "a"}}}
	for _, text := range []string{`{"mcpServers": {"a": {"command": "one"}}}`, `{"mcpServers": {"foldgate": {}, "a": {"command": "two"}}}`} {
		write(t, f, text)
		c, err := h.Connect(f, Server{Command: []string{"foldgate", "run"}}, moved)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Write(); err != nil {
			t.Fatal(err)
		}
	}
	write(t, f, `{"mcpServers": {"foldgate": {}, "b": {"command": "three"}}}`)
	c, err := h.Disconnect(f)
	if want := `{"mcpServers": { "b": {"command": "three"}, "a": {"command": "two"}}}`; err != nil || string(c.After) != want {
		t.Errorf("%v\n%s, want\n%s", err, c.After, want)
	}
}
