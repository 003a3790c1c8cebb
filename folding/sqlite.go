package folding

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/filelock"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// migrations make the schema; see [sqlitedb.Options].
var migrations = []string{`
	CREATE TABLE branches (
		id           TEXT PRIMARY KEY,
		parent_id    TEXT NOT NULL,
		principal    TEXT NOT NULL,
		session      TEXT NOT NULL,
		origin       TEXT NOT NULL,
		context      TEXT NOT NULL,
		depth        INTEGER NOT NULL,
		description  TEXT NOT NULL,
		prompt       TEXT NOT NULL,
		status       TEXT NOT NULL,
		reason       TEXT NOT NULL DEFAULT '',
		error        TEXT NOT NULL DEFAULT '',
		digest       TEXT NOT NULL DEFAULT '',
		message      TEXT NOT NULL DEFAULT '',
		late         INTEGER NOT NULL DEFAULT 0,
		budget_used  INTEGER NOT NULL,
		budget_total INTEGER NOT NULL,
		activity     TEXT NOT NULL,              -- JSON of Activity
		created_at   INTEGER NOT NULL,           -- microseconds since 1970
		expires_at   INTEGER NOT NULL,
		completed_at INTEGER NOT NULL DEFAULT 0, -- 0 while it lives
		handles      TEXT NOT NULL,
		returned_by  TEXT NOT NULL,
		subject      TEXT NOT NULL,
		claims       TEXT NOT NULL
	);
	CREATE INDEX branches_active ON branches (created_at) WHERE status = 'active';
	CREATE INDEX branches_ended ON branches (completed_at, id) WHERE completed_at > 0;
`}

// Schema is that of the database; "fold" marks it.
var Schema = sqlitedb.Options{Migrations: migrations, ApplicationID: 0x666f6c64}

// lockWait bounds the wait for another process that has the database open.
const lockWait = time.Second

// database is the SQLite [Repository].
type database struct {
	path string
	db   *sql.DB        // readers
	open []func() error // what release calls, the last first

	progress *progressFile

	write          sync.Mutex // held during a transaction; guards the fields below
	conn           *sql.Conn  // the one connection that writes
	create, finish *sql.Stmt  // on it
	commits        int

	checkpoints sync.WaitGroup
}

// OpenSQLite opens or creates a database at path, in a directory that it creates for its owner
// only. One process may have the database open. Applied changes survive the death of the process.
// A power failure or a crash of the operating system can lose the newest ones, but does not
// damage the database.
//
// The error says what to do about a file that is damaged, not a database, not foldgate's, written
// by a newer foldgate, or in use.
func OpenSQLite(path string) (_ Repository, err error) {
	if path, err = filepath.Abs(path); err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("state database: %w", err)
	}
	d := &database{path: path}
	defer func() {
		if err != nil {
			d.release()
			err = diagnose(path, err)
		}
	}()
	ctx := context.Background()
	// The lock keeps other processes out. It has a file of its own, since a lock on the database
	// would also keep our own readers out.
	waiting, cancel := context.WithTimeoutCause(ctx, lockWait, sqlitedb.ErrInUse)
	defer cancel()
	unlock, err := filelock.Wait(waiting, path+".lock")
	if err != nil {
		return nil, err
	}
	d.open = append(d.open, func() error { unlock(); return nil })
	o := Schema
	o.BusyTimeout, o.QuickCheck = lockWait, true
	o.Pragmas = []string{"wal_autocheckpoint(0)"} // Apply does it
	d.db, err = sqlitedb.Open(ctx, path, o)
	if err != nil {
		return nil, err
	}
	d.open = append(d.open, d.db.Close)
	if d.conn, err = d.db.Conn(ctx); err != nil {
		return nil, err
	}
	d.open = append(d.open, d.conn.Close)
	for _, s := range []struct {
		stmt **sql.Stmt
		text string
	}{{&d.create, createBranch}, {&d.finish, finishBranch}} {
		if *s.stmt, err = d.conn.PrepareContext(ctx, s.text); err != nil {
			return nil, err
		}
		d.open = append(d.open, (*s.stmt).Close)
	}
	active, err := d.active(ctx)
	if err != nil {
		return nil, err
	}
	if d.progress, err = openProgress(path+".progress", active); err != nil {
		return nil, err
	}
	d.open = append(d.open, d.progress.Close)
	return d, nil
}

const columns = `id, parent_id, principal, session, origin, context, depth, description, prompt, status,
	reason, error, digest, message, late, budget_used, budget_total, activity, created_at, expires_at, completed_at,
	handles, returned_by, subject, claims`

const (
	createBranch = "INSERT INTO branches (" + columns + ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
	finishBranch = `UPDATE branches SET status = ?, reason = ?, error = ?, digest = ?, message = ?, late = ?,
		budget_used = ?, activity = ?, completed_at = ?, returned_by = ? WHERE id = ?`
)

func (d *database) Active(ctx context.Context) ([]Branch, error) {
	out, err := d.active(ctx)
	for i := 0; err == nil && i < len(out); i++ {
		err = d.progress.read(&out[i])
	}
	return out, diagnose(d.path, err)
}

// active returns the branches that have not ended, as branches does.
func (d *database) active(ctx context.Context) ([]Branch, error) {
	return d.branches(ctx, "WHERE status = 'active' ORDER BY created_at, id")
}

