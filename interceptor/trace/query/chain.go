package query

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// ErrNotFound says that the journal has no record with an id.
var ErrNotFound = errors.New("no such record in the journal")

// maxChain bounds the records of a chain; a longer one is refused.
const maxChain = 100_000

// Graph is one message with its causes and effects.
type Graph struct {
	Record  *trace.Record
	Causes  []*trace.Record // the records that it correlates to
	Effects []*trace.Record // the records that correlate to it
	Missing []string        // ids that it correlates to and that are not records of the journal; contexts included
	Chain   []*trace.Record // all causes and effects over any number of steps and the record itself, by seq
}

// Show returns the record that was located, with its causes and effects.
func (s Set) Show(ctx context.Context, at Located) (*Graph, error) {
	x := s[at.Journal]
	if err := x.refresh(ctx, false); err != nil {
		return nil, err
	}
	chain, err := x.chain(ctx, at.Record.ID)
	if err != nil {
		return nil, err
	}
	g := &Graph{Record: at.Record, Chain: chain}
	byID := map[string]*trace.Record{}
	for _, r := range chain {
		r.Instance = x.instance
		byID[r.ID] = r
		if slices.Contains(r.CorrelationID, at.Record.ID) {
			g.Effects = append(g.Effects, r)
		}
	}
	for _, cause := range g.Record.CorrelationID {
		if r := byID[cause]; r != nil {
			g.Causes = append(g.Causes, r)
		} else {
			g.Missing = append(g.Missing, cause)
		}
	}
	return g, nil
}

// chain returns the record with an id and all its causes and effects, by seq.
func (x *Index) chain(ctx context.Context, id string) ([]*trace.Record, error) {
	seen := map[string]*trace.Record{} // nil for ids without a record
	for unread := []string{id}; len(unread) > 0; {
		id := unread[0]
		unread = unread[1:]
		if _, ok := seen[id]; ok { // foreign correlations may form a loop
			continue
		}
		r, err := x.find(ctx, id)
		if err != nil {
			return nil, err
		}
		seen[id] = r
		if len(seen) > maxChain {
			return nil, Usagef("chain", "it has more than %d records; narrow it with --context or --session, or ask for a later message", maxChain)
		}
		if r != nil {
			unread = append(unread, r.CorrelationID...)
		}
		effects := Filter{Correlates: id, Journal: true}
		if _, err := x.matching(ctx, effects, func(e *trace.Record) bool { unread = append(unread, e.ID); return true }); err != nil {
			return nil, err
		}
	}
	out := slices.DeleteFunc(slices.Collect(maps.Values(seen)), func(r *trace.Record) bool { return r == nil })
	slices.SortFunc(out, func(a, b *trace.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, nil
}

func (x *Index) find(ctx context.Context, id string) (found *trace.Record, err error) {
	if id == "" { // a filter without an id would select any record
		return nil, nil
	}
	_, err = x.matching(ctx, Filter{ID: id}, func(r *trace.Record) bool { found = r; return false })
	return found, err
}

// isOrphan reports whether r correlates to an id that is neither a record nor a context.
func (x *Index) isOrphan(ctx context.Context, r *trace.Record, contexts map[string]bool) (bool, error) {
	for _, id := range r.CorrelationID {
		if contexts[id] {
			continue
		}
		if target, err := x.find(ctx, id); err != nil || target == nil {
			return true, err
		}
	}
	return false, nil
}

// contexts returns every context of the journal, their ancestors, and the last
// segments of all these paths.
func (x *Index) contexts(ctx context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	return all, x.words(ctx, fieldContext, -1, func(value string) {
		for p := contextpath.Path(value); p != contextpath.Main && !all[string(p)]; p = p.Parent() {
			all[string(p)], all[p.Leaf()] = true, true
		}
	})
}

// words calls yield with the values of a field in ascending order, without the empty one: with at most limit of them,
// or with all if limit is negative. If the index was damaged, yield may get a value twice.
func (x *Index) words(ctx context.Context, field, limit int, yield func(value string)) error {
	return x.read(ctx, func(db *sql.DB, _ *lineReader) error {
		var value string
		for err := range sqlitedb.Rows(ctx, db, []any{&value}, "SELECT value FROM word WHERE field = ? AND value <> x'' ORDER BY value LIMIT ?", field, limit) {
			if err != nil {
				return err
			}
			yield(value)
		}
		return nil
	})
}
