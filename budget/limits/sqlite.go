package limits

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

var migrations = []string{`
	CREATE TABLE counters (
		key     TEXT NOT NULL,
		bucket  INTEGER NOT NULL,  -- the part of a rolling window, else 0
		tokens  INTEGER NOT NULL,
		calls   INTEGER NOT NULL,
		expires INTEGER NOT NULL,  -- seconds since 1970
		PRIMARY KEY (key, bucket)
	) WITHOUT ROWID;
	CREATE INDEX counters_expiry ON counters (expires);
`}

// applicationID marks the database as foldgate's: "flim".
const applicationID = 0x666c696d

const (
	cleanAfter  = 64      // transactions until some expired counters are deleted
	cleanAtMost = 256     // so many
	countAfter  = 4 * 64  // transactions until counters are counted
	maxBatch    = 128     // operations in a transaction
	maxAnswers  = 1 << 14 // takes that are remembered
	logPages    = 8192    // the log of the database starts over after so many: 32 MB
)

// file is the SQLite [Store]. Operations that wait at the same time share a transaction.
type file struct {
	path string
	now  func() time.Time
	db   *sql.DB

	mu      sync.Mutex // guards the fields below
	queue   []*request
	writing bool // the goroutine write runs
	closed  bool
	stopped sync.Cond // write has ended

	// Only write uses these.
	conn            *sql.Conn
	get, add, raise *sql.Stmt
	answers         map[string]memory // ids are of this process: others don't need its answers
	order           []string          // of answers, the oldest first
	commits         int
}

type memory struct {
	Answer
	at time.Time
}

// request is an operation that waits for its transaction.
type request struct {
	ctx     context.Context
	take    *Op
	id      string
	how     How
	changes []Change

	was    memory // of an operation that is known
	known  bool
	answer Answer // valid once done has sent nil
	err    error  // of this operation alone
	done   chan error
}

// OpenSQLite opens or creates a store in a file, in a directory that it creates for its owner only.
// Processes of one machine can share it. Operations survive the death of a process. A power failure
// can lose the newest ones.
func OpenSQLite(path string) (Store, error) { return openSQLite(path, time.Now) }

func openSQLite(path string, now func() time.Time) (Store, error) {
	f := &file{path: path, now: now, answers: map[string]memory{}}
	f.stopped.L = &f.mu
	if err := f.open(context.Background()); err != nil {
		if f.db != nil {
			f.db.Close()
		}
		return nil, f.diagnose(err)
	}
	return f, nil
}

func (f *file) open(ctx context.Context) (err error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	f.db, err = sqlitedb.Open(ctx, f.path, sqlitedb.Options{
		Migrations: migrations, ApplicationID: applicationID,
		Pragmas: []string{"wal_autocheckpoint(0)"}, // tidy does it
	})
	if err != nil {
		return err
	}
	if f.conn, err = f.db.Conn(ctx); err != nil {
		return err
	}
	if f.get, err = f.conn.PrepareContext(ctx, "SELECT ifnull(sum(tokens), 0), ifnull(sum(calls), 0) FROM counters WHERE key = ? AND bucket >= ?"); err != nil {
		return err
	}
	const insert = "INSERT INTO counters (key, bucket, tokens, calls, expires) VALUES (?1, ?2, max(?3, 0), max(?4, 0), ?5) ON CONFLICT DO UPDATE SET "
	if f.add, err = f.conn.PrepareContext(ctx, insert+"tokens = max(tokens + ?3, 0), calls = max(calls + ?4, 0), expires = max(expires, ?5)"); err != nil {
		return err
	}
	f.raise, err = f.conn.PrepareContext(ctx, insert+"tokens = max(tokens, ?3), calls = max(calls, ?4), expires = max(expires, ?5)")
	return err
}

func (f *file) Take(ctx context.Context, op Op) (Answer, error) {
	r := &request{ctx: ctx, take: &op, id: op.ID}
	if err := f.do(r); err != nil {
		return Answer{}, err
	}
	return r.answer, nil
}

func (f *file) Change(ctx context.Context, id string, how How, changes []Change) error {
	return f.do(&request{ctx: ctx, id: id, how: how, changes: changes})
}

