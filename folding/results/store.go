// Package results stores folded results: results that were too large to deliver, and what folding
// them saved each branch.
//
// A handle is the name of a stored result. A result belongs to a principal and to the branch of
// its call.
package results

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/replicaid"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// Config limits a [Store].
type Config struct {
	// Quota is the limit of the store in bytes of results. A result that needs room evicts the
	// oldest ones of the principal who stores the most.
	Quota int64
	// TTL is how long a result is kept.
	TTL time.Duration
	// Strict lets only the session that made a result read it.
	Strict bool
	// Replica is the name of this process among replicas; handles have it. "" means that there is one process.
	Replica string
	// Now is the clock; nil means time.Now. Steady is one that does not jump, for ages; nil means Now.
	Now, Steady func() time.Time
}

// Result is a scrubbed result that was too large to deliver.
type Result struct {
	// Handle names the result: "res_", the name of the replica if there are several, and 26 random characters.
	Handle string
	// Principal and Session made the call. Context is the path of its branch, "" for main.
	Principal, Session, Context string
	// Server and Tool made the result; Server is "" for foldgate itself, Tool for a method that calls none.
	Server, Tool string
	// Kind is the format that the preview found. Text is the text of the result as a model would
	// have read it.
	Kind, Text string
	// Structured is the structured content as JSON, "" if Text says the same.
	Structured string
	// Tokens is the size of the result, Delivered that of its preview.
	Tokens, Delivered int
	CreatedAt         time.Time
}

// Sentinels for errors.Is. [folding.Code] and [folding.StatusCode] know them.
var (
	// ErrUnknown is a handle that does not exist, or a result that the caller may not read (404).
	// Both get the same text.
	ErrUnknown error = &folding.ErrorKind{Code: "result_not_found", Status: http.StatusNotFound, Text: "stored result not found"}
	// ErrEvicted is a result of the caller that is no longer kept (404).
	ErrEvicted error = &folding.ErrorKind{Code: "result_evicted", Status: http.StatusNotFound, Text: "stored result no longer kept"}
	// ErrTooLarge is a result that exceeds the whole quota; it is not stored.
	ErrTooLarge = errors.New("result is larger than results.quota_mb")
)

// Store keeps results in a database of its own, because the small writes that every charge waits
// for must not wait for large ones. One process may have the file open. A Store is safe for
// concurrent use.
type Store struct {
	cfg   Config
	path  string
	db    *sql.DB
	write sync.Mutex // held during a transaction; guards the fields below

	timer  *time.Timer // runs tidy
	closed bool
}

// migrations make the schema; see [sqlitedb.Options].
var migrations = []string{`
	CREATE TABLE results (
		id         INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of age
		handle     TEXT NOT NULL UNIQUE,
		principal  TEXT NOT NULL,
		session    TEXT NOT NULL,
		context    TEXT NOT NULL,
		server     TEXT NOT NULL,
		tool       TEXT NOT NULL,
		kind       TEXT NOT NULL,
		text       TEXT NOT NULL,
		structured TEXT NOT NULL,
		bytes      INTEGER NOT NULL,
		tokens     INTEGER NOT NULL,
		delivered  INTEGER NOT NULL,
		created_at INTEGER NOT NULL -- microseconds since 1970
	);
	CREATE INDEX results_principal ON results (principal, id, bytes);
	CREATE INDEX results_created ON results (created_at);
	CREATE TABLE gone (
		id        INTEGER PRIMARY KEY AUTOINCREMENT,
		handle    TEXT NOT NULL UNIQUE,
		principal TEXT NOT NULL,
		session   TEXT NOT NULL,
		tool      TEXT NOT NULL,
		why       TEXT NOT NULL -- quota or age
	);
	CREATE TABLE savings (
		id        INTEGER PRIMARY KEY, -- the order of the first results
		principal TEXT NOT NULL,
		context   TEXT NOT NULL,
		results   INTEGER NOT NULL, -- that were folded, whether or not they are still kept
		tokens    INTEGER NOT NULL, -- not delivered of them, less what was read back
		UNIQUE (principal, context)
	);
	CREATE TABLE sizes ( -- of the results of each principal
		principal TEXT PRIMARY KEY,
		bytes     INTEGER NOT NULL
	) WITHOUT ROWID;
	CREATE INDEX sizes_bytes ON sizes (bytes);
	CREATE TRIGGER results_put AFTER INSERT ON results BEGIN
		INSERT INTO sizes VALUES (new.principal, new.bytes) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
	END;
	CREATE TRIGGER results_gone AFTER DELETE ON results BEGIN
		UPDATE sizes SET bytes = bytes - old.bytes WHERE principal = old.principal;
		DELETE FROM sizes WHERE principal = old.principal AND bytes = 0;
	END;
`}

// Schema is that of the file; "fres" marks it.
var Schema = sqlitedb.Options{Migrations: migrations, ApplicationID: 0x66726573}

