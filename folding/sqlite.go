package folding

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// lockWait is how long an open waits for another process to let go.
const lockWait = time.Second

// database is the SQLite [Repository].
type database struct {
	path string
	db   *sql.DB // readers
	lock *sql.DB // holds path.lock while the database is open

	write sync.Mutex // held for a transaction
	conn  *sql.Conn  // the one connection that writes
	stmts [numStatements]*sql.Stmt

	commits    int // since a checkpoint was asked for; guarded by write
	checkpoint chan struct{}
	quit, done chan struct{}
}

// OpenSQLite opens or creates the database at path, in a directory that is
// created for its owner only. One process may have it open at a time. What
// Apply has written survives the death of the process; of a power failure or
// a crash of the operating system it may lose the last moments, never the
// consistency.
//
// The error says what is wrong with the file and what to do: it is damaged,
// not a database, not foldgate's, newer than this program, or in use.
func OpenSQLite(path string) (_ Repository, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state database: %w", err)
	}
	if err := privateFiles(path, path+".lock"); err != nil {
		return nil, fmt.Errorf("state database: %w", err)
	}
	d := &database{path: path, checkpoint: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	defer func() {
		if err != nil {
			d.release()
			err = diagnose(path, err)
		}
	}()
	if d.lock, err = lockFile(path + ".lock"); err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err = check(ctx, path); err != nil {
		return nil, err
	}
	if d.db, err = sql.Open("sqlite", dsn(path, settings...)); err != nil {
		return nil, err
	}
	if d.conn, err = d.db.Conn(ctx); err != nil {
		return nil, err
	}
	if err = migrate(ctx, d.conn, applicationID, migrations); err != nil {
		return nil, err
	}
	if err = d.prepare(ctx); err != nil {
		return nil, err
	}
	go d.checkpoints()
	return d, nil
}

// settings are those of every connection to the database.
var settings = []string{
	"journal_mode(WAL)",
	"synchronous(NORMAL)",
	"wal_autocheckpoint(0)", // see checkpoints
	"journal_size_limit(8388608)",
	"trusted_schema(OFF)",
}

// dsn names a file and the settings of its connections.
func dsn(path string, pragmas ...string) string {
	path = "/" + strings.TrimPrefix(filepath.ToSlash(path), "/") // a drive letter gets a slash
	wait := fmt.Sprintf("busy_timeout(%d)", lockWait.Milliseconds())
	query := url.Values{"_pragma": append([]string{wait}, pragmas...)}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}).String()
}

// lockFile holds an exclusive lock on a file of its own, so that readers and
// the writer can share the database while a second process can't have it. The
// lock ends with the process, however that ends.
func lockFile(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", dsn(path, "journal_mode(MEMORY)"))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("BEGIN EXCLUSIVE"); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// check refuses a file that is damaged or not ours. It uses a connection
// without our settings, since those change a file.
func check(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return err
	}
	defer db.Close()
	var id, version, tables int
	const query = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id, pragma_user_version"
	if err := db.QueryRowContext(ctx, query).Scan(&id, &version, &tables); err != nil {
		return err
	}
	if tables > 0 && id != applicationID {
		return errors.New("it is the database of another program: name another state_dir")
	}
	if err := notNewer(version, migrations); err != nil {
		return err
	}
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, verdict)
	}
	return nil
}

var errDamaged = errors.New("damaged")

// diagnose says what an error of SQLite means for whoever starts foldgate.
func diagnose(path string, err error) error {
	code := 0
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		code = e.Code() & 0xff // without the extended part
	}
	switch {
	case errors.Is(err, errDamaged), code == sqlite3.SQLITE_CORRUPT, code == sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("state database %s is damaged or not a database: restore it from a backup, or move it and its -wal file away to start without branches: %w", path, err)
	case code == sqlite3.SQLITE_BUSY, code == sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("state database %s is in use by another process: stop that one, or name another state_dir: %w", path, err)
	}
	return fmt.Errorf("state database %s: %w", path, err)
}
