package folding

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// lockWait is how long an open waits for another process to let go.
const lockWait = time.Second

// database is the SQLite [Repository].
type database struct {
	path string
	db   *sql.DB   // readers
	lock io.Closer // holds path.lock while the database is open

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
	if path, err = filepath.Abs(path); err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("state database: %w", err)
	}
	d := &database{path: path, checkpoint: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	defer func() {
		if err != nil {
			d.release()
			err = diagnose(path, err)
		}
	}()
	ctx := context.Background()
	// The lock has a file of its own, so that readers and the writer share the
	// database while a second process can't have it.
	if d.lock, err = sqlitedb.Lock(ctx, path+".lock", lockWait); err != nil {
		return nil, err
	}
	d.db, err = sqlitedb.Open(ctx, path, sqlitedb.Options{
		Migrations: migrations, ApplicationID: applicationID, BusyTimeout: lockWait, QuickCheck: true,
		Pragmas: []string{"wal_autocheckpoint(0)"}, // see checkpoints
	})
	if err != nil {
		return nil, err
	}
	if d.conn, err = d.db.Conn(ctx); err != nil {
		return nil, err
	}
	if err = d.prepare(ctx); err != nil {
		return nil, err
	}
	go d.checkpoints()
	return d, nil
}

// errDamaged is a row that can't be read.
var errDamaged = errors.New("damaged")

// diagnose adds to an error of SQLite what the user can do about it.
func diagnose(path string, err error) error {
	switch {
	case errors.Is(err, errDamaged), sqlitedb.IsDamaged(err):
		return fmt.Errorf("state database %s is damaged or not a database: restore it from a backup, or move it and its -wal file away to start without branches: %w", path, err)
	case sqlitedb.IsInUse(err):
		return fmt.Errorf("state database %s is in use by another process: stop that one, or name another state_dir: %w", path, err)
	case errors.Is(err, sqlitedb.ErrForeign):
		return fmt.Errorf("state database %s: %w: name another state_dir", path, err)
	}
	return fmt.Errorf("state database %s: %w", path, err)
}
