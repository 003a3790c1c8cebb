package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/proxy/pins"
)

// pinned returns the pins of the state directory, and those of them that args name: a server and perhaps
// the name of a tool or prompt, or "instructions".
func (a *app) pinned(args []string) (s *pins.Store, dir string, found []pins.Pin, err error) {
	if dir, err = a.state("see the pins"); err != nil {
		return nil, "", nil, err
	}
	if _, err := os.Stat(dir); a.stateDir != "" && errors.Is(err, os.ErrNotExist) {
		return nil, "", nil, usagef("--state-dir: %s does not exist", dir)
	}
	s = pins.Open(dir, nil)
	all, err := s.List()
	if err != nil || len(args) == 0 {
		return s, dir, all, err
	}
	servers, names := []string{}, []string{}
	for _, p := range all {
		servers = append(servers, p.Server)
		if p.Server != args[0] {
			continue
		}
		names = append(names, p.Title())
		if len(args) == 1 || isNamed(p, args[1]) {
			found = append(found, p)
		}
	}
	switch {
	case len(found) > 0:
		return s, dir, found, nil
	case len(names) > 0:
		return nil, "", nil, usagef("no definition of %s is called %q%s\nfoldgate pins lists the ones that there are", args[0], args[1], didYouMean(args[1], names, ""))
	}
	return nil, "", nil, usagef("no definition of a server %q is pinned in %s%s\nA gateway pins definitions when it first asks a server for them", args[0], dir, didYouMean(args[0], servers, ""))
}

// isNamed reports whether an argument names p. "instructions" is the text of the server; a tool or a prompt
// of that name is SERVER__instructions.
func isNamed(p pins.Pin, arg string) bool {
	if p.Kind == pins.Instructions || arg == string(pins.Instructions) {
		return p.Kind == pins.Instructions && arg == string(pins.Instructions)
	}
	return p.Name == arg || p.Server+"__"+p.Name == arg
}

func newPins(a *app) *cobra.Command {
	var asJSON bool
	cmd := a.withStateDir(&cobra.Command{
		Use:   "pins",
		Short: "List the definitions of upstreams, and approve those that changed",
		Long: `List the definitions of tools and prompts, and the instructions, that upstreams gave:
approved, new or changed since the first contact, or gone. WARNINGS counts what the
scanner finds in them; --json has it in words. See docs/pins.md.`,
		Example: "  foldgate pins\n  foldgate pins diff github\n  foldgate pins approve github create_issue",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, dir, all, err := a.pinned(nil)
			if err != nil {
				return err
			}
			rows := [][]string{{"SERVER", "KIND", "NAME", "STATE", "FIRST SEEN", "APPROVED", "BY", "WARNINGS"}}
			for _, p := range all {
				approved := "never"
				if !p.Approved.IsZero() {
					approved = p.Approved.Format(time.DateOnly)
				}
				rows = append(rows, []string{p.Server, string(p.Kind), firstLine(p.Title()), string(p.State), p.FirstSeen.Format(time.DateOnly), approved, cmp.Or(p.By, "nobody"), strconv.Itoa(len(p.Warnings))})
			}
			return printList(cmd.OutOrStdout(), asJSON, all, rows, "No definition is pinned in "+dir+". A gateway pins definitions when it first asks a server for them.")
		},
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with what the scanner finds")
	cmd.AddCommand(newPinsDiff(a), newPinsApprove(a))
	return cmd
}

func newPinsDiff(a *app) *cobra.Command {
	return a.withStateDir(&cobra.Command{
		Use:   "diff SERVER [TOOL]",
		Short: "Show how definitions differ from those that were approved",
		Long: `Show line by line how the new and changed definitions of a server differ from those
that were approved. TOOL may also name a prompt, or be "instructions"; a tool that is called
so is SERVER__instructions. Approved definitions are shown if the scanner warns of them.
Characters that a terminal would not show are escaped.`,
		Example: "  foldgate pins diff github\n  foldgate pins diff github create_issue",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, _, found, err := a.pinned(args)
			if err != nil {
				return err
			}
			if printDiffs(cmd.OutOrStdout(), found) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "There is no difference: all is as it was approved.")
			}
			return nil
		},
	})
}

func newPinsApprove(a *app) *cobra.Command {
	return a.withStateDir(&cobra.Command{
		Use:   "approve SERVER [TOOL]",
		Short: "Approve new and changed definitions",
		Long: `Approve the new and changed definitions of a server, or of one of its tools or prompts,
as they are now, and forget those that are gone. Gateways on the state directory
notice it within 4 seconds.`,
		Example: "  foldgate pins approve github\n  foldgate pins approve github create_issue",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, dir, found, err := a.pinned(args)
			if err != nil {
				return err
			}
			if info, err := os.Stat(dir); err == nil && !ownedByMe(info) {
				return fmt.Errorf("%s is another user's: run the command as the user who runs the gateway, such as with sudo -u", dir)
			}
			done, err := s.Approve(cmd.Context(), userName(), found)
			if err != nil {
				return fmt.Errorf("nothing was approved: %w", err)
			}
			for _, p := range done {
				did := "Approved"
				if p.State == pins.Gone {
					did = "Forgotten"
				}
				render.Printf(cmd.OutOrStdout(), "%s: %s %s of %s, SHA-256 %s.\n", did, string(p.Kind), p.Title(), p.Server, p.SHA256)
			}
			if len(done) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "There is nothing to approve.")
			}
			return nil
		},
	})
}

// userName returns the name of the user who runs the command.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// printDiffs prints the definitions that are not approved, and returns how many there are. Of approved ones it
// prints the warnings.
func printDiffs(w io.Writer, all []pins.Pin) (n int) {
	for _, p := range all {
		approved := p.State == pins.Approved
		if approved && len(p.Warnings) == 0 {
			continue
		}
		if !approved {
			n++
		}
		render.Printf(w, "%s of %s: %s %s\n", string(p.Kind), p.Server, p.Title(), string(p.State))
		for _, warning := range p.Warnings {
			render.Printf(w, "! %s\n", warning)
		}
		if p.State != pins.Gone && !approved {
			for _, line := range p.Diff() {
				render.Printf(w, "%s\n", line)
			}
		}
		fmt.Fprintln(w)
	}
	return n
}

// definitions tells of definitions that wait for an approval.
func (d *doctor) definitions() {
	all, err := pins.Open(d.cfg.StatePath(), nil).List()
	if err != nil {
		if info, wrong := os.Stat(d.cfg.StatePath()); wrong == nil && info.IsDir() && ownedByMe(info) { // else state tells
			d.add(levelFault, "pins", "see docs/pins.md", "%v", err)
		}
		return
	}
	for _, key := range d.cfg.UpstreamKeys() {
		waiting := slices.DeleteFunc(slices.Clone(all), func(p pins.Pin) bool {
			return p.Server != key || p.State != pins.New && p.State != pins.Changed
		})
		if n := len(waiting); n > 0 && d.cfg.PinMode(key) != "off" {
			effect := map[string]string{"warn": "hosts get them (pins: warn)", "hold": "they are withheld (pins: hold)"}[d.cfg.PinMode(key)]
			d.add(levelWarn, "pins", "foldgate pins diff "+key+", then foldgate pins approve "+key, "%s of %s not as approved, such as %s; %s", count(n, "definition"), key, waiting[0].Title(), effect)
		}
	}
}
