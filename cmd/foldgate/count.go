package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/proxy/config"
)

func newCount(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "count [FILE]",
		Short: "Count the tokens of a file or of standard input",
		Long: `Count the tokens of one text with the counter of the configuration
(budget.encoding), exactly as the gateway counts them against a branch's budget.
Prints one line of JSON: {"tokens":N,"bytes":N,"encoding":"o200k_base"}.`,
		Example: "  foldgate count README.md\n  git diff | foldgate count",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Find(a.config)
			if err != nil {
				return err
			}
			counter, err := budget.NewCounter(cfg.Budget.Encoding)
			if err == nil {
				counter, err = counter.WithScale(cfg.Budget.Scale)
			}
			if err != nil {
				return usageError{err}
			}
			in, done, err := input(cmd, args)
			if err != nil {
				return err
			}
			defer done()
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
		},
	}
}

// input opens the file that args name, or standard input ("-" or nothing).
func input(cmd *cobra.Command, args []string) (io.Reader, func(), error) {
	if len(args) == 0 || args[0] == "-" {
		return cmd.InOrStdin(), func() {}, nil
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("%w", err)}
	}
	return f, func() { _ = f.Close() }, nil
}
