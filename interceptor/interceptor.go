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
//	telemetry*.go             spans and metrics, outside of all where they are on
//	trace.go                  the records of a call
//	recover.go                panics
//	attribute.go              which branch a call is in
//	meter.go, measure.go      what it costs
//	fold*.go                  results too large for their place
//	workflow*.go              which step of a workflow it is
//	scrub.go                  secrets
//	refusal.go                what a model reads where foldgate says no
package interceptor

import (
	"context"
	"encoding/json"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Direction says which way a request travels.
type Direction int

const (
	// FromHost is a request of the agent's host: its result flows to a model.
	FromHost Direction = iota
	// FromUpstream is a request of an upstream server (sampling, elicitation,
	// roots): its parameters flow to a model or a person.
	FromUpstream
	// Internal is a request that foldgate itself makes, to fill its catalog.
	Internal
)

// Call is one request on its way through the chain. It is used by one
// goroutine at a time; each layer documents the fields that it sets.
type Call struct {
	// Set by the gateway before the chain starts.

	// Direction is FromHost, FromUpstream or Internal.
	Direction Direction
	// Session and Principal say on whose behalf; From and To name the two ends
	// for the trace ("host:claude-code", "upstream:files", "foldgate").
	Session, Principal string
	From, To           string
	// Revision is the protocol revision the host speaks; Transport is "pipe" or
	// "tcp", "" where no host is involved.
	Revision, Transport string
	// ID is the request's JSON-RPC id as the sender wrote it.
	ID json.RawMessage
	// Server is the upstream's key, "" for foldgate itself; Method the JSON-RPC
	// method; Name the tool, prompt or URI as the upstream knows it.
	Server, Method, Name string
	// Params are the parameters as the sender wrote them.
	Params json.RawMessage
	// Forward are the parameters to send on; middlewares may replace them.
	Forward json.RawMessage
	// Arguments are what the agent wrote as tool arguments, without the
	// injected branch_id: the part of Params that is charged.
	Arguments json.RawMessage
	// Handle names the branch explicitly; HandleRung says how.
	Handle     string
	HandleRung Rung
	// Implicit allows the one active leaf branch of the session, or of the
	// thread, to be used.
	Implicit bool
	// Thread is the conversation on the connection that the host says the call
	// belongs to, "" for none; Spawned says that another thread started it.
	Thread  string
	Spawned bool
	// SubContext is a context path the host added below the branch's own.
	SubContext string
	// Control marks a call that is never refused or charged for budget.
	Control bool
	// Metered marks a call whose result a model reads, so that it is counted.
	Metered bool
	// Correlates are ids of earlier trace records that caused this call.
	Correlates []string
	// Deprecated are codes of deprecated forms in the message.
	Deprecated []string
	// Traceparent is the W3C trace context of what caused the call: the host's,
	// or that of a branch or call of ours.
	Traceparent string
	// Answer is who answers the call, at the end of the chain; so the chain is
	// put together once and not for every call.
	Answer Handler
	// Flow is the call's part in a workflow; nil for a tool that no rule names.
	Flow *Flow

	// Batch is the handle under which a batch keeps the result, which it reads
	// itself; "" for a result that a model reads.
	Batch string

	// Set by Attribute (see Locate).

	// Branch is the branch that the call is in, nil for main; Context its path,
	// with SubContext below it. Rung says how it was found. Ambiguous: more than
	// one was possible, so the call is in main.
	Branch    *folding.Branch
	Context   string
	Rung      Rung
	Ambiguous bool
	locateErr error
	located   bool

	// Set by Trace.

	// Record is the id of the request's trace record. Telemetry, outside of
	// Trace, chooses it where that is installed.
	Record string

	// Set by Telemetry.

	spans *callSpans

	// Set by Meter.

	// Tokens is what the call cost; Fold sets Tokens.Out.
	Tokens  Usage
	flight  *folding.Call
	gauged  *Result // what measure counted last
	counted int

	// Set by Scrub.

	// Findings are what was found in the result, ArgumentFindings what was found
	// in the parameters.
	Findings         []scrub.Finding
	ArgumentFindings []scrub.Finding
	scrubbedParams   json.RawMessage
	paramsScrubbed   bool
	resultScrubbed   bool // nothing is left in the result that was found

	// Set by whichever layer decides it.

	// Decision is "" while allowed, else why the call was refused: one of the
	// reasons of package trace.
	Decision string
	// Late: the result came after the branch had ended. Truncated: it was cut
	// to the budget (over-budget in the trace, whose own "truncated" is about a
	// payload). Folded: it was replaced by a preview.
	Late, Truncated, Folded bool
	// Clean marks a result that was scrubbed before it was stored; Open that by
	// policy not all of it was, so that the trace looks again.
	Clean, Open bool

	// Set by Fold.

	// Fold is the handle of the stored result and Saved the tokens that were
	// not delivered; Whole, in a batch, is the scrubbed result before folding.
	Fold  string
	Saved int
	Whole *Result

	// Set by tools of foldgate's own.

	// Read is the stored result of which the call delivers a part: what a
	// branch_read reads, or a branch_run answers from. nil where there is none.
	Read *trace.Read

	// Set by Fold, and by tools of foldgate's own that can say the same in less.

	// Shrink returns the result in at most budget tokens, or nil. Meter uses it
	// where less is granted than the result needs.
	Shrink func(budget int) *Result
}

// Caller is on whose behalf the call is made.
func (c *Call) Caller() folding.Caller {
	return folding.Caller{Principal: c.Principal, Session: c.Session, Thread: c.Thread}
}

// ofTool reports whether the call's result is a tool's.
func (c *Call) ofTool() bool {
	return c.Method == "tools/call" || (c.Method == MethodTaskResult && c.Name != "")
}

// Left returns what the call's branch has left, in tokens; ok is false in main.
func (c *Call) Left() (tokens int, ok bool) {
	if c.flight == nil {
		return 0, false
	}
	return c.flight.Remaining(), true
}

// measure is g.Result, counting a result that several layers ask for once.
func (c *Call) measure(g Gauge, r *Result) int {
	if c.gauged != r {
		c.gauged, c.counted = r, g.Result(r)
	}
	return c.counted
}

// Usage is what a call cost, in tokens of the configured counter.
type Usage struct {
	// In counts the arguments, Out the upstream's result, Delivered what the
	// host received of it.
	In, Out, Delivered int
	// BranchUsed and BranchBudget are the branch's state after the call; both
	// 0 in main.
	BranchUsed, BranchBudget int
}

// Result is what a request came to: a result, or an error object.
type Result struct {
	// Body is the JSON-RPC result.
	Body json.RawMessage
	// Error is the JSON-RPC error object; exactly one of the two is set.
	Error json.RawMessage
}

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
