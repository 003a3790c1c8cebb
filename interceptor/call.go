package interceptor

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Call is one request on its way through the chain. It is used by one goroutine at a time. The
// router sets Origin and Target, and the sender's part of Attribution, before the chain begins.
// The layers, and the handler at the end of the chain, set the rest. Target.Server and Target.To
// are final only after the handler has returned: of several Candidates it asks one after the other.
type Call struct {
	Origin      Origin
	Target      Target
	Attribution Attribution
	Outcome     Outcome

	began time.Time // when the chain began
	end   Handler   // answers the call behind the innermost layer
}

// Direction is the way in which a request travels.
type Direction int

const (
	FromHost Direction = iota // by the agent's host: a model reads the result
	// FromUpstream is a request by an upstream server: sampling, elicitation or roots. A model or a
	// person reads its parameters.
	FromUpstream
	Internal // by foldgate itself, to fill its catalog
)

// MethodTaskResult fetches the result of a tools/call that became a task. Name is then the tool,
// or "" if the tool is not known.
const MethodTaskResult = "tasks/result"

// Origin describes the sender of a call.
type Origin struct {
	Direction Direction
	// Session and Principal identify the client that the call is made for.
	Session, Principal string
	// From is the sender in trace records: "host:claude-code", "upstream:files".
	From string
	// Revision is the protocol revision that the host speaks. Transport is "pipe" or "tcp", or ""
	// if no host is involved.
	Revision, Transport string
	// ID is the JSON-RPC id of the request as the sender wrote it.
	ID json.RawMessage
	// Thread is the host's conversation that made the call, "" if the host names none. Spawned
	// means that another thread started it.
	Thread  string
	Spawned bool
	// Traceparent is the W3C trace context of the call's cause: of the host, or of a branch or
	// call of foldgate.
	Traceparent string
	// Correlates are ids of earlier trace records that caused this call.
	Correlates []string
	// Deprecated are codes of deprecated forms in the message.
	Deprecated []string
}

// Target names the server and the tool, prompt or resource of a call.
type Target struct {
	// Server is the upstream's key, "" for foldgate itself. To is the receiver in trace records.
	Server, To string
	// Candidates are the keys of the upstreams that are asked in turn if the owner of Name is not
	// known.
	Candidates []string
	// Method is the JSON-RPC method. Name is the tool, prompt or URI under the upstream's own
	// name.
	Method, Name string
	// Params are the parameters as the sender wrote them, Forward the parameters to send on.
	// Layers may replace Forward.
	Params, Forward json.RawMessage
	// Extra are the members beside params that foldgate does not know, each after a comma. Header
	// has the HTTP headers to send on. Scrub cleans both.
	Extra  []byte
	Header http.Header
	// Arguments are the tool arguments without the injected branch_id. They are the part of
	// Params that is charged.
	Arguments json.RawMessage
	// Control marks a call that is never refused or charged for budget.
	Control bool
	// Metered marks a call with a result that a model reads and Meter counts.
	Metered bool
	// Batch is the handle under which a batch keeps the result. The batch reads the result
	// itself. "" means that a model reads the result.
	Batch string
	// Workflow is the call's step in a workflow, nil if no rule names the tool.
	Workflow *WorkflowStep
}

// Attribution is the branch of a call. The sender asks by BranchID, Source, Implicit and
// SubContext; [Locate] sets the rest.
type Attribution struct {
	// BranchID names the branch explicitly. Source is set with it.
	BranchID string
	// Source is the evidence for Branch.
	Source Source
	// Implicit allows the only active leaf branch of the session, or of the thread, to be used.
	Implicit bool
	// SubContext is a context path that the host adds below the branch's path.
	SubContext string

	// Branch is the branch of the call, nil for main. Context is its path, with SubContext below
	// it.
	Branch  *folding.Branch
	Context string
	// Ambiguous means that more than one branch was possible, so the call is in main.
	Ambiguous bool

	err error // why the branch can't be used; Attribute refuses the call
}

// Outcome describes what happened to a call.
type Outcome struct {
	// Record is the id of the request's trace record.
	Record string
	// Tokens is the cost of the call. Fold sets Tokens.Out, Meter the rest.
	Tokens Usage
	// Findings are the secrets found in the result, ArgumentFindings the secrets found in the
	// parameters.
	Findings, ArgumentFindings []scrub.Finding
	// Decision is the reason for which the call was refused or cut, a word of package trace. ""
	// means that it was allowed.
	Decision string
	// Late means that the result came after the branch had ended. Truncated means that the result
	// was cut to the budget, which the trace calls over-budget. Folded means that a preview
	// replaced the result.
	Late, Truncated, Folded bool
	// Fold is the handle of the stored result. Saved counts the tokens that were not delivered.
	// Whole is the scrubbed result of a batch's call before folding.
	Fold  string
	Saved int
	Whole *Result
	// Read is the stored result that branch_read or branch_run delivers a part of.
	Read *trace.Read
	// Checked means that the result was scrubbed before, so Scrub passes it. Clean means that it
	// holds no secret that can be found, so it may be stored.
	Checked, Clean bool
	// Shrink makes the result smaller if Meter grants less than the result needs. Fold and
	// foldgate's own tools set it. nil means that the result is cut.
	Shrink Shrinker

	spans       *callSpans     // set by Telemetry
	lease       *folding.Lease // of the branch, while Meter runs the call
	paramsClean bool           // Trace found no secret in Params: Scrub need not look again
}

// Shrinker makes a result smaller.
type Shrinker interface {
	// Shrink returns the result in at most budget tokens, or nil if it can't.
	Shrink(budget int) *Result
}

// Usage is the cost of a call, in tokens of the configured counter.
type Usage struct {
	// In counts the arguments, Out the upstream's result, and Delivered the part of the result
	// that the host received.
	In, Out, Delivered int
	// BranchUsed and BranchBudget are the state of the branch after the call, both 0 in main.
	BranchUsed, BranchBudget int
}

// Caller returns the client that the call is made for.
func (c *Call) Caller() folding.Caller {
	return folding.Caller{Principal: c.Origin.Principal, Session: c.Origin.Session, Thread: c.Origin.Thread}
}

// Left returns the tokens that the call's branch has left. ok is false in main.
func (c *Call) Left() (tokens int, ok bool) {
	if c.Outcome.lease == nil {
		return 0, false
	}
	return c.Outcome.lease.Remaining(), true
}

// ofTool reports whether the call's result is a tool's.
func (c *Call) ofTool() bool {
	return c.Target.Method == "tools/call" || (c.Target.Method == MethodTaskResult && c.Target.Name != "")
}

// serverName names the server of a call in messages and metrics.
func (c *Call) serverName() string {
	if c.Target.Server == "" {
		return "foldgate"
	}
	return c.Target.Server
}
