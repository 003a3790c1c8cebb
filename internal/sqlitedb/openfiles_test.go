//go:build unix

package sqlitedb_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// A process without file descriptors is told about their limit, not about the disk.
func TestTooManyOpenFiles(t *testing.T) {
	dir := t.TempDir()
	db := open(t, filepath.Join(dir, "n.db"), notes)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	other := open(t, filepath.Join(dir, "m.db"), notes)
	other.SetMaxIdleConns(0) // each query opens the file
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, missing := sqlitedb.Open(t.Context(), filepath.Join(dir, "new.db"), notes)
	_, present := sqlitedb.Open(t.Context(), filepath.Join(dir, "n.db"), notes)
	_, query := other.Exec("DELETE FROM notes")
	var texts []string
	for _, err := range []error{missing, present, query} {
		if err != nil {
			texts = append(texts, sqlitedb.Explain(err, "notes", "n.db", "").Error())
		}
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if len(texts) != 3 {
		t.Errorf("%v, %v, %v: want three errors", missing, present, query)
	}
	for _, text := range texts {
		if !strings.Contains(text, "ulimit -n") || strings.Contains(text, "make room") {
			t.Error(text)
		}
	}
}
