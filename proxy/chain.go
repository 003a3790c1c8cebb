package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// newChain writes the order of the interceptors, outermost first. The order is
// a security property and can't be configured.
func newChain(g *Gateway) (func(context.Context, *interceptor.Call, interceptor.Handler) (*interceptor.Result, error), error) {
	locate := func(ctx context.Context, c *interceptor.Call) {
		interceptor.Locate(g.branches, c)
		g.inherit(c)
		g.flows.middle().Locate(ctx, c)
	}
	layers := []layer{
		{"trace", interceptor.Trace(g.recorder, locate)},                                  // outermost: a record before any effect, one after whatever happened
		{"recover", interceptor.Recover(g.log)},                                           // inside Trace, so that a panic is recorded as an error
		{"attribute", interceptor.Attribute(g.branches)},                                  // before Meter, which charges the branch
		{"meter", interceptor.Meter(g.branches, g.gauge)},                                 // outside Fold: charges what the host gets to read
		{"fold", interceptor.Fold(g.results, g.gauge, g.foldPolicy(), g.boundary, g.log)}, // outside Scrub: only scrubbed text is stored and shown
		{"workflow", g.flows.middle().Middleware()},                                       // outside Scrub: handles are added to clean results; inside Fold, which leaves them
		{"scrub", interceptor.Scrub(g.boundary)},                                          // innermost: nothing outside it holds an unscrubbed result
	}
	layers, err := leaveOut(layers, g.without, locate)
	if err != nil {
		return nil, err
	}
	order := g.observed(locate, layers...) // outside all others, where telemetry is on
	run := interceptor.New(order...)
	return func(ctx context.Context, c *interceptor.Call, h interceptor.Handler) (*interceptor.Result, error) {
		res, err := run(ctx, c, h)
		g.bookSavings(ctx, c)
		return res, err
	}, nil
}

// bookSavings notes, for branch_status, what folding saved the branch of c, or
// took back from that of a stored result that c read: what the record of c says,
// and foldgate stats sums up.
func (g *Gateway) bookSavings(ctx context.Context, c *interceptor.Call) {
	ctx = context.WithoutCancel(ctx)
	var err error
	if c.Outcome.Fold != "" && c.Attribution.Branch != nil {
		err = g.results.AddSavings(ctx, c.Origin.Principal, c.Attribution.Branch.Context, 1, c.Outcome.Saved)
	}
	if c.Outcome.Read != nil && c.Outcome.Read.Context != "" && c.Outcome.Tokens.Delivered > 0 {
		err = errors.Join(err, g.results.AddSavings(ctx, c.Origin.Principal, c.Outcome.Read.Context, 0, -c.Outcome.Tokens.Delivered))
	}
	if err != nil {
		g.log.Warn("branch_status will not know what folding saved", "err", err)
	}
}

// Without leaves layers out of the chain, by their names there, such as
// "meter", "scrub" or "trace"; [New] fails on a name that is none. It is for
// measuring what a layer costs and for nothing else: a gateway without one
// keeps none of foldgate's promises.
func Without(layers ...string) Option {
	return func(g *Gateway) { g.without = append(g.without, layers...) }
}

// leaveOut returns the layers that are not named. In the place of the trace
// stays what the others have from it: where the call belongs, and its id.
func leaveOut(layers []layer, names []string, locate func(context.Context, *interceptor.Call)) ([]layer, error) {
	var known []string
	for _, l := range layers {
		known = append(known, l.name)
	}
	for _, name := range names {
		i := slices.IndexFunc(layers, func(l layer) bool { return l.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no layer %q to leave out: there are %s", name, strings.Join(known, ", "))
		}
		layers[i].mw = nil
		if name == "trace" {
			layers[i].mw = untraced(locate)
		}
	}
	return layers, nil
}

// untraced is what is left of the trace without its records.
func untraced(locate func(context.Context, *interceptor.Call)) interceptor.Middleware {
	return func(next interceptor.Handler) interceptor.Handler {
		return func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
			locate(ctx, c)
			if c.Outcome.Record == "" {
				c.Outcome.Record = trace.NewID()
			}
			return next(ctx, c)
		}
	}
}

// foldPolicy is the policy for the chain.
func (g *Gateway) foldPolicy() interceptor.FoldPolicy {
	r := g.cfg.Results
	return interceptor.FoldPolicy{
		MainThreshold: r.MainThreshold, BranchFraction: r.BranchFraction, PreviewTokens: r.PreviewTokens, Rules: foldRules{g},
	}
}

// foldRules are the rules of the configuration, which has the names of tools as
// hosts see them.
type foldRules struct{ g *Gateway }

// FoldRule returns what applies to one tool of a server.
func (r foldRules) FoldRule(server, tool string) interceptor.FoldRule {
	if u := r.g.byKey[server]; u != nil {
		tool = shownName(u.Prefix, tool)
	}
	return r.g.cfg.Results.Rule(tool)
}
