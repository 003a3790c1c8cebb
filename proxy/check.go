package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/pins"
	"github.com/foldgate/foldgate/proxy/router"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/tools"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Report is the result of [Check].
type Report struct {
	Upstreams  []UpstreamReport  // in the configuration's order
	Principals []string          // names of those that may use the HTTP endpoint
	Own        []ToolReport      // foldgate's own tools
	Clashes    []catalog.Clash   // names of tools and prompts that two upstreams offer
	Omitted    []catalog.Omitted // items of lists that hosts do not see
	Store      error             // why the server that counts the limits can't be used; nil if it can, or there is none
	Unmatched  []config.Fault    // rules of workflows that name a tool which hosts do not see
	Idle       []config.Fault    // globs on the names of tools, and names, that match none
	Suspect    []pins.Pin        // definitions that look wrong, if pins is not off
	Tokens     int               // cost of all tool definitions to a model that reads them, by Counter
	Searching  int               // the cost of the definitions with tools.mode: search
	Auto       string            // the mode that tools.mode: auto would choose for a host without a search of its own
	Counter    string
}

// UpstreamReport is one upstream's part of a [Report].
type UpstreamReport struct {
	Name               string       // the upstream's key
	Version            string       // the protocol revision that it speaks
	Tools              []ToolReport // the ones that hosts see
	Prompts, Resources int          // how many it has
	Err                error        // why the upstream can't be used; nil if it can
	LoginFails         bool         // Err is about foldgate's login there
	Lacks              bool         // each principal has a login of its own there, and Check has none: no fault of the upstream
}

// ToolReport is one tool as hosts see it.
type ToolReport struct {
	Name     string // as hosts see it
	Full     string // the name before it was shortened to 64 characters; "" if it was not
	Tokens   int    // cost of the definition to a model that reads it
	Injected bool   // foldgate could add branch_id to the tool's schema
	Rule     string // of the policy, that lets the principal see it; "" without a policy
	Warned   bool   // the rule would hide it, but the policy only records that
	Own      bool   // one of foldgate's own
}

// Failed returns how many upstreams can't be used.
func (r Report) Failed() (n int) {
	for _, u := range r.Upstreams {
		if u.Err != nil && !u.Lacks {
			n++
		}
	}
	return n
}

// Check connects every upstream of cfg and lists what hosts would see. It keeps its state in a
// temporary directory, below the state directory if there is no other, so that a running gateway is not
// disturbed. The error is about the configuration; upstreams that can't be reached are part of the report. If
// as has a principal, the report is about what that caller sees. Check gives up on the servers that are left when
// none has become ready or failed for wait.
func Check(ctx context.Context, cfg config.Config, as interceptor.Identity, wait time.Duration, log *slog.Logger) (Report, error) {
	tmp, err := os.MkdirTemp("", "foldgate-check-")
	if err != nil { // a container need not have one
		var inState error
		if tmp, inState = os.MkdirTemp(cfg.StatePath(), "check-"); inState != nil {
			return Report{}, fmt.Errorf("foldgate check needs a directory for temporary files, or state_dir: %w", errors.Join(err, inState))
		}
	}
	defer os.RemoveAll(tmp)
	cfg.LoginsDir, cfg.Logins.KeyFile = cfg.LoginsPath(), cfg.KeyPath()
	cfg.StateDir = filepath.Join(tmp, "state")
	g, err := New(cfg, log)
	if err != nil {
		return Report{}, err
	}
	defer func() { _ = g.Close(context.WithoutCancel(ctx)) }()
	caller := as
	caller.Principal = cmp.Or(as.Principal, anyone(&cfg))
	faults := g.settle(ctx, caller.Principal, wait)
	s := g.router.NewSession(server.Peer{Identity: caller, Capabilities: wire.AllCapabilities, Transport: "http", Era: wire.Modern, SingleRequest: true})
	defer s.Close("check is done")
	r := g.report(ctx, s, as, faults, wait)
	r.Suspect, _ = g.pins.List() // all of a first contact
	r.Suspect = slices.DeleteFunc(r.Suspect, func(p pins.Pin) bool { return len(p.Warnings) == 0 })
	if (len(cfg.Budgets.Limits) > 0 || cfg.Replicated()) && cfg.Store.URL != "" {
		r.Store = tryStore(ctx, cfg)
	}
	return r, nil
}

// tryStore takes nothing from the store of the limits, as each call takes something.
func tryStore(ctx context.Context, cfg config.Config) error {
	store, err := engine.OpenLimitStore(cfg, slog.New(slog.DiscardHandler), nil) // it is Redis
	if err != nil {
		return err
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(cfg.Budgets.WaitMS)*time.Millisecond)
	defer cancel()
	_, err = store.Take(ctx, limits.Op{ID: rand.Text()})
	return err
}

