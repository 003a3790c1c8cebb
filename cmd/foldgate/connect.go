package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/internal/hosts"
	"github.com/foldgate/foldgate/proxy/config"
)

// hostFlags are the flags of connect, disconnect and import.
type hostFlags struct {
	app     *app
	yes     bool
	project bool
	dir     string // of the project, "" for the user; set by hosts
	all     bool   // projects
	agent   bool   // the subagent, too
	print   bool
	url     string
	token   string
}

func newConnect(a *app) *cobra.Command {
	f := &hostFlags{app: a}
	cmd := &cobra.Command{
		Use:   "connect HOST...",
		Short: "Add foldgate to the configuration of an agent host",
		Long: `Add foldgate as an MCP server to the configuration of agent hosts:
` + hostNames() + `.

It shows the change and asks first. Nothing but foldgate's entry changes: comments,
order and indentation stay. A backup is kept, and foldgate disconnect restores it.

The host starts foldgate with the configuration file. If that has listen, or with
--url, the host calls the address of a gateway that you run.`,
		Example: `  foldgate connect claude-code
  foldgate connect codex opencode --config ~/shop/foldgate.yaml --yes
  foldgate connect claude-code --subagent
  foldgate connect cursor --url http://127.0.0.1:8787/mcp
  foldgate connect lm-studio --print`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			all, err := f.hosts(cmd, names)
			if err != nil {
				return err
			}
			s, err := f.server(cmd)
			if err == nil {
				err = f.fits(all, s)
			}
			if err != nil {
				return err
			}
			if f.print {
				for _, h := range all {
					text, err := h.Print(s)
					if err != nil {
						return err
					}
					fmt.Fprint(cmd.OutOrStdout(), text)
				}
				return nil
			}
			return f.apply(cmd, all, func(h hosts.Host, file string) ([]planned, error) {
				c, err := h.Connect(file, s, nil)
				plan := []planned{{h, c, "connected", h.Restart}}
				if err == nil && f.agent {
					agent, err := h.Subagent(f.dir, false)
					if err != nil {
						return nil, usageError{err}
					}
					plan = append(plan, planned{h, agent, "given the subagent", ""})
				}
				return plan, err
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.agent, "subagent", false, "also install the definition of the subagent fold-explorer, which works in a branch (claude-code, opencode)")
	cmd.Flags().BoolVar(&f.print, "print", false, "print the entry and change nothing; HOST may be any name")
	cmd.Flags().StringVar(&f.url, "url", "", "let the host call this address of a running gateway")
	cmd.Flags().StringVar(&f.token, "token-variable", "", "with an address: the environment variable that holds the principal's token")
	return cmd
}

func newDisconnect(a *app) *cobra.Command {
	f := &hostFlags{app: a}
	cmd := &cobra.Command{
		Use:   "disconnect HOST...",
		Short: "Take foldgate out of the configuration of an agent host",
		Long: `Undo foldgate connect and foldgate import. If the host's file is as foldgate wrote
it, the file of before is restored byte for byte. If it has changed since, foldgate's
entry is taken out, and the servers that import moved come back. The subagent that
connect has installed is removed, unless its file has changed.`,
		Example: "  foldgate disconnect claude-code",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			all, err := f.hosts(cmd, names)
			if err != nil {
				return err
			}
			return f.apply(cmd, all, func(h hosts.Host, file string) ([]planned, error) {
				c, err := h.Disconnect(file)
				if err != nil {
					return nil, err
				}
				note := ""
				if !c.Exact {
					note = file + " had changed since connect: only foldgate's entry was taken out."
				}
				plan := []planned{{h, c, "disconnected", note}}
				if agent, err := h.Subagent(f.dir, true); err == nil && !agent.Empty() {
					plan = append(plan, planned{h, agent, "without the subagent", ""})
				}
				return plan, nil
			})
		},
	}
	f.add(cmd)
	return cmd
}

func (f *hostFlags) add(cmd *cobra.Command) {
	cmd.ValidArgs = hosts.Names()
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "change the file without asking")
	cmd.Flags().BoolVar(&f.project, "project", false, "use the host's file in the current directory, not the user's")
}

