// Package sqlitedb opens the SQLite databases that hold foldgate's state; see the package's example.
//
// A database has a write-ahead log: one connection writes while others read, also from other
// processes. A committed transaction survives the death of the process. A power failure can lose
// the newest transactions, but it does not damage the database. Transactions take the write lock
// when they begin, unless sql.TxOptions.ReadOnly is set: then they read one snapshot.
package sqlitedb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/foldgate/foldgate/internal/openfiles"
)

// Errors of [Open] and [OpenReadOnly].
var (
	// ErrForeign matches the error for a database of another program.
	ErrForeign = errors.New("it is the database of another program")
	// ErrEarly matches the error for a schema of before the first release.
	ErrEarly = errors.New("a build of foldgate before the first release wrote it")
	// ErrNewer matches the error for a schema that a newer foldgate wrote.
	ErrNewer = errors.New("it was made by a newer foldgate")
	// ErrOlder matches the error of [OpenReadOnly] for a schema that no writer has migrated yet.
	ErrOlder = errors.New("an older foldgate wrote it")
	// ErrDamaged matches an error for damaged data; see [IsDamaged].
	ErrDamaged = errors.New("damaged")
	// ErrInUse matches an error for a lock that another process holds; see [IsInUse].
	ErrInUse = errors.New("it is locked")
)

// Options describe a database.
type Options struct {
	// Migrations make the schema. Each runs once, in this order; user_version counts them, from firstVersion
	// on. A migration never changes after its release. Without any, each schema is right.
	Migrations []string
	// ApplicationID marks the file. Open refuses a file that has tables and another mark. Zero
	// marks nothing and accepts any mark.
	ApplicationID int
	BusyTimeout   time.Duration // bounds the wait for a lock of another connection; 0 means 5 s
	QuickCheck    bool          // looks for damage in the whole file
	Pragmas       []string      // further settings of each connection, such as "wal_autocheckpoint(0)"
}

// firstVersion is the user_version with the first migration. Builds before the first release had others with the numbers
// below.
const firstVersion = 11

// Open opens or creates the database at path, in a directory that exists, and migrates it. Only
// the owner can read a new file. Open does not change a file that it refuses.
func Open(ctx context.Context, path string, o Options) (*sql.DB, error) {
	if err := create(path); err != nil {
		return nil, err
	}
	// The settings change a file, so the check uses a connection without them.
	plain, err := connect(path, "", o.BusyTimeout, nil, func(db *sql.DB) error { return o.check(ctx, db) })
	if err != nil {
		return nil, err
	}
	plain.Close()
	pragmas := append([]string{"journal_mode(WAL)", "synchronous(NORMAL)", "journal_size_limit(8388608)", "foreign_keys(ON)"}, o.Pragmas...)
	if err := o.prepare(ctx, path, pragmas); err != nil {
		return nil, err
	}
	return connect(path, immediate, o.BusyTimeout, pragmas, func(db *sql.DB) error { return db.PingContext(ctx) })
}

// prepare gives the file its write-ahead log and its schema.
func (o Options) prepare(ctx context.Context, path string, pragmas []string) error {
	return Retry(ctx, cmp.Or(o.BusyTimeout, busyTimeout), func() error {
		db, err := connect(path, immediate, time.Millisecond, pragmas, func(db *sql.DB) error {
			return Update(ctx, db, func(tx *sql.Tx) error { return o.migrate(ctx, tx) })
		})
		if err != nil {
			return err
		}
		return db.Close()
	})
}

// Retry calls f again, for up to wait, while it fails because another connection holds a lock. It
// pauses for a millisecond. SQLite's own wait soon tries only ten times a second. So it can miss the short
// times in which a process that always writes does not hold the lock. SQLite does not wait at all while
// another connection makes a new log.
func Retry(ctx context.Context, wait time.Duration, f func() error) error {
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		if err := f(); !IsInUse(err) || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
	}
}

const immediate = "_txlock=immediate" // transactions take the write lock when they begin

const busyTimeout = 5 * time.Second

// OpenReadOnly opens a database that [Open] has created, even while another process writes it. It
// does not migrate.
func OpenReadOnly(ctx context.Context, path string, o Options) (*sql.DB, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err // SQLite's own error does not name the cause
	}
	return connect(path, "mode=ro", o.BusyTimeout, o.Pragmas, func(db *sql.DB) error {
		version, err := o.version(ctx, db)
		if known := len(o.Migrations); err == nil && version < known {
			err = fmt.Errorf("it has %d migrations, and this foldgate reads %d: %w", version, known, ErrOlder)
		}
		return err
	})
}

