package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/export"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/internal/filelock"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
)

type traceFlags struct {
	app      *app
	dirs     []string
	instance string
	filter   query.Filter
	format   string
	follow   bool
	newest   bool
	json     bool
	by       []string
}

func newTrace(a *app) *cobra.Command {
	t := &traceFlags{app: a}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Query the trace, and verify it",
		Long: `Query the trace that the gateway writes to <state_dir>/trace: one record for
each request, response, notification and event in a branch's life. All filters
are views and combine; without any, everything is printed. A gateway may be
running meanwhile. foldgate stats sums up the same records.`,
		Example: `  foldgate trace --context br_1f0c... --tree
  foldgate trace --kind 'mcp/request:tools/call' --server files --since 1h
  foldgate trace --chain env_0198... --format jsonl
  foldgate trace --follow
  foldgate trace verify`,
		RunE: t.query,
	}
	t.placeFlags(cmd)
	t.filterFlags(cmd)
	cmd.Flags().IntVar(&t.filter.Limit, "limit", 0, "at most so many records")
	cmd.Flags().BoolVar(&t.newest, "newest", false, "from the newest record to the oldest")
	cmd.Flags().StringVar(&t.format, "format", render.Table, "one of "+strings.Join(render.Formats(), ", "))
	cmd.Flags().BoolVarP(&t.follow, "follow", "f", false, "print what is there, then each new record, until interrupted")
	cmd.AddCommand(t.contexts(), t.show(), t.verify(), t.erase())
	return cmd
}

// query prints records as they come while it follows, else through a buffer.
func (t *traceFlags) query(cmd *cobra.Command, _ []string) error {
	if err := render.CheckFormat(t.format); err != nil {
		return err
	}
	if t.follow && !render.Streams(t.format) {
		return usagef("--format %s needs all records and can't follow; use table, jsonl or mew", t.format)
	}
	switch {
	case t.follow && cmd.Flags().Changed("until"):
		return usagef("--until can't be combined with --follow: what comes later is not before it")
	case t.newest && t.follow:
		return usagef("--newest can't be combined with --follow")
	case t.newest && !render.Streams(t.format):
		return usagef("--format %s has an order of its own and can't be combined with --newest; use table, jsonl or mew", t.format)
	}
	t.app.showProgress(cmd, cmd.CommandPath())
	records, err := t.records(cmd, t.filter.Limit)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if t.format == render.JSONL && !isTerminal(t.app.raw) { // the lines of the journal, which their hashes cover
		out = t.app.out
	}
	if t.follow {
		t.app.endProgress()
		return render.Write(out, t.format, records)
	}
	buffered := bufio.NewWriter(out)
	none := true
	err = render.Write(buffered, t.format, func(yield func(*trace.Record, error) bool) {
		for r, err := range records {
			if none = false; !yield(r, err) {
				return
			}
		}
	})
	if none && t.format == render.Table {
		fmt.Fprintln(buffered, nothingYet)
	}
	return cmp.Or(err, buffered.Flush())
}

// nothingYet stands for an empty table.
const nothingYet = "There is no record yet, or none that the filters select."

// records returns the records that the flags select, at most limit if that is not 0.
func (t *traceFlags) records(cmd *cobra.Command, limit int) (iter.Seq2[*trace.Record, error], error) {
	dirs, err := t.selection(cmd)
	if err != nil {
		return nil, err
	}
	filter := t.filter
	filter.Limit = limit
	switch {
	case t.follow:
		return query.Follow(cmd.Context(), dirs, filter), nil
	case t.newest:
		return query.SelectNewest(cmd.Context(), dirs, filter), nil
	}
	return query.SelectAll(cmd.Context(), dirs, filter), nil
}

// selection returns the journals, and completes and checks the filter.
func (t *traceFlags) selection(cmd *cobra.Command) (dirs []string, err error) {
	var malformed error
	for _, f := range query.Fields {
		if text, _ := cmd.Flags().GetString(f.Name); text != "" { // pflag has set the others
			malformed = cmp.Or(malformed, f.Set(&t.filter, text, time.Now()))
		}
	}
	t.filter.Context = strings.ReplaceAll(t.filter.Context, "~", "") // tables cut contexts so
	if cmd.Flags().Changed("context") && t.filter.Context == "" {
		return nil, query.Usagef("context", "is empty: give it a value, or leave it out")
	}
	if cmd.Flags().Changed("depth") && t.filter.Depth == 0 {
		return nil, query.Usagef("depth", "0 is main: use --main, or a depth from 1")
	}
	if err := cmp.Or(malformed, t.filter.Validate()); err != nil {
		return nil, err
	}
	for _, d := range t.by {
		if !slices.Contains(query.Dimensions, d) {
			return nil, query.Usagef("by", "%.40q: use any of %s", d, strings.Join(query.Dimensions, ", "))
		}
	}
	if dirs, err = t.journals(); err != nil {
		return nil, err
	}
	if err := t.filter.Resolve(cmd.Context(), dirs); err != nil && !(t.follow && errors.Is(err, query.ErrUnknown)) {
		return nil, err
	}
	return dirs, nil
}

