//go:build unix

package sqlitedb_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/sqlitedb"
	"github.com/foldgate/foldgate/test/nofiles"
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
	var texts []string
	nofiles.During(t, func() {
		_, missing := sqlitedb.Open(t.Context(), filepath.Join(dir, "new.db"), notes)
		_, present := sqlitedb.Open(t.Context(), filepath.Join(dir, "n.db"), notes)
		_, query := other.Exec("DELETE FROM notes")
		for _, err := range []error{missing, present, query} {
			if err == nil {
				t.Error("no error")
				continue
			}
			texts = append(texts, sqlitedb.Explain(err, "notes", "n.db", "").Error())
		}
	})
	for _, text := range texts {
		if !strings.Contains(text, "ulimit -n") || strings.Contains(text, "make room") {
			t.Error(text)
		}
	}
}
