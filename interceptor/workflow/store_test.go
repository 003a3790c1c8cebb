package workflow

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOpenFaults(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct{ setup, want string }{
		"another program's": {"PRAGMA user_version = 1; CREATE TABLE t (a)", "another program"},
		"newer":             {"PRAGMA application_id = 1718382455; PRAGMA user_version = 99; CREATE TABLE t (a)", "newer"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, "'", ""))
		s, err := Open(path, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.db.Exec("DROP TABLE joins; DROP TABLE aliases; DROP TABLE nodes; PRAGMA application_id = 0; " + tc.setup); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if _, err := Open(path, time.Now); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q and the path", name, err, tc.want)
		}
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(garbage, time.Now); err == nil {
		t.Error("a file that is no database was opened")
	}
	if _, err := Open(filepath.Join(dir, "missing", "w.db"), time.Now); err == nil {
		t.Error("a file in no directory was made")
	}
}

// The file does not contain the values that join calls.
func TestStoreKeepsNoValues(t *testing.T) {
	b := newBench(t, nil)
	a := b.open(`["a-very-private-value"]`)
	b.call(Request{ID: a.ID}, "use", `{"id":"a-very-private-value","platform":"another-private-value"}`, `{}`)
	path := b.path
	for _, name := range []string{path, path + "-wal"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "private-value") {
			t.Errorf("%s holds a value", name)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
}
