package trace

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Protocol is the value of a record's protocol field.
const Protocol = "foldgate/trace.v2"

// TimeFormat is the form of [Record.TS]: UTC with microseconds, so that the
// order of the strings is the order of the times.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// Kinds of records; docs/trace.md tells the correlations of each. The kind of an
// MCP message is a prefix and its method, such as "mcp/request:tools/call".
const (
	KindRequest      = "mcp/request:"
	KindResponse     = "mcp/response:"
	KindNotification = "mcp/notification:"
	KindReject       = "mcp/reject:"
	KindPush         = "context/push"
	KindPop          = "context/pop"
	KindStatus       = "context/status"
	KindMemories     = "context/memories" // that a new branch got
	KindReflection   = "reflection"
	KindConclusion   = "conclusion"
	KindFlowStart    = "workflow/start"
	KindFlowProceed  = "workflow/proceed"
	KindFlowComplete = "workflow/complete"
	KindWarning      = "system/warning"
	// KindAccess is the kind of a use of the trace, of branches or of limits by an auditor or an operator
	// over HTTP, and of a change by the operator over the socket. Its payload is always written.
	KindAccess = "system/access"
	// KindConfig is the kind of a start, or of a reload of the configuration. Its payload is written
	// also without trace.payload: it has no message.
	KindConfig = "system/config"
	// KindBudget is a prefix; "near", "refused" or "over" follows: a limit is nearly spent, or has refused
	// or was exceeded for the first time in its window. With "reset" the operator has set it to 0.
	KindBudget = "budget/"
	// KindDefinition is a prefix; "new", "changed" or "approved" follows: a definition of a server is not
	// as it was approved, or was approved, or looks wrong at the first contact.
	KindDefinition = "definition/"
	// KindJournal is the kind of the records that the journal writes about itself: the first of
	// each file, repairs, gaps and retention. Their payload is an [Event].
	KindJournal = "system/journal"
)

// UpstreamName returns the name of a server in From and To of a record.
func UpstreamName(key string) string { return "upstream:" + key }

// Record is one message, event or decision. The first eight fields and Payload are the
// envelope. Audit has the facts that foldgate adds. Seq, Prev and Hash are its
// place in the chain. JSON names and order are part of the format.
type Record struct {
	Protocol      string          `json:"protocol"` // set by Append
	ID            string          `json:"id"`       // the envelope id; set by Append if empty, never taken from the wire
	TS            string          `json:"ts"`       // set by Append if empty, in TimeFormat
	From          string          `json:"from"`     // from the transport only, never from a message
	To            []string        `json:"to,omitempty"`
	Kind          string          `json:"kind"`                    // a Kind constant, with the method if it ends in a colon
	CorrelationID IDs             `json:"correlationId,omitempty"` // the records that this one answers or follows from
	Context       string          `json:"context,omitempty"`       // a context path; "" is main
	Digest        string          `json:"digest,omitempty"`        // of the payload with its salt; set by ParseLine
	Audit         *Audit          `json:"audit,omitempty"`
	Seq           uint64          `json:"seq"`               // set by Append: 1, 2, 3, ... over all files
	Prev          string          `json:"prev"`              // set by Append: the hash of the record before
	Hash          string          `json:"hash"`              // set by Append; docs/trace.md says which bytes it covers
	Salt          string          `json:"salt,omitempty"`    // set by ParseLine
	Payload       json.RawMessage `json:"payload,omitempty"` // scrubbed; absent if erased or not stored
	Instance      string          `json:"-"`                 // names its journal; set by queries of several
}

