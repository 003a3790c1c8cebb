package interceptor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
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
	// Cancel ends the context with which the chain was called. The end of the branch calls it. It is nil if
	// the context is not the call's alone.
	Cancel context.CancelCauseFunc

	began time.Time // when the chain began
	end   Handler   // answers the call behind the innermost layer
}

// Direction is the way in which a request travels. Its result travels the other way.
type Direction int

const (
	FromHost Direction = iota // from the agent's host, a batch for it, or a model that foldgate runs
	// ToHost is a request that a model or a person reads: sampling, elicitation or roots of an
	// upstream server, or foldgate's request to the model of a branch.
	ToHost
	Internal // by foldgate itself: it reads a list, or calls a memory tool
)

// MethodTaskResult fetches the result of a tools/call that became a task, MethodTaskGet its state, with
// the result once there is one. Name is the tool or "".
const (
	MethodTaskResult = "tasks/result"
	MethodTaskGet    = "tasks/get"
)

// LocalPrincipal is the principal of unauthenticated clients: those on stdio, and on HTTP without
// principals and issuers.
const LocalPrincipal = "local"

// Identity describes a client. The configuration has it, or the claims of a token.
type Identity struct {
	Principal string   `json:"principal"`      // authenticated; see [folding.Caller]
	Team      string   `json:"team,omitempty"` // "" for none
	Roles     []string `json:"roles,omitempty"`
	Scopes    []string `json:"scopes,omitempty"` // neither is to be changed
	// Issuer is the URL of the issuer of the token, and Subject the issuer's name for the principal.
	// Both are "" if the configuration has the principal.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
}

// Claims returns the identity as the claims of a branch; see [folding.Branch].
func (id Identity) Claims() string { return string(rawjson.Marshal(id)) }

// ReadClaims returns the identities of those who created a branch and its parents.
func ReadClaims(b *folding.Branch) (all []Identity, err error) {
	if b == nil || b.Claims == "" { // main, or a branch that only the trace knows
		return nil, nil
	}
	for line := range strings.SplitSeq(b.Claims, "\n") {
		var id Identity
		if err := json.Unmarshal([]byte(line), &id); err != nil {
			return nil, fmt.Errorf("the claims of branch %s: %w", b.ID, err)
		}
		all = append(all, id)
	}
	return all, nil
}

// Origin describes the sender of a call.
type Origin struct {
	Direction Direction
	Identity                  // who the call is made for
	Session   string          // of the host that the call is made for
	From      string          // in trace records: "host:claude-code", "upstream:files"
	ID        json.RawMessage // the JSON-RPC id of the request as the sender wrote it
	// Revision is the host's protocol revision. Transport is "pipe" or "tcp", or "" without a host.
	Revision, Transport string
	// Thread is the host's conversation that made the call, "" if the host names none. Spawned
	// means that another thread started it.
	Thread  string
	Spawned bool
	// Traceparent is the W3C trace context of the call's cause: the host, a branch or a call.
	Traceparent string
	Correlates  []string // ids of earlier trace records that caused this call
	Deprecated  []string // codes of deprecated forms in the message
}

// Target names the server and the tool, prompt or resource of a call.
type Target struct {
	Server string // the upstream's key, "" for foldgate itself
	To     string // the receiver in trace records
	// Candidates are the keys of the upstreams that are asked in turn if Name has no known owner.
	Candidates []string
	Method     string // the JSON-RPC method
	Name       string // the tool, prompt or URI under the upstream's own name
	// Shown is the name of a listed tool that the host saw when the call came, which a reload may change. ""
	// means the name that hosts see now.
	Shown string
	// Via is the tool of foldgate's own, call_tool, in which the host named this one, "" for none.
	Via string
	// ForTool is the tool that is being called while a server asks a question, "" if it is not known.
	ForTool string
	// Params are as the sender wrote them. Forward is sent on; layers may replace it.
	Params, Forward json.RawMessage
	// Extra are the members beside params that foldgate does not know, each after a comma. Header
	// has the HTTP headers to send on. Scrub cleans both.
	Extra  []byte
	Header http.Header
	// Arguments are the tool arguments without the injected branch_id. They are charged.
	Arguments json.RawMessage
	Control   bool // the call is never refused or charged for budget
	Metered   bool // a model reads the result, and Meter counts it
	// Batch is the handle under which a batch keeps the result, "" if a model reads the result.
	Batch    string
	Workflow *WorkflowStep // the call's step in a workflow, nil if no rule names the tool
}

// NameOrMethod returns what a sentence about the call names: the tool, prompt or URI, or the method of a call without one.
func (t *Target) NameOrMethod() string { return cmp.Or(t.Name, t.Method) }

// Attribution is the branch of a call. The sender asks by BranchID, Source, Implicit and
// SubContext; [Locate] sets the rest.
type Attribution struct {
	BranchID   string // names the branch explicitly; Source is set with it
	Source     Source // the evidence for Branch
	Implicit   bool   // the only active leaf branch of the session, or of the thread, may be used
	SubContext string // a context path that the host adds below the branch's path

	Branch    *folding.Branch // nil for main
	Context   string          // the path of the branch, with SubContext below it
	Ambiguous bool            // more than one branch was possible, so the call is in main

	err error // why the branch can't be used; CheckBranch refuses the call
}

