// Package interceptor is the chain that every message passes: who made it,
// which branch it belongs to, what it costs, what must not be seen.
//
// A [Middleware] wraps a [Handler]; [Chain] puts them together, the first
// listed outermost. What one layer learns it writes into the [Call], where the
// layers outside it can read it: the trace, outermost, records what all the
// others decided. The order is fixed in package proxy (chain.go), because it is
// a security property: nothing outside Scrub ever holds an unscrubbed result.
//
// The middlewares know nothing of wire formats beyond the parameters and
// results of MCP methods, and nothing of transports.
//
//	call.go         a call: origin, target, attribution, outcome
//	telemetry.go    spans of calls, layers and branches, outermost if they are on
//	metrics.go      metrics of calls
//	trace.go        records of calls and notifications
//	recover.go      panics
//	attribute.go    the branch of a call
//	meter.go        the cost of a call
//	fold.go         results too large for their place
//	workflow.go     the workflow step of a call
//	scrub.go        secrets in calls
//	boundary.go     secrets in every message, in both directions
//	branch.go       records and spans of branches
//	recovery.go     what a crash left unfinished
//	refusal.go      what a model reads if foldgate refuses
package interceptor

import "context"

// Handler answers a call. Exactly one of result and error is nil.
//
// An error object of the upstream is a Result, not an error. An error is
// foldgate's own: a [*Refusal], or a fault that the edge reports.
type Handler func(ctx context.Context, c *Call) (*Result, error)

// MethodTaskResult fetches the result of a tools/call that became a task; Name
// is the tool then, "" where that is not known.
const MethodTaskResult = "tasks/result"

// Middleware wraps a handler. It calls next at most once.
type Middleware func(next Handler) Handler

// Chain returns h wrapped in mw: Chain(h, a, b) runs a, then b, then h.
func Chain(h Handler, mw ...Middleware) Handler {
	for i := len(mw) - 1; i >= 0; i-- {
		h = mw[i](h)
	}
	return h
}

// New puts a chain together once for all calls. The function it returns runs a
// call down the chain; end answers the call behind the innermost layer.
func New(mw ...Middleware) func(ctx context.Context, c *Call, end Handler) (*Result, error) {
	h := Chain(func(ctx context.Context, c *Call) (*Result, error) { return c.end(ctx, c) }, mw...)
	return func(ctx context.Context, c *Call, end Handler) (*Result, error) {
		c.end = end
		return h(ctx, c)
	}
}
