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
	for _, dir := range dirs {
		x, err := Open(ctx, dir)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
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
	Order  string // "" is Newest
	After  string // Page.Next of the page before; "" is the first page
	Size   int
	Wait   time.Duration // bounds the search
}

// Page is the answer to a PageQuery.
type Page struct {
	Records []*trace.Record
	Next    string // for PageQuery.After; "" if there are no more records
	// Cut means that the search took too long. In the order of time, Reached is how far it came and the
	// next page goes on there. In other orders there can be records that should be before those of the
	// page.
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
	q.Order, q.Size = cmp.Or(q.Order, Newest), cmp.Or(q.Size, 50)
	after, err := s.after(q)
	if err != nil {
		return p, err
	}
	deadline := time.Now().Add(q.Wait)
	parts := make([]found, len(s))
	var dirs []string
	for _, x := range s {
		dirs = append(dirs, x.dir)
	}
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
		instance := instanceOf(dirs, i)
		for _, h := range parts[i].hits {
			h.record.Instance = instance
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
	var all []*trace.Record
	if f.Chain != "" {
		if all, err = x.chain(ctx, f.Chain); err == nil {
			all = slices.DeleteFunc(all, func(r *trace.Record) bool { return !f.Match(r) })
		}
	} else {
		f.Limit = MaxListed + 1
		for r, one := range x.Select(ctx, f) {
			if err = one; err != nil {
				break
			}
			all = append(all, r)
		}
	}
	if err != nil {
		return out, err
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

// Neighbours returns the record with an envelope id, those before and after it in its journal, nil if
// there is none, whether its hash fits the bytes of its line, and the number of the journal in the set. The
// error can be [ErrNotFound].
func (s Set) Neighbours(ctx context.Context, id string) (r, before, after *trace.Record, intact bool, journal int, err error) {
	for i, x := range s {
		err = x.retry(ctx, func() (err error) {
			var n int64
			lines := &lineReader{dir: x.dir}
			defer func() { lines.file.Close() }()
			f := Filter{ID: id}
			db := x.database()
			if err := f.places(ctx, db, func(at int64, p place) (bool, error) {
				one, err := lines.record(p)
				if err == nil && one != nil && one.ID == id {
					r, n = one, at
					_, intact, err = trace.ParseLine(lines.line[:p.size-1])
				}
				return r == nil, err
			}); err != nil || r == nil {
				return err
			}
			if before, err = lines.first(ctx, db, "id < ? ORDER BY id DESC", n); err == nil {
				after, err = lines.first(ctx, db, "id > ? ORDER BY id", n)
			}
			return err
		})
		if r != nil || err != nil {
			return r, before, after, intact, i, err
		}
	}
	return nil, nil, nil, false, 0, fmt.Errorf("%.80q: %w", id, ErrNotFound)
}

// Show is [Index.Show] for the first index that has the message.
func (s Set) Show(ctx context.Context, id string) (g *Graph, err error) {
	err = ErrNotFound
	for _, x := range s {
		if g, err = x.Show(ctx, id); !errors.Is(err, ErrNotFound) {
			break
		}
	}
	return g, err
}

// SumFilter selects the records that [Set.Sums] adds up. Names are exact; "" is any.
type SumFilter struct {
	// Since and Until are rounded down to whole hours, or days if a name or the sums need days.
	Since, Until                  time.Time
	Principal, Team, Server, Tool string
}

// SumRow has the sums of the records with a key, such as a tool's.
type SumRow struct {
	Start time.Time // of the hour or day; zero if not asked for
	Names []string  // in the order of the names that were asked for
	Sums
}

// Sums adds up records by any of hour or day, principal, team, server and tool, ordered by these. It
// returns at most limit rows for each index, 0 for all.
func (s Set) Sums(ctx context.Context, f SumFilter, limit int, by ...string) ([]SumRow, error) {
	var needs []int // words
	var groups, shown []string
	terms, args := []string{"TRUE"}, []any{}
	for i, value := range [len(totalFields)]string{f.Principal, f.Team, f.Server, f.Tool} {
		if field := totalFields[i]; value != "" {
			needs = append(needs, field)
			terms, args = append(terms, columns[field]+" = (SELECT id FROM word WHERE field = ? AND value = ?)"), append(args, field, blob(value))
		}
	}
	for _, name := range by {
		switch name {
		case "hour":
			groups, shown = append(groups, "start AS hour"), append(shown, "hour")
		case "day":
			groups, shown = append(groups, "start - start % 86400 AS day"), append(shown, "day")
		default:
			field := slices.Index(columns[:], name)
			if !slices.Contains(totalFields[:], field) {
				return nil, Usagef("by", "%.40q: use hour, day, principal, team, server or tool", name)
			}
			needs, groups = append(needs, field), append(groups, name)
			shown = append(shown, "coalesce((SELECT value FROM word WHERE id = "+name+"), '')")
		}
	}
	grain := slices.IndexFunc(grains, func(g []int) bool {
		return !slices.ContainsFunc(needs, func(field int) bool { return !slices.Contains(g, field) })
	})
	unit := time.Hour
	if grain > 0 {
		unit = 24 * time.Hour
	}
	terms, args = append(terms, "grain = ?"), append(args, grain)
	if !f.Since.IsZero() {
		terms, args = append(terms, "start >= ?"), append(args, f.Since.Truncate(unit).Unix())
	}
	if !f.Until.IsZero() {
		terms, args = append(terms, "start < ?"), append(args, f.Until.Truncate(unit).Unix())
	}
	var sums []string
	for _, name := range sumNames {
		sums = append(sums, "sum("+name+") AS "+name)
	}
	inner := "SELECT " + strings.Join(append(slices.Clone(groups), sums...), ", ") + " FROM total WHERE " + strings.Join(terms, " AND ")
	var numbers []string
	for i := range groups {
		numbers = append(numbers, strconv.Itoa(i+1))
	}
	if len(groups) > 0 {
		inner += " GROUP BY " + strings.Join(numbers, ", ")
	}
	query := "SELECT " + strings.Join(append(shown, sumNames...), ", ") + " FROM (" + inner + ") WHERE records > 0"
	if limit > 0 {
		query += fmt.Sprintf(" LIMIT %d", limit)
	}
	all := map[string]*SumRow{}
	for _, x := range s {
		err := x.retry(ctx, func() error {
			var row SumRow
			var start int64
			names := make([]string, len(by))
			var into []any
			for i, name := range by {
				if name == "hour" || name == "day" {
					into = append(into, &start)
				} else {
					into = append(into, &names[i])
				}
			}
			for _, v := range row.fields() {
				into = append(into, v)
			}
			for err := range sqlitedb.Rows(ctx, x.database(), into, query, args...) {
				if err != nil {
					return err
				}
				key := fmt.Sprintf("%d %q", start, names)
				if all[key] == nil {
					all[key] = &SumRow{}
					if slices.Contains(by, "hour") || slices.Contains(by, "day") {
						all[key].Start = time.Unix(start, 0).UTC()
					}
					for i, name := range by {
						if name != "hour" && name != "day" {
							all[key].Names = append(all[key].Names, names[i])
						}
					}
				}
				all[key].Add(row.Sums)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	out := make([]SumRow, 0, len(all))
	for _, r := range all {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b SumRow) int {
		return cmp.Or(a.Start.Compare(b.Start), slices.Compare(a.Names, b.Names))
	})
	return out, nil
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

// Branch is a branch as the trace has it.
type Branch struct {
	Context   string
	Principal string
	Journal   int // in the set
	// Opened and Closed are the records that open and close it, Last is its last one; nil if the trace does
	// not have them.
	Opened, Closed, Last              *trace.Record
	Records, Calls, Errors, Delivered int64
	Used, Budget                      int64 // tokens
}

// BranchQuery selects branches.
type BranchQuery struct {
	Tree      string // this branch and those below it, in the order of their paths; "" is all branches
	Open      bool   // without an end in the trace
	Principal string // exact; "" is any
	ByCost    bool   // those with the most used tokens first, else the newest
	Page      int    // from 0
	Size      int
}

// Branches returns a page of branches.
func (s Set) Branches(ctx context.Context, q BranchQuery) (out []Branch, more bool, err error) {
	need := (q.Page + 1) * q.Size
	var keys []branchKey
	for i, x := range s {
		err := x.retry(ctx, func() error {
			part, err := x.branchKeys(ctx, q, need+1)
			for _, k := range part {
				k.journal = i
				keys = append(keys, k)
			}
			return err
		})
		if err != nil {
			return nil, false, err
		}
	}
	slices.SortStableFunc(keys, func(a, b branchKey) int {
		if q.Tree != "" { // with NUL for the slash a branch comes before those below it, and these before the next one
			return strings.Compare(strings.ReplaceAll(a.path, "/", "\x00"), strings.ReplaceAll(b.path, "/", "\x00"))
		}
		return cmp.Compare(b.order, a.order)
	})
	more = len(keys) > need
	for _, k := range keys[min(len(keys), q.Page*q.Size):min(len(keys), need)] {
		b, err := s[k.journal].branch(ctx, k.context)
		if err != nil {
			return nil, false, err
		}
		b.Journal = k.journal
		out = append(out, b)
	}
	return out, more, nil
}

// branchKey is the place of a branch in the order of a page.
type branchKey struct {
	journal        int
	context, order int64
	path           string
}

// manyBranches of a person are looked for in the order of the page, fewer ones are sorted.
const manyBranches = 20_000

// branchKeys returns the first branches of a query.
func (x *Index) branchKeys(ctx context.Context, q BranchQuery, limit int) (out []branchKey, err error) {
	var args []any
	var query string
	switch {
	case q.Tree != "":
		query = "SELECT DISTINCT context, 0, value FROM branch JOIN word ON word.id = context WHERE field = 0 AND (value = ? OR value > ? AND value < ?) ORDER BY value LIMIT ?"
		args = []any{blob(q.Tree), blob(q.Tree + "/"), blob(q.Tree + "0"), limit}
	default:
		terms, order, value := "opened > 0", "opened", "(SELECT time FROM record WHERE id = opened)"
		if q.ByCost {
			terms, order, value = "used > 0", "used", "used"
		}
		if q.Open {
			terms += " AND closed = 0 AND NOT EXISTS (SELECT 1 FROM branch b WHERE b.context = branch.context AND b.closed > 0)"
		}
		if q.Principal != "" {
			var who, branches int64
			if err := x.database().QueryRowContext(ctx, "SELECT id FROM word WHERE field = ? AND value = ?", fieldPrincipal, blob(q.Principal)).Scan(&who); errors.Is(err, sql.ErrNoRows) {
				return nil, nil
			} else if err != nil {
				return nil, err
			}
			if err := x.database().QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM branch WHERE opened > 0 AND principal = ? LIMIT ?)", who, manyBranches).Scan(&branches); err != nil {
				return nil, err
			}
			args = append(args, who)
			switch { // only the row of the segment that opens a branch has the principal
			case !q.ByCost:
				terms += " AND principal = ?"
			case branches < manyBranches:
				terms += " AND context IN (SELECT context FROM branch WHERE opened > 0 AND principal = ?)"
				order = "+used"
			default: // the first ones are found soon
				terms += " AND EXISTS (SELECT 1 FROM branch b WHERE b.context = branch.context AND b.opened > 0 AND b.principal = ?)"
			}
		}
		query = "SELECT context, " + value + ", x'' FROM branch WHERE " + terms + " ORDER BY " + order + " DESC"
	}
	seen := map[int64]bool{} // a branch has a row for each segment
	var k branchKey
	for err := range sqlitedb.Rows(ctx, x.database(), []any{&k.context, &k.order, &k.path}, query, args...) {
		if err != nil {
			return nil, err
		}
		if !seen[k.context] {
			seen[k.context] = true
			out = append(out, k)
		}
		if len(out) == limit {
			break
		}
	}
	return out, nil
}

// branch returns a branch by the number of its path.
func (x *Index) branch(ctx context.Context, context int64) (b Branch, err error) {
	db := x.database()
	lines := &lineReader{dir: x.dir}
	defer func() { lines.file.Close() }()
	var path, principal []byte
	var row branchRow
	into := []any{&path, &principal, &row.opened, &row.closed, &row.last}
	for _, v := range row.branchSums.fields() {
		into = append(into, v)
	}
	var opened, closed, last int64
	for err := range sqlitedb.Rows(ctx, db, into, "SELECT (SELECT value FROM word WHERE id = context), coalesce((SELECT value FROM word WHERE id = principal), x''), opened, closed, last, "+strings.Join(branchNames, ", ")+" FROM branch WHERE context = ? ORDER BY segment", context) {
		if err != nil {
			return b, err
		}
		b.Context, last = string(path), row.last
		if row.opened > 0 {
			opened, b.Principal = row.opened, string(principal)
		}
		closed = cmp.Or(row.closed, closed)
		b.Records, b.Calls, b.Errors, b.Delivered = b.Records+row.Records, b.Calls+row.Calls, b.Errors+row.Errors, b.Delivered+row.Delivered
		b.Used, b.Budget = max(b.Used, row.Used), max(b.Budget, row.Budget)
	}
	for _, one := range []struct {
		to **trace.Record
		id int64 // 0 is no record's
	}{{&b.Opened, opened}, {&b.Closed, closed}, {&b.Last, last}} {
		if *one.to, err = lines.first(ctx, db, "id = ?", one.id); err != nil {
			return b, err
		}
	}
	return b, nil
}
