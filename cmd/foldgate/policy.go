package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
)

func newPolicy(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Test the policy of the configuration", Example: "  foldgate policy test policy.test.yaml",
	}
	cmd.AddCommand(&cobra.Command{
		Use: "test FILE", Short: "Compare the policy's decisions with those that a file expects",
		Long: `Decide the calls that a YAML file lists, and print the decisions that are not as
expected. Exit code 1 means that there are some. No server is asked. Each item has:
  principal, team, roles, scopes   who calls; a principal has those of the configuration
  tool, prompt or resource         the name that hosts see, or a URI
  args, annotations, server        what conditions read; the server is found by the prefix
  branch: true                     the call is in a branch
  expect: allow or deny            and, if it matters, rule: the rule that decides`,
		Example: "  foldgate policy test policy.test.yaml --config foldgate.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Find(a.config)
			if err != nil {
				return err
			}
			results, err := proxy.TestPolicy(cfg, args[0])
			if err != nil {
				return err
			}
			failed := 0
			for i, r := range results {
				if r.OK {
					continue
				}
				failed++
				got := "allow"
				if !r.Decision.Allowed {
					got = "deny"
				}
				render.Printf(cmd.OutOrStdout(), "%d: %s: want %s, got %s by %s\n", i+1, r.Test, r.Want, got, r.Decision.Rule)
				if r.Decision.Message != "" {
					render.Printf(cmd.OutOrStdout(), "   %s\n", r.Decision.Message)
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %s not as expected", failed, count(len(results), "decision"))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s as expected\n", count(len(results), "decision"))
			return nil
		},
	})
	return cmd
}
