package main

import (
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
)

func newStats(a *app) *cobra.Command {
	t := &traceFlags{app: a}
	tables := func() [][]string {
		if len(t.by) > 0 {
			return [][]string{t.by}
		}
		return [][]string{{"tool"}, {"branch"}, {"day"}}
	}
	cmd := summary(t, &cobra.Command{
		Use:   "stats",
		Short: "Sum up calls and tokens, and what folding saved",
		Long: `Sum up the records of the trace by tool, by branch and by day, or by what --by
says. The tokens are those of arguments (in), of what tools returned and of what
was delivered of it; of results that were stored instead, and of what was read
back of these later, by branch_read or as the answer of a branch_run. Saved are
the tokens of stored results less their previews and less what was read back.
What was read back counts where it had been saved: at the tool and in the branch
of the stored result, whose branch_status says the same sum.

Saved and freed are computed. All other figures were measured when the calls
were made. A column in which all is 0 is left out. The trace is all it knows:
what its retention has removed is not in the sums.`,
		Example: "  foldgate stats\n  foldgate stats --since 7d --json\n  foldgate stats --by principal,day\n  foldgate stats --by server,rule --scrubbed",
	}, func(records iter.Seq2[*trace.Record, error]) (*query.Stats, error) {
		return query.Summarize(records, tables()...)
	}, func(w io.Writer, s *query.Stats) error { return writeStats(w, s, tables(), t.filter.Limit) })
	t.placeFlags(cmd)
	cmd.Flags().StringSliceVar(&t.by, "by", nil, "one table instead, with a row for each of these, or for each combination: "+strings.Join(query.Dimensions, ", "))
	cmd.Flags().IntVar(&t.filter.Limit, "limit", 10, "at most so many rows of each table, 0 for all; JSON has all")
	return cmd
}

// writeStats writes the sums as tables, each with at most limit rows if that is not 0: those that saved most, or the last days.
func writeStats(w io.Writer, s *query.Stats, tables [][]string, limit int) error {
	t := s.Total
	if t.Records == 0 {
		_, err := fmt.Fprintln(w, nothingYet)
		return err
	}
	render.Printf(w, "%s, %s returned by tools, %d delivered; %s folded, %s saved", count(t.Calls, "call"), count(t.Out, "token"), t.Delivered, count(t.Folded, "result"), count(t.Saved, "token"))
	if t.Out > 0 {
		render.Printf(w, " (%.1f %%)", 100*float64(t.Saved)/float64(t.Out))
	}
	fmt.Fprintln(w)
	if s.Freed > 0 {
		render.Printf(w, "branches freed %s: what they held, less what their parents read of them\n", count(s.Freed, "token"))
	}
	if len(s.Counters) > 1 {
		render.Printf(w, "warning: counted with %s, so the sums mix units\n", strings.Join(s.Counters, " and "))
	}
	for _, by := range tables {
		rows := s.Tables[strings.Join(by, ",")]
		if len(tables) > 1 { // without what is of no tool, such as reading a server's lists
			rows = slices.DeleteFunc(rows, func(l *query.StatsRow) bool {
				return l.Calls == 0 && l.In == 0 && l.Out == 0 && l.Delivered == 0 && l.Saved == 0
			})
		}
		all := len(rows)
		switch {
		case limit == 0 || limit >= all:
		case slices.Contains(by, "day"):
			rows = rows[all-limit:]
		default:
			rows = rows[:limit]
		}
		fmt.Fprintln(w)
		writeSums(w, strings.ToUpper(strings.Join(by, " ")), rows)
		if len(rows) < all {
			render.Printf(w, "(%d more; --limit 0 shows them)\n", all-len(rows))
		}
	}
	return nil
}

// A sumColumn is a column of figures.
type sumColumn struct {
	name  string
	of    func(s *query.Sums) int64
	shown bool // also if all is 0
}

var sumColumns = []sumColumn{
	{"RECORDS", func(s *query.Sums) int64 { return s.Records }, false},
	{"CALLS", func(s *query.Sums) int64 { return s.Calls }, true},
	{"ERRORS", func(s *query.Sums) int64 { return s.Errors }, false},
	{"BLOCKED", func(s *query.Sums) int64 { return s.Blocked }, false},
	{"SCRUBBED", func(s *query.Sums) int64 { return s.Scrubbed }, false},
	{"MS", func(s *query.Sums) int64 { return s.US / 1000 }, false},
	{"IN", func(s *query.Sums) int64 { return s.In }, false},
	{"RETURNED", func(s *query.Sums) int64 { return s.Out }, true},
	{"DELIVERED", func(s *query.Sums) int64 { return s.Delivered }, true},
	{"STORED", func(s *query.Sums) int64 { return s.Stored }, false},
	{"READ BACK", func(s *query.Sums) int64 { return s.ReadBack }, false},
	{"SAVED", func(s *query.Sums) int64 { return s.Saved }, true},
}

// writeSums writes a table, without the columns in which all is 0.
func writeSums(w io.Writer, title string, rows []*query.StatsRow) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := slices.DeleteFunc(slices.Clone(sumColumns), func(c sumColumn) bool {
		return !c.shown && !slices.ContainsFunc(rows, func(l *query.StatsRow) bool { return c.of(&l.Sums) != 0 })
	})
	for _, c := range columns {
		fmt.Fprint(tab, c.name, "\t")
	}
	render.Printf(tab, "  %s\n", title)
	for _, l := range rows {
		for _, c := range columns {
			fmt.Fprint(tab, c.of(&l.Sums), "\t")
		}
		render.Printf(tab, "  %s\n", l.Name)
	}
	_ = tab.Flush()
}