// Open opens or creates the store at path and evicts what exceeds the limits.
func Open(path string, cfg Config) (_ *Store, err error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Steady == nil {
		cfg.Steady = cfg.Now
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("result store: %w", err)
	}
	ctx := context.Background()
	s := &Store{cfg: cfg, path: path}
	if s.db, err = sqlitedb.Open(ctx, path, Schema); err != nil {
		return nil, s.explain(err)
	}
	if err = s.update(ctx, func(tx *sql.Tx) error { return s.evictOld(ctx, tx) }); err != nil {
		s.db.Close()
		return nil, err
	}
	s.write.Lock()
	defer s.write.Unlock()
	s.timer = time.AfterFunc(s.between(), s.tidy)
	return s, nil
}

// tidy evicts what is past its TTL, also if nothing is put, and again later.
func (s *Store) tidy() {
	ctx := context.Background()
	_ = s.update(ctx, func(tx *sql.Tx) error { return s.evictOld(ctx, tx) }) // the next Put reports an error that lasts
	s.write.Lock()
	defer s.write.Unlock()
	if !s.closed {
		s.timer.Reset(s.between())
	}
}

// evictOld evicts what is past its TTL. A result of a time to come was stored while the clock was wrong: it is as old
// as the first look at it says, and does not keep those after it from their end.
func (s *Store) evictOld(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, "UPDATE results SET created_at = ?1 WHERE created_at > ?1", s.cfg.Now().UnixMicro()); err != nil {
		return err
	}
	return s.evict(ctx, tx, "", 0)
}

// between returns the time between two runs of tidy.
func (s *Store) between() time.Duration { return min(max(s.cfg.TTL/24, time.Minute), time.Hour) }

// Close releases the store.
func (s *Store) Close() error {
	s.write.Lock()
	s.closed = true
	s.timer.Stop()
	s.write.Unlock()
	return s.db.Close()
}

// Put stores a result under its handle. The result is durable when Put returns.
func (s *Store) Put(ctx context.Context, r Result) error {
	size := int64(len(r.Text) + len(r.Structured))
	if size > s.cfg.Quota {
		return ErrTooLarge
	}
	err := s.update(ctx, func(tx *sql.Tx) error {
		if err := s.evict(ctx, tx, r.Principal, size); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO results (handle, principal, session, context, server, tool, kind, text, structured, bytes, tokens, delivered, created_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, r.Handle, r.Principal, r.Session, r.Context, r.Server, r.Tool, r.Kind, r.Text, r.Structured,
			size, r.Tokens, r.Delivered, s.cfg.Now().UnixMicro())
		return err
	})
	if err != nil {
		return folding.Errorf(folding.ErrStorage, "the result could not be stored: %w", err)
	}
	return nil
}

// maxEvicted bounds the evicted handles that the store remembers, to say why they are gone.
const maxEvicted = 10_000

// largest finds the oldest result of the principal with the most bytes, ?2 more of ?1 included: no
// principal can push out the results of one who stores less.
const largest = `SELECT id, bytes FROM results WHERE principal =
	(SELECT principal FROM sizes WHERE principal = ?1 OR bytes = (SELECT max(bytes) FROM sizes)
		ORDER BY bytes + iif(principal = ?1, ?2, 0) DESC LIMIT 1) ORDER BY id LIMIT 1`

// evict makes room for size bytes of a principal: it deletes results past their TTL and, if the quota
// demands it, the oldest ones of the principal who stores the most.
func (s *Store) evict(ctx context.Context, tx *sql.Tx, principal string, size int64) error {
	now := s.cfg.Steady()
	var total int64
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(sum(bytes), 0) FROM sizes").Scan(&total); err != nil {
		return err
	}
	for {
		var id, bytes, created int64
		err := tx.QueryRowContext(ctx, "SELECT id, bytes, created_at FROM results ORDER BY id LIMIT 1").Scan(&id, &bytes, &created)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		why := "quota"
		switch {
		case now.Sub(time.UnixMicro(created)) > s.cfg.TTL:
			why = "age"
		case total+size <= s.cfg.Quota:
			return nil
		default:
			if err := tx.QueryRowContext(ctx, largest, principal, size).Scan(&id, &bytes); err != nil {
				return err
			}
		}
		total -= bytes
		for _, step := range []string{
			"INSERT INTO gone (handle, principal, session, tool, why) SELECT handle, principal, session, tool, ?2 FROM results WHERE id = ?1",
			"DELETE FROM results WHERE id = ?1",
			"DELETE FROM gone WHERE id <= (SELECT max(id) FROM gone) - ?3",
		} {
			if _, err := tx.ExecContext(ctx, step, id, why, maxEvicted); err != nil {
				return err
			}
		}
	}
}

// Get returns a result to a caller in the branch with the context path at. The caller can read
// results of main, of that branch, of the branches above it and of those below it.
func (s *Store) Get(ctx context.Context, caller folding.Caller, at, handle string) (Result, error) {
	r, err := s.lookup(ctx, caller, handle, true)
	if err != nil {
		return Result{}, err
	}
	here, there := contextpath.Path(at), contextpath.Path(r.Context)
	switch {
	case s.cfg.Steady().Sub(r.CreatedAt) > s.cfg.TTL:
		return Result{}, evicted(handle, r.Tool, "age")
	case here != contextpath.Main && there != contextpath.Main && !here.InTree(there) && !there.InTree(here):
		return Result{}, unknown(handle)
	}
	return r, nil
}