func (t *traceFlags) contexts() *cobra.Command {
	cmd := summary(t, &cobra.Command{
		Use: "contexts", Short: "List the contexts with their state, calls and tokens",
		Long: `List the contexts of the records that the filters select: main, every branch by
its path, and parents that only paths imply; each with how it ended, its calls
and its tokens.`,
		Example: "  foldgate trace contexts --since 1h",
	}, func(records iter.Seq2[*trace.Record, error]) ([]query.Node, error) {
		nodes, err := query.Contexts(records)
		if n := t.filter.Limit; n > 0 {
			nodes = nodes[:min(n, len(nodes))]
		}
		return nodes, err
	}, render.WriteContexts)
	cmd.Flags().IntVar(&t.filter.Limit, "limit", 0, "at most so many rows")
	return cmd
}

// summary completes a command that makes one value of the selected records, and prints it as text
// or JSON.
func summary[V any](t *traceFlags, cmd *cobra.Command, sum func(iter.Seq2[*trace.Record, error]) (V, error), write func(io.Writer, V) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t.app.showProgress(cmd, cmd.CommandPath())
		records, err := t.records(cmd, 0)
		if err != nil {
			return err
		}
		v, err := sum(records)
		if err != nil {
			return err
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
that followed from it. Ids are in the output of foldgate trace: env_... Its number,
which tables print as SEQ and trees as #12 or instance-2#12, does as well.`,
		Example: "  foldgate trace show env_0198...\n  foldgate trace show 12",
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			number := recordNumber.FindStringSubmatch(id)
			if number != nil && number[1] != "" {
				t.instance = number[1]
			}
			dirs, err := t.journals()
			if err != nil {
				return err
			}
			t.app.showProgress(cmd, cmd.CommandPath())
			if number != nil {
				if id, err = numbered(cmd.Context(), dirs, number[2]); err != nil {
					return err
				}
			}
			set, err := query.OpenCurrent(cmd.Context(), dirs)
			if err != nil {
				return err
			}
			defer set.Close()
			at, err := set.Locate(cmd.Context(), id)
			if err != nil {
				return err
			}
			g, err := set.Show(cmd.Context(), at)
			if err != nil {
				return err
			}
			if !at.Intact {
				fmt.Fprintln(cmd.OutOrStdout(), "CHANGED the record or its payload is not as it was written: foldgate trace verify says which")
			}
			return render.WriteGraph(cmd.OutOrStdout(), g)
		},
	}
}

// recordNumber matches the number of a record, with the name of its journal, as tables and trees print it.
var recordNumber = regexp.MustCompile(`^(?:(.*)#)?([0-9]+)$`)

// numbered returns the id of the record with a number.
func numbered(ctx context.Context, dirs []string, number string) (id string, err error) {
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return "", usagef("the record %.40s: the number is too large", number)
	}
	var in []string
	if seq > 0 {
		for r, err := range query.SelectAll(ctx, dirs, query.Filter{Seq: trace.Range{seq, seq}, Journal: true}) {
			if err != nil {
				return "", err
			}
			id, in = r.ID, append(in, r.Instance)
		}
	}
	switch {
	case len(in) == 0:
		return "", fmt.Errorf("the record %d: %w", seq, query.ErrNotFound)
	case len(in) > 1:
		return "", usagef("%d journals have a record %d: name one, such as '%s#%d'", len(in), seq, in[0], seq)
	}
	return id, nil
}

