package workflow

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// migrations make the schema, each step once, in order; user_version counts
// them. A step that has been released is never changed. Times are microseconds
// since 1970.
var migrations = []string{`
	CREATE TABLE nodes (
		id         TEXT PRIMARY KEY,
		path       TEXT NOT NULL,
		root       TEXT NOT NULL,
		parent     TEXT NOT NULL,             -- '' for a root
		workflow   TEXT NOT NULL,
		principal  TEXT NOT NULL,
		session    TEXT NOT NULL,
		server     TEXT NOT NULL,             -- of the tool that made it
		tool       TEXT NOT NULL,
		step       TEXT NOT NULL,
		step_key   TEXT NOT NULL,             -- '' never repeats
		status     TEXT NOT NULL,
		attempts   INTEGER NOT NULL,
		request    TEXT NOT NULL,             -- trace record of the call that made it
		record     TEXT NOT NULL,             -- trace record of its workflow/start or proceed
		foreign_id TEXT NOT NULL,             -- the alias that the host knows a root by
		created_at INTEGER NOT NULL,
		used_at    INTEGER NOT NULL,
		expires_at INTEGER NOT NULL,          -- of a root; 0 for steps
		closed     INTEGER NOT NULL DEFAULT 0 -- of a root
	);
	CREATE UNIQUE INDEX nodes_key ON nodes (parent, step, step_key) WHERE step_key <> '';
	CREATE INDEX nodes_tree ON nodes (root, created_at);
	CREATE INDEX nodes_session ON nodes (principal, workflow, session, created_at) WHERE parent = '';
	CREATE INDEX nodes_expiry ON nodes (expires_at) WHERE parent = '' AND closed = 0;
	CREATE TABLE joins (
		node      TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
		name      TEXT NOT NULL,
		hash      TEXT NOT NULL,
		PRIMARY KEY (name, hash, node)
	) WITHOUT ROWID;
	CREATE INDEX joins_node ON joins (node);
	CREATE TABLE aliases (
		principal TEXT NOT NULL,
		workflow  TEXT NOT NULL,
		alias     TEXT NOT NULL,
		root      TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
		PRIMARY KEY (principal, workflow, alias)
	) WITHOUT ROWID;
	CREATE INDEX aliases_root ON aliases (root);
`}

// applicationID marks a file as foldgate's workflows: "flow".
const applicationID = 0x666c6f77

// Store keeps workflows in an SQLite file. Several processes may use one file
// at a time: hosts start a gateway for each of their windows, and a handle that
// one of them minted is good at the others. Its methods are safe for
// concurrent use. What a method has written survives the death of the process.
type Store struct {
	path string
	db   *sql.DB
}

// OpenStore opens or creates the file at path, readable by its owner only, in
// a directory that exists. The error says what is wrong with the file.
func OpenStore(path string) (*Store, error) {
	s, err := openStore(path)
	if err != nil {
		return nil, fmt.Errorf("workflows in %s: %w (move the file away to start without any)", path, err)
	}
	return s, nil
}

func openStore(path string) (*Store, error) {
	db, err := sqlitedb.Open(context.Background(), path, sqlitedb.Options{Migrations: migrations, ApplicationID: applicationID})
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	return &Store{path: path, db: db}, nil
}

// update runs f in a transaction that writes.
func (s *Store) update(ctx context.Context, f func(tx *sql.Tx) error) error {
	return sqlitedb.Update(ctx, s.db, f)
}

// Close releases the file. A nil Store has nothing to close.
func (s *Store) Close() error {
	if s == nil {
		return nil
	}
	return s.db.Close()
}
