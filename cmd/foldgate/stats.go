package main

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"maps"
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
	cmd := summary(t, &cobra.Command{
		Use:   "stats",
		Short: "Show what folding saved",
		Long: `Sum up the tokens of all tool calls in the trace: what tools returned, what was
delivered of it, what was stored instead and read back later, by branch_read or
as the answer of a branch_run; by tool, by branch and by day. What was read back
counts where it had been saved: at the tool and in the branch of the stored
result, whose branch_status says the same sum. Each column says whether it was measured,
that is counted on the text itself when the call was made, or computed from
measured figures. The trace is all it knows: what its retention has removed is
not in the sums.`,
		Example: "  foldgate stats\n  foldgate stats --since 7d --json\n  foldgate stats --by principal,day",
	}, func(records iter.Seq2[*trace.Record, error]) (*savings, error) { return sumUp(records, t.by) },
		func(w io.Writer, s *savings) error { return s.write(w, t.filter.Limit) })
	t.filter.Kinds = []string{trace.KindResponse + "tools/call", trace.KindResponse + "tasks/result", trace.KindResponse + "tasks/get"}
	t.placeFlags(cmd)
	t.byFlag(cmd)
	cmd.Flags().IntVar(&t.filter.Limit, "top", 10, "rows of each table; JSON has all")
	return cmd
}

// figures are sums of tokens. Delivered and the others are counted when a call is made; Saved is
// their difference if results were folded.
type figures struct {
	Name      string `json:"name,omitempty"`
	Calls     int    `json:"calls"`
	Results   int    `json:"results"`   // tokens that tools returned
	Delivered int    `json:"delivered"` // tokens that hosts got of them
	Folded    int    `json:"folded"`    // calls with a stored result
	Stored    int    `json:"stored"`    // tokens of those results
	ReadBack  int    `json:"read_back"` // delivered later of results stored here: by branch_read, or as the answer of a batch
	Saved     int    `json:"saved"`     // not delivered, less those read back
}

// labels say how each figure was made.
var labels = map[string]string{
	"calls": "measured", "results": "measured", "delivered": "measured", "folded": "measured", "stored": "measured", "read_back": "measured",
	"saved": "computed: tokens of folded results less their previews, less read_back",
}

type savings struct {
	Counters []string          `json:"counters"`
	From     string            `json:"from,omitempty"`
	To       string            `json:"to,omitempty"`
	Labels   map[string]string `json:"labels"`
	Total    figures           `json:"total"`
	Tools    []*figures        `json:"tools"`
	Branches []*figures        `json:"branches"`
	Days     []*figures        `json:"days"`
	By       []*figures        `json:"by,omitempty"`

	by []string
}

// sumUp sums up tool calls by tool, branch and day, and with by also by other dimensions of query.Keys.
func sumUp(records iter.Seq2[*trace.Record, error], by []string) (*savings, error) {
	s := &savings{Labels: labels, Counters: []string{}, by: by}
	groups := [][]string{{"tool"}, {"branch"}, {"day"}, by}
	tables := []map[string]*figures{{}, {}, {}, {}}
	rows := func(r *trace.Record) []*figures {
		out := []*figures{&s.Total}
		for i, by := range groups {
			for _, key := range query.Keys(r, by) {
				if tables[i][key] == nil {
					tables[i][key] = &figures{Name: key}
				}
				out = append(out, tables[i][key])
			}
		}
		return out
	}
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		a := r.AuditOrEmpty()
		if a.Tool == "" {
			continue
		}
		s.From, s.To = min(cmp.Or(s.From, r.TS), r.TS), max(s.To, r.TS)
		if t := a.Tokens; t != nil && t.Counter != "" && !slices.Contains(s.Counters, t.Counter) {
			s.Counters = append(s.Counters, t.Counter)
		}
		for _, f := range rows(r) {
			f.add(r)
		}
		if a.Tokens != nil && a.Read != nil { // saved by the call that stored the result
			maker := *a
			maker.Server, maker.Tool = a.Read.Server, a.Read.Tool
			for _, f := range rows(&trace.Record{TS: r.TS, Context: a.Read.Context, Audit: &maker}) {
				f.ReadBack += a.Tokens.Delivered
				f.Saved -= a.Tokens.Delivered
			}
		}
	}
	s.Tools, s.Branches, s.Days = ordered(tables[0], bySaved), ordered(tables[1], bySaved), ordered(tables[2], byName)
	if len(by) > 0 {
		order := bySaved
		if slices.Contains(by, "day") {
			order = byName
		}
		s.By = ordered(tables[3], order)
	}
	return s, nil
}