// settle connects every server for a principal. It returns when each is up or has failed, or when none has for wait.
// If many start, those that have not answered in time try again, with most of wait as their time, while that brings
// more up, two times at most. The errors are by server.
func (g *Gateway) settle(ctx context.Context, principal string, wait time.Duration) map[string]error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stuck := time.AfterFunc(wait, func() { cancel(fmt.Errorf("no answer within %s (--wait)", wait)) })
	defer stuck.Stop()
	servers := g.settings.Load().Servers
	faults, scope := map[string]error{}, upstream.Scope{Group: upstream.Group{Principal: principal, Capabilities: wire.AllCapabilities}}
	for try, left := 1, servers; ; try++ {
		errs := make([]error, len(left))
		var all sync.WaitGroup
		for i, srv := range left {
			all.Go(func() {
				_, errs[i] = srv.Connection(ctx, scope)
				if ctx.Err() != nil {
					errs[i] = context.Cause(ctx)
				} else if _, fault := srv.Status(); fault != nil {
					errs[i] = fault
				}
				stuck.Reset(wait)
			})
		}
		all.Wait()
		var late []*upstream.Server
		for i, srv := range left {
			if faults[srv.Key] = errs[i]; errors.Is(errs[i], upstream.ErrNoAnswer) {
				late = append(late, srv)
			}
		}
		// On a busy machine many servers that start take each other's time. They try again without those
		// that are up.
		if len(late) == 0 || try > 1 && len(late) == len(left) || try == 3 || len(servers) <= g.servers.StartsAtOnce() {
			return faults
		}
		left = late
		g.servers.Patience(wait - wait/10) // so that each says itself that it is late
		select {
		case <-time.After(time.Duration(try) * 2 * time.Second): // longer than the back-off
		case <-ctx.Done():
		}
		stuck.Reset(wait)
	}
}

// complete returns a merged list. Many servers at once take their time to give theirs: it waits
// until all have, or none has for wait.
func (g *Gateway) complete(ctx context.Context, s *router.Session, k catalog.Kind, faults map[string]error, wait time.Duration) *catalog.Catalog {
	fewest, since := len(faults)+1, time.Now()
	for {
		merged, late := s.Catalog(ctx, 2*time.Second, k, nil)
		maps.DeleteFunc(late, func(key string, _ error) bool { return faults[key] != nil })
		if len(late) < fewest {
			fewest, since = len(late), time.Now()
		}
		over := ctx.Err() != nil || time.Since(since) > wait
		maps.DeleteFunc(late, func(key string, err error) bool {
			if over || !errors.Is(err, context.DeadlineExceeded) {
				faults[key] = err
				return true
			}
			return false
		})
		if len(late) == 0 {
			return merged
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// report sums up the merged lists.
func (g *Gateway) report(ctx context.Context, s *router.Session, as interceptor.Identity, faults map[string]error, wait time.Duration) Report {
	list := g.complete(ctx, s, catalog.Tools, faults, wait)
	rest := maps.Clone(faults) // a server needs neither prompts nor resources
	prompts, resources := g.complete(ctx, s, catalog.Prompts, rest, wait), g.complete(ctx, s, catalog.Resources, rest, wait)
	st := g.settings.Load()
	r := Report{
		Principals: st.Config.PrincipalNames(), Counter: g.Counter.Name(), Clashes: slices.Concat(list.Clashes, prompts.Clashes),
		Omitted:   slices.Concat(list.Omitted, prompts.Omitted, resources.Omitted),
		Unmatched: st.Rules.UnmatchedRules(list), Idle: st.Rules.UnmatchedGlobs(list),
	}
	if as.Principal != "" {
		list, prompts, resources = list.For(as), prompts.For(as), resources.For(as)
	}
	at := map[string]*UpstreamReport{}
	r.Upstreams = make([]UpstreamReport, len(st.Servers))
	for i, srv := range st.Servers {
		r.Upstreams[i] = g.upstreamReport(srv, faults[srv.Key], as)
		at[srv.Key] = &r.Upstreams[i]
	}
	for _, shown := range list.Order {
		e, _ := list.Lookup(shown)
		t := ToolReport{Name: shown, Injected: e.TakesBranchID, Own: e.Server == "", Tokens: g.Counter.CountBytes(catalog.Readable(e.Shown))}
		if t.Own && !tools.Has(shown) { // it is only for a host that searches
			continue
		}
		r.Tokens += t.Tokens
		if t.Own || globs.Any(st.Config.Tools.Always, shown) {
			r.Searching += t.Tokens
		}
		if t.Own {
			r.Own = append(r.Own, t)
			continue
		}
		if as.Principal != "" && st.Rules.Govern() {
			d := st.Rules.Visible(catalog.Tools, as, e)
			t.Rule, t.Warned = d.Rule, d.Warned
		}
		if full := st.Config.FullName(e.Server, e.Name); full != shown {
			t.Full = full
		}
		at[e.Server].Tools = append(at[e.Server].Tools, t)
	}
	for _, d := range tools.SearchDefinitions() {
		r.Searching += g.Counter.CountBytes(catalog.Readable(d))
	}
	if r.Auto = config.ModeList; r.Tokens > st.Config.Tools.AutoTokens {
		r.Auto = config.ModeSearch
	}
	for _, shown := range prompts.Order {
		e, _ := prompts.Lookup(shown)
		at[e.Server].Prompts++
	}
	for _, shown := range resources.Order {
		e, _ := resources.Lookup(shown)
		at[e.Server].Resources++
	}
	return r
}

// upstreamReport returns the report about a server that as uses, and which has that fault, without its lists.
func (g *Gateway) upstreamReport(srv *upstream.Server, fault error, as interceptor.Identity) UpstreamReport {
	info, _ := srv.Info()
	u := UpstreamReport{Name: srv.Key, Version: info.Version}
	_, u.LoginFails = errors.AsType[*upstream.LoginError](fault)
	u.Lacks = upstream.MayLogIn(fault) && srv.Config.Auth.PerPrincipal() && (as.Principal == "" || srv.Config.Auth.TokenExchange != nil)
	if fault != nil { // it may quote the server, and a URL of the configuration
		u.Err = errors.New(g.Boundary.Text(fault.Error()))
	}
	return u
}

// TestPolicy decides the calls that a file lists as a gateway does, and compares the decisions with
// those that the file expects. The error is a [*config.Error].
func TestPolicy(cfg config.Config, file string) ([]config.PolicyResult, error) {
	return cfg.TestPolicy(file, tools.Has)
}
