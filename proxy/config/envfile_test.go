package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnvFile(t *testing.T) {
	dir := t.TempDir()
	env, file := filepath.Join(dir, "gate.env"), filepath.Join(dir, "foldgate.yaml")
	put := func(path, text string, mode os.FileMode) {
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	put(file, "env_file: gate.env\nupstreams:\n  a: {url: \"https://a.example/mcp\", headers: {Authorization: \"Bearer ${TOKEN}\", X-Two: \"${HOME_TOWN}\"}}\n", 0o600)
	t.Setenv("TOKEN", "of the environment")
	t.Setenv("HOME_TOWN", "Ghent")

	put(env, "# mine\n\nTOKEN = a=b # c\nOTHER=\"two\\nlines\"\r\n", 0o600)
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if h := c.Upstreams["a"].Headers; h["Authorization"] != "Bearer a=b # c" || h["X-Two"] != "Ghent" {
		t.Errorf("headers %q", h)
	}
	for text, want := range map[string]string{"TOKEN": "line 1: write NAME=value", "\n1A=secret": "line 2: write NAME", "TOKEN=\"secret": "line 1: the value of TOKEN has no valid double quotes"} {
		put(env, text, 0o600)
		if _, err := Load(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 1: env_file") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
	put(env, "TOKEN=x", 0o640)
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that the group can read: %v", err)
	}
	_ = os.Remove(env)
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "there is no such file; correct the path, or remove the key") {
		t.Errorf("no file: %v", err)
	}
}

// What FormatEnv writes, ParseEnv reads.
func FuzzFormatEnv(f *testing.F) {
	for _, v := range []string{"", "a", " a ", "\"", "a\nb", "-----BEGIN\r\nX", "#x", "a\\nb", "\xff", "a\x00", "\u2028", "\u0085"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		got, err := ParseEnv("A=1\n" + FormatEnv("NAME", v) + "B=2\n")
		if err != nil || got["NAME"] != v || got["A"] != "1" || got["B"] != "2" || len(got) != 3 {
			t.Errorf("%q: read %q, %v", v, got, err)
		}
	})
}

// A byte order mark, which editors of Windows write, is no part of a name.
func TestByteOrderMark(t *testing.T) {
	file := filepath.Join(t.TempDir(), "foldgate.yaml")
	if err := os.WriteFile(file, []byte("\ufeffupstreams:\r\n  f: {builtin: files, roots: [.]}\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(file); err != nil || len(c.Upstreams) != 1 {
		t.Errorf("Load: %v", err)
	}
	if values, err := ParseEnv("\ufeffA=b\r\n"); err != nil || values["A"] != "b" {
		t.Errorf("ParseEnv: %v, %v", values, err)
	}
}