// Context returns the context path of the branch that a result belongs to. Its errors are those
// of [Store.Get].
func (s *Store) Context(ctx context.Context, caller folding.Caller, handle string) (string, error) {
	r, err := s.lookup(ctx, caller, handle, false)
	return r.Context, err
}

// lookup returns a result of the caller, with or without its texts.
func (s *Store) lookup(ctx context.Context, caller folding.Caller, handle string, texts bool) (Result, error) {
	if !IsHandle(handle) {
		return Result{}, unknown(handle)
	}
	ctx = context.WithoutCancel(ctx) // a call that was cancelled while it reads is no fault of the store
	r := Result{Handle: handle}
	var created int64
	err := s.db.QueryRowContext(ctx, `SELECT principal, session, context, server, tool, kind, iif(?1, text, ''), iif(?1, structured, ''),
		tokens, delivered, created_at FROM results WHERE handle = ?2`, texts, handle).
		Scan(&r.Principal, &r.Session, &r.Context, &r.Server, &r.Tool, &r.Kind, &r.Text, &r.Structured, &r.Tokens, &r.Delivered, &created)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Result{}, s.evictedOrUnknown(ctx, caller, handle)
	case err != nil:
		return Result{}, folding.Errorf(folding.ErrStorage, "stored result %s could not be read: %w", handle, err)
	case !s.mayRead(caller, r.Principal, r.Session):
		return Result{}, unknown(handle)
	}
	r.CreatedAt = time.UnixMicro(created).UTC()
	return r, nil
}

func (s *Store) evictedOrUnknown(ctx context.Context, caller folding.Caller, handle string) error {
	var principal, session, tool, why string
	err := s.db.QueryRowContext(ctx, "SELECT principal, session, tool, why FROM gone WHERE handle = ?", handle).Scan(&principal, &session, &tool, &why)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && !s.mayRead(caller, principal, session):
		return unknown(handle)
	case err != nil:
		return folding.Errorf(folding.ErrStorage, "stored result %s could not be looked up: %w", handle, err)
	}
	return evicted(handle, tool, why)
}

func (s *Store) mayRead(caller folding.Caller, principal, session string) bool {
	return principal == caller.Principal && (!s.cfg.Strict || session == caller.Session)
}

func unknown(handle string) error {
	return folding.Errorf(ErrUnknown, "no stored result %q: use the handle that a folded result names", folding.Shorten(handle, 64))
}

func evicted(handle, tool, why string) error {
	limit := map[string]string{"quota": "the store was full (results.quota_mb)", "age": "it was too old (results.ttl_hours)"}[why]
	return folding.Errorf(ErrEvicted, "stored result %s was evicted: %s; call %s again", handle, limit, cmp.Or(tool, "the method"))
}

// maxSavings is the number of branches whose savings are kept: the latest.
const maxSavings = 10_000

// AddSavings adds to the savings of a branch: the number of results that were folded, and the
// number of tokens that were not delivered. The tokens are negative if a stored result was read.
func (s *Store) AddSavings(ctx context.Context, principal, path string, results, tokens int) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO savings (principal, context, results, tokens) VALUES (?, ?, ?, ?)
			ON CONFLICT (principal, context) DO UPDATE SET results = results + excluded.results, tokens = tokens + excluded.tokens`,
			principal, path, results, tokens); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM savings WHERE id <= (SELECT max(id) FROM savings) - ?", maxSavings)
		return err
	})
	if err != nil {
		return folding.Errorf(folding.ErrStorage, "what folding saved could not be stored: %w", err)
	}
	return nil
}

// Savings returns the sums that [Store.AddSavings] recorded for a branch.
func (s *Store) Savings(ctx context.Context, principal, path string) (results, tokens int, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT results, tokens FROM savings WHERE principal = ? AND context = ?", principal, path).Scan(&results, &tokens)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, 0, folding.Errorf(folding.ErrStorage, "what folding saved could not be read: %w", err)
	}
	return results, tokens, nil
}

// update runs f in a transaction, one at a time.
func (s *Store) update(ctx context.Context, f func(*sql.Tx) error) error {
	s.write.Lock()
	defer s.write.Unlock()
	return s.explain(sqlitedb.Update(ctx, s.db, f))
}

// explain adds the path and the remedy to an error of the database.
func (s *Store) explain(err error) error {
	return sqlitedb.Explain(err, "result store", s.path, "to start with an empty one")
}

var handleEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewHandle returns a new handle with 128 random bits.
func (s *Store) NewHandle() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: the runtime ends the process instead
	return replicaid.New("res_", s.cfg.Replica, handleEncoding.EncodeToString(b[:]))
}

// IsHandle reports whether s has the form of a handle.
func IsHandle(s string) bool {
	_, rest, ok := replicaid.Cut("res_", s)
	if !ok || len(rest) != 26 {
		return false
	}
	_, err := handleEncoding.DecodeString(rest)
	return err == nil
}
