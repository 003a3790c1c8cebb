package proxy

import (
	"context"

	"github.com/foldgate/foldgate/interceptor"
)

// newChain writes the order of the interceptors, outermost first. The order is
// a security property and can't be configured.
func newChain(g *Gateway) func(context.Context, *interceptor.Call, interceptor.Handler) (*interceptor.Result, error) {
	locate := func(ctx context.Context, c *interceptor.Call) {
		interceptor.Locate(g.branches, c)
		g.inherit(c)
		g.flows.middle().Locate(ctx, c)
	}
	order := g.observed(locate, // outside all others, where telemetry is on
		layer{"trace", interceptor.Trace(g.recorder, locate)},                      // outermost: a record before any effect, one after whatever happened
		layer{"recover", interceptor.Recover(g.log)},                               // inside Trace, so that a panic is recorded as an error
		layer{"attribute", interceptor.Attribute(g.branches)},                      // before Meter, which charges the branch
		layer{"meter", interceptor.Meter(g.branches, g.gauge)},                     // outside Fold: charges what the host gets to read
		layer{"fold", interceptor.Fold(g.results, g.gauge, g.foldPolicy(), g.log)}, // outside Scrub: only scrubbed text is stored and shown
		layer{"workflow", g.flows.middle().Middleware()},                           // outside Scrub: handles are added to clean results; inside Fold, which leaves them
		layer{"scrub", interceptor.Scrub(g.scrubber, g.cfg.scrubPolicy)},           // innermost: nothing outside it holds an unscrubbed result
	)
	run := interceptor.Chain(func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) { return c.Answer(ctx, c) }, order...)
	return func(ctx context.Context, c *interceptor.Call, h interceptor.Handler) (*interceptor.Result, error) {
		c.Answer = h
		return run(ctx, c)
	}
}
