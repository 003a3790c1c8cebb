package workflow

import (
	"context"
	"database/sql"
	"encoding/json"
)

// Interrupt notes that the process which was at the given steps has died. A
// step that another process has brought to an end since stays as it is.
func (e *Engine) Interrupt(ctx context.Context, ids []string) error {
	return e.store.update(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, "UPDATE nodes SET status = ? WHERE id = ? AND status = ?", Interrupted, id, Working); err != nil {
				return err
			}
		}
		return nil
	})
}

// Outcome is how a call ended.
type Outcome struct {
	Status string
	// Result is the result as the host gets it, nil if there is none; Native is
	// the id of the server's own in it.
	Result json.RawMessage
	Native string
}

// End notes how the call ended, and what later calls can be joined on.
func (e *Engine) End(ctx context.Context, s *Step, o Outcome) error {
	if s.ID == "" {
		return nil
	}
	r := s.request
	var captured map[string][]string
	if r.Rule.Role == RoleOpen && o.Result != nil {
		captured = namedValues(r.Rule.capture, resultDocument(r.Arguments, o.Result))
	}
	if r.Rule.Role == RoleOpen || r.Rule.Role == RoleLink {
		s.Status = o.Status
	}
	return e.store.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE nodes SET status = ? WHERE id = ?", s.Status, s.ID); err != nil {
			return err
		}
		if r.Rule.Role == RoleClose && o.Status == Completed {
			if _, err := tx.ExecContext(ctx, "UPDATE nodes SET closed = 1 WHERE id = ?", s.Root); err != nil {
				return err
			}
		}
		if validForeign(o.Native) && r.Rule.Role == RoleOpen {
			if err := addAlias(ctx, tx, r.Principal, r.Rule.Workflow(), o.Native, s.Root); err != nil {
				return err
			}
		}
		return addJoins(ctx, tx, s.Root, captured)
	})
}