// hostNames lists the hosts for a help text.
func hostNames() string {
	names := hosts.Names()
	return strings.Join(names[:len(names)/2], ", ") + ",\n" + strings.Join(names[len(names)/2:], ", ")
}

// hosts returns the hosts of these names, each once.
func (f *hostFlags) hosts(cmd *cobra.Command, names []string) (all []hosts.Host, err error) {
	if f.project {
		if f.dir, err = os.Getwd(); err != nil {
			return nil, err
		}
	}
	for i, name := range names {
		h, err := hosts.Find(name)
		if err != nil && !f.print {
			hint := didYouMean(name, hosts.Names(), "")
			if hint == "" && cmd.Name() == "connect" {
				hint = "; for another host, foldgate connect NAME --print prints foldgate's entry"
			}
			return nil, usagef("%w%s", err, hint)
		}
		if err != nil {
			h = hosts.Other(name)
			if near := didYouMean(name, hosts.Names(), ""); near != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is no known host%s\n", name, near)
			}
		}
		if !slices.Contains(names[:i], name) {
			all = append(all, h)
		}
	}
	return all, nil
}

// server returns what a host is to start or to call.
func (f *hostFlags) server(cmd *cobra.Command) (hosts.Server, error) {
	if f.token != "" && !config.EnvName.MatchString(f.token) {
		return hosts.Server{}, usagef("--token-variable is not the name of an environment variable, such as FOLDGATE_TOKEN; the token itself does not belong in the host's file")
	}
	if f.url != "" {
		u, err := url.Parse(f.url)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return hosts.Server{}, usagef("--url: %.200q is not an http or https address, such as http://127.0.0.1:8787/mcp", f.url)
		case strings.Trim(u.Path, "/") == "":
			return hosts.Server{}, usagef("--url: %.200q has no path: a gateway answers at /mcp, such as %s://%s/mcp", f.url, u.Scheme, u.Host)
		case !strings.HasSuffix(u.Path, "/mcp"):
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: --url: a gateway answers at /mcp, not at %s, unless a proxy in front of it has that path\n", u.EscapedPath())
		}
		return hosts.Server{URL: f.url, TokenVariable: f.token}, nil
	}
	file, err := f.configuration()
	if err != nil {
		return hosts.Server{}, err
	}
	cfg, err := config.Load(file)
	if errors.Is(err, os.ErrNotExist) || cfg.File == "" {
		return hosts.Server{}, err
	}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: the host can't start foldgate until this is corrected:\n%v\n", err)
	}
	return f.serverOf(cfg, file)
}

// serverOf returns what a host is to start or to call with the configuration of a file.
func (f *hostFlags) serverOf(cfg config.Config, file string) (hosts.Server, error) {
	few := cfg.Tools.Mode == config.ModeSearch && len(cfg.Tools.Always) == 0
	switch {
	case cfg.Listen != "":
		s := hosts.Server{URL: origin(cfg.Secure(), cfg.Listen) + "/mcp", TokenVariable: f.token, Few: few}
		if len(cfg.Principals) > 0 && s.TokenVariable == "" {
			s.TokenVariable = "FOLDGATE_TOKEN"
		}
		return s, nil
	case f.token != "":
		return hosts.Server{}, usagef("--token-variable is for an address: give --url, too")
	}
	program, err := programPath()
	return hosts.Server{Command: []string{program, "run", "--config", file}, Few: few}, err
}

