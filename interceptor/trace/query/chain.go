package query

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// ErrNotFound says that the journal has no record with an id.
var ErrNotFound = errors.New("no such record in the journal")

// maxChain bounds the records of a chain; a longer one is refused.
const maxChain = 100_000

var errChainTooLong = fmt.Errorf("the chain has more than %d records; narrow it with --context or --session, or ask for a later message", maxChain)

// Graph is one message with its causes and effects.
type Graph struct {
	Record  *trace.Record
	Causes  []*trace.Record // the records that it correlates to
	Effects []*trace.Record // the records that correlate to it
	Missing []string        // ids that it correlates to and that are not records of the journal; contexts included
	Chain   []*trace.Record // all causes and effects over any number of steps and the record itself, by seq
}

// Show returns the message with an envelope id, or [ErrNotFound].
func (x *Index) Show(ctx context.Context, id string) (*Graph, error) {
	if err := x.refresh(ctx); err != nil {
		return nil, err
	}
	g := &Graph{}
	var err error
	if g.Record, err = x.find(ctx, id); err != nil {
		return nil, err
	}
	if g.Record == nil {
		return nil, fmt.Errorf("%.80q: %w", id, ErrNotFound)
	}
	for _, cause := range g.Record.CorrelationID {
		r, err := x.find(ctx, cause)
		if err != nil {
			return nil, err
		}
		if r == nil {
			g.Missing = append(g.Missing, cause)
		} else {
			g.Causes = append(g.Causes, r)
		}
	}
	if g.Effects, err = x.effects(ctx, id); err != nil {
		return nil, err
	}
	g.Chain, err = x.chain(ctx, id)
	return g, err
}

func (x *Index) selectChain(ctx context.Context, f Filter, yield func(*trace.Record) bool) error {
	rs, err := x.chain(ctx, f.Chain)
	if err != nil {
		return err
	}
	var contexts map[string]bool
	if f.Orphans {
		if contexts, err = x.contexts(ctx); err != nil {
			return err
		}
	}
	for _, r := range rs {
		selected := f.Match(r)
		if selected && f.Orphans {
			if selected, err = x.isOrphan(ctx, r, contexts); err != nil {
				return err
			}
		}
		if selected && !yield(r) {
			break
		}
	}
	return nil
}

// chain returns the record with an id and all its causes and effects, by seq.
func (x *Index) chain(ctx context.Context, id string) ([]*trace.Record, error) {
	seen := map[string]*trace.Record{} // nil for ids without a record
	for todo := []string{id}; len(todo) > 0; {
		id := todo[0]
		todo = todo[1:]
		if _, ok := seen[id]; ok { // foreign correlations may form a loop
			continue
		}
		r, err := x.find(ctx, id)
		if err != nil {
			return nil, err
		}
		seen[id] = r
		if len(seen) > maxChain {
			return nil, errChainTooLong
		}
		if r != nil {
			todo = append(todo, r.CorrelationID...)
		}
		next, err := x.effects(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, e := range next {
			todo = append(todo, e.ID)
		}
	}
	var out []*trace.Record
	for _, r := range seen {
		if r != nil {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *trace.Record) int { return int(int64(a.Seq) - int64(b.Seq)) }) // #nosec G115: seq counts lines
	return out, nil
}

// find returns the record with an id, nil if there is none.
func (x *Index) find(ctx context.Context, id string) (found *trace.Record, err error) {
	if id == "" { // a filter without an id would select any record
		return nil, nil
	}
	_, err = x.matching(ctx, Filter{ID: id}, func(r *trace.Record) bool { found = r; return false })
	return found, err
}

// effects returns the records that correlate to an id.
func (x *Index) effects(ctx context.Context, id string) (rs []*trace.Record, err error) {
	_, err = x.matching(ctx, Filter{Correlates: id, Journal: true}, func(r *trace.Record) bool { rs = append(rs, r); return true })
	return rs, err
}

// selectOrphans yields the records with a correlation that is neither a record
// nor a context of the journal. The index finds candidates by the keys of ids.
func (x *Index) selectOrphans(ctx context.Context, f Filter, yield func(*trace.Record) bool) error {
	contexts, err := x.contexts(ctx)
	if err != nil {
		return err
	}
	var failed error
	_, err = x.matching(ctx, f, func(r *trace.Record) bool {
		orphan, err := x.isOrphan(ctx, r, contexts)
		failed = err
		return err == nil && (!orphan || yield(r))
	})
	return errors.Join(err, failed)
}

func (x *Index) isOrphan(ctx context.Context, r *trace.Record, contexts map[string]bool) (bool, error) {
	for _, id := range r.CorrelationID {
		if contexts[id] {
			continue
		}
		target, err := x.find(ctx, id)
		if err != nil || target == nil {
			return true, err
		}
	}
	return false, nil
}

// contexts returns every context of the journal, their ancestors, and the last
// segments of all these paths.
func (x *Index) contexts(ctx context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	return all, x.retry(ctx, func() error {
		rows, err := x.database().QueryContext(ctx, "SELECT value FROM word WHERE field = ?", fieldContext)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var value string
			if err := rows.Scan(&value); err != nil {
				return err
			}
			for p := contextpath.Path(value); p != contextpath.Main && !all[string(p)]; p = p.Parent() {
				all[string(p)], all[p.Leaf()] = true, true
			}
		}
		return rows.Err()
	})
}
