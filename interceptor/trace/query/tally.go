package query

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// microseconds returns the duration that a record has, within bounds.
func microseconds(a *trace.Audit) int64 { return int64(min(max(a.MS, 0), 1e12) * 1000) }

// tally has the sums and branches of a segment.
type tally struct {
	totals   map[totalKey]*Sums
	branches map[string]*branchRow // by context path
}

// totalFields are the words by which there are sums, in the order of their columns.
var totalFields = [...]int{fieldPrincipal, fieldTeam, fieldServer, fieldTool}

// grains are the sums that are kept, by some of these words. The first is by hour, the others are by day. A
// query uses the first one that has its words.
var grains = [][]int{
	{fieldServer},
	{fieldPrincipal, fieldTeam},
	{fieldServer, fieldTool},
	{fieldTeam, fieldServer, fieldTool},
	totalFields[:],
}

type totalKey struct {
	grain, start int64
	words        [len(totalFields)]string // "" for those that the grain does not have
}

// branchRow is what a segment has of a branch. Records are numbers above 0.
type branchRow struct {
	principal            string
	opened, closed, last int64
	branchSums
}

type branchSums struct{ Records, Calls, Errors, Delivered, Used, Budget int64 }

var branchNames = []string{"records", "calls", "errors", "delivered", "used", "budget"}

func (b *branchSums) fields() []any {
	return []any{&b.Records, &b.Calls, &b.Errors, &b.Delivered, &b.Used, &b.Budget}
}

func newTally() tally {
	return tally{map[totalKey]*Sums{}, map[string]*branchRow{}}
}

// add adds a record, by its number.
func (t *tally) add(r *trace.Record, number int64) {
	if r.Kind == trace.KindJournal || r.Kind == trace.KindConfig {
		return
	}
	when := r.Time()
	for of, s := range sumsOf(r) {
		a := of.AuditOrEmpty()
		words := [len(totalFields)]string{a.Principal, a.Team, a.Server, a.Tool}
		for i, g := range grains {
			unit := 24 * time.Hour
			if i == 0 {
				unit = time.Hour
			}
			k := totalKey{grain: int64(i), start: when.Truncate(unit).Unix()}
			for n, field := range totalFields {
				if slices.Contains(g, field) {
					k.words[n] = words[n]
				}
			}
			if t.totals[k] == nil {
				t.totals[k] = &Sums{}
			}
			t.totals[k].Add(s)
		}
	}
	a, s := r.AuditOrEmpty(), ownSums(r)
	name := trace.BranchOf(r.Context)
	if name == "" {
		return
	}
	b := t.branches[name]
	if b == nil {
		b = &branchRow{}
		t.branches[name] = b
	}
	switch r.Kind {
	case trace.KindPush:
		b.opened, b.principal = number, a.Principal
	case trace.KindPop:
		b.closed = number
	}
	b.last, b.Records, b.Calls, b.Errors, b.Delivered = number, b.Records+1, b.Calls+s.Calls, b.Errors+s.Errors, b.Delivered+s.Delivered
	if a.Tokens != nil {
		b.Used, b.Budget = max(b.Used, int64(a.Tokens.Used)), max(b.Budget, int64(a.Tokens.Budget))
	}
}

