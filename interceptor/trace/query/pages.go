package query

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// Set is the indexes of several journals. Its methods answer from the indexes as far as [Set.Refresh]
// has extended them, in a time and with memory that do not grow with the journals. They are safe for
// concurrent use.
type Set []*Index

// OpenAll opens the indexes of the journals in dirs.
func OpenAll(ctx context.Context, dirs []string) (s Set, err error) {
	for i, dir := range dirs {
		x, err := Open(ctx, dir)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		x.instance = instanceOf(dirs, i)
		s = append(s, x)
	}
	return s, nil
}

// Close closes the indexes. No query may be running.
func (s Set) Close() (err error) {
	for _, x := range s {
		err = errors.Join(err, x.Close())
	}
	return err
}

// Refresh extends the indexes to the ends of the journals.
func (s Set) Refresh(ctx context.Context) error {
	for _, x := range s {
		if err := x.refresh(ctx, false); err != nil {
			return err
		}
	}
	return nil
}

// Orders of a page.
const (
	Newest  = "newest"
	Oldest  = "oldest"
	Tokens  = "tokens" // the most delivered tokens first; records without any are left out
	Slowest = "ms"     // the longest duration first; records without one are left out
)

// PageQuery asks for a part of the records that a filter selects.
type PageQuery struct {
	Filter Filter
	Order  string        // "" is Newest
	After  string        // Page.Next of the page before; "" is the first page
	Size   int           // at least 1
	Wait   time.Duration // bounds the search
}

// Page is the answer to a PageQuery.
type Page struct {
	Records []*trace.Record
	Next    string // for PageQuery.After; "" if there are no more records
	// Cut means that the search took too long. In the order of time, Reached is how far it came and the
	// next page goes on there. In other orders the page can lack records that belong before its own.
	Cut     bool
	Reached time.Time
	// Partial means that more than [MaxListed] records correlate or are orphans, and that the page
	// is of the first of them.
	Partial bool
}

// hit is a record that was found, with its place in the order.
type hit struct {
	id, value int64
	journal   int
	record    *trace.Record
}

// found is what one index gives for a page.
type found struct {
	journal int
	hits    []hit
	cut     bool
	partial bool
	at      int64     // in the order of time: the search goes on behind this id
	time    time.Time // of that place
}

// Page returns a page. Its error is a [*UsageError] for a malformed query.
func (s Set) Page(ctx context.Context, q PageQuery) (p Page, err error) {
	if err := q.Filter.Validate(); err != nil {
		return p, err
	}
	q.Order = cmp.Or(q.Order, Newest)
	after, err := s.after(q)
	if err != nil {
		return p, err
	}
	deadline := time.Now().Add(q.Wait)
	parts := make([]found, len(s))
	for i, x := range s {
		err := x.retry(ctx, func() (err error) {
			search, cancel := context.WithDeadline(ctx, deadline)
			defer cancel()
			parts[i], err = x.search(ctx, search, q, i, after)
			parts[i].journal = i
			return err
		})
		if err != nil {
			return p, err
		}
		for _, h := range parts[i].hits {
			h.record.Instance = x.instance
		}
	}
	p.Partial = slices.ContainsFunc(parts, func(part found) bool { return part.partial })
	switch q.Order {
	case Newest, Oldest:
		p.merge(q, parts, after)
	default:
		p.mergeValues(q, parts)
	}
	return p, nil
}

// cursor is the place behind which a page begins: the ids by index in the order of time, else the last
// record of the page before.
type cursor struct {
	ids  []int64
	last hit
}

