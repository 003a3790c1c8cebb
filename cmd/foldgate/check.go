package main

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/policy"
)

func newCheck(a *app) *cobra.Command {
	var wait time.Duration
	var as caller
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and connect every upstream",
		Long: `Validate the configuration, connect every upstream, and print the tools that a
host would see with what their definitions cost in tokens. Exit code 2 means that
the configuration is wrong, 1 that an upstream or the store of the limits can't be
reached, that two upstreams offer the same name, or that a rule of a workflow names
a tool that no upstream shows. An upstream where each principal logs in alone is
checked with --as; one that takes the caller's own token is not. It changes
nothing, and makes no state directory; in one that there is, it makes a file of 1
byte and removes it.`,
		Example: "  foldgate check\n  foldgate check --config foldgate.yaml -v\n  foldgate check --as alice\n  foldgate check --as corp:ann --scopes db:read",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.check(cmd, as, wait) },
	}
	cmd.Flags().StringVar(&as.principal, "as", "", "show only what this principal sees, and by which rule of the policy")
	cmd.Flags().StringVar(&as.team, "team", "", "with --as: the team in the caller's token, instead of that in the configuration")
	cmd.Flags().StringSliceVar(&as.roles, "roles", nil, "with --as: the roles in the caller's token, as well")
	cmd.Flags().StringSliceVar(&as.scopes, "scopes", nil, "with --as: the scopes in the caller's token, as well")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait for the next upstream")
	return cmd
}

