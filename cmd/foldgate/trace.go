package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/proxy/config"
)

type traceFlags struct {
	app      *app
	dir      string
	instance int
	filter   query.Filter
	since    string
	until    string
	format   string
	follow   bool
	json     bool
}

func newTrace(a *app) *cobra.Command {
	t := &traceFlags{app: a}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Query the trace, and verify it",
		Long: `Query the trace that the gateway writes to <state_dir>/trace: one record for
each request, response, notification and event in a branch's life. All filters
are views and combine; without any, everything is printed. A gateway may be
running meanwhile.`,
		Example: `  foldgate trace --context br_1f0c... --tree
  foldgate trace --kind 'mcp/request:tools/call' --server files --since 1h
  foldgate trace --chain env_0198... --format jsonl
  foldgate trace --follow
  foldgate trace verify`,
		Args: cobra.NoArgs,
		RunE: t.query,
	}
	cmd.PersistentFlags().StringVar(&t.dir, "dir", "", "trace directory (default <state_dir>/trace)")
	cmd.PersistentFlags().IntVar(&t.instance, "instance", 1, "which of several gateways on one configuration: <state_dir>/instance-N from the second on")
	t.filterFlags(cmd)
	cmd.Flags().StringVar(&t.format, "format", render.Table, "one of "+strings.Join(render.Formats(), ", "))
	cmd.Flags().BoolVarP(&t.follow, "follow", "f", false, "print what is there, then each new record, until interrupted")
	cmd.AddCommand(t.contexts(), t.show(), t.stats(), t.verify())
	return cmd
}

// query prints records as they come while it follows, else through a buffer.
func (t *traceFlags) query(cmd *cobra.Command, _ []string) error {
	if err := errors.Join(render.CheckFormat(t.format), t.filter.Validate()); err != nil {
		return asUsage(err)
	}
	dir, err := t.directory(cmd)
	if err != nil {
		return err
	}
	if !t.follow {
		out := bufio.NewWriter(cmd.OutOrStdout())
		err := render.Write(out, t.format, query.Select(cmd.Context(), dir, t.filter))
		return asUsage(cmp.Or(err, out.Flush()))
	}
	if !render.Streams(t.format) {
		return usageError{fmt.Errorf("--format %s needs all records and can't follow; use table, jsonl or mew", t.format)}
	}
	return asUsage(render.Write(cmd.OutOrStdout(), t.format, query.Follow(cmd.Context(), dir, t.filter)))
}

func (t *traceFlags) contexts() *cobra.Command {
	return summary(t, &cobra.Command{
		Use: "contexts", Short: "List the contexts with their state, calls and tokens",
		Long: `List the contexts of the records that the filters select: main, every branch by
its path, and parents that only paths imply; each with how it ended, its calls
and its tokens.`,
	}, query.Contexts, render.WriteContexts)
}

func (t *traceFlags) stats() *cobra.Command {
	return summary(t, &cobra.Command{
		Use: "stats", Short: "Sum up calls and tokens by branch, tool, server and principal",
	}, query.Summarize, render.WriteStats)
}

// summary completes a command that makes one value of the selected records, and prints it as text
// or JSON.
func summary[V any](t *traceFlags, cmd *cobra.Command, sum func(iter.Seq2[*trace.Record, error]) (V, error), write func(io.Writer, V) error) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := t.directory(cmd)
		if err != nil {
			return err
		}
		v, err := sum(query.Select(cmd.Context(), dir, t.filter))
		if err != nil {
			return asUsage(err)
		}
		if t.json {
			return writeJSON(cmd.OutOrStdout(), v)
		}
		return write(cmd.OutOrStdout(), v)
	}
	t.filterFlags(cmd)
	cmd.Flags().BoolVar(&t.json, "json", false, "print JSON")
	return cmd
}

func (t *traceFlags) show() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one message with what led to it and what followed", Args: cobra.ExactArgs(1),
		Long: `Show the record with this envelope id, the records that led to it, and those
that followed from it. Ids are in the output of foldgate trace: env_...`,
		Example: "  foldgate trace show env_0198...",
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := t.directory(cmd)
			if err != nil {
				return err
			}
			index, err := query.Open(cmd.Context(), dir)
			if err != nil {
				return err
			}
			defer index.Close()
			g, err := index.Show(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return render.WriteGraph(cmd.OutOrStdout(), g)
		},
	}
}

