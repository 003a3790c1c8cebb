package proxy

import (
	"context"
	"errors"

	"github.com/foldgate/foldgate/interceptor"
)

// locate finds the branch and the workflow step of a call.
func (g *Gateway) locate(ctx context.Context, c *interceptor.Call) {
	interceptor.Locate(g.branches, c)
	g.records.Inherit(c)
	g.workflows.Locate(ctx, c)
}

// newChain writes the order of the interceptors, outermost first. The order is a security property
// and can't be configured. Around them stand savings and telemetry, which decide nothing.
func newChain(g *Gateway) interceptor.Chain {
	layers := g.observed(
		layer{"trace", interceptor.Trace(g.recorder)},                                          // a record before any effect, and one after whatever happened
		layer{"recover", interceptor.Recover(g.log)},                                           // inside Trace, so that a panic is recorded as an error
		layer{"attribute", interceptor.Attribute(g.branches)},                                  // before Meter, which charges the branch
		layer{"meter", interceptor.Meter(g.branches, g.limits, g.tokenMeter)},                  // outside Fold: charges what the host gets to read
		layer{"fold", interceptor.Fold(g.results, g.tokenMeter, g.folding, g.boundary, g.log)}, // outside Scrub: only scrubbed text is stored and shown
		layer{"workflow", g.workflows.Middleware()},                                            // outside Scrub: adds handles to clean results, captures no secrets; inside Meter, which charges them, and Fold, which keeps the blocks with handles
		layer{"scrub", interceptor.Scrub(g.boundary)},                                          // innermost: nothing outside it holds an unscrubbed result
	)
	return interceptor.NewChain(g.locate, append([]interceptor.Middleware{g.savings}, layers...)...)
}

// folding returns the thresholds in force.
func (g *Gateway) folding() *interceptor.FoldPolicy { return &g.settings.Load().folding }

// savings is the layer that notes for branch_status the tokens that folding saved the branch of a
// call, or that the call took back by reading a stored result. The records have the same numbers,
// and foldgate stats sums them up.
func (g *Gateway) savings(next interceptor.Handler) interceptor.Handler {
	return func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		res, err := next(ctx, c)
		ctx = context.WithoutCancel(ctx)
		o := &c.Outcome
		var lost error
		if o.Fold != "" && c.Attribution.Branch != nil {
			lost = g.results.AddSavings(ctx, c.Origin.Principal, c.Attribution.Branch.Context, 1, o.Saved)
		}
		if o.Read != nil && o.Read.Context != "" && o.Tokens.Delivered > 0 {
			lost = errors.Join(lost, g.results.AddSavings(ctx, c.Origin.Principal, o.Read.Context, 0, -o.Tokens.Delivered))
		}
		if lost != nil {
			g.log.Warn("branch_status will not know what folding saved", "err", lost)
		}
		return res, err
	}
}
