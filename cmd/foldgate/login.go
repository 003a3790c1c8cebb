package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/upstream/auth"
)

func newLogin(a *app) *cobra.Command {
	var principal string
	var scopes []string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "login UPSTREAM",
		Short: "Log in at an upstream that asks for a person's consent",
		Long: `Log in at an upstream, so that its tools can be called. It prints a URL. Open
it in a browser on this machine: the authorization server asks you to log in and
to consent, and sends the browser back to foldgate. From then on foldgate renews
the login by itself, until it is revoked or you run foldgate logout.

The upstream needs auth: {authorization_code: {}} in the configuration. With
per: principal each principal logs in alone; --principal says which. Gateways
that run see the login within a second. See docs/logins.md.

If the browser is on another machine, forward the port of the address to which
it is sent back: set redirect_port, and use ssh -L PORT:127.0.0.1:PORT.`,
		Example: `  foldgate login github
  foldgate login github --principal alice
  foldgate login github --scopes "repo read:org"   # more than it has, as an error has said`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := a.login(cmd, args[0], principal)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), wait, fmt.Errorf("nobody has logged in within %s (--wait)", wait))
			defer cancel()
			got, err := l.LogIn(ctx, strings.Fields(strings.Join(scopes, " ")), func(at string) {
				render.Printf(cmd.OutOrStdout(), "Open this URL in a browser on this machine:\n\n%s\n\nWaiting for up to %s.\n", at, wait)
			})
			if err != nil {
				return fmt.Errorf("upstream %s: %w", args[0], err)
			}
			render.Printf(cmd.OutOrStdout(), "Logged in at %s, scopes: %s\n", args[0], strings.Join(got, " "))
			return nil
		},
	}
	cmd.Flags().StringVar(&principal, "principal", "", "whose login it is, with per: principal")
	cmd.Flags().StringSliceVar(&scopes, "scopes", nil, "ask for these scopes, too")
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long to wait for the browser")
	return cmd
}

func newLogout(a *app) *cobra.Command {
	var principal string
	cmd := &cobra.Command{
		Use:   "logout UPSTREAM",
		Short: "Forget a login at an upstream",
		Long: `Forget a login at an upstream. Gateways that run stop using it with their next
call. The authorization server is not told: to end the consent, revoke it there.`,
		Example: "  foldgate logout github\n  foldgate logout github --principal alice",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := a.login(cmd, args[0], principal)
			if err != nil {
				return err
			}
			had, err := l.LogOut(cmd.Context())
			if err != nil {
				return err
			}
			text := "Logged out at %s.\n"
			if !had {
				text = "There was no login at %s.\n"
			}
			render.Printf(cmd.OutOrStdout(), text, args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&principal, "principal", "", "whose login it is, with per: principal")
	return cmd
}

// maxFailures is how many answers of a browser that are not taken a command records: any program on this
// machine can send them.
const maxFailures = 10

// login returns the login of a principal at an upstream of the configuration. The trace has what becomes of
// it.
func (a *app) login(cmd *cobra.Command, name, principal string) (*auth.Login, error) {
	cfg, err := config.Find(a.config)
	if err != nil {
		return nil, err
	}
	if cfg.Upstreams[name] == nil {
		return nil, usagef("there is no upstream %.80q; there are %s%s", name, cmp.Or(strings.Join(cfg.UpstreamKeys(), ", "), "none"), didYouMean(name, cfg.UpstreamKeys(), ""))
	}
	can := slices.DeleteFunc(cfg.UpstreamKeys(), func(key string) bool { return !cfg.Upstreams[key].Auth.ByPerson() })
	if !slices.Contains(can, name) {
		others := ""
		if len(can) > 0 {
			others = fmt.Sprintf(" (%s can be logged in at)", strings.Join(can, ", "))
		}
		return nil, usagef("nobody can log in at %q%s: give it auth.enterprise or auth: {authorization_code: {}} under upstreams", name, others)
	}
	u := cfg.Upstreams[name]
	switch per := u.Auth.PerPrincipal(); {
	case per && principal == "":
		return nil, usagef("each principal has a login of its own at %s: name it with --principal", name)
	case per && !cfg.Knows(principal) && principal != interceptor.LocalPrincipal: // a host on stdio
		return nil, noPrincipal(cfg, "principal", principal)
	case !per && principal != "":
		return nil, usagef("all principals share the login at %s: leave --principal out, or set per: principal", name)
	}
	ls := auth.New(cfg, slog.New(slog.DiscardHandler))
	var told atomic.Int32
	ls.Told = func(e auth.Event) {
		if e.Failure != "" && told.Add(1) > maxFailures {
			return
		}
		if err := proxy.RecordLogin(cfg, e); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: the trace has no record of this %s: %v\n", e.Action, err)
		}
	}
	return ls.For(name, u, principal), nil
}
