package query

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

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
		var part []branchKey
		err := x.read(ctx, func(db *sql.DB, _ *lineReader) (err error) {
			part, err = q.keys(ctx, db, need+1)
			return err
		})
		if err != nil {
			return nil, false, err
		}
		for _, k := range part {
			k.journal = i
			keys = append(keys, k)
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

// manyBranches is the number of branches of a principal from which a page by cost is found in its order.
// Fewer branches are sorted.
const manyBranches = 20_000

// keys returns the first branches of a query.
func (q BranchQuery) keys(ctx context.Context, db *sql.DB, limit int) (out []branchKey, err error) {
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
			if words, err := sqlitedb.Collect(ctx, db, &who, []any{&who}, "SELECT id FROM word WHERE field = ? AND value = ?", fieldPrincipal, blob(q.Principal)); err != nil || len(words) == 0 {
				return nil, err
			}
			if err := db.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM branch WHERE opened > 0 AND principal = ? LIMIT ?)", who, manyBranches).Scan(&branches); err != nil {
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
	for err := range sqlitedb.Rows(ctx, db, []any{&k.context, &k.order, &k.path}, query, args...) {
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
	into := append([]any{&path, &principal, &row.opened, &row.closed, &row.last}, row.branchSums.fields()...)
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
