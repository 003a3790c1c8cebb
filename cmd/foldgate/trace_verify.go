package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
)

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

// wholeHash is the form of a hash. A hash that was cut by mistake is refused: it
// would look as if a record had been changed.
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
