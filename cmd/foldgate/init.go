package main

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/internal/shellword"
	"github.com/foldgate/foldgate/proxy/config"
)

// template is the configuration that init writes.
//
//go:embed init.yaml
var template string

func newInit(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented configuration to start with",
		Long: `Write a configuration with comments, foldgate.yaml if no other file is named. It
serves the files below its directory; add your servers to it. A file that exists
is left as it is. To take over the servers that a host already has, use foldgate
import instead.`,
		Example: "  foldgate init\n  foldgate init ~/.config/foldgate/foldgate.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.takeConfig(cmd, args); err != nil {
				return err
			}
			file := cmp.Or(a.config, "foldgate.yaml")
			if user, err := config.UserFile(); err == nil && file == user {
				_ = os.MkdirAll(filepath.Dir(user), 0o700) // else the next call fails
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s exists, and was left as it is: name another file, or change it with an editor", file)
			}
			if err != nil {
				return fmt.Errorf("%w: name a file in a directory that exists and that you can write", err)
			}
			_, err = f.WriteString(template)
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), `%s is written. Add your servers under upstreams. Then
  foldgate check --config %[2]s                  connects them and prints their tools
  foldgate connect claude-code --config %[2]s    lets a host start foldgate with it
`, file, shellword.Quote(file))
			return nil
		},
	}
}
