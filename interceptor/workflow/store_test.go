package workflow

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

func TestOpenFaults(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct{ setup, want string }{
		"another program's": {"PRAGMA user_version = 1; CREATE TABLE t (a)", "another program"},
		"newer":             {"PRAGMA application_id = 1718382455; PRAGMA user_version = 99; CREATE TABLE t (a)", "newer"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, "'", ""))
		s, err := Open(path, time.Now, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.db.Exec("DROP TABLE joins; DROP TABLE aliases; DROP TABLE nodes; PRAGMA application_id = 0; " + tc.setup); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if _, err := Open(path, time.Now, nil); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q and the path", name, err, tc.want)
		}
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(garbage, time.Now, nil); err == nil {
		t.Error("a file that is no database was opened")
	}
	if _, err := Open(filepath.Join(dir, "missing", "w.db"), time.Now, nil); err == nil {
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

// An explainer fails a test if a query reads a table from its beginning.
type explainer struct {
	sqlitedb.Querier
	t       *testing.T
	queries int
}

func (e *explainer) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	e.t.Helper()
	e.queries++
	var id, parent, unused int
	var detail string
	for err := range sqlitedb.Rows(ctx, e.Querier, []any{&id, &parent, &unused, &detail}, "EXPLAIN QUERY PLAN "+query, args...) {
		if err != nil {
			e.t.Fatal(err)
		}
		if strings.HasPrefix(detail, "SCAN") && !strings.Contains(detail, "json_each") {
			e.t.Errorf("%s: %s", query, detail)
		}
	}
	return e.Querier.QueryContext(ctx, query, args...)
}

// TestQueriesHaveIndexes: the time of a call does not grow with the number of workflows.
func TestQueriesHaveIndexes(t *testing.T) {
	b := newBench(t, nil)
	e := &explainer{Querier: b.e.db, t: t}
	ctx := t.Context()
	for _, query := range []func() error{
		func() error { _, err := byID(ctx, e, "a"); return err },
		func() error { _, err := byKey(ctx, e, "a", "b", "c"); return err },
		func() error { _, err := byAlias(ctx, e, "a", "b", "c"); return err },
		func() error { _, err := lastOf(ctx, e, "a", "b", "c", 1); return err },
		func() error { _, err := holding(ctx, e, "a", "b", "c", []string{"d"}, 1); return err },
		func() error { _, err := ending(ctx, e, "a"); return err },
		func() error { _, err := due(ctx, e, time.Now()); return err },
	} {
		if err := query(); err != nil {
			t.Error(err)
		}
	}
	if e.queries != 8 {
		t.Errorf("%d queries were explained, want 8", e.queries)
	}
}