// branches returns the branches that the end of a query selects, without the progress of active ones. The caller
// adds the diagnosis.
func (d *database) branches(ctx context.Context, end string, args ...any) (out []Branch, err error) {
	var r row
	rows, err := sqlitedb.Collect(ctx, d.db, &r, r.fields(), "SELECT "+columns+" FROM branches "+end, args...)
	for i := 0; err == nil && i < len(rows); i++ {
		var b Branch
		b, err = rows[i].branch()
		out = append(out, b)
	}
	return out, err
}

func (d *database) Get(ctx context.Context, id string) (Branch, bool, error) {
	found, err := d.branches(ctx, "WHERE id = ?", id)
	if err == nil && len(found) > 0 && !found[0].Status.Terminal() {
		err = d.progress.read(&found[0])
	}
	if err != nil || len(found) == 0 {
		return Branch{}, false, diagnose(d.path, err)
	}
	return found[0], true, nil
}

func (d *database) Progress(b Branch) error {
	return diagnose(d.path, d.progress.write(b))
}

// row is a branch as the database has it.
type row struct {
	Branch
	activity                    string // JSON
	created, expires, completed int64  // microseconds since 1970; 0 is the zero time
}

// fields returns pointers to the fields, in the order of columns.
func (r *row) fields() []any {
	return []any{&r.ID, &r.ParentID, &r.Principal, &r.Session, &r.Origin, &r.Context, &r.Depth, &r.Description, &r.Prompt, &r.Status,
		&r.Reason, &r.Error, &r.Digest, &r.Message, &r.Late, &r.BudgetUsed, &r.BudgetTotal, &r.activity, &r.created, &r.expires, &r.completed,
		&r.Handles, &r.ReturnedBy, &r.Subject, &r.Claims}
}

func (r *row) branch() (Branch, error) {
	b := r.Branch
	if err := json.Unmarshal([]byte(r.activity), &b.Activity); err != nil {
		return b, fmt.Errorf("%w: activity of branch %s: %w", sqlitedb.ErrDamaged, b.ID, err)
	}
	b.CreatedAt, b.ExpiresAt, b.CompletedAt = fromMicros(r.created), fromMicros(r.expires), fromMicros(r.completed)
	return b, nil
}

func (d *database) Apply(ctx context.Context, branches []Branch) (err error) {
	d.write.Lock()
	defer d.write.Unlock()
	for _, b := range branches {
		if !b.Status.Terminal() { // a branch in the database has a page
			if err := d.progress.add(b); err != nil {
				return diagnose(d.path, err)
			}
		}
	}
	if len(branches) == 1 { // a single statement is a transaction
		err = d.apply(ctx, branches[0])
	} else {
		err = sqlitedb.Update(ctx, d.conn, func(*sql.Tx) error {
			for _, b := range branches {
				if err := d.apply(ctx, b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, b := range branches {
		if b.Status.Terminal() == (err == nil) {
			d.progress.remove(b.ID)
		}
	}
	if err != nil {
		return diagnose(d.path, err)
	}
	if d.commits++; d.commits%checkpointAfter == 0 {
		d.checkpoints.Go(func() { // it waits for the disk
			_ = d.progress.file.Sync() // not older on the disk than the database
			sqlitedb.Checkpoint(d.db, &d.write)
		})
	}
	return nil
}

// checkpointAfter is the number of transactions after which the log is moved into the database.
const checkpointAfter = 1000

// apply writes one branch, in the transaction of d.conn if there is one. d.write is held.
func (d *database) apply(ctx context.Context, b Branch) error {
	activity, err := json.Marshal(b.Activity)
	r := row{b, string(activity), micros(b.CreatedAt), micros(b.ExpiresAt), micros(b.CompletedAt)}
	switch {
	case err != nil:
	case b.Status.Terminal():
		_, err = d.finish.ExecContext(ctx, b.Status, b.Reason, b.Error, b.Digest, b.Message, b.Late, b.BudgetUsed, r.activity, r.completed, b.ReturnedBy, b.ID)
	default:
		_, err = d.create.ExecContext(ctx, r.fields()...)
	}
	if err != nil {
		return fmt.Errorf("branch %s: %w", b.ID, err)
	}
	return nil
}

func (d *database) Forget(ctx context.Context, before, latest time.Time, limit int) (int, error) {
	d.write.Lock()
	defer d.write.Unlock()
	if _, err := d.conn.ExecContext(ctx, "UPDATE branches SET completed_at = ?1 WHERE completed_at > 0 AND completed_at > ?1", micros(latest)); err != nil {
		return 0, diagnose(d.path, err)
	}
	const due = "SELECT id FROM branches WHERE completed_at > 0 AND completed_at < ? ORDER BY completed_at, id LIMIT ?"
	res, err := d.conn.ExecContext(ctx, "DELETE FROM branches WHERE id IN ("+due+")", micros(before), limit)
	if err != nil {
		return 0, diagnose(d.path, err)
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// Close moves the log into the database.
func (d *database) Close() error {
	d.checkpoints.Wait()
	return d.release()
}

// release closes the parts that are open.
func (d *database) release() error {
	var errs []error
	for _, end := range slices.Backward(d.open) {
		errs = append(errs, end())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("state database %s: %w", d.path, err)
	}
	return nil
}

// micros returns a time as it is stored; 0 is the zero time.
func micros(t time.Time) int64 { return max(t.UnixMicro(), 0) }

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// diagnose adds to an error of SQLite what the user can do about it.
func diagnose(path string, err error) error {
	return sqlitedb.Explain(err, "state database", path, "to start without branches")
}