// Audit has the facts that foldgate adds to the envelope of a message. Zero
// fields are left out of the journal.
type Audit struct {
	Session   string `json:"session,omitempty"`   // the host's
	Principal string `json:"principal,omitempty"` // on whose behalf
	Team      string `json:"team,omitempty"`      // of the principal
	Server    string `json:"server,omitempty"`    // the upstream's key in the configuration
	Tool      string `json:"tool,omitempty"`      // as the upstream calls it; set on responses too
	Via       string `json:"via,omitempty"`       // the tool of foldgate's own in which the host named the tool: call_tool
	ForTool   string `json:"for_tool,omitempty"`  // of a server's question or notification: the tool during whose call it came
	Method    string `json:"method,omitempty"`
	Revision  string `json:"era,omitempty"`    // protocol revision of the host's side
	Source    string `json:"rung,omitempty"`   // the attribution source: argument, meta, result, url, thread, session, cause, main
	Thread    string `json:"thread,omitempty"` // of the host's that made the call, if the host names them

	Decision *Decision `json:"decision,omitempty"`
	Tokens   *Tokens   `json:"tokens,omitempty"`
	// Args are the tokens of the arguments of a request that limits charge, nil for another. So they are known
	// also if the process is killed before the response.
	Args  *int      `json:"args,omitempty"`
	Scrub []Finding `json:"scrub,omitempty"`
	Fold  *Fold     `json:"fold,omitempty"`
	Read  *Read     `json:"read,omitempty"`
	Model *Model    `json:"model,omitempty"`
	// Injection is what looks like an instruction to the model in a result.
	Injection *Injection `json:"injection,omitempty"`

	Traceparent string          `json:"traceparent,omitempty"`
	Workflow    json.RawMessage `json:"workflow,omitempty"` // {"context_id","path","evidence",...}; read by the workflow filters

	MS         float64  `json:"ms,omitempty"`         // milliseconds from request to response
	Bytes      int64    `json:"bytes,omitempty"`      // size of the message as delivered
	IsError    bool     `json:"is_error,omitempty"`   // a JSON-RPC error or a tool result with isError
	Late       bool     `json:"late,omitempty"`       // came after its branch was closed
	Ambiguous  bool     `json:"ambiguous,omitempty"`  // more than one branch was possible; recorded in main
	Truncated  bool     `json:"truncated,omitempty"`  // the payload here is less than was delivered
	OverBudget bool     `json:"overbudget,omitempty"` // a budget refused, cut or ended something
	LeftOut    int      `json:"left_out,omitempty"`   // messages that this record stands for, because there were too many
	Lost       bool     `json:"lost,omitempty"`       // was in flight when the process ended
	Deprecated []string `json:"deprecated,omitempty"` // codes of deprecated forms in the message
}

// Decision is foldgate's decision about a call.
type Decision struct {
	Result string `json:"result"`           // allowed or blocked
	Reason string `json:"reason,omitempty"` // a Reason constant; of a context/pop, why the branch ended
	Rule   string `json:"rule,omitempty"`   // what decided: the name of a limit, or the code of the refusal, such as branch_not_found or -32602
}

// Values of [Decision.Result].
const (
	Allowed = "allowed"
	Blocked = "blocked"
)

// Values of [Decision.Reason].
const (
	ReasonInvalid  = "invalid"        // the request is malformed, or names something that is not there
	ReasonPolicy   = "policy"         // the configuration forbids it
	ReasonLimit    = "resource_limit" // a budget or another limit
	ReasonTimeout  = "timeout"
	ReasonUnsafe   = "unsafe"   // it holds a secret, or could not be checked for secrets
	ReasonUpstream = "upstream" // the server is down or failed
	ReasonWorkflow = "workflow" // the store of workflows failed
	ReasonTrace    = "trace"    // the trace can't be written
)

// RuleUnavailable is the [Decision.Rule] of a call or notification that was refused, or with
// budgets.on_error: allow let through, because the store of the limits could not be reached.
const RuleUnavailable = "limits_unavailable"

// Tokens are the counts of one message and the state of its branch after it.
type Tokens struct {
	Counter   string `json:"counter,omitempty"`   // names the encoding; figures of two counters never mix
	In        int    `json:"in,omitempty"`        // arguments, as the host sent them
	Out       int    `json:"out,omitempty"`       // result, as the upstream sent it
	Delivered int    `json:"delivered,omitempty"` // result, as the host got it
	Used      int    `json:"branch_used,omitempty"`
	Budget    int    `json:"branch_budget,omitempty"` // Used counts against it
	Freed     int    `json:"freed,omitempty"`         // on context/pop: branch tokens minus the tokens that the parent reads
	// Charged are the tokens that limits were charged, without a call. It is nil if limits were charged In,
	// Delivered and, for a call, one call. It is 0 for a call that was refused before it was made. For
	// branch_return and branch_status it is the cost of the message of the branch.
	Charged *int `json:"charged,omitempty"`
	// InBranch says that Charged counts in a branch.
	InBranch bool `json:"charged_in_branch,omitempty"`
}

// Model is what a language model that foldgate asked counted of a turn, in its own tokens.
type Model struct {
	Name   string `json:"name"`
	Input  int    `json:"input"` // cached ones included
	Output int    `json:"output"`
	Cached int    `json:"cached,omitempty"`
}