func (t *traceFlags) verify() *cobra.Command {
	var anchors, exports []string
	var secrets, selection bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the hash chain and the invariants of the records",
		Long: `Read the whole journal and check that no line was changed, dropped, swapped or
added, that the files follow one another to the anchored head, and that the
records make sense together: every response has its request, every branch is
closed once, children before parents. The first bad line is named; exit code 1.

With --export it checks instead what a log store has of the records that it was
sent: OTLP JSON lines, or the bodies of the log records, one a line; - is
standard input.`,
		Example: "  foldgate trace verify\n  foldgate trace verify --secrets --json\n  foldgate trace verify --export logs.jsonl --anchor 29:sha256:97c6...",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var held []trace.Anchor
			for _, text := range anchors {
				a, err := trace.ParseAnchor(text)
				if err != nil {
					return usagef("--anchor: %w", err)
				}
				held = append(held, a)
			}
			for _, name := range []string{"secrets", "dir", "instance"} {
				if len(exports) > 0 && cmd.Flags().Changed(name) {
					return usagef("--%s is about a journal and can't be combined with --export", name)
				}
			}
			if selection && len(exports) == 0 {
				return usagef("--selection goes with --export")
			}
			var faults int
			var err error
			if len(exports) > 0 {
				faults, err = t.verifyExport(cmd, exports, held, selection)
			} else {
				faults, err = t.verifyJournals(cmd, held, secrets)
			}
			if err == nil && faults > 0 {
				return errSilent
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&t.json, "json", false, "print JSON")
	cmd.Flags().StringArrayVar(&anchors, "anchor", nil, "SEQ:HASH of a record that must be there, such as a head that was kept elsewhere; repeatable")
	cmd.Flags().StringArrayVar(&exports, "export", nil, "a file from a log store, instead of the journal; repeatable")
	cmd.Flags().BoolVar(&selection, "selection", false, "with --export: records were left out on purpose; check each one alone")
	cmd.Flags().BoolVar(&secrets, "secrets", false, "look for secrets in the records, too (slower)")
	return cmd
}

func (t *traceFlags) erase() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "erase", Short: "Erase the payloads of records; the chain stays provable",
		Long: `Erase the payloads of the records that the filters select: arguments, results
and texts. The rest of each record stays, with its hash. The journal records who
erased how many payloads, and verify counts them. A gateway that runs on the
trace erases by itself, if it serves HTTP; one on standard input and output must
be stopped first. Without --yes the command only says what it would erase.`,
		Example: "  foldgate trace erase --principal alice --until 30d\n  foldgate trace erase --chain env_0198... --yes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dirs, err := t.selection(cmd)
			if err != nil {
				return err
			}
			chosen := t.filter
			if chosen.Journal, chosen.NoIndex = false, false; reflect.DeepEqual(chosen, query.Filter{}) {
				return usagef("erase: name the records by a filter, such as --principal alice --until 30d")
			}
			t.app.showProgress(cmd, cmd.CommandPath())
			erasures := []*erasure{}
			for _, dir := range dirs {
				e := &erasure{dir: dir}
				erasures = append(erasures, e)
				if err = e.find(cmd.Context(), t.filter); err == nil {
					err = e.open(cmd.Context(), yes)
				}
				if err != nil {
					break
				}
			}
			for _, e := range erasures { // only if all journals can be had
				err = cmp.Or(e.run(cmd.Context(), err == nil && yes), err)
			}
			if err != nil {
				return err
			}
			for _, e := range erasures {
				e.report(cmd.OutOrStdout(), yes)
			}
			return nil
		},
	}
	t.filterFlags(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "erase, for good")
	return cmd
}

// erasure is what is erased from one journal.
type erasure struct {
	dir     string
	seqs    []uint64        // of the records that lose their payload
	kept    int             // records whose payload can't be erased
	gateway *control.Client // that has the journal
	journal *trace.Journal  // without one
}

func (e *erasure) find(ctx context.Context, f query.Filter) error {
	for r, err := range query.Select(ctx, e.dir, f) {
		switch {
		case err != nil:
			return err
		case r.Erasable():
			e.seqs = append(e.seqs, r.Seq)
		case len(r.Payload) > 0:
			e.kept++
		}
	}
	return nil
}

// open takes the journal, or finds the gateway that has it, if something is to be erased.
func (e *erasure) open(ctx context.Context, yes bool) (err error) {
	if !yes || len(e.seqs) == 0 {
		return nil
	}
	state := filepath.Dir(e.dir)
	found, _ := control.Find(ctx, state) // its error says that there is none
	if i := slices.IndexFunc(found, func(c *control.Client) bool { return c.Dir == state }); i >= 0 && filepath.Base(e.dir) == "trace" {
		e.gateway = found[i]
		return nil
	}
	if info, err := os.Stat(e.dir); err != nil || !ownedByMe(info) { // the gateway could not write the new files
		return cmp.Or(err, fmt.Errorf("%s belongs to another user: run this command as the user who runs the gateway (nothing was erased)", e.dir))
	}
	e.journal, err = trace.Open(e.dir, trace.Options{})
	if errors.Is(err, trace.ErrInUse) {
		return fmt.Errorf("a gateway without a socket for operators writes this trace: stop it, erase, and start it again (nothing was erased): %w", err)
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s can't be written: make room on the disk, or mount it for writing, and erase again (nothing was erased): %w", e.dir, err)
	}
	return err
}

