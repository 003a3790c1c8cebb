package folding

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

func TestSavedSumsABranch(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1<<20)
	for _, b := range []struct {
		path            string
		results, tokens int
	}{{"br_a", 1, 100}, {"br_a/br_b", 1, 200}, {"br_ab", 1, 400}, {"br_a", 0, -30}, {"br_a", 1, 50}} {
		if err := r.Save(t.Context(), "ada", b.path, b.results, b.tokens); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		principal, path string
		results, tokens int
	}{{"ada", "br_a", 2, 120}, {"ada", "br_a/br_b", 1, 200}, {"ada", "br_c", 0, 0}, {"bob", "br_a", 0, 0}} {
		if n, tokens, err := r.Saved(t.Context(), tt.principal, tt.path); n != tt.results || tokens != tt.tokens || err != nil {
			t.Errorf("Saved(%s, %s) = %d, %d, %v; want %d, %d", tt.principal, tt.path, n, tokens, err, tt.results, tt.tokens)
		}
	}
}

// A store of before savings were booked knows those of the results it keeps.
func TestSavingsOfAnOlderStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.db")
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{Migrations: resultMigrations[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO results (handle, principal, session, context, server, tool, kind, text, structured, bytes, tokens, delivered, created_at)
		SELECT 'res_' || value, 'ada', 's1', 'br_a', 'files', 'read_file', 'text', 'x', '', 1, 100, 10, ? FROM json_each('[1,2]')`,
		time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC).UnixMicro()); err != nil {
		t.Fatal(err)
	}
	r, _ := resultStore(t, path, 1<<20)
	if n, tokens, err := r.Saved(t.Context(), "ada", "br_a"); n != 2 || tokens != 180 || err != nil {
		t.Errorf("Saved(br_a) = %d, %d, %v; want 2, 180", n, tokens, err)
	}
}

// Of so many branches the savings are kept, not of all there ever were.
func TestSavingsAreBounded(t *testing.T) {
	r, _ := resultStore(t, filepath.Join(t.TempDir(), "results.db"), 1<<20)
	if _, err := r.db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO savings (principal, context, results, tokens) SELECT 'ada', 'br_' || i, 1, 1 FROM n`, savingsKept+5); err != nil {
		t.Fatal(err)
	}
	if err := r.Save(t.Context(), "ada", "br_new", 1, 7); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := r.db.QueryRowContext(t.Context(), "SELECT count(*) FROM savings").Scan(&n); n != savingsKept || err != nil {
		t.Errorf("the savings of %d branches are kept, %v; want %d", n, err, savingsKept)
	}
	if n, tokens, err := r.Saved(t.Context(), "ada", "br_new"); n != 1 || tokens != 7 || err != nil {
		t.Errorf("Saved(br_new) = %d, %d, %v; want 1, 7", n, tokens, err)
	}
}
