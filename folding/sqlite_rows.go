package folding

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Prepared statements of the writing connection.
const (
	stmtBegin = iota
	stmtCommit
	stmtRollback
	stmtInsert
	stmtProgress
	stmtFinish
	stmtLate
	numStatements
)

const columns = `id, parent_id, principal, session, origin, context, depth, description, prompt, status,
	reason, error, digest, message, late, budget_used, budget_total, activity, created_at, expires_at, completed_at`

var statements = [numStatements]string{
	stmtBegin:    "BEGIN IMMEDIATE",
	stmtCommit:   "COMMIT",
	stmtRollback: "ROLLBACK",
	stmtInsert:   "INSERT INTO branches (" + columns + ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
	stmtProgress: "UPDATE branches SET budget_used = ?, activity = ? WHERE id = ? AND status = 'active'",
	stmtFinish: `UPDATE branches SET status = ?, reason = ?, error = ?, digest = ?, message = ?,
		budget_used = ?, activity = ?, completed_at = ? WHERE id = ?`,
	stmtLate: "UPDATE branches SET message = ?, late = ? WHERE id = ?",
}

func (d *database) prepare(ctx context.Context) error {
	for i, text := range statements {
		s, err := d.conn.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		d.stmts[i] = s
	}
	return nil
}

// Active implements Repository.
func (d *database) Active(ctx context.Context) ([]Branch, error) {
	rows, err := d.db.QueryContext(ctx, "SELECT "+columns+" FROM branches WHERE status = 'active' ORDER BY created_at, id")
	if err != nil {
		return nil, diagnose(d.path, err)
	}
	defer rows.Close()
	var out []Branch
	for rows.Next() {
		b, err := scan(rows)
		if err != nil {
			return nil, diagnose(d.path, err)
		}
		out = append(out, b)
	}
	if err := rows.Err(); err != nil {
		return nil, diagnose(d.path, err)
	}
	return out, nil
}

// Get implements Repository.
func (d *database) Get(ctx context.Context, id string) (Branch, bool, error) {
	b, err := scan(d.db.QueryRowContext(ctx, "SELECT "+columns+" FROM branches WHERE id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		return Branch{}, false, nil
	}
	if err != nil {
		return Branch{}, false, diagnose(d.path, err)
	}
	return b, true, nil
}

func scan(row interface{ Scan(...any) error }) (Branch, error) {
	var b Branch
	var activity []byte
	var created, expires, completed int64
	err := row.Scan(&b.ID, &b.ParentID, &b.Principal, &b.Session, &b.Origin, &b.Context, &b.Depth, &b.Description, &b.Prompt, &b.Status,
		&b.Reason, &b.Error, &b.Digest, &b.Message, &b.Late, &b.BudgetUsed, &b.BudgetTotal, &activity, &created, &expires, &completed)
	if err != nil {
		return Branch{}, err
	}
	if err := json.Unmarshal(activity, &b.Activity); err != nil {
		return Branch{}, fmt.Errorf("%w: activity of branch %s: %w", errDamaged, b.ID, err)
	}
	b.CreatedAt, b.ExpiresAt, b.CompletedAt = fromMicros(created), fromMicros(expires), fromMicros(completed)
	return b, nil
}

// Apply implements Repository.
func (d *database) Apply(ctx context.Context, changes []Change) (err error) {
	d.write.Lock()
	defer d.write.Unlock()
	if len(changes) == 1 { // a statement by itself is a transaction
		if err := d.apply(ctx, changes[0]); err != nil {
			return diagnose(d.path, fmt.Errorf("branch %s: %w", changes[0].Branch.ID, err))
		}
		d.written()
		return nil
	}
	if _, err := d.stmts[stmtBegin].ExecContext(ctx); err != nil {
		return diagnose(d.path, err)
	}
	defer func() {
		if err != nil {
			// A failed COMMIT may have left the transaction open or not.
			d.stmts[stmtRollback].ExecContext(context.WithoutCancel(ctx))
			err = diagnose(d.path, err)
		}
	}()
	for _, c := range changes {
		if err := d.apply(ctx, c); err != nil {
			return fmt.Errorf("branch %s: %w", c.Branch.ID, err)
		}
	}
	if _, err := d.stmts[stmtCommit].ExecContext(ctx); err != nil {
		return err
	}
	d.written()
	return nil
}

func (d *database) apply(ctx context.Context, c Change) error {
	b := c.Branch
	exec := func(stmt int, args ...any) error {
		_, err := d.stmts[stmt].ExecContext(ctx, args...)
		return err
	}
	if c.Op == OpLate {
		return exec(stmtLate, b.Message, b.Late, b.ID)
	}
	activity, err := json.Marshal(b.Activity)
	if err != nil {
		return err
	}
	switch c.Op {
	case OpInsert:
		return exec(stmtInsert, b.ID, b.ParentID, b.Principal, b.Session, b.Origin, b.Context, b.Depth, b.Description, b.Prompt, string(b.Status),
			b.Reason, b.Error, b.Digest, b.Message, b.Late, b.BudgetUsed, b.BudgetTotal, string(activity),
			micros(b.CreatedAt), micros(b.ExpiresAt), micros(b.CompletedAt))
	case OpProgress:
		return exec(stmtProgress, b.BudgetUsed, string(activity), b.ID)
	case OpFinish:
		return exec(stmtFinish, string(b.Status), b.Reason, b.Error, b.Digest, b.Message, b.BudgetUsed, string(activity), micros(b.CompletedAt), b.ID)
	}
	return fmt.Errorf("unknown change %d", c.Op)
}

// archiveLife is how long the figures of an archived branch are kept after
// its texts are gone.
const archiveLife = 90 * 24 * time.Hour

// Archive implements Repository.
func (d *database) Archive(ctx context.Context, before time.Time, limit int) (n int, err error) {
	d.write.Lock()
	defer d.write.Unlock()
	tx, err := d.conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, diagnose(d.path, err)
	}
	defer func() {
		if err != nil {
			tx.Rollback()
			err = diagnose(d.path, err)
		}
	}()
	const kept = "id, parent_id, principal, session, context, depth, status, reason, budget_used, budget_total, created_at, completed_at"
	const due = "FROM branches WHERE completed_at > 0 AND completed_at < ? ORDER BY completed_at, id LIMIT ?"
	_, err = tx.ExecContext(ctx, "INSERT INTO branch_archive ("+kept+") SELECT "+kept+" "+due, micros(before), limit)
	if err != nil {
		return 0, err
	}
	res, err := tx.ExecContext(ctx, "DELETE FROM branches WHERE id IN (SELECT id "+due+")", micros(before), limit)
	if err != nil {
		return 0, err
	}
	moved, err := res.RowsAffected()
	if err != nil {
		return 0, err
	}
	if _, err = tx.ExecContext(ctx, "DELETE FROM branch_archive WHERE completed_at < ?", micros(before.Add(-archiveLife))); err != nil {
		return 0, err
	}
	return int(moved), tx.Commit()
}

// micros is a time as it is stored; 0 is no time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