// Outcome describes what happened to a call.
type Outcome struct {
	Record string // the id of the request's trace record
	Tokens Usage  // set by Fold and Meter
	// Findings are the secrets in the result, ArgumentFindings the secrets in the parameters.
	Findings, ArgumentFindings []trace.Finding
	// Decision is the reason why the call was refused or cut, a Reason constant of package trace, else
	// "". Trace sets it by the error, if nothing else has.
	Decision  string
	Late      bool             // the result came after the branch had ended
	Truncated bool             // the result was cut to the budget; the trace calls it over-budget
	Folded    bool             // a preview replaced the result
	Fold      string           // the handle of the stored result
	Saved     int              // tokens that were not delivered
	Whole     *Result          // the scrubbed result of a batch's call before folding
	Read      *trace.Read      // the stored result that branch_read or branch_run delivers a part of
	Injection *trace.Injection // what looks like an instruction to the model in the result; nil for none
	Model     *trace.Model     // what a model counted of a turn of a branch that runs by itself
	Checked   bool             // the result was scrubbed before, so Scrub passes it
	Clean     bool             // the result holds no secret that can be found, so it may be stored
	// Paid are the tokens charged for a branch's message that a free call delivers. PaidInBranch means that
	// the reader is in a branch.
	Paid         int
	PaidInBranch bool
	// Forwarded means that the request was on its way to who answers it: a server, the host, a model, or one of
	// foldgate's own tools. The handler at the end of the chain sets it.
	Forwarded bool
	// Warned is the rule of a policy that only records what it would refuse, "" for none.
	Warned string
	// Unconfirmed means that limits let the call pass without their store, which could not be reached.
	Unconfirmed bool
	// Shrink returns the result in at most budget tokens, or nil if it can't. Meter calls it if it
	// grants a result less than it needs. Fold and foldgate's own tools set it. Without it the result
	// is cut.
	Shrink func(budget int) *Result

	span        oteltrace.SpanContext // of the call, then of its last request to an upstream; set by Telemetry
	folder      *folder               // keeps result if it can't be delivered; nil: nothing does
	result      *Result               // of a server, scrubbed
	lease       *folding.Lease        // of the branch, while Meter runs the call
	spend       *limits.Spend         // of the limits, likewise
	paramsClean bool                  // Trace found no secret in Params: Scrub need not look again
	args        int                   // tokens of the arguments, if weighed
	weighed     bool                  // Weigh has counted them
	charged     bool                  // Meter has charged them
	refused     bool                  // the call ended with a refusal
	rule        string                // the code of the refusal, or the limit; may be ""
	limit       string                // the limit that refused or cut the call, "" for none
}

// Usage is the cost of a call, in tokens of the configured counter.
type Usage struct {
	// In counts the arguments or a question, Out the upstream's result, Delivered what the host received of it.
	In, Out, Delivered int
	// BranchUsed and BranchBudget are the state of the branch after the call, both 0 in main.
	BranchUsed, BranchBudget int
}

// Weigh counts the arguments of a call that limits charge, so that Trace can record what it costs before
// anything happens.
func (c *Call) Weigh(tm TokenMeter) {
	if o := &c.Outcome; c.Target.Metered && !c.Target.Control {
		o.args, o.weighed = tm.request(c), true
	}
}

// subject names the principal at its issuer, "" without one.
func (id Identity) subject() string {
	if id.Issuer == "" {
		return ""
	}
	return id.Issuer + " " + id.Subject
}

// Caller returns the client that the call is made for.
func (c *Call) Caller() folding.Caller {
	return folding.Caller{Principal: c.Origin.Principal, Subject: c.Origin.subject(), Session: c.Origin.Session, Thread: c.Origin.Thread}
}

// Left returns the tokens that the call's branch has left. ok is false in main.
func (c *Call) Left() (tokens int, ok bool) {
	if c.Outcome.lease == nil {
		return 0, false
	}
	return c.Outcome.lease.Remaining(), true
}

// requestFindings returns where the secrets in the parameters are noted. A model reads the
// parameters of an upstream's request.
func (c *Call) requestFindings() *[]trace.Finding {
	if c.Origin.Direction == ToHost {
		return &c.Outcome.Findings
	}
	return &c.Outcome.ArgumentFindings
}

// blockUnsent notes that secrets in the parameters were blocked if these were not sent on.
func (c *Call) blockUnsent() {
	if c.Outcome.Forwarded {
		return
	}
	found := *c.requestFindings()
	for i := range found {
		found[i].Action = trace.Blocked
	}
}

// ofTool reports whether the call's result is a tool's.
func (c *Call) ofTool() bool {
	return c.Target.Method == "tools/call" || c.Target.Name != "" && (c.Target.Method == MethodTaskResult || c.Target.Method == MethodTaskGet)
}

// foldable reports whether hosts can use another text in the place of the result's own: it is a tool's,
// or an error for a host.
func (c *Call) foldable(r *Result) bool {
	return c.ofTool() || r.Error != nil && c.Origin.Direction == FromHost
}

// Tool returns the tool that is called, or that is being called while a server asks, under the server's
// own name. It is "" if there is no tool, or if it is not known.
func (c *Call) Tool() string {
	if c.ofTool() {
		return c.Target.Name
	}
	return c.Target.ForTool
}

// serverName names the server of a call in messages and metrics.
func (c *Call) serverName() string { return cmp.Or(c.Target.Server, "foldgate") }
