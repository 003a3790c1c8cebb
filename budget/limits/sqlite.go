package limits

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	) WITHOUT ROWID; -- an index of expires would double the cost of a change
	CREATE TABLE places (
		place  TEXT PRIMARY KEY,
		n      INTEGER NOT NULL,  -- the last operation of the place
		tokens INTEGER NOT NULL,  -- that it has taken
		calls  INTEGER NOT NULL,
		at     INTEGER NOT NULL   -- seconds since 1970
	) WITHOUT ROWID;
`}

// Schema is that of the file; "flim" marks it.
var Schema = sqlitedb.Options{Migrations: migrations, ApplicationID: 0x666c696d}

const (
	tidyAfter  = 512     // transactions until tidy runs
	maxExpired = 4096    // counters that it deletes at most, of those that have expired
	maxBatch   = 128     // operations in a transaction
	maxAnswers = 1 << 14 // takes that are remembered

	lockWait = 5 * time.Second // for the transaction of another process
)

// file is the SQLite [Store]. Operations that wait at the same time share a transaction.
type file struct {
	path   string
	log    *slog.Logger
	now    func() time.Time
	steady func() time.Time // see OpenSQLite
	most   int              // counters

	mu      sync.Mutex // guards the fields below
	db      *sql.DB
	opened  os.FileInfo // of the file of db
	queue   []*request
	writing bool // the goroutine write runs
	closed  bool
	running sync.WaitGroup // for write; begins with mu held

	// Only write uses these.
	conn    writer
	stmts   map[stmt]*sql.Stmt
	answers map[string]memory
	order   []string // of answers, the oldest first
	commits int
}

// stmt names a statement for so many counters.
type stmt struct {
	kind     stmtKind
	counters int
}

type stmtKind int

const (
	get stmtKind = iota
	add
	raise
	sub // of one counter, by amounts up to 0
	keepPlace
	readPlace
)

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
	deleted []string // keys of counters

	was    memory // of an operation that is known
	known  bool
	answer Answer // valid once done has sent nil
	err    error  // of this operation alone
	done   chan error
}

// OpenSQLite opens or creates a store in a file, in a directory that it creates for its owner only.
// Processes of one machine can share it. Operations survive the death of a process. A power failure
// can lose the newest ones. If the file is removed or replaced while it is open, the store counts on
// with what is there, and says so in the log. Counts are deleted once they are old by two clocks: that of the machine,
// and steady, which does not jump. nil stands for the clock of the machine.
func OpenSQLite(path string, log *slog.Logger, steady func() time.Time) (Store, error) {
	return openSQLite(path, log, time.Now, steady)
}

func openSQLite(path string, log *slog.Logger, now, steady func() time.Time) (Store, error) {
	if steady == nil {
		steady = now
	}
	f := &file{path: path, log: log, now: now, steady: steady, most: maxCounters, stmts: map[stmt]*sql.Stmt{}, answers: map[string]memory{}}
	if err := f.open(context.Background()); err != nil {
		return nil, f.diagnose(err)
	}
	return f, nil
}

func (f *file) open(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	o := Schema
	o.Pragmas = []string{"wal_autocheckpoint(0)"} // tidy does it
	db, err := sqlitedb.Open(ctx, f.path, o)
	if err != nil {
		return err
	}
	opened, err := os.Stat(f.path)
	conn, connErr := db.Conn(ctx)
	if connErr == nil {
		_, connErr = conn.ExecContext(ctx, "PRAGMA busy_timeout = 0") // BeginTx waits
	}
	if err = errors.Join(err, connErr); err != nil {
		return errors.Join(err, db.Close())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.db, f.conn, f.opened = db, writer{conn}, opened
	return nil
}

// writer is the connection that writes. Its transactions wait for others as [sqlitedb.Retry] does.
type writer struct{ *sql.Conn }

// BeginTx waits up to lockWait for the lock.
func (w writer) BeginTx(ctx context.Context, o *sql.TxOptions) (tx *sql.Tx, err error) {
	err = sqlitedb.Retry(ctx, lockWait, func() error {
		tx, err = w.Conn.BeginTx(ctx, o)
		return err
	})
	return tx, err
}

// follow opens the file again if another one is in its place, or none: it was restored, or it is to
// be built again.
func (f *file) follow(ctx context.Context) error {
	if f.current() {
		return nil
	}
	before := file{db: f.database(), conn: f.conn, stmts: f.stmts}
	if err := f.open(ctx); err != nil {
		return err
	}
	f.log.Warn("the database of limits was removed or replaced: limits count on with what is in its place", "file", f.path)
	f.stmts, f.answers, f.order = map[stmt]*sql.Stmt{}, map[string]memory{}, nil
	return before.release()
}

// current reports whether the file that is open is in its place.
func (f *file) current() bool {
	f.mu.Lock()
	opened := f.opened
	f.mu.Unlock()
	now, err := os.Stat(f.path)
	return err == nil && os.SameFile(now, opened)
}

// release closes the file. SQLite moves the log into it, unless a statement is left open.
func (f *file) release() error {
	for _, s := range f.stmts {
		s.Close()
	}
	return errors.Join(f.conn.Close(), f.db.Close())
}

func (f *file) database() *sql.DB {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.db
}

// stmt returns a prepared statement. One statement for all counters costs half of one for each.
func (f *file) stmt(ctx context.Context, kind stmtKind, counters int) (*sql.Stmt, error) {
	key := stmt{kind, counters}
	if s := f.stmts[key]; s != nil {
		return s, nil
	}
	var text string
	switch kind {
	case get:
		const one = "SELECT ifnull(sum(tokens), 0), ifnull(sum(calls), 0) FROM counters WHERE key = ? AND bucket >= ?"
		text = one + strings.Repeat(" UNION ALL "+one, counters-1)
	case sub:
		text = "UPDATE counters SET tokens = max(tokens + ?4, 0), calls = max(calls + ?5, 0) WHERE key = ?1 AND bucket = ?2 AND ?3 > 0"
	case keepPlace:
		text = "INSERT OR REPLACE INTO places (place, n, tokens, calls, at) VALUES (?, ?, ?, ?, ?)"
	case readPlace:
		text = "SELECT n, tokens, calls FROM places WHERE place = ?"
	default:
		const one = "(?, ?, ?, ?, ?)"
		text = "INSERT INTO counters (key, bucket, expires, tokens, calls) VALUES " + one + strings.Repeat(", "+one, counters-1) + " ON CONFLICT DO UPDATE SET expires = max(expires, excluded.expires), "
		if kind == add {
			text += "tokens = max(tokens + excluded.tokens, 0), calls = max(calls + excluded.calls, 0)"
		} else {
			text += "tokens = max(tokens, excluded.tokens), calls = max(calls, excluded.calls)"
		}
	}
	s, err := f.conn.PrepareContext(ctx, text)
	if err == nil {
		f.stmts[key] = s
	}
	return s, err
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
		f.running.Go(f.write)
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
			f.mu.Unlock()
			return
		}
		f.queue = nil
		if len(batch) > maxBatch {
			batch, f.queue = batch[:maxBatch], batch[maxBatch:]
		}
		f.mu.Unlock()

		ctx := context.Background() // the driver starts a goroutine for one that can be cancelled
		err := f.follow(ctx)
		if err == nil {
			err = sqlitedb.Update(ctx, f.conn, func(*sql.Tx) error {
				for _, r := range batch {
					if err := f.run(ctx, r); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for _, r := range batch {
			if err != nil && r.known {
				f.answers[r.id] = r.was
			} else if err != nil {
				delete(f.answers, r.id)
			}
			r.done <- cmp.Or(f.diagnose(err), r.err)
		}
		if f.commits++; f.commits%tidyAfter == 0 {
			f.tidy(ctx)
		}
	}
}

// run runs an operation in the transaction.
func (f *file) run(ctx context.Context, r *request) error {
	r.was, r.known = f.answers[r.id]
	switch {
	case r.deleted != nil:
		for _, key := range r.deleted {
			if _, err := f.conn.ExecContext(ctx, "DELETE FROM counters WHERE key = ?", key); err != nil {
				return err
			}
		}
		return nil
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
	counters := r.take.Counters
	used, err := f.used(ctx, counters)
	if err != nil {
		return err
	}
	r.answer = r.take.decide(used, f.now())
	if r.answer.Stale {
		return nil
	}
	if taken := r.answer.taken; taken != (Used{}) {
		changes := make([]Change, len(counters))
		for i, c := range counters {
			changes[i] = Change{c.Key, c.Bucket, c.Expires, taken}
		}
		if err := f.put(ctx, add, changes); err != nil {
			return err
		}
	}
	return f.remember(ctx, r.id, r.answer)
}

// used returns what has been taken from each counter.
func (f *file) used(ctx context.Context, counters []Counter) ([]Used, error) {
	s, err := f.stmt(ctx, get, len(counters))
	if err != nil {
		return nil, err
	}
	args := make([]any, 0, 2*len(counters))
	for _, c := range counters {
		args = append(args, c.Key, c.Oldest)
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	used := make([]Used, 0, len(counters))
	for rows.Next() {
		var u Used
		if err := rows.Scan(&u.Tokens, &u.Calls); err != nil {
			return nil, err
		}
		used = append(used, u)
	}
	return used, rows.Err()
}

// put adds amounts from 0 to counters, or raises them, or subtracts from them.
func (f *file) put(ctx context.Context, kind stmtKind, changes []Change) error {
	most := maxLimits
	if kind == sub {
		most = 1
	}
	for some := range slices.Chunk(changes, most) {
		s, err := f.stmt(ctx, kind, len(some))
		if err != nil {
			return err
		}
		args := make([]any, 0, 5*len(some))
		for _, c := range some {
			args = append(args, c.Key, c.Bucket, c.Expires, c.Tokens, c.Calls)
		}
		if _, err := s.ExecContext(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) change(ctx context.Context, r *request) error {
	taken, known := r.was.taken, r.known
	if !known {
		var err error
		if taken, known, err = f.lasting(ctx, r.id); err != nil {
			return err
		}
	}
	var up, down []Change
	for _, c := range r.changes {
		switch {
		case r.how == Add && known:
			return nil
		case r.how == Undo:
			c.Used = Used{-taken.Tokens, -taken.Calls}
		}
		less := Used{min(c.Tokens, 0), min(c.Calls, 0)}
		c.Used = Used{max(c.Tokens, 0), max(c.Calls, 0)}
		if c.Used != (Used{}) {
			up = append(up, c)
		}
		if c.Used = less; less != (Used{}) && r.how != Raise {
			down = append(down, c)
		}
	}
	kind := add
	if r.how == Raise {
		kind = raise
	}
	if err := f.put(ctx, kind, up); err != nil {
		return err
	}
	if err := f.put(ctx, sub, down); err != nil {
		return err
	}
	if r.id == "" {
		return nil
	}
	return f.remember(ctx, r.id, undone)
}

// place splits the id of an operation that another process may ask for into its place and the number
// of the operation there.
func place(id string) (place string, n int64, ok bool) {
	place, number, _ := strings.Cut(id, ".")
	n, err := strconv.ParseInt(number, 36, 64)
	return place, n, err == nil
}

// lasting returns what an operation of another process has taken, if it has happened.
func (f *file) lasting(ctx context.Context, id string) (taken Used, known bool, err error) {
	place, n, ok := place(id)
	if !ok {
		return taken, false, nil
	}
	s, err := f.stmt(ctx, readPlace, 1)
	if err != nil {
		return taken, false, err
	}
	var last int64
	err = s.QueryRowContext(ctx, place).Scan(&last, &taken.Tokens, &taken.Calls)
	if errors.Is(err, sql.ErrNoRows) {
		return taken, false, nil
	}
	if last != n {
		taken = Used{}
	}
	return taken, last >= n, err
}

// remember keeps the answer of an operation, and forgets old ones.
func (f *file) remember(ctx context.Context, id string, a Answer) error {
	if place, n, ok := place(id); ok {
		s, err := f.stmt(ctx, keepPlace, 1)
		if err == nil {
			_, err = s.ExecContext(ctx, place, n, a.taken.Tokens, a.taken.Calls, f.now().Unix())
		}
		if err != nil {
			return err
		}
	}
	if _, known := f.answers[id]; !known {
		f.order = append(f.order, id)
	}
	now := time.Now()
	f.answers[id] = memory{a, now}
	for len(f.order) > maxAnswers || now.Sub(f.answers[f.order[0]].at) > rememberOps {
		delete(f.answers, f.order[0])
		f.order = f.order[1:]
	}
	return nil
}

// tidy deletes some expired counters and moves the log into the database. What fails here is done
// the next time.
func (f *file) tidy(ctx context.Context) {
	const first = "DELETE FROM counters WHERE (key, bucket) IN (SELECT key, bucket FROM counters WHERE expires < ? ORDER BY expires LIMIT "
	// A part of a rolling window stops counting keep before it expires. Short windows would have too
	// many parts until then: one is deleted when it has not counted for as long as it has counted.
	const old = "DELETE FROM counters WHERE bucket > 0 AND expires - ?1 > bucket AND expires - ?1 + min(expires - ?1 - bucket, ?1) < ?2"
	now := min(f.now().Unix(), f.steady().Unix())
	_ = sqlitedb.Update(ctx, f.conn, func(tx *sql.Tx) (err error) {
		exec := func(query string, args ...any) {
			if err == nil {
				_, err = tx.ExecContext(ctx, query, args...)
			}
		}
		exec(first+"?)", now, maxExpired)
		exec("DELETE FROM places WHERE at < ?", now-int64(2*rememberOps/time.Second))
		exec(old, keep, now)
		exec(first+"max((SELECT count(*) FROM counters) - ?, 0))", int64(math.MaxInt64), f.most)
		return err
	})
	go sqlitedb.Checkpoint(f.database(), new(sync.Mutex)) // it waits for the disk; SQLite makes writes wait if they must
}

func (f *file) List(ctx context.Context, keys ...string) (all []Count, err error) {
	if !f.current() {
		if err := f.Delete(ctx, []string{}); err != nil { // deletes nothing: write opens the file that is there now
			return nil, err
		}
	}
	query, args := "SELECT key, bucket, tokens, calls FROM counters", make([]any, len(keys))
	for i, key := range keys {
		args[i] = key
	}
	if len(keys) > 0 {
		query += " WHERE key IN (?" + strings.Repeat(", ?", len(keys)-1) + ")"
	}
	var c Count
	all, err = sqlitedb.Collect(ctx, f.database(), &c, []any{&c.Key, &c.Bucket, &c.Tokens, &c.Calls}, query, args...)
	return all, f.diagnose(err)
}

func (f *file) Delete(ctx context.Context, keys []string) error {
	return f.do(&request{ctx: ctx, deleted: keys})
}

// Close ends the operations that wait.
func (f *file) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.running.Wait()
	return f.release()
}

// diagnose adds to an error what the user can do about it.
func (f *file) diagnose(err error) error {
	return sqlitedb.Explain(err, "database of limits", f.path, `and run "foldgate budgets rebuild"`)
}
