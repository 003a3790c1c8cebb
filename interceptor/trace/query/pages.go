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

// OpenCurrent opens the indexes of journals, and extends them to the ends of the journals.
func OpenCurrent(ctx context.Context, dirs []string) (Set, error) {
	s, err := OpenAll(ctx, dirs)
	if err == nil {
		if err = s.Refresh(ctx); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return s, err
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

// order is how the records of one journal follow each other: those with greater keys come first, of equal ones
// those with greater ids.
type order struct {
	key   string // an expression on a row of record
	least int64  // the least key of a record in the order
	sql   string // the order, of rows of record and of block
	// keys returns bounds of the keys of records: by their ids, and their most tokens and microseconds.
	keys func(first, last, tokens, us int64) (low, high int64)
}

var orders = map[string]order{
	Newest:  {"id", 1, "id DESC", func(first, last, _, _ int64) (low, high int64) { return first, last }},
	Oldest:  {"-id", -math.MaxInt64, "id", func(first, last, _, _ int64) (low, high int64) { return -last, -first }},
	Tokens:  {"tokens", 1, "tokens DESC, id DESC", func(_, _, tokens, _ int64) (low, high int64) { return 0, tokens }},
	Slowest: {"us", 1, "us DESC, id DESC", func(_, _, _, us int64) (low, high int64) { return 0, us }},
}

func (q PageQuery) inTime() bool { return q.Order == Newest || q.Order == Oldest }

// hit is a record that was found in one journal, with its place in the order of a page there.
type hit struct {
	key, id int64 // see order
	record  *trace.Record
}

// compare orders hits.
func (h hit) compare(o hit) int { return cmp.Or(cmp.Compare(o.key, h.key), cmp.Compare(o.id, h.id)) }

// found is what one index gives for a page.
type found struct {
	hits    []hit
	cut     bool
	partial bool
	at      int64     // unless the search was cut in another order than that of time, it goes on behind this key
	time    time.Time // in the order of time: of that place
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
	until, cancel := context.WithTimeout(ctx, q.Wait)
	defer cancel()
	parts := make([]found, len(s))
	for i, x := range s {
		if err := x.read(ctx, func(db *sql.DB, lines *lineReader) (err error) {
			if f := q.Filter; f.Chain != "" || f.ID != "" || f.Correlates != "" || f.Orphans {
				parts[i], err = x.listed(ctx, q, after[i])
			} else {
				parts[i], err = lines.search(ctx, until, db, q, after[i])
			}
			return err
		}); err != nil {
			return p, err
		}
		for _, h := range parts[i].hits {
			h.record.Instance = x.instance
		}
		p.Partial = p.Partial || parts[i].partial
	}
	p.merge(q, parts, after)
	return p, nil
}

// after returns the place in each journal behind which a page begins. PageQuery.After has the order, and the key
// and the id of each place.
func (s Set) after(q PageQuery) (after []hit, err error) {
	if _, ok := orders[q.Order]; !ok {
		return nil, Usagef("sort", "%.40q: use %s, %s, %s or %s", q.Order, Newest, Oldest, Tokens, Slowest)
	}
	order, places, _ := strings.Cut(q.After, "_")
	numbers := strings.Split(places, "_")
	if q.After != "" && (order != q.Order || len(numbers) != 2*len(s)) {
		return nil, Usagef("after", "%.40q: it is of a page in another order, or of other journals", q.After)
	}
	for i := range s {
		h := hit{key: math.MaxInt64}
		if q.After != "" {
			var errID error
			h.key, err = strconv.ParseInt(numbers[2*i], 10, 64)
			h.id, errID = strconv.ParseInt(numbers[2*i+1], 10, 64)
			if err != nil || errID != nil {
				return nil, Usagef("after", "%.40q: it is not of a page that foldgate gave", q.After)
			}
		}
		after = append(after, h)
	}
	return after, nil
}

// merge makes a page of what the indexes gave behind these places. Records of several journals follow each other by
// time, or by key.
func (p *Page) merge(q PageQuery, parts []found, after []hit) {
	earlier := func(a, b time.Time) bool { return a.After(b) == (q.Order == Newest) && !a.Equal(b) }
	before := func(a, b hit) bool { return a.key > b.key }
	if q.inTime() {
		before = func(a, b hit) bool { return earlier(a.record.Time(), b.record.Time()) }
	}
	next, taken := slices.Clone(after), make([]int, len(parts))
	for len(p.Records) < q.Size {
		var first hit
		from := -1
		for i, part := range parts {
			if taken[i] < len(part.hits) && (from < 0 || before(part.hits[taken[i]], first)) {
				first, from = part.hits[taken[i]], i
			}
		}
		lacks := false // a search that was cut may lack records that come before first
		for i, part := range parts {
			lacks = lacks || q.inTime() && from >= 0 && part.cut && len(part.hits) == taken[i] && earlier(part.time, first.record.Time())
		}
		if from < 0 || lacks {
			break
		}
		p.Records = append(p.Records, first.record)
		next[from] = first
		taken[from]++
	}
	more, places := false, q.Order
	for i, part := range parts {
		used := taken[i] == len(part.hits)
		more = more || !used || part.cut && q.inTime()
		if used && (q.inTime() || !part.cut) {
			next[i] = hit{key: part.at}
		}
		switch {
		case !part.cut:
		case !q.inTime():
			p.Cut = true
		case used && len(p.Records) < q.Size && (!p.Cut || earlier(part.time, p.Reached)):
			p.Cut, p.Reached = true, part.time
		}
		places += fmt.Sprintf("_%d_%d", next[i].key, next[i].id)
	}
	if more {
		p.Next = places
	}
}

// search searches one index behind a place. It reads one block of records, so that each page goes on, and more
// of them until the context until ends.
func (l *lineReader) search(ctx, until context.Context, db *sql.DB, q PageQuery, after hit) (out found, err error) {
	f, o := q.Filter, orders[q.Order]
	out.at = after.key
	n, err := f.narrow(ctx, db)
	if err != nil || n.none {
		return out, err
	}
	blocks, err := n.blocks(ctx, db, o.sql)
	if err != nil {
		return out, err
	}
	query := "SELECT id, segment, start, size, " + o.key + " FROM record WHERE id BETWEEN ? AND ? AND " +
		o.key + " >= ? AND (" + o.key + ", id) < (?, ?) AND " + n.terms + " ORDER BY " + o.sql
	h, at, read := hit{}, place{}, ctx
	least := hit{key: o.least} // of the hits, once there are enough of them
	for _, b := range blocks {
		low, high := o.keys(b.first, b.last, b.tokens, b.us)
		switch {
		case high < least.key || high == least.key && b.last < least.id: // so are those of the blocks behind it
			return out, nil
		case low >= after.key: // on the pages before
			continue
		}
		out.at, out.time = min(high+1, after.key), time.UnixMicro(b.since).UTC()
		if q.Order == Newest {
			out.time = time.UnixMicro(b.until).UTC()
		}
		room := q.Size + 1
		if q.inTime() { // the hits of other blocks come before these
			room -= len(out.hits)
		}
		for err := range sqlitedb.Rows(read, db, []any{&h.id, &at.segment, &at.start, &at.size, &h.key}, query, append([]any{b.first, b.last, least.key, after.key, after.id}, n.args...)...) {
			if read.Err() != nil {
				out.cut = true
				slices.SortFunc(out.hits, hit.compare)
				return out, ctx.Err()
			}
			if err != nil {
				return out, err
			}
			if h.record, err = l.record(at); err != nil {
				return out, err
			}
			if h.record == nil {
				continue
			}
			out.at, out.time = h.key, h.record.Time()
			if f.Match(h.record) {
				out.hits = append(out.hits, h)
				if room--; room == 0 {
					break // the rest of the block comes after these
				}
			}
		}
		out.at, read = low, until
		if slices.SortFunc(out.hits, hit.compare); len(out.hits) > q.Size {
			out.hits = out.hits[:q.Size+1]
			least = out.hits[q.Size]
		}
	}
	return out, ctx.Err()
}

// MaxListed bounds the records that a page of records that correlate, or are orphans, is chosen from.
const MaxListed = 20_000

// listed searches the records that a filter names one by one.
func (x *Index) listed(ctx context.Context, q PageQuery, after hit) (out found, err error) {
	f, o := q.Filter, orders[q.Order]
	if f.Chain == "" { // a chain has a bound of its own
		f.Limit = MaxListed + 1
	}
	read := 0
	for r, err := range x.Select(ctx, f) {
		if err != nil {
			return out, err
		}
		if read++; read > MaxListed && f.Chain == "" {
			out.partial = true
			break
		}
		row, h := rowOf(r, place{}), hit{id: int64(min(r.Seq, math.MaxInt64)), record: r} // #nosec G115: bounded
		if _, h.key = o.keys(h.id, h.id, row.tokens, row.us); h.key >= o.least && h.compare(after) > 0 {
			out.hits = append(out.hits, h)
		}
	}
	slices.SortFunc(out.hits, hit.compare)
	if len(out.hits) > q.Size {
		out.hits = out.hits[:q.Size+1]
	} else {
		out.at = o.least
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
		err = x.read(ctx, func(db *sql.DB, lines *lineReader) (err error) {
			var n int64
			f := Filter{ID: id}
			if err := f.places(ctx, db, func(row int64, p place) (bool, error) {
				one, err := lines.record(p)
				if err == nil && one != nil && one.ID == id {
					at.Record, at.Journal, n = one, i, row
					one.Instance = x.instance
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

// Values returns at most limit values that records have of context, kind, session, principal, server,
// tool, team or reason.
func (s Set) Values(ctx context.Context, name string, limit int) (out []string, err error) {
	for _, x := range s {
		if err := x.words(ctx, slices.Index(columns[:], name), limit, func(value string) { out = append(out, value) }); err != nil {
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
		if err := x.read(ctx, func(db *sql.DB, _ *lineReader) error {
			return db.QueryRowContext(ctx, "SELECT sum(count), min(since), max(until) FROM block").Scan(&n, &since, &until)
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
