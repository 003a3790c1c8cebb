package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/internal/hosts"
	"github.com/foldgate/foldgate/internal/shellword"
	"github.com/foldgate/foldgate/proxy/config"
)

func newImport(a *app) *cobra.Command {
	f := &hostFlags{app: a}
	cmd := &cobra.Command{
		Use:   "import HOST...",
		Short: "Move the servers of an agent host behind foldgate, and connect it",
		Long: `Turn the MCP servers of agent hosts into upstreams of the configuration, take them
out of the hosts, and connect the hosts to foldgate. No tool is then listed twice,
and the model can't go around foldgate.

Secrets move into an environment file beside the configuration, which only its
owner can read; the configuration has ${NAME} in their place. A server that two
hosts have becomes one upstream. A server that foldgate can't start or call stays
where it is. Without a configuration, one is made.

It shows all changes and asks first. foldgate disconnect brings the servers back.`,
		Example: "  foldgate import claude-code codex\n  foldgate import cursor --config ~/shop/foldgate.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE:    f.importAll,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.all, "all-projects", false, "also import the servers that Claude Code keeps for single projects in ~/.claude.json, of all projects, not only of the current directory's")
	return cmd
}

// importAll plans the changes of all files, shows them, asks, and writes them.
func (f *hostFlags) importAll(cmd *cobra.Command, names []string) error {
	all, err := f.hosts(cmd, names)
	if err != nil {
		return err
	}
	target, s, err := f.target()
	if err == nil {
		err = f.fits(all, s)
	}
	if err != nil {
		return err
	}
	scrubber, secret, err := secrets(cmd.Context())
	if err != nil {
		return err
	}
	projects, err := hosts.Current()
	if f.all {
		projects = func(string) bool { return true }
	} else if err != nil {
		return err
	}
	im := &hosts.Importer{Config: target.text, File: target.file, Values: maps.Clone(target.values), Projects: projects, Secret: secret, Dir: f.dir, Usable: target.usable}
	out := cmd.OutOrStdout()
	plan, err := f.planImport(out, im, all, s)
	if err != nil {
		return err
	}
	text, added := target.with(im)
	if len(plan) == 0 && bytes.Equal(im.Config, target.text) {
		fmt.Fprintln(out, "There is nothing to change.")
		return nil
	}
	diffs, err := im.Diff(target.file, target.text, text)
	if err != nil {
		return fmt.Errorf("%s: %w", target.file, err)
	}
	for _, p := range plan {
		d, err := p.change.Diff(secret)
		if err != nil {
			return err
		}
		diffs += d
	}
	if err := show(cmd, scrubber, diffs); err != nil {
		return err
	}
	if len(added) > 0 {
		fmt.Fprintf(out, "%s gets the values of %s.\n", target.env, strings.Join(added, ", "))
	}
	if err := f.ask(cmd); err != nil {
		return err
	}
	if err := target.write(text, added, im.Values); err != nil {
		return err
	}
	for _, p := range plan {
		if err := p.change.Write(); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is connected. %s\n", p.change.File, p.note)
	}
	fmt.Fprintf(out, "foldgate check --config %s connects every upstream and prints its tools.\n", shellword.Quote(target.file))
	return nil
}

// planImport imports the servers of the hosts, says what becomes of each, and returns how the hosts change.
func (f *hostFlags) planImport(out io.Writer, im *hosts.Importer, all []hosts.Host, s hosts.Server) (plan []planned, err error) {
	for _, h := range all {
		file, err := h.File(f.dir)
		if err != nil {
			return nil, usageError{err}
		}
		servers, err := im.Import(h, file)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(out, "%s: %s\n", h.Title, file)
		for _, in := range servers {
			fmt.Fprintln(out, "  "+outcome(h, in))
		}
		c, err := h.Connect(file, s, servers)
		switch {
		case err != nil:
			return nil, err
		case c.Empty():
		case len(servers) == 0:
			fmt.Fprintf(out, "  %s has no servers: foldgate connect %s adds foldgate\n", h.Title, h.Name)
		default:
			plan = append(plan, planned{h, c, "connected", h.Restart})
		}
	}
	return plan, nil
}

// outcome says in one line what becomes of a server.
func outcome(h hosts.Host, in hosts.Imported) string {
	name, lost := in.Name, ""
	if in.Project != "" {
		name += " of the project " + in.Project
	}
	if len(in.Lost) > 0 {
		lost = "; not taken over: " + strings.Join(in.Lost, ", ")
	}
	switch {
	case in.Key == "":
		return fmt.Sprintf("%s stays in %s: %s", name, h.Title, in.Note)
	case in.Twin:
		return fmt.Sprintf("%s is the same as the upstream %s%s", name, in.Key, lost)
	}
	return fmt.Sprintf("%s becomes the upstream %s%s", name, in.Key, lost)
}

// importTarget is the configuration that import changes.
type importTarget struct {
	file   string
	text   []byte // nil if there is no file
	env    string // the environment file
	named  bool   // the configuration names env
	old    []byte // the text of env
	values map[string]string
}

// target reads the configuration, and returns what hosts are to start or to call.
func (f *hostFlags) target() (t importTarget, s hosts.Server, err error) {
	if t.file, err = f.configuration(); err != nil && f.app.config == "" {
		t.file, err = config.UserFile()
	}
	if err != nil {
		return t, s, err
	}
	t.env = strings.TrimSuffix(t.file, filepath.Ext(t.file)) + ".env"
	cfg := config.Config{}
	if t.text, err = os.ReadFile(t.file); err == nil {
		if cfg, err = config.Load(t.file); err != nil {
			return t, s, err
		}
		if t.named = cfg.EnvFile != ""; t.named {
			t.env = cfg.Path(cfg.EnvFile)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return t, s, err
	}
	if s, err = f.serverOf(cfg, t.file); err != nil {
		return t, s, err
	}
	if info, err := os.Stat(t.env); err == nil && info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return t, s, fmt.Errorf("%s is open to other users and is to hold secrets: run chmod 600 on it, and import again", t.env)
	}
	if t.old, err = os.ReadFile(t.env); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, s, err
	}
	if t.values, err = config.ParseEnv(string(t.old)); err != nil {
		return t, s, fmt.Errorf("%s: %w", t.env, err)
	}
	return t, s, nil
}