func (s Set) after(q PageQuery) (c cursor, err error) {
	if !slices.Contains([]string{Newest, Oldest, Tokens, Slowest}, q.Order) {
		return c, Usagef("sort", "%.40q: use %s, %s, %s or %s", q.Order, Newest, Oldest, Tokens, Slowest)
	}
	c.last = hit{value: math.MaxInt64, id: math.MaxInt64}
	for range s {
		c.ids = append(c.ids, map[bool]int64{true: 0, false: math.MaxInt64}[q.Order == Oldest])
	}
	if q.After == "" {
		return c, nil
	}
	parts := strings.Split(q.After, "-")
	numbers := make([]int64, len(parts))
	for i, part := range parts {
		if numbers[i], err = strconv.ParseInt(part, 10, 64); err != nil || numbers[i] < 0 {
			return c, Usagef("after", "%.40q: it is not of a page that foldgate gave", q.After)
		}
	}
	isTime := q.Order == Newest || q.Order == Oldest
	switch {
	case isTime && len(numbers) == len(s):
		c.ids = numbers
	case !isTime && len(numbers) == 3:
		c.last = hit{value: numbers[0], journal: int(numbers[1]), id: numbers[2]}
	default:
		return c, Usagef("after", "%.40q: it is of a page in another order, or of other journals", q.After)
	}
	return c, nil
}

// merge makes a page in the order of time.
func (p *Page) merge(q PageQuery, parts []found, after cursor) {
	before := func(a, b time.Time) bool { return a.After(b) == (q.Order == Newest) && !a.Equal(b) }
	next, taken := slices.Clone(after.ids), make([]int, len(parts))
	for len(p.Records) < q.Size {
		var first *hit
		for i, part := range parts {
			if taken[i] < len(part.hits) && (first == nil || before(part.hits[taken[i]].record.Time(), first.record.Time())) {
				first = &part.hits[taken[i]]
			}
		}
		// A search that was cut may lack records that come before first.
		if first == nil || slices.ContainsFunc(parts, func(part found) bool {
			return part.cut && len(part.hits) == taken[part.journal] && before(part.time, first.record.Time())
		}) {
			break
		}
		p.Records = append(p.Records, first.record)
		next[first.journal] = first.id
		taken[first.journal]++
	}
	more := false
	for i, part := range parts {
		if taken[i] < len(part.hits) {
			more = true
			continue
		}
		next[i] = part.at
		if part.cut && len(p.Records) < q.Size && (!p.Cut || before(part.time, p.Reached)) {
			p.Cut, p.Reached = true, part.time
		}
		more = more || part.cut
	}
	if more {
		p.Next = joined(next...)
	}
}

func joined(numbers ...int64) string {
	var parts []string
	for _, n := range numbers {
		parts = append(parts, strconv.FormatInt(n, 10))
	}
	return strings.Join(parts, "-")
}

// compare orders hits by value.
func (h hit) compare(o hit) int {
	return cmp.Or(cmp.Compare(o.value, h.value), cmp.Compare(h.journal, o.journal), cmp.Compare(o.id, h.id))
}

func (p *Page) mergeValues(q PageQuery, parts []found) {
	var all []hit
	for _, part := range parts {
		p.Cut = p.Cut || part.cut
		all = append(all, part.hits...)
	}
	slices.SortFunc(all, hit.compare)
	for i, h := range all {
		if i == q.Size {
			last := all[i-1]
			p.Next = joined(last.value, int64(last.journal), last.id)
			break
		}
		p.Records = append(p.Records, h.record)
	}
}

