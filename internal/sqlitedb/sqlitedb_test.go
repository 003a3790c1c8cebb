package sqlitedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

var notes = sqlitedb.Options{
	ApplicationID: 0x74657374,
	Migrations:    []string{"CREATE TABLE notes (text TEXT NOT NULL)", "ALTER TABLE notes ADD COLUMN at INTEGER NOT NULL DEFAULT 0"},
	BusyTimeout:   10 * time.Second,
}

func open(t *testing.T, path string, o sqlitedb.Options) *sql.DB {
	t.Helper()
	db, err := sqlitedb.Open(t.Context(), path, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sqlitedb")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	db, err := sqlitedb.Open(ctx, filepath.Join(dir, "notes.db"), sqlitedb.Options{
		Migrations: []string{"CREATE TABLE notes (text TEXT NOT NULL)"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	err = sqlitedb.Update(ctx, db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO notes VALUES ('hello')")
		return err
	})
	var text string
	fmt.Println(err, db.QueryRowContext(ctx, "SELECT text FROM notes").Scan(&text), text)
	// Output: <nil> <nil> hello
}

// Two connections migrate an old file at once, and nothing is lost.
func TestMigrate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c%20.db")
	old := notes
	old.Migrations = notes.Migrations[:1]
	db := open(t, path, old)
	exec(t, db, "INSERT INTO notes VALUES ('old')")
	if _, err := sqlitedb.OpenReadOnly(t.Context(), path, notes); !errors.Is(err, sqlitedb.ErrOlder) {
		t.Errorf("OpenReadOnly of an older schema: %v, want ErrOlder", err)
	}
	db.Close()
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			db, err := sqlitedb.Open(t.Context(), path, notes)
			if err != nil {
				t.Error(err)
				return
			}
			db.Close()
		})
	}
	both.Wait()
	var text string
	if err := open(t, path, notes).QueryRowContext(t.Context(), "SELECT text FROM notes WHERE at = 0").Scan(&text); err != nil || text != "old" {
		t.Errorf("after the migration: %q, %v", text, err)
	}
	if _, err := sqlitedb.Open(t.Context(), path, old); !errors.Is(err, sqlitedb.ErrNewer) || !strings.Contains(err.Error(), "newer foldgate") {
		t.Errorf("Open of a newer schema: %v, want ErrNewer", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
}

// Several processes that start at once share a new file. Connections lock each other as processes do.
func TestOpenAtOnce(t *testing.T) {
	dir := t.TempDir()
	for round := range 60 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				db, err := sqlitedb.Open(t.Context(), filepath.Join(dir, fmt.Sprint(round)), notes)
				if err != nil {
					t.Error(err)
					return
				}
				db.Close()
			})
		}
		all.Wait()
	}
}

// A reader sees one snapshot while a writer goes on, and can't write.
func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	if _, err := sqlitedb.OpenReadOnly(t.Context(), path, notes); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenReadOnly of no file: %v, want not exist", err)
	}
	w := open(t, path, notes)
	exec(t, w, "INSERT INTO notes VALUES ('a', 1)")
	r, err := sqlitedb.OpenReadOnly(t.Context(), path, notes)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	tx, err := r.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM notes").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	before := count()
	exec(t, w, "INSERT INTO notes VALUES ('b', 2)")
	if after := count(); before != 1 || after != 1 {
		t.Errorf("a snapshot had %d rows, then %d, want 1", before, after)
	}
	tx.Rollback()
	if _, err := r.ExecContext(t.Context(), "INSERT INTO notes VALUES ('c', 3)"); err == nil {
		t.Error("a reader wrote")
	}
}

func TestUpdateUndoes(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "n.db"), notes)
	fault := errors.New("fault")
	err := sqlitedb.Update(t.Context(), db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO notes VALUES ('a', 1)"); err != nil {
			return err
		}
		return fault
	})
	var n int
	if scan := db.QueryRowContext(t.Context(), "SELECT count(*) FROM notes").Scan(&n); !errors.Is(err, fault) || scan != nil || n != 0 {
		t.Errorf("Update = %v, then %d rows, %v", err, n, scan)
	}
}

