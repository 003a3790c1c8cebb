package proxy

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/edge"
)

// Report is what [Check] found.
type Report struct {
	// Upstreams are in the configuration's order.
	Upstreams []UpstreamReport
	// Principals are the names of those who may use the HTTP edge.
	Principals []string
	// Own are foldgate's own tools.
	Own []ToolReport
	// Clashes are names of tools and prompts that two upstreams offer.
	Clashes []Clash
	// Unmatched are rules of workflows that name a tool which hosts do not see.
	Unmatched []config.Fault
	// Idle are globs on the names of tools that fit none.
	Idle []config.Fault
	// Tokens is what a host pays for all tool definitions, by Counter.
	Tokens  int
	Counter string
}

// Clash is a name that two upstreams offer, so that the second's can't be
// reached.
type Clash struct {
	// Name is the name as hosts would see it.
	Name string
	// First and Second are the upstreams' keys; First may be "foldgate".
	First, Second string
}

// UpstreamReport is one upstream's part of a [Report].
type UpstreamReport struct {
	// Name is the upstream's key, Version the protocol revision it speaks.
	Name, Version string
	// Tools are those that hosts see.
	Tools []ToolReport
	// Prompts and Resources are how many it has.
	Prompts, Resources int
	// Err is why the upstream can't be used; nil if it can.
	Err error
}

// ToolReport is one tool as hosts see it.
type ToolReport struct {
	// Name is the tool's for hosts, Tokens what its definition costs them.
	Name   string
	Tokens int
	// Full is the name before it was shortened to 64 characters.
	Full      string
	Shortened bool
	// Injected says that foldgate could add branch_id to the tool's schema.
	Injected bool
	// Own marks foldgate's own tools.
	Own bool
}

// Failed returns how many upstreams can't be used.
func (r Report) Failed() (n int) {
	for _, u := range r.Upstreams {
		if u.Err != nil {
			n++
		}
	}
	return n
}

// Check connects every upstream of cfg and lists what hosts would see. It
// keeps its state in a temporary directory, so that a running gateway is not
// disturbed. The error is about the configuration; upstreams that can't be
// reached are part of the report.
func Check(ctx context.Context, cfg config.Config, log *slog.Logger) (Report, error) {
	if faults := cfg.Validate(); len(faults) > 0 {
		return Report{}, &config.Error{File: "configuration", Faults: faults}
	}
	if _, err := scrub.New(scrub.Options{Rules: cfg.RulesFile()}); err != nil {
		return Report{}, &config.Error{File: "configuration", Faults: []config.Fault{{Key: "scrub.rules", Msg: err.Error()}}}
	}
	tmp, err := os.MkdirTemp("", "foldgate-check-")
	if err != nil {
		return Report{}, err
	}
	defer os.RemoveAll(tmp)
	cfg.StateDir = filepath.Join(tmp, "state")
	g, err := New(cfg, log)
	if err != nil {
		return Report{}, err
	}
	defer func() { _ = g.Close(context.WithoutCancel(ctx)) }()
	g.warm(ctx)
	s := g.newSession(edge.Peer{Principal: g.anyone(), Transport: "http", Modern: true})
	defer s.Close("check is done")
	menus := [listKinds]*menu{}
	for k := range listKinds {
		menus[k] = g.menu(ctx, s, k, true, nil)
	}
	return g.report(menus), nil
}

// report sums the merged lists up.
func (g *Gateway) report(menus [listKinds]*menu) Report {
	r := Report{Principals: g.cfg.PrincipalNames(), Counter: g.counter.Name(), Clashes: slices.Concat(menus[listTools].clashes, menus[listPrompts].clashes), Unmatched: g.unmatched(menus[listTools]), Idle: g.idle(menus[listTools])}
	at := map[string]int{}
	for i, u := range g.ups {
		said, _ := u.Info()
		_, fault := u.Status()
		if fault == nil {
			fault = menus[listTools].missing[u.Key]
		}
		if fault != nil { // it may quote the upstream, and a URL of the configuration
			fault = errors.New(g.boundary.Text(fault.Error()))
		}
		r.Upstreams = append(r.Upstreams, UpstreamReport{Name: u.Key, Version: said.Version, Err: fault})
		at[u.Key] = i
	}
	for _, shown := range menus[listTools].order {
		e := menus[listTools].entries[shown]
		t := ToolReport{Name: shown, Injected: e.injected, Own: e.up == nil, Tokens: g.counter.CountBytes(e.shown)}
		r.Tokens += t.Tokens
		if e.up == nil {
			r.Own = append(r.Own, t)
			continue
		}
		if full := fullName(e.up.Prefix, e.own); full != shown {
			t.Full, t.Shortened = full, true
		}
		u := &r.Upstreams[at[e.up.Key]]
		u.Tools = append(u.Tools, t)
	}
	for _, e := range menus[listPrompts].entries {
		r.Upstreams[at[e.up.Key]].Prompts++
	}
	for _, e := range menus[listResources].entries {
		r.Upstreams[at[e.up.Key]].Resources++
	}
	return r
}