// save adds the tally of records of a segment to the tables. number returns the number of a word.
func (t *tally) save(ctx context.Context, tx *sql.Tx, segment int64, number func(word) (int64, error)) error {
	var adds, keeps []string
	for _, name := range sumNames {
		adds = append(adds, fmt.Sprintf("%[1]s = %[1]s + excluded.%[1]s", name))
	}
	for i, name := range branchNames {
		form := "%[1]s = %[1]s + excluded.%[1]s"
		if i >= 4 { // used and budget
			form = "%[1]s = max(%[1]s, excluded.%[1]s)"
		}
		keeps = append(keeps, fmt.Sprintf(form, name))
	}
	add, err := tx.PrepareContext(ctx, "INSERT INTO total VALUES (?"+strings.Repeat(", ?", 6+len(sumNames))+") ON CONFLICT DO UPDATE SET "+strings.Join(adds, ", "))
	if err != nil {
		return err
	}
	for k, s := range t.totals {
		row := []any{k.grain}
		for n, field := range totalFields {
			var id int64
			if slices.Contains(grains[k.grain], field) {
				if id, err = number(word{field, k.words[n]}); err != nil {
					return err
				}
			}
			row = append(row, id)
		}
		row = append(append(row, k.start, segment), s.fields()...)
		if _, err := add.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
	keep, err := tx.PrepareContext(ctx, "INSERT INTO branch VALUES (?"+strings.Repeat(", ?", 5+len(branchNames))+`) ON CONFLICT DO UPDATE SET
		principal = iif(excluded.opened > 0, excluded.principal, principal), opened = iif(excluded.opened > 0, excluded.opened, opened),
		closed = max(closed, excluded.closed), last = excluded.last, `+strings.Join(keeps, ", "))
	if err != nil {
		return err
	}
	for name, b := range t.branches {
		path, err := number(word{fieldContext, name})
		if err != nil {
			return err
		}
		principal, err := number(word{fieldPrincipal, b.principal})
		if err != nil {
			return err
		}
		row := append([]any{path, segment, principal, b.opened, b.closed, b.last}, b.branchSums.fields()...)
		if _, err := keep.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
	return nil
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

// Sums adds up records by any of hour or day, principal, team, server and tool, ordered by these.
func (s Set) Sums(ctx context.Context, f SumFilter, by ...string) ([]SumRow, error) {
	query, args, err := f.query(by)
	if err != nil {
		return nil, err
	}
	all := map[string]*SumRow{}
	for _, x := range s {
		var rows []SumRow
		err := x.read(ctx, func(db *sql.DB, _ *lineReader) (err error) {
			rows, err = sums(ctx, db, by, query, args)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			key := fmt.Sprintf("%d %q", row.Start.Unix(), row.Names)
			if all[key] == nil {
				all[key] = &SumRow{Start: row.Start, Names: row.Names}
			}
			all[key].Add(row.Sums)
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

// query returns the query for the sums, whose columns are by and sumNames, and its arguments.
func (f SumFilter) query(by []string) (query string, args []any, err error) {
	var needs []int // words
	terms := []string{"TRUE"}
	for i, value := range [len(totalFields)]string{f.Principal, f.Team, f.Server, f.Tool} {
		if field := totalFields[i]; value != "" {
			needs = append(needs, field)
			terms, args = append(terms, columns[field]+" = (SELECT id FROM word WHERE field = ? AND value = ?)"), append(args, field, blob(value))
		}
	}
	var groups, numbers, shown []string
	for i, name := range by {
		numbers = append(numbers, strconv.Itoa(i+1))
		switch name {
		case "hour":
			groups, shown = append(groups, "start AS hour"), append(shown, "hour")
		case "day":
			groups, shown = append(groups, "start - start % 86400 AS day"), append(shown, "day")
		default:
			field := slices.Index(columns[:], name)
			if !slices.Contains(totalFields[:], field) {
				return "", nil, Usagef("by", "%.40q: use hour, day, principal, team, server or tool", name)
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
	for _, name := range sumNames {
		groups = append(groups, "sum("+name+") AS "+name)
	}
	query = "SELECT " + strings.Join(groups, ", ") + " FROM total WHERE " + strings.Join(terms, " AND ")
	if len(by) > 0 {
		query += " GROUP BY " + strings.Join(numbers, ", ")
	}
	return "SELECT " + strings.Join(append(shown, sumNames...), ", ") + " FROM (" + query + ") WHERE records IS NOT NULL", args, nil
}

// sums returns the rows of a query of [SumFilter.query].
func sums(ctx context.Context, db *sql.DB, by []string, query string, args []any) (rows []SumRow, err error) {
	var of Sums
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
	into = append(into, of.fields()...)
	for err := range sqlitedb.Rows(ctx, db, into, query, args...) {
		if err != nil {
			return nil, err
		}
		row := SumRow{Sums: of}
		for i, name := range by {
			if name == "hour" || name == "day" {
				row.Start = time.Unix(start, 0).UTC()
			} else {
				row.Names = append(row.Names, names[i])
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
