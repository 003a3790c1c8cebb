package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
)

func newStats(a *app) *cobra.Command {
	var since string
	var asJSON bool
	var top int
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show what folding saved",
		Long: `Sum up the tokens of all tool calls in the trace: what tools returned, what was
delivered of it, what was stored instead and read back later, by branch_read or
as the answer of a branch_run; by tool, by branch and by day. What was read back
counts where it had been saved: at the tool and in the branch of the stored
result, whose branch_status says the same sum. Each column says whether it was measured,
that is counted on the text itself when the call was made, or computed from
measured figures. The trace is all it knows: what trace.retain_files has removed
is not in the sums.`,
		Example: "  foldgate stats\n  foldgate stats --since 7d --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if top < 0 {
				return usageError{fmt.Errorf("--top: %d is negative", top)}
			}
			cfg, err := config.Find(a.config)
			if err != nil {
				return err
			}
			filter := query.Filter{Kinds: []string{trace.KindResponse + "tools/call", trace.KindResponse + "tasks/result"}}
			if filter.Since, err = parseTime("--since", since); err != nil {
				return err
			}
			s, err := sumUp(cmd.Context(), cfg.StatePath(), filter)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			s.write(cmd.OutOrStdout(), top)
			return nil
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "from this time on: RFC 3339, or an age such as 90m or 2d")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with all rows")
	cmd.Flags().IntVar(&top, "top", 10, "rows of each table")
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
}

// sumUp reads the traces of all instances of a state directory.
func sumUp(ctx context.Context, stateDir string, filter query.Filter) (*savings, error) {
	s := &savings{Labels: labels, Counters: []string{}}
	tools, branches, days := map[string]*figures{}, map[string]*figures{}, map[string]*figures{}
	in := func(m map[string]*figures, name string) *figures {
		if m[name] == nil {
			m[name] = &figures{Name: name}
		}
		return m[name]
	}
	found := false
	for n := 1; ; n++ {
		dir := filepath.Join(config.InstanceDir(stateDir, n), "trace")
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			break
		}
		found = true
		for r, err := range query.Select(ctx, dir, filter) {
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
			day := r.TS[:min(len(r.TS), len(time.DateOnly))]
			rows := func(server, tool, context string) []*figures {
				return []*figures{&s.Total, in(tools, strings.TrimPrefix(server+"/"+tool, "/")), in(branches, cmp.Or(trace.BranchOf(context), "main")), in(days, day)}
			}
			for _, f := range rows(a.Server, a.Tool, r.Context) {
				f.add(a)
			}
			if a.Tokens != nil && a.Read != nil { // saved by the call that stored the result
				for _, f := range rows(a.Read.Server, a.Read.Tool, a.Read.Context) {
					f.ReadBack += a.Tokens.Delivered
					f.Saved -= a.Tokens.Delivered
				}
			}
		}
	}
	if !found {
		return nil, fmt.Errorf("no trace in %s: run the gateway first, or name its configuration with --config", stateDir)
	}
	s.Tools, s.Branches, s.Days = ordered(tools, bySaved), ordered(branches, bySaved), ordered(days, byName)
	return s, nil
}

func (f *figures) add(a *trace.Audit) {
	f.Calls++
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

func (s *savings) write(w io.Writer, top int) {
	t := s.Total
	fmt.Fprintf(w, "%d calls, %d tokens returned by tools, %d delivered; %d results folded, %d tokens saved", t.Calls, t.Results, t.Delivered, t.Folded, t.Saved)
	if t.Results > 0 {
		fmt.Fprintf(w, " (%.1f %%)", 100*float64(t.Saved)/float64(t.Results))
	}
	fmt.Fprintln(w)
	if len(s.Counters) > 1 {
		fmt.Fprintf(w, "warning: counted with %s, so the sums mix units\n", strings.Join(s.Counters, " and "))
	}
	for _, table := range []struct {
		name string
		rows []*figures
	}{{"TOOL", s.Tools}, {"BRANCH", s.Branches}, {"DAY", s.Days}} {
		fmt.Fprintln(w)
		tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(tab, "CALLS\tRESULTS\tDELIVERED\tSTORED\tREAD BACK\tSAVED\t  %s\n", table.name)
		fmt.Fprint(tab, "measured\tmeasured\tmeasured\tmeasured\tmeasured\tcomputed\t  \n")
		rows := table.rows
		if table.name == "DAY" {
			rows = rows[max(len(rows)-top, 0):]
		} else {
			rows = rows[:min(len(rows), top)]
		}
		for _, f := range rows {
			fmt.Fprintf(tab, "%d\t%d\t%d\t%d\t%d\t%d\t  %s\n", f.Calls, f.Results, f.Delivered, f.Stored, f.ReadBack, f.Saved, f.Name)
		}
		_ = tab.Flush()
		if more := len(table.rows) - len(rows); more > 0 {
			fmt.Fprintf(w, "(%d more; --top shows them)\n", more)
		}
	}
}
