package main

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/proxy/config"
)

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
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Find(a.config)
			if err != nil {
				return err
			}
			s, err := scrub.New(scrub.Options{Rules: cfg.RulesFile()})
			if err != nil {
				return usageError{err}
			}
			in, done, err := input(cmd, args)
			if err != nil {
				return err
			}
			defer done()
			text, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			clean, found, err := s.Text(cmd.Context(), string(text))
			if err != nil {
				return err
			}
			report := json.NewEncoder(cmd.ErrOrStderr())
			for _, f := range found {
				if err := report.Encode(struct {
					Rule string `json:"rule"`
					Line int    `json:"line"`
				}{f.Rule, f.Line}); err != nil {
					return err
				}
			}
			_, err = io.WriteString(cmd.OutOrStdout(), clean)
			return err
		},
	}
}