// What Open refuses it does not change, and Recreate starts over.
func TestRefuseAndRecreate(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, path string){
		"foreign": func(t *testing.T, path string) {
			exec(t, open(t, path, sqlitedb.Options{Migrations: []string{"CREATE TABLE t (a)"}}), "PRAGMA journal_mode(DELETE)")
		},
		"newer": func(t *testing.T, path string) {
			exec(t, open(t, path, notes), "PRAGMA user_version = 99; PRAGMA journal_mode(DELETE)")
		},
		"early": func(t *testing.T, path string) {
			exec(t, open(t, path, notes), "PRAGMA user_version = 1; PRAGMA journal_mode(DELETE)")
		},
		"no database": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "n.db")
			make(t, path)
			before, _ := os.ReadFile(path)
			_, err := sqlitedb.Open(t.Context(), path, notes)
			for _, err := range []error{err, sqlitedb.Examine(t.Context(), path, notes)} {
				if want := map[string]bool{"foreign": errors.Is(err, sqlitedb.ErrForeign), "newer": errors.Is(err, sqlitedb.ErrNewer), "early": errors.Is(err, sqlitedb.ErrEarly), "no database": sqlitedb.IsDamaged(err)}[name]; !want {
					t.Error(err)
				}
			}
			if after, _ := os.ReadFile(path); string(before) != string(after) {
				t.Error("Open changed a file that it refused")
			}
			db, err := sqlitedb.Recreate(t.Context(), path, notes)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			exec(t, db, "INSERT INTO notes VALUES ('a', 1)")
		})
	}
}

// A file that can't grow or be written is unavailable, not damaged; a fault in a statement is neither.
func TestUnavailable(t *testing.T) {
	for pragma, want := range map[string]bool{"max_page_count = 1": true, "query_only = 1": true, "user_version = 9": false} {
		db := open(t, filepath.Join(t.TempDir(), "n.db"), notes)
		db.SetMaxOpenConns(1) // the settings are of one connection
		exec(t, db, "PRAGMA "+pragma)
		_, err := db.ExecContext(t.Context(), "INSERT INTO notes SELECT hex(randomblob(100000)), 1")
		if !want && err == nil {
			_, err = db.ExecContext(t.Context(), "INSERT INTO missing VALUES (1)")
		}
		if err == nil || sqlitedb.IsUnavailable(err) != want || sqlitedb.IsDamaged(err) || sqlitedb.IsInUse(err) {
			t.Errorf("with %s: %v, unavailable %v, want %v", pragma, err, sqlitedb.IsUnavailable(err), want)
		}
		if text := sqlitedb.Explain(err, "notes", "n.db", "").Error(); strings.Contains(text, "make room") != want || strings.Contains(text, "away") {
			t.Errorf("with %s: %s", pragma, text)
		}
	}
}

// A file that can't be opened has the same remedy.
func TestExplainsReadOnlyFileSystems(t *testing.T) {
	err := sqlitedb.Explain(&fs.PathError{Op: "open", Path: "n.db", Err: syscall.EROFS}, "notes", "n.db", "")
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "make room on the disk, and see that foldgate can write it") {
		t.Error(err)
	}
}

// Examine finds damage, in use or not, and makes no file.
func TestExamine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "notes.db")
	db := open(t, path, notes)
	for range 200 {
		exec(t, db, "INSERT INTO notes (text) VALUES (hex(zeroblob(500)))")
	}
	if err := sqlitedb.Examine(t.Context(), path, notes); err != nil {
		t.Errorf("while it is used: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sqlitedb.Examine(t.Context(), path, notes); err != nil {
		t.Errorf("while nobody uses it: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copy(data[len(data)/2:], strings.Repeat("x", 8192))
	for name, text := range map[string]string{"a page": string(data), "all": strings.Repeat("no database ", 100)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sqlitedb.Examine(t.Context(), path, notes); !sqlitedb.IsDamaged(err) {
			t.Errorf("%s is damaged: %v", name, err)
		} else if err := sqlitedb.Explain(err, "notes", path, "to start anew"); !strings.Contains(err.Error(), "away to start anew: ") {
			t.Errorf("%s is damaged: %v", name, err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the directory has %v, %v", files, err)
	}
}
