package workflow

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"
)

// node is a row: a workflow's root, or one of its steps.
type node struct {
	id, path, root, parent          string
	workflow, principal, session    string
	server, tool, step, key, status string
	attempts                        int
	request, record, foreign        string
	created, used, expires          int64
	closed                          bool
}

const nodeColumns = "n.id, n.path, n.root, n.parent, n.workflow, n.principal, n.session, n.server, n.tool, n.step, n.step_key, n.status, " +
	"n.attempts, n.request, n.record, n.foreign_id, n.created_at, n.used_at, n.expires_at, n.closed"

func (n *node) fields() []any {
	return []any{&n.id, &n.path, &n.root, &n.parent, &n.workflow, &n.principal, &n.session, &n.server, &n.tool, &n.step, &n.key, &n.status,
		&n.attempts, &n.request, &n.record, &n.foreign, &n.created, &n.used, &n.expires, &n.closed}
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// one returns the first row of a query for node columns, nil where there is none.
func one(ctx context.Context, q querier, where string, args ...any) (*node, error) {
	all, err := many(ctx, q, where+" LIMIT 1", args...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// many returns the nodes n that a query's end selects.
func many(ctx context.Context, q querier, end string, args ...any) (out []*node, err error) {
	rows, err := q.QueryContext(ctx, "SELECT "+nodeColumns+" FROM nodes n "+end, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		n := &node{}
		if err := rows.Scan(n.fields()...); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, rows.Err()
}

func byID(ctx context.Context, q querier, id string) (*node, error) {
	return one(ctx, q, "WHERE n.id = ?", id)
}

// byKey returns the step below parent that a call with the same key made.
func byKey(ctx context.Context, q querier, parent, step, key string) (*node, error) {
	if key == "" {
		return nil, nil
	}
	return one(ctx, q, "WHERE n.parent = ? AND n.step = ? AND n.step_key = ? AND n.step_key <> ''", parent, step, key)
}

// byAlias returns the root that an id of somebody else's stands for.
func byAlias(ctx context.Context, q querier, principal, workflow, alias string) (*node, error) {
	return one(ctx, q, "JOIN aliases a ON a.root = n.id WHERE a.principal = ? AND a.workflow = ? AND a.alias = ?", principal, workflow, alias)
}

// lastOf returns the root that was opened last in a session.
func lastOf(ctx context.Context, q querier, principal, workflow, session string, now int64) (*node, error) {
	return one(ctx, q, "WHERE n.principal = ? AND n.workflow = ? AND n.session = ? AND n.parent = '' AND n.closed = 0 AND n.expires_at > ? "+
		"ORDER BY n.created_at DESC, n.rowid DESC", principal, workflow, session, now)
}

// joined returns the nodes of live workflows that hold one of the values,
// newest workflow first, and in it the newest step first.
func joined(ctx context.Context, q querier, principal, workflow, name string, hashes []string, now int64) ([]*node, error) {
	args := []any{principal, workflow, now, name}
	for _, h := range hashes {
		args = append(args, h)
	}
	marks := strings.TrimSuffix(strings.Repeat("?,", len(hashes)), ",")
	return many(ctx, q, "JOIN nodes r ON r.id = n.root WHERE n.principal = ? AND n.workflow = ? AND r.closed = 0 AND r.expires_at > ? "+
		"AND n.id IN (SELECT node FROM joins WHERE name = ? AND hash IN ("+marks+")) "+
		"ORDER BY r.created_at DESC, r.rowid DESC, n.created_at DESC, n.rowid DESC", args...)
}

// tree returns a workflow's nodes, the root first.
func tree(ctx context.Context, q querier, root string) ([]*node, error) {
	return many(ctx, q, "WHERE n.root = ? ORDER BY n.created_at, n.rowid", root)
}

func insert(ctx context.Context, tx *sql.Tx, n *node) error {
	marks := strings.TrimSuffix(strings.Repeat("?,", 20), ",")
	_, err := tx.ExecContext(ctx, "INSERT INTO nodes ("+strings.ReplaceAll(nodeColumns, "n.", "")+") VALUES ("+marks+")",
		n.id, n.path, n.root, n.parent, n.workflow, n.principal, n.session, n.server, n.tool, n.step, n.key, n.status,
		n.attempts, n.request, n.record, n.foreign, n.created, n.used, n.expires, n.closed)
	return err
}

// attempt counts one more attempt at a step.
func attempt(ctx context.Context, tx *sql.Tx, id string, now int64) error {
	_, err := tx.ExecContext(ctx, "UPDATE nodes SET attempts = attempts + 1, status = ?, used_at = ? WHERE id = ?", Working, now, id)
	return err
}

// touch moves a workflow's expiry on, because it is used.
func touch(ctx context.Context, tx *sql.Tx, root string, now int64, ttl time.Duration) error {
	_, err := tx.ExecContext(ctx, "UPDATE nodes SET used_at = ?, expires_at = ? WHERE id = ?", now, now+ttl.Microseconds(), root)
	return err
}

func addJoins(ctx context.Context, tx *sql.Tx, node string, values map[string][]string) error {
	for name, hashes := range values {
		for _, h := range hashes {
			if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO joins (node, name, hash) VALUES (?,?,?)", node, name, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// addAlias ties an id of somebody else's to a workflow. The newest one wins:
// a server may use an id again.
func addAlias(ctx context.Context, tx *sql.Tx, principal, workflow, alias, root string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO aliases (principal, workflow, alias, root) VALUES (?,?,?,?) "+
		"ON CONFLICT (principal, workflow, alias) DO UPDATE SET root = excluded.root", principal, workflow, alias, root)
	return err
}
