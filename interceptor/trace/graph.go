package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
)

// ErrNotFound says that the journal has no record with an id.
var ErrNotFound = errors.New("no such record in the journal")

// maxChain bounds how many records a chain may have; a longer one is refused
// with errChainTooLong.
const maxChain = 100_000

// errChainTooLong says that a chain has more than maxChain records.
var errChainTooLong = fmt.Errorf("the chain has more than %d records; narrow it with --context or --session, or ask for a later message", maxChain)

// find returns the record with an id, nil if there is none.
func (lib library) find(id string) (*Record, error) {
	var found *Record
	_, err := lib.query(Filter{ID: id}, func(r *Record) bool { found = r; return false })
	return found, err
}

// effects returns the records that correlate to an id.
func (lib library) effects(id string) (rs []*Record, err error) {
	_, err = lib.query(Filter{Correlates: id, Journal: true}, func(r *Record) bool { rs = append(rs, r); return true })
	return rs, err
}

// chain returns everything that leads to or follows from id, by seq. Loops in
// foreign correlations end it, they do not turn in it.
func (lib library) chain(id string) ([]*Record, error) {
	seen := map[string]*Record{}
	for todo := []string{id}; len(todo) > 0; {
		id := todo[0]
		todo = todo[1:]
		if _, ok := seen[id]; ok {
			continue
		}
		r, err := lib.find(id)
		if err != nil {
			return nil, err
		}
		seen[id] = r // nil too: it is looked for once
		if len(seen) > maxChain {
			return nil, errChainTooLong
		}
		if r != nil {
			todo = append(todo, r.CorrelationID...)
		}
		next, err := lib.effects(id)
		if err != nil {
			return nil, err
		}
		for _, e := range next {
			todo = append(todo, e.ID)
		}
	}
	var out []*Record
	for _, r := range seen {
		if r != nil {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Record) int { return int(int64(a.Seq) - int64(b.Seq)) }) // #nosec G115: seq counts lines
	return out, nil
}

func (lib library) queryChain(f Filter, yield func(*Record) bool) error {
	rs, err := lib.chain(f.Chain)
	if err != nil {
		return err
	}
	var contexts map[string]bool
	if f.Orphans {
		if contexts, err = lib.contexts(); err != nil {
			return err
		}
	}
	for _, r := range rs {
		selected := f.matchRecord(r)
		if selected && f.Orphans {
			if selected, err = lib.isOrphan(r, contexts); err != nil {
				return err
			}
		}
		if selected && !yield(r) {
			break
		}
	}
	return nil
}

// Graph is one message with what led to it and what followed.
type Graph struct {
	Record  *Record
	Causes  []*Record // it correlates to them
	Effects []*Record // they correlate to it
	Missing []string  // it correlates to them and the journal does not have them; contexts included
	Chain   []*Record // all of them over any number of steps, itself included, by seq
}

// Show returns the message with an envelope id, or [ErrNotFound].
func Show(dir, id string) (*Graph, error) {
	lib, err := openLibrary(dir)
	if err != nil {
		return nil, err
	}
	defer lib.close()
	g := &Graph{}
	if g.Record, err = lib.find(id); err != nil {
		return nil, err
	}
	if g.Record == nil {
		return nil, fmt.Errorf("%.80q: %w", id, ErrNotFound)
	}
	for _, cause := range g.Record.CorrelationID {
		r, err := lib.find(cause)
		if err != nil {
			return nil, err
		}
		if r == nil {
			g.Missing = append(g.Missing, cause)
		} else {
			g.Causes = append(g.Causes, r)
		}
	}
	if g.Effects, err = lib.effects(id); err != nil {
		return nil, err
	}
	g.Chain, err = lib.chain(id)
	return g, err
}

// queryOrphans yields the records with a correlation that is neither an
// envelope id nor a context of the journal. Each file's correlations are first
// merged with its own ids, which resolves nearly all, so that memory is needed
// only for one file's tables and the few that are left.
func (lib library) queryOrphans(f Filter, yield func(*Record) bool) error {
	contexts, err := lib.contexts()
	if err != nil {
		return err
	}
	for _, s := range lib {
		for _, x := range s.indexes {
			rows, err := lib.unresolved(x)
			if err != nil {
				return err
			}
			for _, row := range rows {
				r, err := s.record(x, row)
				if err != nil {
					return err
				}
				if r == nil || !f.matchRecord(r) {
					continue
				}
				orphan, err := lib.isOrphan(r, contexts)
				if err != nil {
					return err
				}
				if orphan && !yield(r) {
					return nil
				}
			}
		}
	}
	return nil
}

// unresolved returns the rows of x with a correlation whose hash is no id's in x.
func (lib library) unresolved(x *index) ([]uint32, error) {
	ids, err := x.section(tableIDs)
	if err != nil {
		return nil, err
	}
	correlations, err := x.section(tableCorrelations)
	if err != nil {
		return nil, err
	}
	var rows []uint32
	for len(correlations) >= entryBytes {
		want := correlations[:8]
		hash := binary.LittleEndian.Uint64(want)
		for len(ids) >= entryBytes && binary.LittleEndian.Uint64(ids) < hash {
			ids = ids[entryBytes:]
		}
		if len(ids) < entryBytes || !bytes.Equal(ids[:8], want) {
			rows = append(rows, binary.LittleEndian.Uint32(correlations[8:]))
		}
		correlations = correlations[entryBytes:]
	}
	slices.Sort(rows)
	return slices.Compact(rows), nil
}

func (lib library) isOrphan(r *Record, contexts map[string]bool) (bool, error) {
	for _, id := range r.CorrelationID {
		if contexts[id] {
			continue
		}
		target, err := lib.find(id)
		if err != nil || target == nil {
			return true, err
		}
	}
	return false, nil
}

// contexts returns every context of the journal, implied parents and the ids
// of single segments included.
func (lib library) contexts() (map[string]bool, error) {
	all := map[string]bool{}
	for _, s := range lib {
		for _, x := range s.indexes {
			values, err := x.dict(colContext)
			if err != nil {
				return nil, err
			}
			for _, v := range values {
				v = strings.Clone(v)
				for p := contextpath.Path(v); p != contextpath.Main && !all[string(p)]; p = p.Parent() {
					all[string(p)], all[p.Leaf()] = true, true
				}
			}
		}
	}
	return all, nil
}

// writeGraph renders a graph as text.
func writeGraph(w io.Writer, g *Graph) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", summary(g.Record))
	section := func(title string, rs []*Record) {
		if len(rs) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s\n", title)
		for _, r := range rs {
			fmt.Fprintf(&b, "  %s\n", summary(r))
		}
	}
	section("because of", g.Causes)
	if len(g.Missing) > 0 {
		sort.Strings(g.Missing)
		fmt.Fprintf(&b, "because of, not in the journal as a message\n  %s\n", strings.Join(g.Missing, "\n  "))
	}
	section("led to", g.Effects)
	if len(g.Chain) > 1+len(g.Causes)+len(g.Effects) {
		section(fmt.Sprintf("whole chain, %d messages", len(g.Chain)), g.Chain)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
