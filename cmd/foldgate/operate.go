package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
)

// onGateways returns the RunE of a command that works on the running gateways of the configuration.
func (a *app) onGateways(run func(cmd *cobra.Command, args []string, found []*control.Client) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		dir, err := a.state("reach a gateway")
		if err != nil {
			return err
		}
		found, err := control.Find(cmd.Context(), dir)
		if err != nil {
			return err
		}
		return run(cmd, args, found)
	}
}

// state returns the state directory of --state-dir, else that of the configuration. If the configuration can't be
// read, the error says that the flag helps to do what do names.
func (a *app) state(do string) (string, error) {
	if a.stateDir != "" {
		return a.stateDir, nil
	}
	cfg, err := config.FindState(a.config)
	if err != nil {
		return "", fmt.Errorf("%w\nTo %s all the same, name its state directory with --state-dir", err, do)
	}
	return cfg.StatePath(), nil
}

// withStateDir gives a command the flag --state-dir.
func (a *app) withStateDir(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&a.stateDir, "state-dir", "", "the gateway's state directory, instead of the one in the configuration")
	return cmd
}

func newBranches(a *app) *cobra.Command {
	var asJSON bool
	cmd := a.withStateDir(&cobra.Command{
		Use:   "branches",
		Short: "List the open branches of running gateways",
		Long: `List the open branches of all principals, oldest first, at all gateways that use
the state directory of the configuration and serve HTTP.`,
		Example: "  foldgate branches\n  foldgate branches --state-dir /var/lib/foldgate --json",
		RunE: a.onGateways(func(cmd *cobra.Command, _ []string, found []*control.Client) error {
			var open []control.Branch
			for _, g := range found {
				part, err := g.OpenBranches(cmd.Context())
				if err != nil {
					return err
				}
				open = append(open, part...)
			}
			slices.SortStableFunc(open, func(a, b control.Branch) int { return a.Created.Compare(b.Created) })
			rows := [][]string{{"ID", "PRINCIPAL", "AGE", "USED", "BUDGET", "CALLS", "PARENT", "DESCRIPTION"}}
			for _, b := range open {
				rows = append(rows, []string{
					b.ID, b.Principal, time.Since(b.Created).Round(time.Second).String(), strconv.Itoa(b.Used), strconv.Itoa(b.Budget), strconv.Itoa(b.Calls),
					cmp.Or(contextpath.Path(b.Context).Parent().Leaf(), "main"), firstLine(b.Description),
				})
			}
			return printList(cmd.OutOrStdout(), asJSON, open, rows, "No branch is open.")
		}),
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the whole context paths")
	cmd.AddCommand(newBranchesEnd(a))
	return cmd
}

func newBranchesEnd(a *app) *cobra.Command {
	var reason string
	cmd := a.withStateDir(&cobra.Command{
		Use:   "end ID",
		Short: "End an open branch, and the branches inside it",
		Long: `End an open branch, and the branches inside it. Its calls are cancelled. The
agent is told that the operator ended it, and why. The trace has both.`,
		Example: "  foldgate branches end br_1f0c... --reason 'it reads the wrong files'",
		Args:    cobra.ExactArgs(1),
		RunE: a.onGateways(func(cmd *cobra.Command, args []string, found []*control.Client) error {
			for _, g := range found {
				b, err := g.EndBranch(cmd.Context(), args[0], reason)
				if errors.Is(err, control.ErrNoBranch) {
					continue
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "Branch %s of %s has ended: %d of %d tokens used, %s.\n", b.ID, b.Principal, b.Used, b.Budget, count(b.Calls, "call"))
				return nil
			}
			return fmt.Errorf("no branch %q is open: foldgate branches lists the ones that are", args[0])
		}),
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the agent and the trace")
	return cmd
}

func newBudgets(a *app) *cobra.Command {
	var asJSON bool
	var limit, subject string
	cmd := a.withStateDir(&cobra.Command{
		Use:   "budgets",
		Short: "Show what the limits have left",
		Long: `Show each limit of budgets.limits with what is used and left, for each subject
with use in its window. Gateways with one store count together. If no gateway
that takes commands runs, the counts are read from the store of the configuration.`,
		Example: "  foldgate budgets\n  foldgate budgets --subject data-7\n  foldgate budgets --limit main --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			states, err := a.budgets(cmd.Context(), limit)
			if err != nil {
				return limitError(err)
			}
			states = slices.DeleteFunc(states, func(s control.Budget) bool {
				of := subjectOf(s)
				return subject != "" && of != subject && !strings.HasSuffix(of, " "+subject)
			})
			which, by := "limit", ""
			if limit != "" {
				which = fmt.Sprintf("limit %q", limit)
			}
			if subject != "" {
				by = fmt.Sprintf(" by %q", subject)
			}
			rows := [][]string{{"LIMIT", "SUBJECT", "UNIT", "USED", "LEFT", "TOTAL", "ACTION", "RESET"}}
			for _, s := range states {
				reset := "never"
				if !s.Reset.IsZero() {
					reset = s.Reset.Format(time.RFC3339)
				}
				for _, u := range s.Quantities() {
					rows = append(rows, []string{
						s.Limit, subjectOf(s), u.Unit, strconv.FormatInt(u.Used, 10), strconv.FormatInt(u.Left(), 10),
						strconv.FormatInt(u.Total, 10), s.Action, reset,
					})
				}
			}
			none := fmt.Sprintf("No %s has been used%s in its window.", which, by)
			if cfg, err := config.FindState(a.config); a.stateDir == "" && err == nil && len(cfg.Budgets.Limits) == 0 {
				none = "The configuration has no limits: write some under budgets.limits."
			}
			return printList(cmd.OutOrStdout(), asJSON, states, rows, none)
		},
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&limit, "limit", "", "only the counts of this limit")
	cmd.Flags().StringVar(&subject, "subject", "", "only the counts of this subject, as the table prints it; its last word suffices")
	cmd.AddCommand(newBudgetsReset(a), newBudgetsRebuild(a))
	return cmd
}

// budgets returns what is used of a limit, of all if it is "". A gateway that runs tells it, else the store.
func (a *app) budgets(ctx context.Context, limit string) ([]control.Budget, error) {
	dir, err := a.state("reach a gateway")
	if err != nil {
		return nil, err
	}
	found, none := control.Find(ctx, dir)
	if none == nil {
		return found[0].Budgets(ctx, limit) // all use one store
	}
	cfg, err := config.FindState(a.config)
	if a.stateDir != "" || err != nil || !errors.Is(none, control.ErrNoGateway) {
		return nil, none
	}
	if cfg.Store.URL == "" && len(cfg.Budgets.Limits) > 0 { // to open it would make it, or give it files of another user
		if info, err := os.Stat(filepath.Join(dir, "budgets.db")); err != nil || !ownedByMe(info) {
			return nil, none
		}
	}
	return proxy.StoredBudgets(ctx, cfg, limit, slog.New(slog.DiscardHandler))
}

func newBudgetsReset(a *app) *cobra.Command {
	return a.withStateDir(&cobra.Command{
		Use:   "reset LIMIT [SUBJECT]",
		Short: "Set what was used of a limit to 0, for one subject or for all",
		Long: `Set what was used of a limit to 0, for one subject or for all. SUBJECT is as
foldgate budgets prints it, with or without quotes around its words. Its last word
suffices if no other subject ends with it.`,
		Example: "  foldgate budgets reset day\n  foldgate budgets reset day alice\n  foldgate budgets reset main 'principal data-7'",
		Args:    cobra.MinimumNArgs(1),
		RunE: a.onGateways(func(cmd *cobra.Command, args []string, found []*control.Client) error {
			n, err := found[0].ResetBudget(cmd.Context(), args[0], strings.Join(args[1:], " "))
			if err != nil {
				return limitError(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s of limit %s set to 0.\n", count(n, "count"), args[0])
			return nil
		}),
	})
}

// limitError makes the error about an unknown limit a usage error.
func limitError(err error) error {
	if errors.Is(err, control.ErrNoLimit) {
		return usageError{err}
	}
	return err
}

// subjectOf returns the subject of a count as the table prints it.
func subjectOf(b control.Budget) string {
	if b.Per == "all" {
		return "all"
	}
	return cmp.Or(b.Subject, "none") // such as of a principal without a team
}

func newBudgetsRebuild(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rebuild [TRACE-DIRECTORY...]",
		Args:  cobra.ArbitraryArgs,
		Short: "Raise the counts of the limits to what traces say",
		Long: `Raise the counts of the limits in the configuration to what traces say, for a store
that has lost its data, and print what was raised. No count is lowered, so the
command can be repeated. What budgets reset had set to 0 counts again. Name the
trace directories of all gateways that share the store; without any, those of the
configuration's state directory are read. Let the gateways be idle. Records that a
trace no longer has are named: what they charged is not counted.`,
		Example: "  foldgate budgets rebuild\n  foldgate budgets rebuild /srv/gw1/trace /srv/gw2/trace",
		RunE: func(cmd *cobra.Command, dirs []string) error {
			cfg, err := config.Find(a.config)
			if err != nil {
				return err
			}
			for _, dir := range dirs { // each must have one
				if _, err := withJournal([]string{dir}); err != nil {
					return err
				}
			}
			if len(dirs) == 0 {
				if dirs, err = withJournal(instances(cfg.StatePath())); err != nil {
					return err
				}
			}
			a.showProgress(cmd, cmd.CommandPath())
			rebuilt, err := proxy.RebuildLimits(cmd.Context(), cfg, dirs, slog.New(slog.DiscardHandler))
			for _, m := range rebuilt.Missing {
				at := "at its end"
				if !m.Before.IsZero() {
					at = "from before " + m.Before.Format(time.RFC3339)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s lacks the records %d to %d, %s: what they charged is not counted.\n", m.Dir, m.First, m.Last, at)
			}
			if err != nil {
				return err
			}
			compared := count(rebuilt.Counts, "count") + " compared with " + count(len(dirs), "trace")
			rows := raised(rebuilt.Raised)
			if len(rows) == 1 { // a limit of calls counts tokens, too, which nobody is shown
				fmt.Fprintf(cmd.OutOrStdout(), "%s: nothing to raise.\n", compared)
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s. Raised:\n", compared)
			return printTable(cmd.OutOrStdout(), rows)
		},
	}
}

// raised returns the table of the counts that a rebuild has raised.
func raised(all []proxy.RaisedCount) [][]string {
	rows := [][]string{{"LIMIT", "SUBJECT", "UNIT", "FROM", "TO"}}
	for _, r := range all {
		before := r.State
		before.TokensUsed, before.CallsUsed = r.From.Tokens, r.From.Calls
		was := before.Quantities()
		for i, is := range r.Quantities() {
			if is.Used <= was[i].Used {
				continue
			}
			row := []string{r.Limit, subjectOf(r.State), is.Unit, strconv.FormatInt(was[i].Used, 10), strconv.FormatInt(is.Used, 10)}
			if !r.Undoes.IsZero() {
				row = append(row, "undoes the reset of "+r.Undoes.UTC().Format(time.RFC3339))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// staysInForce is the error of a reload that changed nothing.
const staysInForce = "the configuration of before stays in force: %w"

func newReload(a *app) *cobra.Command {
	reload := a.onGateways(func(cmd *cobra.Command, _ []string, found []*control.Client) error {
		var faults []error
		for _, g := range found {
			done, err := g.Reload(cmd.Context())
			if err != nil {
				faults = append(faults, fmt.Errorf(staysInForce, err))
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "The configuration with SHA-256 %s is in force.\n", done.Config)
			fmt.Fprintln(cmd.OutOrStdout(), "Changed: "+cmp.Or(strings.Join(done.Changed, ", "), "nothing"))
			if len(done.Restart) > 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "Changed, but only after a restart: "+strings.Join(done.Restart, ", "))
			}
		}
		return errors.Join(faults...)
	})
	return a.withStateDir(&cobra.Command{
		Use:   "reload",
		Short: "Put a changed configuration in force at running gateways",
		Long: `Put a changed configuration in force at running gateways that serve HTTP, and
print what changed. A file that can't be used changes nothing.`,
		Example: "  foldgate reload --config /etc/foldgate/foldgate.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := a.state("reach a gateway"); err != nil {
				return fmt.Errorf("no gateway was asked; in one that runs, "+staysInForce, err)
			}
			return reload(cmd, args)
		},
	})
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	line = strings.Join(strings.Fields(line), " ") // a table takes tabs and form feeds for the end of a cell
	if r := []rune(line); len(r) > 60 {
		line = string(r[:59]) + "…"
	}
	return line
}

// printList prints a list as JSON, or the table of rows, whose first one is the header. none stands for an empty table.
func printList[T any](w io.Writer, asJSON bool, list []T, rows [][]string, none string) error {
	switch {
	case asJSON:
		return writeJSON(w, append([]T{}, list...)) // [], not null
	case len(list) == 0:
		fmt.Fprintln(w, none)
		return nil
	}
	return printTable(w, rows)
}

func printTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}