// Examine returns why [Open] would refuse the file at path, nil if it would not or if that can't be
// told now, such as while another process holds it. It leaves no file behind but a -shm
// beside a -wal of a process that died.
func Examine(ctx context.Context, path string, o Options) error {
	param := "mode=ro"
	if _, err := os.Stat(path + "-wal"); errors.Is(err, fs.ErrNotExist) { // nobody uses it, and SQLite would make one
		param += "&immutable=1"
	}
	db, err := connect(path, param, 0, nil, func(db *sql.DB) error {
		_, err := o.version(ctx, db)
		return cmp.Or(err, quickCheck(ctx, db))
	})
	switch {
	case err == nil:
		return db.Close()
	case refused(err):
		return err
	}
	return nil
}

// refused reports whether an error of Open is about the file, and lasts.
func refused(err error) bool {
	return IsDamaged(err) || errors.Is(err, ErrForeign) || errors.Is(err, ErrEarly) || errors.Is(err, ErrNewer)
}

// Recreate is [Open] for data that can be made again: if the file is damaged, foreign, early or newer,
// it deletes it and starts with an empty one.
func Recreate(ctx context.Context, path string, o Options) (*sql.DB, error) {
	db, err := Open(ctx, path, o)
	if err == nil || !refused(err) {
		return db, err
	}
	if err := Remove(path); err != nil {
		return nil, err
	}
	return Open(ctx, path, o)
}