// usable says why foldgate could not start with a configuration in the place of the old one.
func (t *importTarget) usable(text []byte, values map[string]string) error {
	err := config.Check(filepath.Dir(t.file), text, func(name string) (string, bool) {
		if v, ok := values[name]; ok {
			return v, true
		}
		return os.LookupEnv(name)
	})
	if wrong, ok := errors.AsType[*config.Error](err); ok {
		fault := wrong.Faults[0]
		fault.Line = 0 // of a file that is not written
		return fault
	}
	return err
}

// with returns the text of the configuration after the import, and the names of the new variables.
func (t *importTarget) with(im *hosts.Importer) (text []byte, added []string) {
	text = im.Config
	for _, name := range slices.Sorted(maps.Keys(im.Values)) {
		if _, old := t.values[name]; !old {
			added = append(added, name)
		}
	}
	head := ""
	if t.text == nil {
		head = "# foldgate's configuration. config.example.yaml shows every key.\n"
	}
	if len(im.Values) > 0 && !t.named {
		head += "env_file: " + filepath.Base(t.env) + "   # the values of ${NAME}\n"
	}
	return append([]byte(head), text...), added
}

// write writes the environment file and the configuration. If foldgate could not start with it, it
// puts the old one back.
func (t *importTarget) write(text []byte, added []string, values map[string]string) error {
	if err := os.MkdirAll(filepath.Dir(t.file), 0o700); err != nil {
		return err
	}
	if len(added) > 0 {
		env := bytes.Clone(t.old)
		if len(env) > 0 && !bytes.HasSuffix(env, []byte("\n")) {
			env = append(env, '\n')
		}
		for _, name := range added {
			env = append(env, config.FormatEnv(name, values[name])...)
		}
		if err := hosts.Replace(t.env, env); err != nil {
			return err
		}
	}
	if bytes.Equal(text, t.text) {
		return nil
	}
	if err := hosts.Replace(t.file, text); err != nil {
		return err
	}
	if _, err := config.Load(t.file); err != nil {
		back := restore(t.file, t.text)
		if len(added) > 0 {
			back = errors.Join(back, restore(t.env, t.old))
		}
		return errors.Join(fmt.Errorf("the hosts were not changed, and the configuration is as before: with the servers it would have an error\n%w", err), back)
	}
	return nil
}

// restore gives a file the text that it had, or removes it if that is nil.
func restore(file string, text []byte) error {
	if text == nil {
		return os.Remove(file)
	}
	return hosts.Replace(file, text)
}
