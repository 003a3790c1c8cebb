package trace

import (
	"encoding/hex"
	"encoding/json"

	"github.com/google/uuid"
)

// Protocol is the value of every record's protocol field.
const Protocol = "foldgate/trace.v1"

// TimeFormat is the form of [Record.TS]: UTC with microseconds, so that the
// order of the strings is the order of the times.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// Record is one logical message, event or decision. The first nine fields are
// the envelope; Audit is what foldgate knows about it; Seq, Prev and Hash are
// its place in the chain. JSON names and order are part of the format.
type Record struct {
	Protocol      string          `json:"protocol"` // set by Append
	ID            string          `json:"id"`       // set by Append where empty; never taken from the wire
	TS            string          `json:"ts"`       // set by Append where empty, in TimeFormat
	From          string          `json:"from"`     // from the transport only, never from a message
	To            []string        `json:"to,omitempty"`
	Kind          string          `json:"kind"`                    // one of the Kind constants, or one of their prefixes and a method
	CorrelationID IDs             `json:"correlationId,omitempty"` // what this one answers or follows from
	Context       string          `json:"context,omitempty"`       // a context path; "" is main
	Payload       json.RawMessage `json:"payload,omitempty"`       // scrubbed, or absent
	Audit         *Audit          `json:"audit,omitempty"`
	Seq           uint64          `json:"seq"`  // set by Append: 1, 2, 3, ... over all files
	Prev          string          `json:"prev"` // set by Append: the hash of the record before
	Hash          string          `json:"hash"` // set by Append; see docs/trace.md for what it covers
}

// Audit is what foldgate knows about a message beyond its envelope. Zero
// fields are left out of the journal.
type Audit struct {
	Session   string `json:"session,omitempty"`   // the host's
	Principal string `json:"principal,omitempty"` // on whose behalf
	Server    string `json:"server,omitempty"`    // the upstream's key in the configuration
	Tool      string `json:"tool,omitempty"`      // as the upstream calls it; set on responses too
	Method    string `json:"method,omitempty"`
	Era       string `json:"era,omitempty"`    // protocol revision of the host's side
	Rung      string `json:"rung,omitempty"`   // how the branch was found: argument, meta, result, url, thread, session, cause, main
	Thread    string `json:"thread,omitempty"` // of the host's that made the call, where it names them
	Hops      *Hops  `json:"hops,omitempty"`

	Decision *Decision `json:"decision,omitempty"`
	Tokens   *Tokens   `json:"tokens,omitempty"`
	Scrub    []Finding `json:"scrub,omitempty"`
	Fold     *Fold     `json:"fold,omitempty"`
	Read     *Read     `json:"read,omitempty"`

	Traceparent string          `json:"traceparent,omitempty"`
	Workflow    json.RawMessage `json:"workflow,omitempty"` // {"context_id","path","evidence",...}; read by the workflow filters

	MS         float64  `json:"ms,omitempty"`         // milliseconds from request to response
	Bytes      int64    `json:"bytes,omitempty"`      // size of the message as delivered
	IsError    bool     `json:"is_error,omitempty"`   // a JSON-RPC error or a tool result with isError
	Late       bool     `json:"late,omitempty"`       // came after its branch was closed
	Ambiguous  bool     `json:"ambiguous,omitempty"`  // more than one branch was possible; recorded in main
	Truncated  bool     `json:"truncated,omitempty"`  // the payload here is less than what was delivered
	OverBudget bool     `json:"overbudget,omitempty"` // a budget refused, cut or ended something
	Lost       bool     `json:"lost,omitempty"`       // was in flight when the process ended
	Deprecated []string `json:"deprecated,omitempty"` // codes of deprecated forms in the message
}

// Hops are the JSON-RPC ids of a message on either side, as JSON values.
type Hops struct {
	Host     json.RawMessage `json:"host_id,omitempty"`
	Upstream json.RawMessage `json:"upstream_id,omitempty"`
}

// Decision is what foldgate decided about a call.
type Decision struct {
	Result string `json:"result"`           // allowed or blocked
	Reason string `json:"reason,omitempty"` // such as resource_limit, policy, timeout, unsafe, invalid
	Rule   string `json:"rule,omitempty"`   // the rule that decided, such as a configuration key
}

// Values of [Decision.Result].
const (
	Allowed = "allowed"
	Blocked = "blocked"
)

// Tokens are the counts of one message and the state of its branch after it.
type Tokens struct {
	Counter   string `json:"counter,omitempty"`   // names the encoding; figures of two counters never mix
	In        int    `json:"in,omitempty"`        // arguments, as the host sent them
	Out       int    `json:"out,omitempty"`       // result, as the upstream sent it
	Delivered int    `json:"delivered,omitempty"` // result, as the host got it
	Used      int    `json:"branch_used,omitempty"`
	Budget    int    `json:"branch_budget,omitempty"` // of which Used is gone
	Freed     int    `json:"freed,omitempty"`         // on context/pop: branch tokens minus what the parent reads
}

// Finding counts what one scrub rule found in a message; never the secret itself.
type Finding struct {
	Rule  string `json:"rule"`
	Field string `json:"field,omitempty"` // JSON path of the string it was in
	Count int    `json:"count,omitempty"` // at least 1
}

// Fold tells that a result was stored and replaced by a preview.
type Fold struct {
	Handle string `json:"handle"`          // of the stored result
	Saved  int    `json:"saved,omitempty"` // tokens not delivered
}

// Read tells that a part of a stored result was delivered.
type Read struct {
	Handle  string `json:"handle"`            // of the stored result
	Server  string `json:"server,omitempty"`  // and Tool made it; "" for a batch of several tools
	Tool    string `json:"tool,omitempty"`    // branch_run then
	Context string `json:"context,omitempty"` // of the branch in which it was made
}

// NewID returns a new envelope id: "env_" and a UUIDv7, which sorts by time.
// It is safe for concurrent use.
func NewID() string {
	id, err := uuid.NewV7()
	if err != nil { // the system's random source is gone; uuid.NewV7 has no other failure
		panic(err)
	}
	text := [40]byte{'e', 'n', 'v', '_'}
	at := 4
	for i, n := range [...]int{4, 2, 2, 2, 6} { // bytes of the five groups
		if i > 0 {
			text[at] = '-'
			at++
		}
		at += hex.Encode(text[at:], id[:n])
		copy(id[:], id[n:])
	}
	return string(text[:])
}