// Remove deletes a database and its log, if there are any.
func Remove(path string) error {
	for _, name := range []string{path + "-wal", path + "-shm", path} { // the log first: SQLite would apply it to a new file
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Memory opens an empty database in memory.
func Memory() (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err == nil {
		db.SetMaxOpenConns(1) // each connection would be a database of its own
	}
	return db, err
}

// Update runs f in a transaction of a *sql.DB or a *sql.Conn. An error of f undoes it.
func Update(ctx context.Context, db interface {
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // err says more
		return err
	}
	return tx.Commit()
}

// Querier is a database or a transaction.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Rows yields nil for each row of a query, which is then in into, and an error if the query fails.
func Rows(ctx context.Context, q Querier, into []any, query string, args ...any) iter.Seq[error] {
	return func(yield func(error) bool) {
		rows, err := q.QueryContext(ctx, query, args...)
		if err != nil {
			yield(err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			if !yield(rows.Scan(into...)) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(err)
		}
	}
}

// Collect returns the rows of a query. Each is a copy of row after it was read into the fields into of row.
func Collect[T any](ctx context.Context, q Querier, row *T, into []any, query string, args ...any) (all []T, err error) {
	for err := range Rows(ctx, q, into, query, args...) {
		if err != nil {
			return nil, err
		}
		all = append(all, *row)
	}
	return all, nil
}

// Checkpoint moves the log of a database into it, for one with the setting wal_autocheckpoint(0). It waits for
// the disk, writers do not. A log that has been moved starts over by itself. If writers never pause, Checkpoint
// stops them for that, and holds writing. A failure loses nothing: the log grows until a Checkpoint succeeds.
func Checkpoint(db *sql.DB, writing sync.Locker) {
	const most = 8192        // pages: 32 MB
	var busy, log, moved int // pages
	err := db.QueryRow("PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &log, &moved)
	if err == nil && log >= most {
		writing.Lock()
		defer writing.Unlock()
		_, _ = db.Exec("PRAGMA wal_checkpoint(RESTART)")
	}
}

// IsDamaged reports whether err means that a file is damaged or not a database.
func IsDamaged(err error) bool {
	return errors.Is(err, ErrDamaged) || isCode(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
}

// IsInUse reports whether err means that another connection holds a lock.
func IsInUse(err error) bool {
	return errors.Is(err, ErrInUse) || isCode(err, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
}

// IsUnavailable reports whether err means that a file can't be used now, which is no fault of its data:
// another connection holds a lock, the disk is full or fails, memory is short, or the right is missing.
func IsUnavailable(err error) bool {
	return IsInUse(err) || isCode(err, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN,
		sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL)
}

// Explain adds to an error of a database what the database is, its path, and what the user can do. away ends the advice
// to move the file away. Only a damaged file gets that advice: a whole one must not be moved because the disk is full.
func Explain(err error, what, path, away string) error {
	switch {
	case err == nil:
		return nil
	case IsDamaged(err):
		return fmt.Errorf("%s %s is damaged or not a database: restore it from a backup, or move it and its -wal file away %s: %w", what, path, away, err)
	case IsInUse(err):
		return fmt.Errorf("%s %s is in use by another process: stop that one, or name another state_dir: %w", what, path, err)
	case errors.Is(err, ErrForeign), errors.Is(err, ErrEarly):
		return fmt.Errorf("%s %s: %w: name another state_dir", what, path, err)
	case errors.Is(err, ErrNewer):
		return fmt.Errorf("%s %s: %w: use that version, or name another state_dir", what, path, err)
	case openfiles.Exceeded(err), isCode(err, sqlite3.SQLITE_CANTOPEN) && openfiles.Few():
		return fmt.Errorf("%s %s: %w; %s", what, path, err, openfiles.Remedy)
	case IsUnavailable(err), errors.As(err, new(*fs.PathError)):
		return fmt.Errorf("%s %s: %w; make room on the disk, and see that foldgate can write it", what, path, err)
	}
	return fmt.Errorf("%s %s: %w", what, path, err)
}

func isCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && slices.Contains(codes, e.Code()&0xff) // without the extended part
}

// create creates the file at path for its owner only, if there is none. SQLite would give it
// wider permissions. The log gets the permissions of the file.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// connect returns connections to a file with our settings, once ready has succeeded. param is another
// parameter of the driver or of SQLite, or "".
func connect(path, param string, wait time.Duration, pragmas []string, ready func(*sql.DB) error) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	busy := fmt.Sprintf("busy_timeout(%d)", cmp.Or(wait, busyTimeout).Milliseconds())
	query := url.Values{"_pragma": append([]string{busy, "trusted_schema(OFF)"}, pragmas...)}
	path = "/" + strings.TrimPrefix(filepath.ToSlash(path), "/") // a drive letter gets a slash
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: param + "&" + query.Encode()}).String())
	if err != nil {
		return nil, err
	}
	if err := ready(db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// check refuses a file that is foreign, newer or damaged.
func (o Options) check(ctx context.Context, db *sql.DB) error {
	if _, err := o.version(ctx, db); err != nil || !o.QuickCheck {
		return err
	}
	return quickCheck(ctx, db)
}

func quickCheck(ctx context.Context, db *sql.DB) error {
	var verdict string
	err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict)
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("%w: %s", ErrDamaged, verdict)
	}
	return err
}

// version returns the number of migrations that a file has had.
func (o Options) version(ctx context.Context, q interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (version int, err error) {
	var id, tables int
	const query = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id, pragma_user_version"
	if err := q.QueryRowContext(ctx, query).Scan(&id, &version, &tables); err != nil {
		return 0, err
	}
	if o.ApplicationID != 0 && tables > 0 && id != o.ApplicationID {
		return 0, ErrForeign
	}
	if err := early(version); err != nil || version == 0 {
		return 0, err
	}
	version -= firstVersion - 1
	if known := len(o.Migrations); known > 0 && version > known {
		return 0, fmt.Errorf("%w (schema %d, this one knows up to %d)", ErrNewer, version+firstVersion-1, known+firstVersion-1)
	}
	return version, nil
}

// early refuses a user_version of before the first release. 0 is that of a new file.
func early(version int) error {
	if version > 0 && version < firstVersion {
		return fmt.Errorf("it has schema %d: %w", version, ErrEarly)
	}
	return nil
}

// migrate brings the schema up to date. The transaction holds the write lock, so two processes
// can't migrate at once.
func (o Options) migrate(ctx context.Context, tx *sql.Tx) error {
	version, err := o.version(ctx, tx)
	if err != nil {
		return err
	}
	for i := version; i < len(o.Migrations); i++ {
		step := fmt.Sprintf("PRAGMA application_id = %d; %s; PRAGMA user_version = %d", o.ApplicationID, o.Migrations[i], firstVersion+i)
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("schema %d: %w", firstVersion+i, err)
		}
	}
	return nil
}
