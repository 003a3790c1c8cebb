package workflow

import (
	"context"
	"database/sql"
	"time"
)

// Ended is a workflow that is over.
type Ended struct {
	Workflow, Principal, Session string
	ID                           string // of its root
	// Records are the trace records of its start and of each of its steps.
	Records []string
	Steps   int
}

// sweepLimit bounds what one sweep does, so that no call waits long for it.
const sweepLimit = 32

// keepClosed is how long a workflow's rows outlive it.
const keepClosed = 24 * time.Hour

// Sweep ends the workflows that expired, at most a few at a time, and forgets
// those that ended a day ago. Each ended workflow is returned once, to one process.
func (e *Engine) Sweep(ctx context.Context) (ended []Ended, err error) {
	now := e.now().UnixMicro()
	due, err := one(ctx, e.store.db, "WHERE n.parent = '' AND n.closed = 0 AND n.expires_at <= ?", now)
	if err != nil || due == nil {
		return nil, err // the ordinary case costs no write
	}
	err = e.store.update(ctx, func(tx *sql.Tx) error {
		roots, err := many(ctx, tx, "WHERE n.parent = '' AND n.closed = 0 AND n.expires_at <= ? LIMIT ?", now, sweepLimit)
		if err != nil {
			return err
		}
		for _, root := range roots {
			x, err := ending(ctx, tx, root)
			if err != nil {
				return err
			}
			ended = append(ended, x)
			if _, err := tx.ExecContext(ctx, "UPDATE nodes SET closed = 1 WHERE id = ?", root.id); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM nodes WHERE root IN (SELECT id FROM nodes WHERE parent = '' AND closed = 1 AND expires_at <= ? LIMIT ?)",
			now-keepClosed.Microseconds(), sweepLimit)
		return err
	})
	return ended, err
}

// Ending returns what is known of the workflow that a step belongs to.
func (e *Engine) Ending(ctx context.Context, s *Step) (Ended, error) {
	root, err := byID(ctx, e.store.db, s.Root)
	if err != nil || root == nil {
		return Ended{}, err
	}
	return ending(ctx, e.store.db, root)
}

func ending(ctx context.Context, q querier, root *node) (Ended, error) {
	nodes, err := tree(ctx, q, root.id)
	x := Ended{Workflow: root.workflow, Principal: root.principal, Session: root.session, ID: root.id, Steps: len(nodes) - 1}
	for _, n := range nodes {
		x.Records = append(x.Records, n.record)
	}
	return x, err
}
