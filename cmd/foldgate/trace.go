package main

import (
	"github.com/spf13/cobra"
)

func newTrace(a *app) *cobra.Command {
	return &cobra.Command{Use: "trace", Short: "Query the trace"}
}