// run erases if it is due, and closes the journal.
func (e *erasure) run(ctx context.Context, due bool) (err error) {
	if due && (e.gateway != nil || e.journal != nil) {
		// The index has the places of the lines as they were. A query may make one meanwhile.
		if err = query.RemoveIndex(e.dir); err == nil {
			if e.gateway != nil {
				err = e.gateway.Erase(ctx, e.seqs)
			} else {
				err = e.journal.Erase(e.seqs, userName())
			}
			err = cmp.Or(err, query.RemoveIndex(e.dir))
		}
	}
	if e.journal != nil {
		err = cmp.Or(err, e.journal.Close())
	}
	return err
}

func (e *erasure) report(w io.Writer, done bool) {
	would, of := "would erase", ""
	if done {
		would = "erased"
	}
	if n := len(e.seqs); n > 0 {
		of = fmt.Sprintf(", seq %d to %d", e.seqs[0], e.seqs[n-1])
	}
	render.Printf(w, "%s %s%s, in %s\n", would, count(len(e.seqs), "payload"), of, e.dir)
	if e.kept > 0 {
		fmt.Fprintf(w, "%s with a payload that can't be erased: of the journal itself, or of an earlier version\n", count(e.kept, "record"))
	}
	if !done && len(e.seqs) > 0 {
		fmt.Fprintln(w, "nothing is erased yet; add --yes to erase for good")
	}
}

// verifyJournals checks the journals, prints a report on each, and returns the number of faults.
func (t *traceFlags) verifyJournals(cmd *cobra.Command, anchors []trace.Anchor, secrets bool) (faults int, err error) {
	dirs, err := t.journals()
	if err != nil {
		return 0, err
	}
	// The report on a single journal says what it has instead of an anchor.
	opts := trace.VerifyOptions{Anchors: anchors, Several: len(dirs) > 1}
	if secrets {
		if opts.Detect, err = t.detector(cmd.Context()); err != nil {
			return 0, err
		}
	}
	out, held := cmd.OutOrStdout(), []trace.Anchor{}
	for _, dir := range dirs {
		t.app.showProgress(cmd, cmd.CommandPath()+" "+dir)
		report, err := query.Verify(cmd.Context(), dir, opts)
		if err != nil {
			return 0, err
		}
		faults, held = faults+report.Total, append(held, report.Held...)
		switch {
		case t.json:
			err = writeJSON(out, report)
		case len(dirs) > 1:
			printVerify(out, dir, report)
		default:
			printVerify(out, "", report)
		}
		if err != nil {
			return 0, err
		}
	}
	var missing []string
	for _, a := range anchors {
		if opts.Several && !slices.Contains(held, a) {
			missing = append(missing, fmt.Sprintf("record %d with %s, which you hold, is in none of the journals", a.Seq, a.Hash))
		}
	}
	faults += len(missing)
	switch {
	case !t.json && opts.Several:
		printVerdict(out, len(dirs), missing, faults)
	case t.json && len(missing) > 0:
		err = writeJSON(out, map[string]any{"missing_anchors": missing})
	}
	return faults, err
}

// verifyExport checks what a log store has, prints a report on each journal in it, and returns the number of faults.
func (t *traceFlags) verifyExport(cmd *cobra.Command, files []string, anchors []trace.Anchor, selection bool) (faults int, err error) {
	checker := export.Checker{Anchors: anchors, Selection: selection}
	t.app.showProgress(cmd, cmd.CommandPath())
	for _, file := range files {
		in, err := io.NopCloser(cmd.InOrStdin()), error(nil)
		if file != "-" {
			if in, err = os.Open(file); err != nil {
				return 0, usagef("--export: %w; name a file with records from a log store, or - for standard input", err)
			}
		}
		if err == nil {
			err = errors.Join(checker.Add(file, interruptible{cmd.Context(), in}), in.Close())
		}
		if cmd.Context().Err() != nil { // the last line was cut
			return 0, errInterrupted
		}
		if err != nil {
			return 0, err
		}
	}
	reports, missing := checker.Reports()
	if len(reports) == 0 {
		return 0, fmt.Errorf("there is no record in %s: nothing is proved", strings.Join(files, ", "))
	}
	out, names := cmd.OutOrStdout(), slices.Sorted(maps.Keys(reports))
	faults = len(missing)
	for _, name := range names {
		faults += reports[name].Total
	}
	if t.json {
		return faults, writeJSON(out, map[string]any{"journals": reports, "missing_anchors": append([]string{}, missing...)})
	}
	for _, name := range names {
		printVerify(out, name, reports[name])
	}
	printVerdict(out, len(reports), missing, faults)
	return faults, nil
}

