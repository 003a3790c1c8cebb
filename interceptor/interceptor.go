// Package interceptor is the chain that every call passes. Its layers record the call, find its
// branch, charge its tokens, fold large results and remove secrets.
//
// A [Layer] wraps a [Handler]. [NewChain] makes a [Chain] of layers, the first one outermost.
//
// A layer writes into the [Call] what the layers outside it need to know. So Trace, which stands
// outside all layers that decide, records their decisions. Package engine fixes the order (chain.go),
// because it is a security property: nothing outside Scrub holds an unscrubbed result.
//
// The layers know the parameters and results of MCP methods. They know no transports and no
// upstreams.
package interceptor

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Handler answers a call. Exactly one of result and error is nil.
//
// An error object of the upstream is a Result, not an error. An error is foldgate's own: a
// [*Refusal], or a fault that the router reports. Trace records the reason of a refusal.
type Handler func(ctx context.Context, c *Call) (*Result, error)

// Layer wraps a handler, as middleware does. It calls next at most once. A nil Layer is left out of the chain.
type Layer func(next Handler) Handler

// Chain runs a call down its layers. end answers the call behind the innermost layer.
type Chain func(ctx context.Context, c *Call, end Handler) (*Result, error)

// NewChain makes a chain of layers, outermost first. Before any layer acts, locate fills in
// what Trace records of the call: its branch, its workflow and the tokens of its arguments. It changes
// only the call.
func NewChain(locate func(context.Context, *Call), layers ...Layer) Chain {
	h := Handler(func(ctx context.Context, c *Call) (*Result, error) { return c.end(ctx, c) })
	for _, layer := range slices.Backward(layers) {
		if layer != nil {
			h = layer(h)
		}
	}
	return func(ctx context.Context, c *Call, end Handler) (*Result, error) {
		c.end, c.began, c.Outcome.Record = end, time.Now(), trace.NewID()
		locate(ctx, c)
		return h(ctx, c)
	}
}

// Recover turns a panic in an inner layer into an error and logs its stack, so that one bad message
// does not end the gateway. It stands inside Trace, so the call is recorded nevertheless.
func Recover(log *slog.Logger) Layer {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (res *Result, err error) {
			defer func() {
				if p := recover(); p != nil {
					log.Error("panic in a call", "method", c.Target.Method, "server", c.Target.Server, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					res, err = nil, fmt.Errorf("internal error while handling %s; the gateway's log has the details", c.Target.Method)
				}
			}()
			return next(ctx, c)
		}
	}
}
