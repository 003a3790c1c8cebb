package hosts

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden files")

// home isolates the test from the files of the user who runs it.
func home(t testing.TB) string {
	dir := t.(interface{ TempDir() string }).TempDir()
	for _, name := range []string{"HOME", "USERPROFILE"} {
		setenv(t, name, dir)
	}
	setenv(t, "XDG_CONFIG_HOME", filepath.Join(dir, ".config"))
	setenv(t, "AppData", filepath.Join(dir, "AppData"))
	for _, name := range []string{"CODEX_HOME", "CLAUDE_CONFIG_DIR"} {
		setenv(t, name, "")
	}
	return dir
}

func setenv(t testing.TB, name, value string) {
	t.(interface{ Setenv(name, value string) }).Setenv(name, value)
}

var (
	started = Server{Command: []string{"/opt/fold gate/foldgate", "run", "--config", `/home/me/"shop"/foldgate.yaml`}}
	called  = Server{URL: "https://gate.example/mcp?a=1&b=<2>", TokenVariable: "FOLDGATE_TOKEN"}
)

// put writes a file below a new directory.
func put(t testing.TB, text []byte) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "settings")
	if err := os.WriteFile(file, text, 0o640); err != nil {
		t.Fatal(err)
	}
	return file
}

func get(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// none chooses no project.
func none(string) bool { return false }

// connect connects and writes.
func connect(t testing.TB, h Host, file string, s Server, moved ...string) {
	t.Helper()
	var imported []Imported
	for _, name := range moved {
		imported = append(imported, Imported{Key: name, Entry: append(slices.Clone(h.table()), name)})
	}
	c, err := h.Connect(file, s, imported)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
}

func disconnect(t testing.TB, h Host, file string) (exact bool) {
	t.Helper()
	c, err := h.Disconnect(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	return c.Exact
}

// Each host's golden file has texts of before connect, each with the text after it.
func TestGolden(t *testing.T) {
	for _, h := range hosts {
		t.Run(h.Name, func(t *testing.T) {
			home(t)
			golden := filepath.Join("testdata", h.Name+".txtar")
			a, err := txtar.ParseFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			var out []txtar.File
			want := map[string][]byte{}
			for _, f := range a.Files {
				want[f.Name] = f.Data
			}
			for _, f := range a.Files {
				name, ok := strings.CutSuffix(f.Name, ".before")
				if !ok {
					continue
				}
				out = append(out, f)
				for after, s := range []Server{started, called} {
					after := []string{".after", ".http"}[after]
					if s.URL != "" && (h.shape.url == "" || out[0].Name != f.Name) {
						continue
					}
					if h.shape.bearer+h.shape.bearerKey == "" {
						s.TokenVariable = ""
					}
					file := put(t, f.Data)
					connect(t, h, file, s)
					got := get(t, file)
					out = append(out, txtar.File{Name: name + after, Data: got})
					if w := want[name+after]; !*update && !bytes.Equal(got, w) {
						t.Errorf("%s%s:\n%s\nwant\n%s", name, after, got, w)
					}
					if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
						t.Errorf("%s: mode %v, want 0640", name, info.Mode())
					}
					if !disconnect(t, h, file) || !bytes.Equal(get(t, file), f.Data) {
						t.Errorf("%s: disconnect left\n%s\nwant\n%s", name, get(t, file), f.Data)
					}
				}
			}
			if *update {
				a.Files = out
				if err := os.WriteFile(golden, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Inspect reads foldgate's entry as every host spells it, and names the servers beside it.
func TestInspect(t *testing.T) {
	im := importer()
	for _, h := range hosts {
		for _, s := range []Server{{Command: []string{"/bin/foldgate", "run", "--config", "/a b.yaml"}}, {URL: "http://127.0.0.1:1/mcp"}} {
			text, err := h.Print(s)
			if err != nil {
				continue // it calls no address
			}
			file := filepath.Join(t.TempDir(), "file")
			if found, err := h.Inspect(file, im); found != nil || err != nil {
				t.Errorf("%s without a file: %v, %v", h.Name, found, err)
			}
			e := object{{"command", "sh"}}
			if h.shape.command != "" {
				e = object{{h.shape.command, "sh"}}
			}
			with, err := h.syntax.set([]byte(text), append(h.table(), "other"), e)
			if err != nil {
				t.Fatal(err)
			}
			write(t, file, with)
			found, err := h.Inspect(file, im)
			if err != nil || found.Server == nil || found.Off != "" || !slices.Equal(found.Server.Command, s.Command) || found.Server.URL != s.URL || !slices.Equal(found.Others, []string{"other"}) {
				t.Errorf("%s: %+v, %v of\n%s", h.Name, found, err, with)
			}
		}
	}
	file := put(t, []byte(`{"projects": {"/p": {"mcpServers": {"foldgate": {"command": "/bin/foldgate"}, "a": {"command": "sh"}}}}}`))
	for project, want := range map[string]bool{"/p": true, "/q": false} {
		found, err := hosts[0].Inspect(file, &Importer{Projects: func(dir string) bool { return dir == project }, Secret: im.Secret})
		if err != nil || (found.Server != nil) != want || len(found.Others) > 0 != want {
			t.Errorf("Claude Code in %s: %+v, %v", project, found, err)
		}
	}
}

// A byte order mark is no part of a YAML file's first key: foldgate's entry stands beside the others.
func TestYAMLByteOrderMark(t *testing.T) {
	const before = "\ufeffextensions:\n  a:\n    cmd: x\n"
	text, err := yamlSyntax{}.set([]byte(before), entry{"extensions", Entry}, object{{"cmd", "y"}})
	if want := before + "  foldgate:\n    cmd: \"y\"\n"; err != nil || string(text) != want {
		t.Errorf("set: %v\n%q, want\n%q", err, text, want)
	}
}

// write writes a file that a test reads.
func write[T string | []byte](t *testing.T, file string, text T) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// known returns a host that there is.
func known(t testing.TB, name string) Host {
	t.Helper()
	h, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
