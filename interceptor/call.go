package interceptor

import (
	"encoding/json"
	"net/http"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Call is one request on its way through the chain. It is used by one
// goroutine at a time. The gateway sets Origin and Target, and what the sender
// asks for in Attribution; the layers set the rest.
type Call struct {
	Origin      Origin
	Target      Target
	Attribution Attribution
	Outcome     Outcome

	end Handler // answers the call behind the innermost layer; see New
}

// Direction is the way in which a request travels.
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

// Origin describes the sender of a call.
type Origin struct {
	Direction Direction
	// Session and Principal identify the client on whose behalf the call is made.
	Session, Principal string
	// From is the sender in trace records: "host:claude-code", "upstream:files".
	From string
	// Revision is the protocol revision that the host speaks; Transport is
	// "pipe" or "tcp", "" if no host is involved.
	Revision, Transport string
	// ID is the JSON-RPC id of the request as the sender wrote it.
	ID json.RawMessage
	// Thread is the conversation on the connection to which the host says the
	// call belongs, "" for none. Spawned: another thread started this one.
	Thread  string
	Spawned bool
	// Traceparent is the W3C trace context of the cause of the call: the host's,
	// or that of a branch or call of foldgate.
	Traceparent string
	// Correlates are ids of earlier trace records that caused this call.
	Correlates []string
	// Deprecated are codes of deprecated forms in the message.
	Deprecated []string
}

// Target describes what a call asks for.
type Target struct {
	// Server is the upstream's key, "" for foldgate itself; To is the receiver
	// in trace records.
	Server, To string
	// Candidates are the keys of the upstreams that are asked in turn, if it is
	// not known which of them has what the call names.
	Candidates []string
	// Method is the JSON-RPC method; Name the tool, prompt or URI as the
	// upstream knows it.
	Method, Name string
	// Params are the parameters as the sender wrote them.
	Params json.RawMessage
	// Forward are the parameters to send on; layers may replace them.
	Forward json.RawMessage
	// Extra are the members beside params that foldgate does not know, each
	// with a comma before it. Header has the HTTP headers to send on. Scrub
	// replaces both by clean ones.
	Extra  []byte
	Header http.Header
	// Arguments are the tool arguments as the agent wrote them, without the
	// injected branch_id: the part of Params that is charged.
	Arguments json.RawMessage
	// Control marks a call that is never refused or charged for budget.
	Control bool
	// Metered marks a call with a result that a model reads, so that it is counted.
	Metered bool
	// Batch is the handle under which a batch keeps the result, which it reads
	// itself; "" for a result that a model reads.
	Batch string
	// Workflow is the call's step in a workflow; nil for a tool that no rule names.
	Workflow *WorkflowStep
}

// Attribution is the branch of a call: BranchID, Source, Implicit and SubContext
// as the sender asked for it, the rest as [Locate] found it.
type Attribution struct {
	// BranchID names the branch explicitly; Source is set with it.
	BranchID string
	// Source is the evidence for Branch.
	Source Source
	// Implicit allows the one active leaf branch of the session, or of the
	// thread, to be used.
	Implicit bool
	// SubContext is a context path that the host added below the branch's own.
	SubContext string

	// Branch is the branch of the call, nil for main; Context is its path, with
	// SubContext below it.
	Branch  *folding.Branch
	Context string
	// Ambiguous: more than one branch was possible, so the call is in main.
	Ambiguous bool

	err     error // why the branch can't be used; Attribute refuses the call
	located bool
}

// Outcome describes what happened to a call.
type Outcome struct {
	// Record is the id of the request's trace record. Trace sets it, or
	// Telemetry outside of Trace.
	Record string
	// Tokens is the cost of the call; Fold sets Tokens.Out, Meter the rest.
	Tokens Usage
	// Findings are the secrets found in the result, ArgumentFindings those
	// found in the parameters.
	Findings         []scrub.Finding
	ArgumentFindings []scrub.Finding
	// Decision is "" while allowed, else why the call was refused: one of the
	// reasons of package trace.
	Decision string
	// Late: the result came after the branch had ended. Truncated: it was cut
	// to the budget (over-budget in the trace, where "truncated" is about a
	// payload). Folded: it was replaced by a preview.
	Late, Truncated, Folded bool
	// Fold is the handle of the stored result and Saved the tokens that were
	// not delivered; Whole, in a batch, is the scrubbed result before folding.
	Fold  string
	Saved int
	Whole *Result
	// Read is the stored result of which the call delivers a part: foldgate's
	// own tools branch_read and branch_run set it.
	Read *trace.Read
	// Clean marks a result that was scrubbed before it was stored. Open: by
	// policy not all of it was, so the trace looks again.
	Clean, Open bool
	// Shrink returns the result in at most budget tokens, or nil. Meter uses it
	// if less is granted than the result needs. Fold sets it, and foldgate's own
	// tools that can say the same in less.
	Shrink func(budget int) *Result

	spans    *callSpans // of Telemetry
	lease    *folding.Lease
	measured *Result // what measure counted last
	counted  int

	scrubbedParams json.RawMessage
	paramsScrubbed bool
	resultScrubbed bool // nothing is left in the result that was found
}

// Usage is the cost of a call, in tokens of the configured counter.
type Usage struct {
	// In counts the arguments, Out the upstream's result, Delivered what the
	// host received of it.
	In, Out, Delivered int
	// BranchUsed and BranchBudget are the branch's state after the call; both
	// 0 in main.
	BranchUsed, BranchBudget int
}

// Result is the response to a request: a result, or an error object.
type Result struct {
	// Body is the JSON-RPC result.
	Body json.RawMessage
	// Error is the JSON-RPC error object; exactly one of the two is set.
	Error json.RawMessage
	// Extra are the members beside the two that foldgate does not know, each
	// with a comma before it.
	Extra []byte
}

// Caller returns the client on whose behalf the call is made.
func (c *Call) Caller() folding.Caller {
	return folding.Caller{Principal: c.Origin.Principal, Session: c.Origin.Session, Thread: c.Origin.Thread}
}

// ofTool reports whether the call's result is a tool's.
func (c *Call) ofTool() bool {
	return c.Target.Method == "tools/call" || (c.Target.Method == MethodTaskResult && c.Target.Name != "")
}

// Left returns what the call's branch has left, in tokens; ok is false in main.
func (c *Call) Left() (tokens int, ok bool) {
	if c.Outcome.lease == nil {
		return 0, false
	}
	return c.Outcome.lease.Remaining(), true
}

// measure is tm.Result; it counts a result that several layers ask for only once.
func (c *Call) measure(tm TokenMeter, r *Result) int {
	if c.Outcome.measured != r {
		c.Outcome.measured, c.Outcome.counted = r, tm.Result(r)
	}
	return c.Outcome.counted
}
