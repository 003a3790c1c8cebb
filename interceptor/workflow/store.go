package workflow

import (
	"context"
	"database/sql"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// migrations make the schema; see [sqlitedb.Options]. Times are microseconds since 1970.
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
		host       TEXT NOT NULL,             -- that made it, as records name it
		created_at INTEGER NOT NULL,
		expires_at INTEGER NOT NULL,          -- of a root; 0 for steps
		closed     INTEGER NOT NULL DEFAULT 0 -- of a root
	);
	CREATE UNIQUE INDEX nodes_key ON nodes (parent, step, step_key) WHERE step_key <> '';
	CREATE INDEX nodes_tree ON nodes (root, created_at);
	CREATE INDEX nodes_session ON nodes (principal, workflow, session, created_at) WHERE parent = '';
	CREATE INDEX nodes_expiry ON nodes (expires_at) WHERE parent = '' AND closed = 0;
	CREATE INDEX nodes_ended ON nodes (expires_at) WHERE parent = '' AND closed = 1;
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

// node is a row: the first step of a workflow, its root, or a later one.
type node struct {
	id, path, root, parent          string
	workflow, principal, session    string
	server, tool, step, key, status string
	attempts                        int
	request, record, foreign, host  string
	created, expires                int64 // microseconds since 1970
	closed                          bool
}

const nodeColumns = "n.id, n.path, n.root, n.parent, n.workflow, n.principal, n.session, n.server, n.tool, n.step, n.step_key, n.status, " +
	"n.attempts, n.request, n.record, n.foreign_id, n.created_at, n.expires_at, n.closed, n.host"

// fields returns pointers to the fields, in the order of nodeColumns.
func (n *node) fields() []any {
	return []any{&n.id, &n.path, &n.root, &n.parent, &n.workflow, &n.principal, &n.session, &n.server, &n.tool, &n.step, &n.key, &n.status,
		&n.attempts, &n.request, &n.record, &n.foreign, &n.created, &n.expires, &n.closed, &n.host}
}

// one returns the first node that the end of a query selects, or nil.
func one(ctx context.Context, q sqlitedb.Querier, where string, args ...any) (*node, error) {
	all, err := many(ctx, q, where+" LIMIT 1", args...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// many returns the nodes n that the end of a query selects.
func many(ctx context.Context, q sqlitedb.Querier, end string, args ...any) ([]node, error) {
	var n node
	return sqlitedb.Collect(ctx, q, &n, n.fields(), "SELECT "+nodeColumns+" FROM nodes n "+end, args...)
}

func byID(ctx context.Context, q sqlitedb.Querier, id string) (*node, error) {
	return one(ctx, q, "WHERE n.id = ?", id)
}

// byKey returns the step below parent with a key. An empty key matches none.
func byKey(ctx context.Context, q sqlitedb.Querier, parent, step, key string) (*node, error) {
	if key == "" {
		return nil, nil
	}
	return one(ctx, q, "WHERE n.parent = ? AND n.step = ? AND n.step_key = ? AND n.step_key <> ''", parent, step, key)
}

// byAlias returns the root with a foreign id.
func byAlias(ctx context.Context, q sqlitedb.Querier, principal, workflow, alias string) (*node, error) {
	return one(ctx, q, "JOIN aliases a ON a.root = n.id WHERE a.principal = ? AND a.workflow = ? AND a.alias = ?", principal, workflow, alias)
}

// lastOf returns the live root that was opened last in a session.
func lastOf(ctx context.Context, q sqlitedb.Querier, principal, workflow, session string, now int64) (*node, error) {
	return one(ctx, q, "WHERE n.principal = ? AND n.workflow = ? AND n.session = ? AND n.parent = '' AND n.closed = 0 AND n.expires_at > ? "+
		"ORDER BY n.created_at DESC, n.rowid DESC", principal, workflow, session, now)
}

// held is a node that holds a value.
type held struct{ id, root string }

// holding returns the nodes of live workflows that hold one of the values, the newest workflow
// first and in it the newest step first. Many workflows may share a value, so it reads only their ids.
func holding(ctx context.Context, q sqlitedb.Querier, principal, workflow, name string, hashes []string, now int64) ([]held, error) {
	var h held
	return sqlitedb.Collect(ctx, q, &h, []any{&h.id, &h.root}, "SELECT n.id, n.root FROM nodes n JOIN nodes r ON r.id = n.root "+
		"WHERE n.principal = ? AND n.workflow = ? AND r.closed = 0 AND r.expires_at > ? "+
		"AND n.id IN (SELECT node FROM joins WHERE name = ? AND hash IN (SELECT value FROM json_each(?))) "+
		"ORDER BY r.created_at DESC, r.rowid DESC, n.created_at DESC, n.rowid DESC",
		principal, workflow, now, name, string(rawjson.Marshal(hashes)))
}

// due returns a few roots to end, and ended ones to delete. Each query has an index, as each call asks them.
func due(ctx context.Context, q sqlitedb.Querier, now time.Time) ([]node, error) {
	const past = " AND n.parent = '' AND n.expires_at <= ? LIMIT ?"
	open, err := many(ctx, q, "WHERE n.closed = 0"+past, now.UnixMicro(), expireLimit)
	if err != nil {
		return nil, err
	}
	ended, err := many(ctx, q, "WHERE n.closed = 1"+past, now.Add(-keepClosed).UnixMicro(), expireLimit-len(open))
	return append(open, ended...), err
}

func addJoins(ctx context.Context, tx *sql.Tx, node string, values map[string][]string) error {
	for name, hashes := range values {
		for _, h := range hashes {
			if err := exec(ctx, tx, "INSERT OR IGNORE INTO joins (node, name, hash) VALUES (?,?,?)", node, name, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// addAlias makes a foreign id an alias of the workflow of s. An id of another form is ignored.
// The newest workflow gets the alias, because a server may use an id again.
func addAlias(ctx context.Context, tx *sql.Tx, s *Step, alias string) error {
	if !foreignForm().MatchString(alias) {
		return nil
	}
	return exec(ctx, tx, "INSERT INTO aliases (principal, workflow, alias, root) VALUES (?,?,?,?) "+
		"ON CONFLICT (principal, workflow, alias) DO UPDATE SET root = excluded.root", s.request.Principal, s.request.Rule.Workflow.Name, alias, s.Root)
}

func exec(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}