// detector returns a function that returns the scrub rules that match a line.
func (t *traceFlags) detector(ctx context.Context) (func([]byte) []string, error) {
	cfg, err := config.FindState(t.app.config)
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

// printVerify prints the name of a journal if there is one, a line for each fault and note, and a verdict.
func printVerify(w io.Writer, name string, r trace.Report) {
	if name != "" {
		render.Printf(w, "%s\n", name)
	}
	for _, f := range r.Faults {
		render.Printf(w, "FAULT %s\n", f.String())
	}
	if more := r.Total - len(r.Faults); more > 0 {
		fmt.Fprintf(w, "... and %s\n", count(more, "more fault"))
	}
	for _, n := range r.Notes {
		render.Printf(w, "note  %s\n", n.String())
	}
	in, erased := "", ""
	if r.Files > 0 { // else it is of an export, where a payload may be left out without being erased
		in = " in " + count(r.Files, "file")
		if r.Erased > 0 {
			erased = fmt.Sprintf(", %s erased", count(r.Erased, "payload"))
		}
	}
	fmt.Fprintf(w, "head %s\n%s%s, seq %d to %d%s: %s\n", r.Last.Hash, count(r.Records, "record"), in, r.First.Seq, r.Last.Seq, erased, verdict(r.Total))
}

// printVerdict prints a fault for each anchor that no journal has, and the verdict on all journals.
func printVerdict(w io.Writer, journals int, missing []string, faults int) {
	for _, text := range missing {
		render.Printf(w, "FAULT %s (anchor)\n", text)
	}
	fmt.Fprintf(w, "%s: %s\n", count(journals, "journal"), verdict(faults))
}

func verdict(faults int) string {
	if faults == 0 {
		return "ok"
	}
	return count(faults, "fault")
}

// placeFlags binds the flags that say which journals are read.
func (t *traceFlags) placeFlags(cmd *cobra.Command) {
	cmd.PersistentFlags().StringArrayVar(&t.dirs, "dir", nil, "trace or state directory, or a pattern for several such as '/backup/*'; repeatable (default state_dir)")
	cmd.PersistentFlags().StringVar(&t.instance, "instance", "", "only this one of several gateways: its name, or its number on one state directory, from 1")
}

// filterFlags makes a flag of each field of a filter. selection reads times and numbers of records.
func (t *traceFlags) filterFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	for _, f := range query.Fields {
		switch at := f.At(&t.filter).(type) {
		case *string:
			fl.StringVar(at, f.Name, "", f.Flag)
		case *[]string:
			fl.StringSliceVar(at, f.Name, nil, f.Flag)
		case *bool:
			fl.BoolVar(at, f.Name, false, f.Flag)
		case *int:
			fl.IntVar(at, f.Name, 0, f.Flag)
		default:
			fl.String(f.Name, "", f.Flag)
		}
	}
}

// readAnyway is the error of a configuration that can't be read, for a command that can do without.
const readAnyway = "%w\nTo read a trace all the same, name its directory with --dir"

// journals returns the trace directories of the instances that have one.
func (t *traceFlags) journals() (dirs []string, err error) {
	number, noNumber := strconv.Atoi(t.instance)
	if len(t.dirs) == 0 {
		cfg, wrong := config.FindState(t.app.config)
		if wrong != nil {
			return nil, fmt.Errorf(readAnyway, wrong)
		}
		if noNumber == nil {
			if number < 1 {
				return nil, usagef("--instance: %d is no instance; the first is 1", number)
			}
			return instance(cfg.StatePath(), number)
		}
		dirs, err = withJournal(instances(cfg.StatePath()))
	} else {
		dirs, err = t.expand()
	}
	if err != nil || t.instance == "" {
		return dirs, err
	}
	if len(dirs) == 1 { // the names of several are parts of their paths
		if slices.Contains(strings.Split(filepath.ToSlash(dirs[0]), "/"), t.instance) {
			return dirs, nil
		}
		return nil, usagef("--instance: %.80q is no instance; there is only %s", t.instance, dirs[0])
	}
	names := query.Names(dirs)
	i := slices.Index(names, t.instance)
	if i < 0 {
		return nil, usagef("--instance: %.80q is no instance; there are %s", t.instance, strings.Join(names, ", "))
	}
	return dirs[i : i+1], nil
}