// do queues an operation and waits for its transaction.
func (f *file) do(r *request) error {
	r.done = make(chan error, 1)
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return errors.New("it is closed")
	}
	f.queue = append(f.queue, r)
	if !f.writing {
		f.writing = true
		go f.write()
	}
	f.mu.Unlock()
	select {
	case err := <-r.done:
		return err
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// write runs the operations of the queue until it is empty.
func (f *file) write() {
	for {
		f.mu.Lock()
		batch := f.queue
		if len(batch) == 0 {
			f.writing = false
			f.stopped.Broadcast()
			f.mu.Unlock()
			return
		}
		f.queue = nil
		if len(batch) > maxBatch {
			batch, f.queue = batch[:maxBatch], batch[maxBatch:]
		}
		f.mu.Unlock()

		ctx := context.Background() // the driver starts a goroutine for one that can be cancelled
		err := sqlitedb.Update(ctx, f.conn, func(*sql.Tx) error {
			for _, r := range batch {
				if err := f.run(ctx, r); err != nil {
					return err
				}
			}
			return nil
		})
		for _, r := range batch {
			if err != nil && r.known {
				f.answers[r.id] = r.was
			} else if err != nil {
				delete(f.answers, r.id)
			}
			if err != nil {
				r.err = f.diagnose(err)
			}
			r.done <- r.err
		}
		if f.commits++; f.commits%cleanAfter == 0 {
			f.tidy(ctx)
		}
	}
}

// run runs an operation in the transaction.
func (f *file) run(ctx context.Context, r *request) error {
	r.was, r.known = f.answers[r.id]
	switch {
	case r.take == nil:
		return f.change(ctx, r)
	case r.known:
		if r.answer = r.was.Answer; r.answer.Used == nil {
			r.err = errUndone
		}
		return nil
	case r.ctx.Err() != nil: // its caller has left
		r.err = r.ctx.Err()
		return nil
	}
	used := make([]Used, len(r.take.Counters))
	for i, c := range r.take.Counters {
		if err := f.get.QueryRowContext(ctx, c.Key, c.Oldest).Scan(&used[i].Tokens, &used[i].Calls); err != nil {
			return err
		}
	}
	r.answer = r.take.decide(used, f.now())
	if r.answer.Stale {
		return nil
	}
	if taken := r.answer.taken; taken != (Used{}) {
		for _, c := range r.take.Counters {
			if _, err := f.add.ExecContext(ctx, c.Key, c.Bucket, taken.Tokens, taken.Calls, c.Expires); err != nil {
				return err
			}
		}
	}
	f.remember(r.id, r.answer)
	return nil
}

func (f *file) change(ctx context.Context, r *request) error {
	stmt := f.add
	switch {
	case r.how == Raise:
		stmt = f.raise
	case r.how == Add && r.known:
		return nil
	}
	for _, c := range r.changes {
		if r.how == Undo {
			c.Used = Used{-r.was.taken.Tokens, -r.was.taken.Calls}
		}
		if _, err := stmt.ExecContext(ctx, c.Key, c.Bucket, c.Tokens, c.Calls, c.Expires); err != nil {
			return err
		}
	}
	if r.id != "" {
		f.remember(r.id, undone)
	}
	return nil
}

// remember keeps the answer of an operation, and forgets old ones.
func (f *file) remember(id string, a Answer) {
	if _, known := f.answers[id]; !known {
		f.order = append(f.order, id)
	}
	now := time.Now()
	f.answers[id] = memory{a, now}
	for len(f.order) > maxAnswers || now.Sub(f.answers[f.order[0]].at) > rememberOps {
		delete(f.answers, f.order[0])
		f.order = f.order[1:]
	}
}

// tidy deletes some expired counters and moves the log into the database. What fails here is done
// the next time.
func (f *file) tidy(ctx context.Context) {
	const some = "DELETE FROM counters WHERE (key, bucket) IN (SELECT key, bucket FROM counters WHERE expires < ? ORDER BY expires LIMIT ?)"
	_, _ = f.conn.ExecContext(ctx, some, f.now().Unix(), cleanAtMost)
	if f.commits%countAfter != 0 {
		return
	}
	var n int
	if err := f.conn.QueryRowContext(ctx, "SELECT count(*) FROM counters").Scan(&n); err == nil && n > maxCounters {
		_, _ = f.conn.ExecContext(ctx, some, int64(math.MaxInt64), n-maxCounters)
	}
	go func() { // it waits for the disk
		var busy, log, moved int
		err := f.db.QueryRow("PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &log, &moved)
		if err == nil && log >= logPages {
			_, _ = f.db.Exec("PRAGMA wal_checkpoint(RESTART)") // stops writers
		}
	}()
}

func (f *file) List(ctx context.Context, keys ...string) (all []Count, err error) {
	const query = "SELECT key, bucket, tokens, calls FROM counters"
	read := func(query string, args ...any) {
		var c Count
		for e := range sqlitedb.Rows(ctx, f.db, []any{&c.Key, &c.Bucket, &c.Tokens, &c.Calls}, query, args...) {
			if err = e; err != nil {
				return
			}
			all = append(all, c)
		}
	}
	if len(keys) == 0 {
		read(query)
	}
	for _, key := range keys {
		read(query+" WHERE key = ?", key)
		if err != nil {
			break
		}
	}
	if err != nil {
		return nil, f.diagnose(err)
	}
	return all, nil
}

func (f *file) Delete(ctx context.Context, keys []string) error {
	err := sqlitedb.Update(ctx, f.db, func(tx *sql.Tx) error {
		for _, key := range keys {
			if _, err := tx.ExecContext(ctx, "DELETE FROM counters WHERE key = ?", key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return f.diagnose(err)
	}
	return nil
}

// Close ends the operations that wait.
func (f *file) Close() error {
	f.mu.Lock()
	f.closed = true
	for f.writing {
		f.stopped.Wait()
	}
	f.mu.Unlock()
	return f.db.Close()
}

// diagnose adds to an error what the user can do about it.
func (f *file) diagnose(err error) error {
	switch {
	case sqlitedb.IsDamaged(err):
		return fmt.Errorf("database of limits %s is damaged: restore it from a backup, or move it and its -wal file away and run \"foldgate budgets rebuild\": %w", f.path, err)
	case sqlitedb.IsInUse(err):
		return fmt.Errorf("database of limits %s is locked by another process: end that one: %w", f.path, err)
	case errors.Is(err, sqlitedb.ErrForeign):
		return fmt.Errorf("database of limits %s: %w: name another state_dir", f.path, err)
	}
	return fmt.Errorf("database of limits %s: %w", f.path, err)
}