// Injection tells that a result looks like an instruction to the model.
type Injection struct {
	Action string `json:"action"` // log, flag or block
	Found  int    `json:"found"`  // phrases
}

// Finding counts the matches of one scrub rule in a message; it never holds the secret.
type Finding struct {
	Rule  string `json:"rule"`
	Field string `json:"field,omitempty"` // JSON path of the string it was in
	Count int    `json:"count,omitempty"` // at least 1
	// Action is what became of the secret: Redacted, LetThrough or Blocked. It is "" if the message went to
	// several servers.
	Action string `json:"action,omitempty"`
}

// Values of [Finding.Action], beside [Blocked].
const (
	Redacted   = "redacted"    // it was replaced in the message
	LetThrough = "let_through" // the message passed with it; only the record lacks it
)

// Fold tells that a result was stored and replaced by a preview.
type Fold struct {
	Handle string `json:"handle"`          // of the stored result
	Saved  int    `json:"saved,omitempty"` // tokens not delivered
}

// Read tells that a part of a stored result was delivered.
type Read struct {
	Handle  string `json:"handle"`            // of the stored result
	Server  string `json:"server,omitempty"`  // that made it; "" for a batch of several tools
	Tool    string `json:"tool,omitempty"`    // that made it; branch_run for such a batch
	Context string `json:"context,omitempty"` // of the branch in which it was made
	// Tools are the tools that made it, for a batch of several.
	Tools []Tool `json:"tools,omitempty"`
}

// Tool names a tool of a server, as the server does.
type Tool struct {
	Server string `json:"server,omitempty"`
	Tool   string `json:"tool"`
}

// Makers returns the tools that made the stored result, none of a nil Read.
func (r *Read) Makers() []Tool {
	switch {
	case r == nil:
		return nil
	case len(r.Tools) > 0:
		return r.Tools
	}
	return []Tool{{r.Server, r.Tool}}
}

// AuditOrEmpty returns the audit, an empty one if the record has none.
func (r *Record) AuditOrEmpty() *Audit {
	if r.Audit == nil {
		return &Audit{}
	}
	return r.Audit
}

// Time returns TS as a time, zero if it is not one.
func (r *Record) Time() time.Time {
	t, _ := time.Parse(time.RFC3339Nano, r.TS)
	return t
}

// Erased reports whether the record had a payload that was erased.
func (r *Record) Erased() bool { return r.Digest != "" && len(r.Payload) == 0 }

// Blocked reports whether foldgate refused the message. A record budget/refused is no refusal: each call that the
// limit refuses has its own record.
func (r *Record) Blocked() bool {
	d := r.AuditOrEmpty().Decision
	return d != nil && d.Result == Blocked && !strings.HasPrefix(r.Kind, KindBudget)
}

// OverBudget reports whether a budget refused, cut or ended something.
func (r *Record) OverBudget() bool {
	a := r.AuditOrEmpty()
	d := a.Decision
	return a.OverBudget || d != nil && (d.Reason == ReasonLimit && d.Result == Blocked || d.Reason == "budget_exhausted")
}

// CanonicalKind returns the name that records have for a kind as a user names it. It
// understands mcp.request for mcp/request, reasoning/thought for reflection and
// reasoning/conclusion for conclusion. The method after a colon is kept.
func CanonicalKind(kind string) string {
	head, _, _ := strings.Cut(kind, ":")
	rest := kind[len(head):]
	switch head = strings.ReplaceAll(head, ".", "/"); head {
	case "reasoning/thought":
		head = KindReflection
	case "reasoning/conclusion":
		head = KindConclusion
	}
	return head + rest
}

// NewID returns a new envelope id: "env_" and a UUIDv7, which sorts by time.
// It is safe for concurrent use.
func NewID() string {
	id, err := uuid.NewV7()
	if err != nil { // the system's random source failed; uuid.NewV7 has no other failure
		panic(err)
	}
	var text [len("env_") + 36]byte // fewer allocations than id.String
	b := append(text[:0], "env_"...)
	b = hex.AppendEncode(b, id[:4])
	for _, part := range [...][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		b = hex.AppendEncode(append(b, '-'), part)
	}
	return string(b)
}

// IsID reports whether id has the form of an envelope id.
func IsID(id string) bool {
	return strings.HasPrefix(id, "env_") && len(id) == len("env_")+36 && uuid.Validate(id[len("env_"):]) == nil
}
