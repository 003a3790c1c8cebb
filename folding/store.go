package folding

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// ResultsConfig limits the store of results.
type ResultsConfig struct {
	// Quota is the most bytes of results kept; over it the oldest go.
	Quota int64
	// TTL is how long a result is kept.
	TTL time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// StoredResult is a scrubbed result that was too large to deliver.
type StoredResult struct {
	// Handle names it: "res_" and 26 characters that nobody can guess.
	Handle string
	// Principal and Session are whose call it answers; Context is the path of
	// the branch the call was made in, "" for main.
	Principal, Session, Context string
	// Server and Tool made it; Server is "" for foldgate itself.
	Server, Tool string
	// Kind is what the preview took it for; Text what a model would have read.
	Kind, Text string
	// Structured is the structured content as JSON, "" where Text says the same.
	Structured string
	// Tokens is what the whole counts, Delivered what was delivered of it.
	Tokens, Delivered int
	CreatedAt         time.Time
}

// Sentinels for errors.Is.
var (
	// ErrResultUnknown is a handle that never was, or is someone else's (404):
	// one answer for both.
	ErrResultUnknown error = &kind{"result_not_found", http.StatusNotFound, "stored result not found"}
	// ErrResultGone is a result of one's own that is no longer kept (404).
	ErrResultGone error = &kind{"result_evicted", http.StatusNotFound, "stored result no longer kept"}
	// ErrResultTooLarge is a result over the whole quota; it is not stored.
	ErrResultTooLarge = errors.New("result is larger than results.quota_mb")
)

// Results keeps folded results in a database of their own, beside that of the
// branches: large writes must not hold up the small ones that every charge
// waits for. It is safe for concurrent use. Whoever opens it holds the state
// directory already; a second process can't.
type Results struct {
	cfg ResultsConfig
	db  *sql.DB

	write sync.Mutex // held for a transaction
}

// goneKept is how many evicted handles are remembered, to say so.
const goneKept = 10_000

// OpenResults opens or creates the store at path.
func OpenResults(path string, cfg ResultsConfig) (*Results, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("result store: %w", err)
	}
	ctx := context.Background()
	r := &Results{cfg: cfg}
	var err error
	if r.db, err = sqlitedb.Open(ctx, path, sqlitedb.Options{Migrations: resultMigrations}); err == nil { // what grew too old meanwhile goes, and what a lower quota has no room for
		err = r.update(ctx, func(tx *sql.Tx) error { return r.evict(ctx, tx, 0) })
	}
	if err != nil {
		if r.db != nil {
			r.db.Close()
		}
		return nil, fmt.Errorf("result store %s: %w (move the file away to start with an empty store)", path, err)
	}
	return r, nil
}

// Close releases the store.
func (r *Results) Close() error { return r.db.Close() }

// update runs f in a transaction, one at a time.
func (r *Results) update(ctx context.Context, f func(*sql.Tx) error) error {
	r.write.Lock()
	defer r.write.Unlock()
	return sqlitedb.Update(ctx, r.db, f)
}

var handleForm = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewHandle returns a new handle of 128 random bits.
func NewHandle() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: the runtime ends the process instead
	return "res_" + handleForm.EncodeToString(b[:])
}

// isHandle reports whether s could be a handle.
func isHandle(s string) bool {
	rest, ok := strings.CutPrefix(s, "res_")
	if !ok || len(rest) != 26 {
		return false
	}
	_, err := handleForm.DecodeString(rest)
	return err == nil
}

// Put keeps a result under its handle. It is durable when Put returns. Results
// over the quota or past their time go first, the oldest before all.
func (r *Results) Put(ctx context.Context, s StoredResult) error {
	size := int64(len(s.Text) + len(s.Structured))
	if size > r.cfg.Quota {
		return ErrResultTooLarge
	}
	err := r.update(ctx, func(tx *sql.Tx) error {
		if err := r.evict(ctx, tx, size); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO results (handle, principal, session, context, server, tool, kind, text, structured, bytes, tokens, delivered, created_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, s.Handle, s.Principal, s.Session, s.Context, s.Server, s.Tool, s.Kind, s.Text, s.Structured,
			size, s.Tokens, s.Delivered, r.cfg.Now().UnixMicro()); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE size SET bytes = bytes + ?", size)
		return err
	})
	if err != nil {
		return failWith(ErrStorage, err, "the result could not be stored: %v", err)
	}
	return nil
}

// evict makes room for size bytes.
func (r *Results) evict(ctx context.Context, tx *sql.Tx, size int64) error {
	now := r.cfg.Now()
	var total int64
	if err := tx.QueryRowContext(ctx, "SELECT bytes FROM size").Scan(&total); err != nil {
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
		case now.Sub(time.UnixMicro(created)) > r.cfg.TTL:
			why = "age"
		case total+size <= r.cfg.Quota:
			return nil
		}
		total -= bytes
		for _, step := range []string{
			"INSERT INTO gone (handle, principal, session, context, tool, why, at) SELECT handle, principal, session, context, tool, ?2, ?3 FROM results WHERE id = ?1",
			"DELETE FROM results WHERE id = ?1",
			"UPDATE size SET bytes = ?4",
			"DELETE FROM gone WHERE id <= (SELECT max(id) FROM gone) - ?5",
		} {
			if _, err := tx.ExecContext(ctx, step, id, why, now.UnixMicro(), total, goneKept); err != nil {
				return err
			}
		}
	}
}

// savingsKept is of how many branches the savings are kept, the latest.
const savingsKept = 10_000

// Save books what folding did to a branch: so many results more were folded,
// and so many tokens less delivered; fewer than 0 where a stored result was
// read back.
func (r *Results) Save(ctx context.Context, principal, path string, results, tokens int) error {
	err := r.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO savings (principal, context, results, tokens) VALUES (?, ?, ?, ?)
			ON CONFLICT (principal, context) DO UPDATE SET results = results + excluded.results, tokens = tokens + excluded.tokens`,
			principal, path, results, tokens); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM savings WHERE id <= (SELECT max(id) FROM savings) - ?", savingsKept)
		return err
	})
	if err != nil {
		return failWith(ErrStorage, err, "what folding saved could not be stored: %v", err)
	}
	return nil
}

// Saved returns the sums of what was booked for a branch.
func (r *Results) Saved(ctx context.Context, principal, path string) (results, tokens int, err error) {
	err = r.db.QueryRowContext(ctx, "SELECT results, tokens FROM savings WHERE principal = ? AND context = ?", principal, path).Scan(&results, &tokens)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, 0, failWith(ErrStorage, err, "what folding saved could not be read: %v", err)
	}
	return results, tokens, nil
}