// instance returns the trace directory of the gateway with a number on a state directory.
func instance(stateDir string, number int) (dirs []string, err error) {
	dirs, err = withJournal([]string{filepath.Join(config.InstanceDir(stateDir, number), "trace")})
	if none, ok := errors.AsType[noTraceError](err); !ok || none.lost() {
		return dirs, err
	}
	var known []string
	for i, dir := range instances(stateDir) {
		if _, missing := withJournal([]string{dir}); missing == nil {
			known = append(known, strconv.Itoa(i+1))
		}
	}
	if len(known) > 0 {
		err = usagef("--instance: there is no trace of an instance %d; there are %s", number, strings.Join(known, ", "))
	}
	return nil, err
}

// expand returns the trace directories that --dir names: each itself, or those of all instances on a
// state directory.
func (t *traceFlags) expand() (dirs []string, err error) {
	for _, pattern := range t.dirs {
		found := []string{pattern}
		if strings.ContainsAny(pattern, "*?[") {
			found, err = filepath.Glob(pattern)
			found = slices.DeleteFunc(found, func(place string) bool {
				fi, err := os.Stat(place)
				return err == nil && !fi.IsDir() // such as a log beside the directories
			})
			if err != nil || len(found) == 0 {
				return nil, usagef("--dir: no directory matches %q", pattern)
			}
		}
		var places []string
		for _, dir := range found {
			if dir, err = filepath.Abs(dir); err != nil {
				return nil, err
			}
			if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
				return nil, usagef("--dir: %s does not exist", dir)
			}
			if entries, _ := os.ReadDir(dir); !slices.ContainsFunc(entries, isJournalFile) {
				if _, err := os.Stat(filepath.Join(dir, "trace")); err == nil {
					places = append(places, instances(dir)...)
					continue
				}
			}
			places = append(places, dir)
		}
		if places, err = withJournal(places); err != nil {
			return nil, err
		}
		dirs = append(dirs, places...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// noTraceError is that of a directory without a journal.
type noTraceError string

func (dir noTraceError) Error() string {
	if dir.lost() {
		return fmt.Sprintf("a gateway runs, and its trace in %s is missing: move it back if you can, and restart the gateway", string(dir))
	}
	return fmt.Sprintf("there is no trace in %s: run the gateway first, or name another directory", string(dir))
}

// lost reports whether a gateway runs on the state directory. It makes its trace when it starts, so the trace
// was moved or removed. A gateway on standard input and output shows only by its lock.
func (dir noTraceError) lost() bool {
	f, err := os.Open(filepath.Join(filepath.Dir(string(dir)), "foldgate.db.lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	free, err := filelock.Try(f)
	return err == nil && !free
}

// withJournal returns the directories that have a journal. It is an error if none has one.
func withJournal(places []string) (dirs []string, err error) {
	var missing error
	for _, dir := range places {
		switch entries, err := os.ReadDir(dir); {
		case errors.Is(err, os.ErrNotExist), err == nil && !slices.ContainsFunc(entries, isJournalFile):
			missing = noTraceError(dir)
		case errors.Is(err, os.ErrPermission):
			return nil, fmt.Errorf("the trace in %s is not readable for you: it belongs to the user who runs the gateway", dir)
		case err != nil:
			return nil, err
		default:
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return nil, missing
	}
	return dirs, nil
}

// instances returns the trace directories of all instances on a state directory.
func instances(stateDir string) (dirs []string) {
	for n := 1; ; n++ {
		state := config.InstanceDir(stateDir, n)
		if _, err := os.Stat(state); n > 1 && err != nil {
			return dirs
		}
		dirs = append(dirs, filepath.Join(state, "trace"))
	}
}

// isJournalFile reports whether a file belongs to a journal. One is enough: verify reports the missing ones.
func isJournalFile(e os.DirEntry) bool {
	return e.Name() == "head.json" || strings.HasPrefix(e.Name(), "trace-")
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
