package main

import (
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/proxy/config"
)

// onText returns the RunE of a command that reads the file of its argument, or standard input for "-" or none.
func (a *app) onText(run func(cmd *cobra.Command, cfg config.Config, in io.Reader) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfg, err := config.Find(a.config)
		if err != nil {
			return err
		}
		in := cmd.InOrStdin()
		if len(args) > 0 && args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return usagef("%w: name a file, or give the text on standard input", err)
			}
			defer f.Close()
			in = f
		}
		if !isTerminal(in) { // else somebody is typing
			a.showProgress(cmd, cmd.CommandPath())
		}
		return run(cmd, cfg, interruptible{cmd.Context(), in})
	}
}

func newCount(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "count [FILE]",
		Short: "Count the tokens of a file or of standard input",
		Long: `Count the tokens of one text with the counter of the configuration
(budget.encoding), exactly as the gateway counts them against a branch's budget.
Prints one line of JSON: {"tokens":N,"bytes":N,"encoding":"o200k_base"}.`,
		Example: "  foldgate count README.md\n  git diff | foldgate count",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.onText(func(cmd *cobra.Command, cfg config.Config, in io.Reader) error {
			counter, err := cfg.Budget.Counter()
			if err != nil {
				return usageError{err}
			}
			s := counter.Stream()
			n, err := io.Copy(s, in)
			if err != nil {
				return err
			}
			if err := s.Close(); err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
				Tokens   int    `json:"tokens"`
				Bytes    int64  `json:"bytes"`
				Encoding string `json:"encoding"`
			}{s.Tokens(), n, counter.Name()})
		}),
	}
}

func newScrub(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "scrub [FILE]",
		Short: "Take the secrets out of a file or of standard input",
		Long: `Write a text with its secrets replaced by [REDACTED:<rule>] to standard output,
and one JSON object per finding to standard error: rule and line, never the
secret. The rules are those of the gateway, with those of scrub.rules. If the
text can't be examined to its end, nothing is written and the exit code is 1.`,
		Example: "  foldgate scrub .env\n  kubectl get secrets -o yaml | foldgate scrub",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.onText(func(cmd *cobra.Command, cfg config.Config, in io.Reader) error {
			s, err := scrub.New(scrub.Options{Rules: cfg.RulesFile()})
			if err != nil {
				return usageError{err}
			}
			text, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			clean, found, err := s.Text(cmd.Context(), string(text))
			if err != nil {
				return err
			}
			a.endProgress()
			report := json.NewEncoder(cmd.ErrOrStderr())
			for _, f := range found {
				if err := report.Encode(f); err != nil {
					return err
				}
			}
			_, err = io.WriteString(a.out, clean)
			return err
		}),
	}
}