// search searches one index. After the first part of it, it stops when until ends.
func (x *Index) search(ctx, until context.Context, q PageQuery, journal int, after cursor) (out found, err error) {
	f, db, lines := q.Filter, x.database(), &lineReader{dir: x.dir}
	defer func() { lines.file.Close() }()
	if f.Chain != "" || f.ID != "" || f.Correlates != "" || f.Orphans {
		return x.listed(ctx, q, journal, after)
	}
	out.at = after.ids[journal]
	n, err := f.narrow(ctx, db)
	if err != nil || n.none {
		return out, err
	}
	column := map[string]string{Newest: "id", Oldest: "id", Tokens: "tokens", Slowest: "us"}[q.Order]
	order := map[string]string{Newest: "id DESC", Oldest: "id", Tokens: "tokens DESC, id DESC", Slowest: "us DESC, id DESC"}[q.Order]
	byTime := column == "id"
	blocks, err := n.blocks(ctx, db, order)
	if err != nil {
		return out, err
	}
	least := hit{value: 1} // of the hits, once there are enough of them
	begun := false
	for _, b := range blocks {
		before := len(out.hits)
		first, last, terms := b.first, b.last, n.terms
		args := append([]any{}, n.args...)
		switch q.Order {
		case Newest:
			last = min(last, after.ids[journal]-1)
		case Oldest:
			first = max(first, after.ids[journal]+1)
		default:
			if value := map[string]int64{Tokens: b.tokens, Slowest: b.us}[q.Order]; value < least.value || value == least.value && b.last < least.id {
				return out, nil // sorted
			}
			terms, args = terms+" AND "+column+" BETWEEN ? AND ?", append(args, least.value, after.last.value)
		}
		if first > last {
			continue
		}
		read := until
		if !begun { // so that each page goes on
			begun, read = true, ctx
		}
		if byTime { // the next page would begin with the block
			out.at, out.time = map[string]int64{Newest: last + 1, Oldest: first - 1}[q.Order], time.UnixMicro(map[string]int64{Newest: b.until, Oldest: b.since}[q.Order]).UTC()
		}
		var id, value int64
		var at place
		query := "SELECT id, segment, start, size, " + column + " FROM record WHERE id BETWEEN ? AND ? AND " + terms + " ORDER BY " + order
		for err := range sqlitedb.Rows(read, db, []any{&id, &at.segment, &at.start, &at.size, &value}, query, append([]any{first, last}, args...)...) {
			if read.Err() != nil {
				break
			}
			if err != nil {
				return out, err
			}
			h := hit{id: id, value: value, journal: journal}
			if !byTime && h.compare(after.last) <= 0 {
				continue
			}
			if h.record, err = lines.record(at); err != nil {
				return out, err
			}
			if h.record == nil {
				continue
			}
			if f.Match(h.record) {
				out.hits = append(out.hits, h)
			}
			if byTime {
				if len(out.hits) > q.Size {
					return out, nil
				}
				out.at, out.time = id, h.record.Time()
			} else if len(out.hits)-before > q.Size {
				break // the rest of the block comes after these
			}
		}
		if read.Err() != nil {
			out.cut = true
			break
		}
		if byTime {
			out.at = map[string]int64{Newest: first, Oldest: last}[q.Order]
		} else if len(out.hits) > q.Size {
			slices.SortFunc(out.hits, hit.compare)
			out.hits = out.hits[:q.Size+1]
			least = out.hits[q.Size]
		}
	}
	if !byTime {
		slices.SortFunc(out.hits, hit.compare)
	}
	return out, ctx.Err()
}

// MaxListed bounds the records that a page of records that correlate, or are orphans, is chosen from.
const MaxListed = 20_000

// listed searches the records that a filter names one by one.
func (x *Index) listed(ctx context.Context, q PageQuery, journal int, after cursor) (out found, err error) {
	f := q.Filter
	if f.Chain == "" { // a chain has a bound of its own
		f.Limit = MaxListed + 1
	}
	var all []*trace.Record
	for r, err := range x.Select(ctx, f) {
		if err != nil {
			return out, err
		}
		all = append(all, r)
	}
	if out.partial = f.Chain == "" && len(all) > MaxListed; out.partial {
		all = all[:MaxListed]
	}
	for _, r := range all {
		row := rowOf(r, place{})
		h := hit{id: int64(min(r.Seq, math.MaxInt64)), journal: journal, record: r} // #nosec G115: bounded
		h.value = map[string]int64{Tokens: row.tokens, Slowest: row.us}[q.Order]
		switch {
		case q.Order == Newest && h.id < after.ids[journal], q.Order == Oldest && h.id > after.ids[journal], (q.Order == Tokens || q.Order == Slowest) && h.value > 0 && h.compare(after.last) > 0:
			out.hits = append(out.hits, h)
		}
	}
	switch q.Order {
	case Newest:
		slices.Reverse(out.hits)
	case Tokens, Slowest:
		slices.SortFunc(out.hits, hit.compare)
	}
	if len(out.hits) > q.Size {
		out.hits = out.hits[:q.Size+1]
	} else if out.at = math.MaxInt64; q.Order == Newest {
		out.at = 0
	}
	return out, nil
}