// fits returns an error that says what to do if one of the hosts can't use a server.
func (f *hostFlags) fits(all []hosts.Host, s hosts.Server) error {
	for _, h := range all {
		err := h.Takes(s)
		switch {
		case err == nil:
			continue
		case errors.Is(err, hosts.ErrNoToken):
			return usagef("%w: foldgate connect %s --url %s connects it; then add the header Authorization by hand", err, h.Name, s.URL)
		case f.url != "":
			return usagef("%w; leave --url out", err)
		}
		file, missing := f.configuration()
		if missing != nil {
			return missing
		}
		return usagef("%w, and %s has listen, so that hosts call its address: name a configuration without listen with --config", err, file)
	}
	return nil
}

// configuration returns the absolute path of the configuration file.
func (f *hostFlags) configuration() (string, error) {
	file, err := config.Locate(f.app.config)
	if err != nil {
		return "", err
	}
	if file == "" {
		file, _ = config.UserFile()
		return "", usagef("there is no configuration for the host to start foldgate with: neither ./foldgate.yaml nor %s. Name one with --config, or make one: foldgate init", file)
	}
	return filepath.Abs(file)
}

// programPath returns the path of the running program, as PATH finds it if it does: that path outlives an update.
func programPath() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if strings.Contains(exe, string(filepath.Separator)+"go-build") && !strings.HasSuffix(exe, ".test") {
		return "", usagef("'go run' removes the program when it ends, and a host could not start it: build it first, with 'go install ./cmd/foldgate'")
	}
	if found, err := exec.LookPath("foldgate"); err == nil && sameFile(found, exe) {
		return filepath.Abs(found)
	}
	return exe, nil
}

// planned is a change of a host's file that was found possible.
type planned struct {
	host   hosts.Host
	change *hosts.Change
	verb   string
	note   string // to be printed after it
}

// apply finds out what changes in the files of all hosts, then shows each change, asks, and writes it.
func (f *hostFlags) apply(cmd *cobra.Command, all []hosts.Host, changes func(h hosts.Host, file string) ([]planned, error)) error {
	var plan []planned
	for _, h := range all {
		file, err := h.File(f.dir)
		if err != nil {
			return usageError{err}
		}
		some, err := changes(h, file)
		if err != nil {
			return err
		}
		plan = append(plan, some...)
	}
	scrubber, secret, err := secrets(cmd.Context())
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	for _, p := range plan {
		if p.change.Empty() {
			fmt.Fprintf(out, "%s: nothing to change in %s\n", p.host.Title, p.change.File)
			if err := p.change.Write(); err != nil { // the record may be new or obsolete
				return err
			}
			continue
		}
		fmt.Fprintln(out, p.host.Title)
		text, err := p.change.Diff(secret)
		if err != nil {
			return err
		}
		if err := show(cmd, scrubber, text); err != nil {
			return err
		}
		if err := f.ask(cmd); err != nil {
			return err
		}
		if err := p.change.Write(); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is %s: %s\n", p.host.Title, p.verb, p.change.File)
		if p.note != "" {
			fmt.Fprintln(out, p.note)
		}
	}
	return nil
}

// secrets returns a scrubber, and what it says of a text by itself. A failure counts as a secret.
func secrets(ctx context.Context) (*scrub.Scrubber, func(text string) bool, error) {
	s, err := scrub.New(scrub.Options{})
	return s, func(text string) bool {
		_, found, err := s.Text(ctx, text)
		return err != nil || len(found) > 0
	}, err
}

// show prints a diff of servers without the secrets around them.
func show(cmd *cobra.Command, s *scrub.Scrubber, text string) error {
	text, _, err := s.Text(cmd.Context(), text)
	if err == nil {
		_, err = io.WriteString(cmd.OutOrStdout(), text)
	}
	return err
}

// ask fails if the user does not want the change.
func (f *hostFlags) ask(cmd *cobra.Command) error {
	if f.yes {
		return nil
	}
	if !isTerminal(cmd.InOrStdin()) {
		return errors.New("nothing was changed: there is no terminal to ask on. To make this change, add --yes")
	}
	fmt.Fprint(cmd.OutOrStdout(), "Make this change? [y/N] ")
	line, _ := bufio.NewReader(interruptible{cmd.Context(), cmd.InOrStdin()}).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}