// check checks the configuration as a caller sees it, and prints what it finds.
func (a *app) check(cmd *cobra.Command, as caller, wait time.Duration) error {
	cfg, err := config.Find(a.config)
	if err != nil {
		return err
	}
	id, note, err := as.identity(cfg)
	if err != nil {
		return err
	}
	log, hint := slog.New(slog.DiscardHandler), "; -v shows what their programs print"
	if a.verbose || a.logFile != "" {
		l, done, err := a.logger(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer done()
		log = l
	}
	if a.verbose {
		hint = ""
	}
	a.showProgress(cmd, cmd.CommandPath())
	report, err := proxy.Check(cmd.Context(), cfg, id, wait, log)
	if cmd.Context().Err() != nil { // the servers that it did not wait for have not failed
		return errInterrupted
	}
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	printReport(out, cfg, report)
	if note != "" {
		render.Printf(out, "note: %s\n", note)
	}
	for _, f := range append(warnings(cfg), stateWarning(cfg)...) {
		render.Printf(out, "warning: %s\n", f.Text)
	}
	printFailed(out, cfg, report)
	switch failed := report.Failed(); {
	case failed > 0:
		return fmt.Errorf("%d of %s can't be reached%s", failed, count(len(report.Upstreams), "upstream"), hint)
	case report.Store != nil:
		return fmt.Errorf("the store of the limits, store.url, can't be used: %w\n%s", report.Store, storeRemedy(cfg))
	case len(report.Clashes) > 0:
		return fmt.Errorf("%s offered by two upstreams", count(len(report.Clashes), "name"))
	case len(report.Unmatched) > 0:
		return fmt.Errorf("%s of workflows with a tool that there is not", count(len(report.Unmatched), "rule"))
	}
	return nil
}

// stateWarning returns why the state directory can't be used, nil if it can.
func stateWarning(cfg config.Config) []finding {
	info, dir, fault := stateDir(cfg.StatePath())
	if fault.Text == "" && dir == cfg.StatePath() && ownedByMe(info) {
		fault = unwritable(dir, info)
	}
	if fault.Text == "" {
		return nil
	}
	return []finding{{levelWarn, fault.Topic, "state_dir: " + fault.Text + "; " + fault.Remedy, fault.Remedy}}
}

// caller is the caller that flags name, as whom check looks.
type caller struct {
	principal, team string
	roles, scopes   []string
}

// identity returns the caller, without a principal if no flag names one. The note names the rules of the policy
// that depend on what an issuer's token says and no flag does, "" if there are none.
func (c caller) identity(cfg config.Config) (id interceptor.Identity, note string, err error) {
	switch {
	case c.principal == "" && (c.team != "" || c.roles != nil || c.scopes != nil):
		return id, "", usagef("--team, --roles and --scopes are of a caller: name its principal with --as")
	case c.principal == "":
		return id, "", nil
	case !cfg.Knows(c.principal), !cfg.Authenticates() && c.principal != interceptor.LocalPrincipal:
		return id, "", noPrincipal(cfg, "as", c.principal)
	}
	id = cfg.IdentityAs(c.principal, c.team, c.roles, c.scopes)
	if cfg.Principals[c.principal] != nil || !cfg.Authenticates() {
		return id, "", nil
	}
	var rules, flags []string
	for _, flag := range []struct {
		name  string
		given bool
		of    func(policy.Who) string
	}{
		{"--team", c.team != "", func(w policy.Who) string { return w.Team }},
		{"--roles", c.roles != nil, func(w policy.Who) string { return w.Role }},
		{"--scopes", c.scopes != nil, func(w policy.Who) string { return w.Scope }},
	} {
		for _, r := range cfg.Policy.Rules {
			if flag.given || flag.of(r.Who) == "" {
				continue
			}
			if flags = append(flags, flag.name); !slices.Contains(rules, r.Name) {
				rules = append(rules, r.Name)
			}
		}
	}
	if len(rules) > 0 {
		note = fmt.Sprintf("what the token of %s says decides whether these rules apply: %s; give it with %s", c.principal, strings.Join(rules, ", "), strings.Join(slices.Compact(flags), ", "))
	}
	return id, note, nil
}

// noPrincipal is the error for a flag that names a principal whom the configuration does not know.
func noPrincipal(cfg config.Config, flag, name string) error {
	if !cfg.Authenticates() {
		return usagef("--%s: there is no principal %.80q: without principals and auth.issuers every host is %q", flag, name, interceptor.LocalPrincipal)
	}
	names := cfg.PrincipalNames()
	for _, issuer := range slices.Sorted(maps.Keys(cfg.Auth.Issuers)) {
		names = append(names, issuer+":<claim>")
	}
	return usagef("--%s: there is no principal %.80q; there are %s", flag, name, strings.Join(names, ", "))
}

// printReport prints one table per upstream, then the sum.
func printReport(w io.Writer, cfg config.Config, r proxy.Report) {
	for _, u := range r.Upstreams {
		if u.Lacks {
			render.Printf(w, "%s: not checked: %s\n\n", u.Name, lacksLogin(cfg, u))
		}
		if u.Err != nil { // printFailed tells it at the end, where it is seen
			continue
		}
		render.Printf(w, "%s: ok, protocol %s, %s, %s, %s\n", u.Name, u.Version, count(len(u.Tools), "tool"), count(u.Prompts, "prompt"), count(u.Resources, "resource"))
		printTools(w, u.Tools)
	}
	render.Printf(w, "foldgate: %s of its own\n", count(len(r.Own), "tool"))
	printTools(w, r.Own)
	for _, f := range wrongNames(r) {
		if f.Level == levelFault {
			render.Printf(w, "clash: %s: %s\n", f.Text, f.Remedy)
		} else {
			render.Printf(w, "warning: %s\n", f.Text)
		}
	}
	for _, u := range r.Omitted {
		render.Printf(w, "warning: %q of %s is not shown, because the protocol does not allow it: %s\n", u.Name, u.Server, u.Why)
	}
	for _, p := range r.Suspect {
		what := fmt.Sprintf("definition of the %s %s of %s looks", string(p.Kind), p.Name, p.Server)
		if p.Name == "" {
			what = fmt.Sprintf("%s of %s look", string(p.Kind), p.Server) // instructions
		}
		render.Printf(w, "warning: the %s wrong: %s\n", what, strings.Join(p.Warnings, "; "))
	}
	if len(r.Principals) > 0 {
		render.Printf(w, "principals: %s\n", strings.Join(r.Principals, ", "))
	}
	render.Printf(w, "A host pays %d tokens (%s) for all tool definitions with tools.mode: list, and %d with search; auto is %s.\n", r.Tokens, r.Counter, r.Searching, r.Auto)
}

// printFailed prints the upstreams that can't be used, with what to do.
func printFailed(w io.Writer, cfg config.Config, r proxy.Report) {
	for _, u := range r.Upstreams {
		if u.Err != nil && !u.Lacks {
			render.Printf(w, "\n%s: FAILED: %s\n  %s\n", u.Name, upstreamFault(u), upstreamRemedy(cfg, u))
		}
	}
}

// upstreamFault returns why an upstream can't be used, without its name, which the text around has.
func upstreamFault(u proxy.UpstreamReport) string {
	return strings.TrimPrefix(u.Err.Error(), "upstream "+u.Name+": ")
}

// lacksLogin returns why an upstream where each principal has a login of its own was not checked.
func lacksLogin(cfg config.Config, u proxy.UpstreamReport) string {
	if cfg.Upstreams[u.Name].Auth.TokenExchange != nil {
		return "it takes the caller's own token, so only a call of a host shows whether it works"
	}
	return "each principal has a login of its own there; foldgate check --as NAME checks with the one of NAME"
}

// upstreamRemedy returns what to do about an upstream that can't be used.
func upstreamRemedy(cfg config.Config, u proxy.UpstreamReport) string {
	text, at := u.Err.Error(), "upstreams."+u.Name
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
	}
	switch c := cfg.Upstreams[u.Name]; {
	case says("foldgate login"): // it says what to do
		return "Then check again."
	case u.LoginFails:
		return "Correct " + at + ".auth, or the client at the authorization server; see docs/logins.md."
	case says("E404", "No matching distribution", "not found in the package registry"):
		return "The registry has no such package: correct the package's name in " + at + ".command."
	case says("(--wait)"):
		return "Give it more time with a longer --wait: the first start may download the program."
	case says("it sent what is no message") && says("no answer within", "exit status 0") && len(c.Command) > 0:
		return "Its standard output is for MCP messages only: let it log to standard error, or correct " + at + ".command."
	case says("no answer within"):
		return "Try again: the first start may download the program. Else raise " + at + ".connect_seconds."
	case len(c.Command) > 0:
		return "Correct " + at + ".command or .env; foldgate check -v shows all that it prints."
	case says("server gave HTTP response to HTTPS client"):
		return "The server speaks no TLS: write http:// in " + at + ".url."
	case says("connection refused"):
		return "Nothing listens there: start the server, or correct " + at + ".url."
	case says("no such host"):
		return "There is no such host: correct " + at + ".url, or check the network."
	case says("HTTP 401", "HTTP 403") && len(c.Headers) > 0:
		return "Correct " + at + ".headers: a token there is wrong, has ended or lacks a right. Or set " + at + ".auth; see docs/logins.md."
	case says("HTTP 401", "HTTP 403"):
		return "It asks for a login: give it headers or auth under " + at + "; see docs/logins.md."
	case says("HTTP 404", "HTTP 405"):
		return "There is no MCP server at that path: correct " + at + ".url."
	case says("HTTP 5"):
		return "The server, or a proxy before it, has a fault of its own: read its log, or ask who runs it."
	}
	return "Correct " + at + ".url, or check the network."
}

func printTools(w io.Writer, tools []proxy.ToolReport) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, t := range tools {
		note := ""
		if t.Full != "" {
			note = "  (shortened from " + t.Full + ")"
		}
		if !t.Injected && !t.Own {
			note += "  (takes no branch_id: use _meta or the branch's URL)"
		}
		switch {
		case t.Warned:
			note += "  (rule " + t.Rule + " would hide it: policy.action is warn)"
		case t.Rule != "":
			note += "  (rule " + t.Rule + ")"
		}
		render.Printf(tab, "  %s\t%d tokens%s\n", t.Name, t.Tokens, note)
	}
	_ = tab.Flush()
	fmt.Fprintln(w)
}