// Located is a record in its journal.
type Located struct {
	Record        *trace.Record
	Before, After *trace.Record // the records around it, nil at an end
	Intact        bool          // its hash and digest fit the bytes of its line
	Journal       int           // its number in the set
}

// Locate returns the record with an envelope id. The error can be [ErrNotFound].
func (s Set) Locate(ctx context.Context, id string) (at Located, err error) {
	for i, x := range s {
		err = x.retry(ctx, func() (err error) {
			var n int64
			lines := &lineReader{dir: x.dir}
			defer func() { lines.file.Close() }()
			f := Filter{ID: id}
			db := x.database()
			if err := f.places(ctx, db, func(row int64, p place) (bool, error) {
				one, err := lines.record(p)
				if err == nil && one != nil && one.ID == id {
					at.Record, at.Journal, n = one, i, row
					_, at.Intact, err = trace.ParseLine(lines.line[:p.size-1])
				}
				return at.Record == nil, err
			}); err != nil || at.Record == nil {
				return err
			}
			if at.Before, err = lines.first(ctx, db, "id < ? ORDER BY id DESC", n); err == nil {
				at.After, err = lines.first(ctx, db, "id > ? ORDER BY id", n)
			}
			return err
		})
		if at.Record != nil || err != nil {
			return at, err
		}
	}
	return at, fmt.Errorf("%.80q: %w", id, ErrNotFound)
}

// Show is [Index.Show] for the first index that has the message. It sets the Instance of the records.
func (s Set) Show(ctx context.Context, id string) (g *Graph, err error) {
	err = ErrNotFound
	for _, x := range s {
		if g, err = x.Show(ctx, id); errors.Is(err, ErrNotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		for _, r := range slices.Concat([]*trace.Record{g.Record}, g.Causes, g.Effects, g.Chain) {
			r.Instance = x.instance
		}
		return g, nil
	}
	return nil, err
}

// Values returns at most limit values that records have of context, kind, session, principal, server,
// tool, team or reason.
func (s Set) Values(ctx context.Context, name string, limit int) (out []string, err error) {
	field := slices.Index(columns[:], name)
	for _, x := range s {
		err := x.retry(ctx, func() error {
			var value string
			for err := range sqlitedb.Rows(ctx, x.database(), []any{&value}, "SELECT value FROM word WHERE field = ? AND value <> x'' ORDER BY value LIMIT ?", field, limit) {
				if err != nil {
					return err
				}
				out = append(out, value)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), limit)], nil
}

// Extent returns the number of records in the indexes and the times of the first and the last.
func (s Set) Extent(ctx context.Context) (records int64, first, last time.Time, err error) {
	for _, x := range s {
		var n, since, until sql.NullInt64
		if err := x.retry(ctx, func() error {
			return x.database().QueryRowContext(ctx, "SELECT sum(count), min(since), max(until) FROM block").Scan(&n, &since, &until)
		}); err != nil {
			return 0, first, last, err
		}
		if records += n.Int64; n.Int64 > 0 {
			if t := time.UnixMicro(since.Int64).UTC(); first.IsZero() || t.Before(first) {
				first = t
			}
			if t := time.UnixMicro(until.Int64).UTC(); t.After(last) {
				last = t
			}
		}
	}
	return records, first, last, nil
}
