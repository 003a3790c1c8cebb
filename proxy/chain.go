package proxy

import (
	"context"
	"errors"

	"github.com/foldgate/foldgate/interceptor"
)

// newChain writes the order of the interceptors, outermost first. The order is
// a security property and can't be configured.
func newChain(g *Gateway) func(context.Context, *interceptor.Call, interceptor.Handler) (*interceptor.Result, error) {
	locate := func(ctx context.Context, c *interceptor.Call) {
		interceptor.Locate(g.branches, c)
		g.branchRecords.Inherit(c)
		g.flows.middle().Locate(ctx, c)
	}
	layers := []layer{
		{"trace", interceptor.Trace(g.recorder, locate)},                                       // outermost: a record before any effect, one after whatever happened
		{"recover", interceptor.Recover(g.log)},                                                // inside Trace, so that a panic is recorded as an error
		{"attribute", interceptor.Attribute(g.branches)},                                       // before Meter, which charges the branch
		{"meter", interceptor.Meter(g.branches, g.tokenMeter)},                                 // outside Fold: charges what the host gets to read
		{"fold", interceptor.Fold(g.results, g.tokenMeter, g.foldPolicy(), g.boundary, g.log)}, // outside Scrub: only scrubbed text is stored and shown
		{"workflow", g.flows.middle().Middleware()},                                            // outside Scrub: handles are added to clean results; inside Fold, which leaves them
		{"scrub", interceptor.Scrub(g.boundary)},                                               // innermost: nothing outside it holds an unscrubbed result
	}
	order := g.observed(locate, layers...) // outside all others, where telemetry is on
	run := interceptor.New(order...)
	return func(ctx context.Context, c *interceptor.Call, h interceptor.Handler) (*interceptor.Result, error) {
		res, err := run(ctx, c, h)
		g.bookSavings(ctx, c)
		return res, err
	}
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