func (f *figures) add(r *trace.Record) {
	a := r.Audit
	if trace.CanonicalKind(r.Kind) == trace.KindResponse+"tools/call" { // what else there is asks for the result of a call that became a task
		f.Calls++
	}
	if a.Tokens != nil {
		f.Results += a.Tokens.Out
		f.Delivered += a.Tokens.Delivered
	}
	if a.Fold != nil {
		f.Folded++
		f.Saved += a.Fold.Saved
		if a.Tokens != nil {
			f.Stored += a.Tokens.Out
		}
	}
}

func bySaved(a, b *figures) int {
	return cmp.Or(cmp.Compare(b.Saved, a.Saved), cmp.Compare(b.Delivered, a.Delivered), cmp.Compare(a.Name, b.Name))
}

func byName(a, b *figures) int { return cmp.Compare(a.Name, b.Name) }

func ordered(m map[string]*figures, order func(a, b *figures) int) []*figures {
	out := slices.AppendSeq([]*figures{}, maps.Values(m)) // in JSON an empty list, not null
	slices.SortFunc(out, order)
	return out
}

func (s *savings) write(w io.Writer, top int) error {
	t := s.Total
	if t.Calls == 0 && len(s.Tools) == 0 {
		_, err := fmt.Fprintln(w, nothingYet)
		return err
	}
	render.Printf(w, "%s, %s returned by tools, %d delivered; %s folded, %s saved", count(t.Calls, "call"), count(t.Results, "token"), t.Delivered, count(t.Folded, "result"), count(t.Saved, "token"))
	if t.Results > 0 {
		render.Printf(w, " (%.1f %%)", 100*float64(t.Saved)/float64(t.Results))
	}
	fmt.Fprintln(w)
	if len(s.Counters) > 1 {
		render.Printf(w, "warning: counted with %s, so the sums mix units\n", strings.Join(s.Counters, " and "))
	}
	type table struct {
		name string
		rows []*figures
	}
	tables := []table{{"TOOL", s.Tools}, {"BRANCH", s.Branches}, {"DAY", s.Days}}
	if len(s.by) > 0 {
		tables = []table{{strings.ToUpper(strings.Join(s.by, " ")), s.By}}
	}
	for _, table := range tables {
		fmt.Fprintln(w)
		tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		render.Printf(tab, "CALLS\tRESULTS\tDELIVERED\tSTORED\tREAD BACK\tSAVED\t  %s\n", table.name)
		fmt.Fprint(tab, "measured\tmeasured\tmeasured\tmeasured\tmeasured\tcomputed\t  \n")
		rows := table.rows
		if table.name == "DAY" {
			rows = rows[max(len(rows)-top, 0):]
		} else {
			rows = rows[:min(len(rows), top)]
		}
		for _, f := range rows {
			render.Printf(tab, "%d\t%d\t%d\t%d\t%d\t%d\t  %s\n", f.Calls, f.Results, f.Delivered, f.Stored, f.ReadBack, f.Saved, f.Name)
		}
		_ = tab.Flush()
		if more := len(table.rows) - len(rows); more > 0 {
			render.Printf(w, "(%d more; --top shows them)\n", more)
		}
	}
	return nil
}
