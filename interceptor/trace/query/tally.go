package query

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Sums are figures of records. Those of a response are of its call.
type Sums struct {
	Records   int64
	Calls     int64 // tools/call requests
	Errors    int64 // records with an error result
	Blocked   int64 // refused by foldgate
	Scrubbed  int64 // records with secrets
	In        int64 // tokens of arguments
	Delivered int64 // tokens of results as hosts got them
	Saved     int64 // tokens that upstreams sent and hosts did not get, less those read back later
	Answers   int64 // responses with a duration
	US        int64 // microseconds of all of them
}

var sumNames = []string{"records", "calls", "errors", "blocked", "scrubbed", "tokens_in", "delivered", "saved", "answers", "us"}

func (s *Sums) fields() [10]*int64 {
	return [10]*int64{&s.Records, &s.Calls, &s.Errors, &s.Blocked, &s.Scrubbed, &s.In, &s.Delivered, &s.Saved, &s.Answers, &s.US}
}

// Add adds the figures of o.
func (s *Sums) Add(o Sums) {
	to := s.fields()
	for i, v := range o.fields() {
		*to[i] += *v
	}
}

func sumsOf(r *trace.Record) Sums {
	a := r.AuditOrEmpty()
	one := func(is bool) int64 {
		if is {
			return 1
		}
		return 0
	}
	s := Sums{Records: 1, Calls: one(trace.CanonicalKind(r.Kind) == trace.KindRequest+"tools/call"), Errors: one(a.IsError), Blocked: one(r.Blocked()), Scrubbed: one(len(a.Scrub) > 0)}
	if t := a.Tokens; t != nil {
		s.In, s.Delivered, s.Saved = int64(t.In), int64(t.Delivered), int64(max(0, t.Out-t.Delivered))
		if a.Read != nil {
			s.Saved -= int64(t.Delivered)
		}
	}
	if strings.HasPrefix(r.Kind, trace.KindResponse) && a.MS > 0 {
		s.Answers, s.US = 1, microseconds(a)
	}
	return s
}

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

func (b *branchSums) fields() [6]*int64 {
	return [6]*int64{&b.Records, &b.Calls, &b.Errors, &b.Delivered, &b.Used, &b.Budget}
}

func newTally() tally {
	return tally{map[totalKey]*Sums{}, map[string]*branchRow{}}
}

// add adds a record, whose number is at.
func (t *tally) add(r *trace.Record, at int64) {
	kind := trace.CanonicalKind(r.Kind)
	if kind == trace.KindJournal || kind == trace.KindConfig {
		return
	}
	a, s, when := r.AuditOrEmpty(), sumsOf(r), r.Time()
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
	name := trace.BranchOf(r.Context)
	if name == "" {
		return
	}
	b := t.branches[name]
	if b == nil {
		b = &branchRow{}
		t.branches[name] = b
	}
	switch kind {
	case trace.KindPush:
		b.opened, b.principal = at, a.Principal
	case trace.KindPop:
		b.closed = at
	}
	b.last, b.Records, b.Calls, b.Errors, b.Delivered = at, b.Records+1, b.Calls+s.Calls, b.Errors+s.Errors, b.Delivered+s.Delivered
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
		row = append(row, k.start, segment)
		for _, v := range s.fields() {
			row = append(row, *v)
		}
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
		row := []any{path, segment, principal, b.opened, b.closed, b.last}
		for _, v := range b.branchSums.fields() {
			row = append(row, *v)
		}
		if _, err := keep.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
	return nil
}
