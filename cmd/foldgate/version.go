package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/internal/version"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "foldgate %s %s/%s %s\n", version.String(), runtime.GOOS, runtime.GOARCH, runtime.Version())
			if err == nil && withoutLayers != "" {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "built without %s, for benchmarks only\n", withoutLayers)
			}
			return err
		},
	}
}
