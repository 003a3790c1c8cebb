package engine

import (
	"context"
	"errors"

	"github.com/foldgate/foldgate/interceptor"
)

// locate finds the branch, the workflow step and the trace context of a call, and counts its arguments.
func (e *Engine) locate(ctx context.Context, c *interceptor.Call) {
	if e.Features.Has(Meter) {
		c.Weigh(e.Tokens)
	}
	if e.Branches == nil {
		return
	}
	interceptor.Locate(e.Branches, c)
	e.Records.Inherit(c)
	e.Workflows.Locate(ctx, c)
}

// newChain writes the order of the layers, outermost first. The order is a security property and
// can't be configured. Around them stand savings and telemetry, which decide nothing.
func (e *Engine) newChain() interceptor.Chain {
	layers := e.observed(
		namedLayer{"trace", e.optional(Trace, interceptor.Trace(e.Recorder))},                                     // a record before the call is charged or sent, and one after whatever happened
		namedLayer{"recover", interceptor.Recover(e.Log)},                                                         // inside Trace, so that a panic is recorded as an error
		namedLayer{"checkbranch", e.optional(Meter, interceptor.CheckBranch(e.Branches))},                         // before Meter, which charges the branch
		namedLayer{"meter", e.optional(Meter, interceptor.Meter(e.Branches, e.Limits, e.Tokens))},                 // outside Fold: charges what the host gets to read
		namedLayer{"fold", e.optional(Fold, interceptor.Fold(e.Results, e.Tokens, e.Folding, e.Boundary, e.Log))}, // outside Scrub: only scrubbed text is stored and shown
		namedLayer{"workflow", e.Workflows.Layer()},                                                               // outside Scrub: adds handles to clean results, captures no secrets; inside Meter, which charges them, and Fold, which keeps the blocks with handles
		namedLayer{"scrub", e.optional(Scrub, interceptor.Scrub(e.Boundary))},                                     // innermost: nothing outside it holds an unscrubbed result
	)
	return interceptor.NewChain(e.locate, append([]interceptor.Layer{e.optional(Fold, e.savings)}, layers...)...)
}

// optional returns a layer if its feature is in use, else nil.
func (e *Engine) optional(f Features, l interceptor.Layer) interceptor.Layer {
	if e.Features.Has(f) {
		return l
	}
	return nil
}

// savings is the layer that notes for branch_status the tokens that folding saved the branch of a
// call, or that the call took back by reading a stored result. The records have the same numbers,
// and foldgate stats sums them up.
func (e *Engine) savings(next interceptor.Handler) interceptor.Handler {
	return func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		res, err := next(ctx, c)
		o := &c.Outcome
		if o.Fold == "" && o.Read == nil {
			return res, err
		}
		ctx = context.WithoutCancel(ctx)
		var lost error
		if o.Fold != "" && c.Attribution.Branch != nil {
			lost = e.Results.AddSavings(ctx, c.Origin.Principal, c.Attribution.Branch.Context, 1, o.Saved)
		}
		if o.Read != nil && o.Read.Context != "" && o.Tokens.Delivered > 0 {
			lost = errors.Join(lost, e.Results.AddSavings(ctx, c.Origin.Principal, o.Read.Context, 0, -o.Tokens.Delivered))
		}
		if lost != nil {
			e.Log.Warn("branch_status will not know what folding saved", "err", lost)
		}
		return res, err
	}
}

// namedLayer is a layer under the name that telemetry shows.
type namedLayer struct {
	name  string
	layer interceptor.Layer
}

// observed returns the layers, each measured if telemetry is on.
func (e *Engine) observed(layers ...namedLayer) []interceptor.Layer {
	var order []interceptor.Layer
	if e.Telemetry != nil {
		order = append(order, e.Telemetry.Calls())
	}
	for _, l := range layers {
		if l.layer == nil { // not configured
			continue
		}
		if e.Telemetry != nil {
			l.layer = e.Telemetry.Measure(l.name, l.layer)
		}
		order = append(order, l.layer)
	}
	return order
}
