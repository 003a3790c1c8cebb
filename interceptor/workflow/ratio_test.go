//go:build linux && !race

package workflow

import (
	"encoding/json"
	"testing"

	"github.com/foldgate/foldgate/test/cputime"
)

// The time of a join grows no faster than the number of workflows that share its value.
func TestRatioOfSharedValues(t *testing.T) {
	const few, times, most = 250, 40, 2.5
	b := newBench(t, nil)
	add := func(n int, value string) {
		root := b.open(`["` + value + `"]`)
		for _, copied := range []string{
			`INSERT INTO nodes (id, root, path, parent, workflow, principal, session, server, tool, step, step_key, status, attempts, request, record, foreign_id, host, created_at, expires_at)
				WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ?2)
				SELECT id || i.n, id || i.n, path || i.n, parent, workflow, principal, session, server, tool, step, step_key, status, attempts, request, record, foreign_id, host, created_at, expires_at
				FROM nodes, i WHERE id = ?1`,
			`INSERT INTO joins SELECT nodes.id, name, hash FROM joins, nodes WHERE node = ?1 AND nodes.id > ?1 AND nodes.id < ?1 || 'a' AND ?2`,
		} {
			if _, err := b.e.db.ExecContext(t.Context(), copied, root.ID, n-1); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(few, "few")
	add(few*times, "many")
	plan := func(value string, n int) func() {
		r := Request{Rule: b.rules.Find("up", "ask"), Principal: "local", Session: "s2", Arguments: json.RawMessage(`{"id":"` + value + `"}`)}
		return func() {
			for range n {
				if s, err := b.e.Plan(t.Context(), r); err != nil || s.Evidence != Join || !s.Ambiguous {
					t.Fatalf("%+v, %v, want a join with several workflows", s, err)
				}
			}
		}
	}
	r := cputime.Ratio(3, plan("many", 2), plan("few", 2*times))
	if r > most {
		t.Errorf("a value of %d times as many workflows takes %.1f times as long for each, want at most %.1f", times, r, most)
	}
	t.Logf("%.2f times", r)
}