func (t *traceFlags) verify() *cobra.Command {
	var anchor string
	var secrets bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the hash chain and the invariants of the records",
		Long: `Read the whole journal and check that no line was changed, dropped, swapped or
added, that the files follow one another to the anchored head, and that the
records make sense together: every response has its request, every branch is
closed once, children before parents. The first bad line is named; exit code 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := t.directory(cmd)
			if err != nil {
				return err
			}
			var opts trace.VerifyOptions
			if opts.Anchor, err = parseAnchor(anchor); err != nil {
				return usageError{err}
			}
			if secrets {
				if opts.Detect, err = t.detector(cmd.Context()); err != nil {
					return err
				}
			}
			report, err := query.Verify(cmd.Context(), dir, opts)
			if err != nil {
				return err
			}
			if t.json {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				printVerify(cmd.OutOrStdout(), report)
			}
			if err == nil && !report.OK() {
				err = errSilent
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&t.json, "json", false, "print JSON")
	cmd.Flags().StringVar(&anchor, "anchor", "", "SEQ:HASH of a record that must be there, such as a head that was kept elsewhere")
	cmd.Flags().BoolVar(&secrets, "secrets", false, "look for secrets in the records, too (slower)")
	return cmd
}

// wholeHash is the form of a hash. A hash that was cut by mistake is refused: it would look as if
// a record had been changed.
var wholeHash = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// parseAnchor reads SEQ:HASH, as verify prints them.
func parseAnchor(s string) (a trace.Anchor, err error) {
	if s == "" {
		return a, nil
	}
	seq, hash, ok := strings.Cut(s, ":")
	a.Hash = hash
	if a.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil || !ok || a.Seq == 0 || !wholeHash.MatchString(hash) {
		return a, fmt.Errorf("--anchor: %q is not SEQ:HASH, such as 17:sha256: and 64 hexadecimal digits", s)
	}
	return a, nil
}

// detector returns a function that returns the scrub rules that match a line.
func (t *traceFlags) detector(ctx context.Context) (func([]byte) []string, error) {
	cfg, err := config.Find(t.app.config)
	if err != nil {
		return nil, err
	}
	s, err := scrub.New(scrub.Options{Rules: cfg.RulesFile()})
	if err != nil {
		return nil, usageError{err}
	}
	return func(line []byte) (rules []string) {
		_, found, err := s.JSON(ctx, line)
		if err != nil {
			return []string{"could not be checked"}
		}
		for _, f := range found {
			rules = append(rules, f.Rule)
		}
		return rules
	}, nil
}

// printVerify prints a line for each fault and note, and a verdict.
func printVerify(w io.Writer, r trace.Report) {
	for _, f := range r.Faults {
		fmt.Fprintln(w, "FAULT", f)
	}
	if more := r.Total - len(r.Faults); more > 0 {
		fmt.Fprintf(w, "... and %d more faults\n", more)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note ", n)
	}
	verdict := "ok"
	if !r.OK() {
		verdict = fmt.Sprintf("%d faults", r.Total)
	}
	fmt.Fprintf(w, "%d records in %d files, seq %d to %d: %s\nhead %s\n", r.Records, r.Files, r.First.Seq, r.Last.Seq, verdict, r.Last.Hash)
}

// filterFlags binds each field of query.Filter to a flag of its name.
func (t *traceFlags) filterFlags(cmd *cobra.Command) {
	f, fl := &t.filter, cmd.Flags()
	fl.StringVar(&f.Context, "context", "", "records in this context path")
	fl.BoolVar(&f.Tree, "tree", false, "with --context or --workflow: and in all below it")
	fl.BoolVar(&f.Children, "children", false, "with --context or --workflow: one level below it instead")
	fl.BoolVar(&f.Ancestors, "ancestors", false, "with --context: above it instead")
	fl.BoolVar(&f.Main, "main", false, "records in no context")
	fl.BoolVar(&f.Roots, "roots", false, "records in contexts of one level")
	fl.IntVar(&f.Depth, "depth", 0, "records in contexts of so many levels")
	fl.StringVar(&f.Type, "type", "", "records in contexts of this type: br, ctx, reason, ...")
	fl.BoolVar(&f.Conclusions, "conclusions", false, "the conclusions of contexts")
	fl.StringVar(&f.ID, "id", "", "the record with this envelope id")
	fl.StringVar(&f.Correlates, "correlates", "", "records that correlate to this envelope id or context; rpc:42 for a JSON-RPC id")
	fl.StringVar(&f.Chain, "chain", "", "what leads to and follows from this envelope id")
	fl.BoolVar(&f.Orphans, "orphans", false, "records that correlate to something that is not there")
	fl.StringVar(&f.Workflow, "workflow", "", "records of this workflow")
	fl.StringVar(&f.A2AContext, "a2a-context", "", "records of the workflow with this A2A contextId")
	fl.StringVar(&f.A2ATask, "a2a-task", "", "records of the step with this A2A taskId")
	fl.StringSliceVar(&f.Evidence, "evidence", nil, "where a call was linked to its workflow like this: explicit, native, join, session, none")
	fl.StringVar(&f.Session, "session", "", "records of this session")
	fl.StringVar(&f.Principal, "principal", "", "records of this principal")
	fl.StringVar(&f.From, "from", "", "records from this end (host:..., upstream:..., foldgate)")
	fl.StringVar(&f.To, "to", "", "records to this end")
	fl.StringSliceVar(&f.Servers, "server", nil, "records of these upstreams")
	fl.StringSliceVar(&f.Tools, "tool", nil, "records of these tools")
	fl.StringSliceVar(&f.Kinds, "kind", nil, "records of these kinds, globs: mcp/request, context/*, conclusion")
	fl.StringVar(&t.since, "since", "", "from this time on: RFC 3339, or an age such as 90m or 2d")
	fl.StringVar(&t.until, "until", "", "before this time")
	fl.BoolVar(&f.Blocked, "blocked", false, "refused by foldgate")
	fl.StringVar(&f.Reason, "reason", "", "refused for this reason: resource_limit, timeout, policy, unsafe, invalid, workflow, trace")
	fl.BoolVar(&f.Scrubbed, "scrubbed", false, "with scrub findings")
	fl.BoolVar(&f.OverBudget, "over-budget", false, "where a budget refused, cut or ended something")
	fl.BoolVar(&f.Ambiguous, "ambiguous", false, "where the branch was not certain")
	fl.BoolVar(&f.Deprecated, "deprecated", false, "that came in a deprecated form")
	fl.BoolVar(&f.Late, "late", false, "that came after their branch had ended")
	fl.BoolVar(&f.Errors, "errors", false, "with an error result")
	fl.BoolVar(&f.Journal, "journal", false, "include the journal's records about itself")
	fl.IntVar(&f.Limit, "limit", 0, "at most so many")
	fl.BoolVar(&f.NoIndex, "no-index", false, "read the files, not the index beside them")
}

// directory returns the trace directory, and sets the times of the filter. It notes on standard
// error if the configuration has more traces than this one.
func (t *traceFlags) directory(cmd *cobra.Command) (string, error) {
	var since, until error
	t.filter.Since, since = parseTime("--since", t.since)
	t.filter.Until, until = parseTime("--until", t.until)
	if err := cmp.Or(since, until); err != nil {
		return "", err
	}
	if t.instance < 1 {
		return "", usageError{fmt.Errorf("--instance: %d is no instance; the first is 1", t.instance)}
	}
	dir := t.dir
	if dir == "" {
		cfg, err := config.Find(t.app.config)
		if err != nil {
			return "", err
		}
		dir = filepath.Join(config.InstanceDir(cfg.StatePath(), t.instance), "trace")
		if _, err := os.Stat(filepath.Join(config.InstanceDir(cfg.StatePath(), 2), "trace")); err == nil && !cmd.Flags().Changed("instance") {
			fmt.Fprintln(cmd.ErrOrStderr(), "foldgate: several gateways have run at once on this configuration; this is the trace of the first, --instance 2 has that of the next")
		}
	}
	switch entries, err := os.ReadDir(dir); {
	case errors.Is(err, os.ErrNotExist), err == nil && !slices.ContainsFunc(entries, ofJournal):
		if _, err := os.Stat(filepath.Join(dir, "trace")); err == nil {
			return "", fmt.Errorf("there is no trace in %s: name the directory trace below it with --dir", dir)
		}
		return "", fmt.Errorf("there is no trace in %s: run the gateway first, or name the directory with --dir", dir)
	case errors.Is(err, os.ErrPermission):
		return "", fmt.Errorf("the trace in %s is not readable for you: it belongs to the user who runs the gateway", dir)
	case err != nil:
		return "", err
	}
	return dir, nil
}

// parseTime reads the value of a flag; "" is the zero time.
func parseTime(flag, value string) (t time.Time, err error) {
	if value != "" {
		if t, err = query.ParseTime(value, time.Now()); err != nil {
			err = usageError{fmt.Errorf("%s: %w", flag, err)}
		}
	}
	return t, err
}

// ofJournal reports whether a file is one of a journal: of one that lost all others, verify still
// has to tell.
func ofJournal(e os.DirEntry) bool {
	return e.Name() == "head.json" || strings.HasPrefix(e.Name(), "trace-")
}

// asUsage gives a fault of the command line its exit code.
func asUsage(err error) error {
	if _, ok := errors.AsType[*query.UsageError](err); ok {
		return usageError{err}
	}
	return err
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
