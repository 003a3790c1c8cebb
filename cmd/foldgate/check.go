package main

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
)

func newCheck(a *app) *cobra.Command {
	var wait time.Duration
	var as string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and connect every upstream",
		Long: `Validate the configuration, connect every upstream, and print the tools that a
host would see with what their definitions cost in tokens. Exit code 2 means that
the configuration is wrong, 1 that an upstream can't be reached, that two of them
offer the same name, or that a rule of a workflow names a tool that no upstream
shows. It changes nothing: no state directory is written.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait <= 0 {
				return usageError{fmt.Errorf("--wait: %s is no time to wait; use one such as 30s", wait)}
			}
			cfg, err := config.Find(a.config)
			if err != nil {
				return err
			}
			if as != "" && !cfg.Knows(as) {
				return usageError{fmt.Errorf("--as: there is no principal %.80q; there are %s", as, strings.Join(cfg.PrincipalNames(), ", "))}
			}
			log := slog.New(slog.DiscardHandler)
			if a.verbose || a.logFile != "" {
				l, done, err := a.logger(cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				defer done()
				log = l
			}
			done := a.working(cmd, cmd.CommandPath())
			report, err := proxy.Check(cmd.Context(), cfg, as, wait, log)
			done()
			if err != nil {
				return err
			}
			printReport(cmd.OutOrStdout(), report)
			if n := report.Failed(); n > 0 {
				hint := "; -v shows what their programs print"
				if a.verbose {
					hint = ""
				}
				return fmt.Errorf("%d of %d upstreams can't be reached%s", n, len(report.Upstreams), hint)
			}
			if n := len(report.Clashes); n > 0 {
				return fmt.Errorf("%d names are offered by two upstreams", n)
			}
			if n := len(report.Unmatched); n > 0 {
				return fmt.Errorf("%d rules of workflows name a tool that there is not", n)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "show only what this principal sees, and by which rule of the policy")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait for the next upstream")
	return cmd
}

// printReport prints one table per upstream, then the sum.
func printReport(w io.Writer, r proxy.Report) {
	for _, u := range r.Upstreams {
		if u.Err != nil {
			render.Printf(w, "%s: FAILED: %v\n\n", u.Name, u.Err)
			continue
		}
		render.Printf(w, "%s: ok, protocol %s, %d tools, %d prompts, %d resources\n", u.Name, u.Version, len(u.Tools), u.Prompts, u.Resources)
		printTools(w, u.Tools)
	}
	render.Printf(w, "foldgate: %d tools of its own\n", len(r.Own))
	printTools(w, r.Own)
	for _, c := range r.Clashes {
		render.Printf(w, "clash: %s is offered by %s and by %s, and only the first can be reached: give %[3]s a prefix of its own, or hide the tool with upstreams.%[3]s.tools.deny\n", c.Name, c.First, c.Second)
	}
	for _, f := range slices.Concat(r.Unmatched, r.Idle) {
		render.Printf(w, "warning: %s\n", f.Error())
	}
	if len(r.Principals) > 0 {
		render.Printf(w, "principals: %s\n", strings.Join(r.Principals, ", "))
	}
	render.Printf(w, "A host pays %d tokens (%s) for all tool definitions.\n", r.Tokens, r.Counter)
}

func printTools(w io.Writer, tools []proxy.ToolReport) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, t := range tools {
		note := ""
		if t.Full != "" {
			note = "  (shortened from " + t.Full + ")"
		}
		if !t.Injected && !t.Own {
			note += "  (takes no branch_id: use _meta or the branch's URL)"
		}
		if t.Rule != "" {
			note += "  (rule " + t.Rule + ")"
		}
		render.Printf(tab, "  %s\t%d tokens%s\n", t.Name, t.Tokens, note)
	}
	_ = tab.Flush()
	fmt.Fprintln(w)
}
