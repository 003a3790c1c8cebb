package folding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Caller is a principal on a connection.
type Caller struct {
	// Principal is authenticated; it is "local" without authentication. Subject is the name that the
	// principal has at the issuer of its token, "" without one.
	Principal, Subject string
	// Session is the session id of the connection, "" if the protocol has none.
	Session string
	// Thread is the conversation on the connection that the host named, or "". It selects the
	// branch of a call that names none. It grants no rights.
	Thread string
}

// connection names the caller's connection and thread. Without a session each call has one of its
// own, since they can't be told apart.
func (c Caller) connection() string { return cmp.Or(c.Session, uuid.NewString()) + " " + c.Thread }

// Branch is a copy of a branch at one moment. Changing a field changes nothing.
type Branch struct {
	// ID is "br_", the name of the replica if there are several, and a version 4 UUID. ParentID is ""
	// for a first-level branch.
	ID, ParentID string
	// Principal owns the branch. Session is the session it belongs to. Origin is the session of
	// the connection that created it, which can differ.
	Principal, Session, Origin string
	// Subject is that of the caller who created the branch. Claims are those of the callers who created
	// it and its parents, a line each. What they mean is up to the user of this package.
	Subject, Claims string
	// Context is the path of ids from the first level down to ID.
	Context string
	// Depth is 1 for a first-level branch.
	Depth int
	// Description and Prompt are the texts of the agent, cleaned and scrubbed. Handles names the
	// stored results that the branch was given besides those in its texts, separated by spaces.
	Description, Prompt, Handles string

	Status Status
	// Reason is a Reason constant and Error a sentence; both are "" unless the branch was ended
	// by force. Then Digest sums up its calls.
	Reason, Error, Digest string
	// Message is the scrubbed message of branch_return. Late means that it came after a forced end.
	// ReturnedBy is set while the parent has not read Message with [Manager.TakeMessage]: if it is late, or
	// came over another connection than the parent's. It names that connection.
	Message    string
	Late       bool
	ReturnedBy string

	// BudgetUsed and BudgetTotal are tokens. BudgetUsed is current.
	BudgetUsed, BudgetTotal int
	Activity                Activity
	// CompletedAt is zero until the end. All times are UTC with microseconds.
	CreatedAt, ExpiresAt, CompletedAt time.Time
}

// Status is the state of a branch.
type Status string

// The states: created, then active, then one of the three that are final.
const (
	// StatusCreated is a branch that is not durable yet. Its id is unknown to its caller.
	StatusCreated   Status = "created"
	StatusActive    Status = "active"
	StatusCompleted Status = "completed"
	StatusTimeout   Status = "timeout"
	StatusFailed    Status = "failed"
)

// Terminal reports whether s is final.
func (s Status) Terminal() bool {
	return s == StatusCompleted || s == StatusTimeout || s == StatusFailed
}

// Reasons of a forced end. A normal return has none.
const (
	ReasonTimeout         = "timeout"
	ReasonBudgetExhausted = "budget_exhausted"
	// ReasonParentReturning: the agent returned the parent, or a branch above it.
	ReasonParentReturning = "parent_returning"
	// ReasonParentEnded: the parent was itself ended by force.
	ReasonParentEnded  = "parent_ended"
	ReasonSessionEnded = "session_ended"
	// ReasonCancelled: the caller gave up a branch that foldgate ran.
	ReasonCancelled = "cancelled"
	// ReasonModelFailed: the model of a branch that foldgate ran could not go on.
	ReasonModelFailed   = "model_failed"
	ReasonOperator      = "operator"
	ReasonShutdown      = "shutdown"
	ReasonStorageFailed = "storage_failed"
)

// ended returns the error for a use of this finished branch.
func (b Branch) ended() *EndedError {
	e := &EndedError{BranchID: b.ID, Status: b.Status, Reason: b.Reason, Digest: b.Digest}
	if b.Reason == ReasonOperator {
		e.Why = b.Error
	}
	return e
}

// acceptsLateMessage reports whether a finished branch can still take a message: one that was
// ended by force can, once.
func (b Branch) acceptsLateMessage() bool { return b.Reason != "" && !b.Late }

// explain returns the sentence for the branch's reason.
func (b Branch) explain() string {
	switch b.Reason {
	case ReasonTimeout:
		return fmt.Sprintf("timeout after %v", b.ExpiresAt.Sub(b.CreatedAt).Round(time.Second))
	case ReasonOperator:
		return "ended by the operator"
	case ReasonModelFailed:
		return "the model could not go on"
	case ReasonShutdown:
		return "foldgate is shutting down"
	case ReasonStorageFailed:
		return "the branch could not be stored"
	}
	return strings.ReplaceAll(b.Reason, "_", " ")
}

// digest sums up the calls of a branch that was ended by force. The same branch always gives the
// same text.
func (b Branch) digest() string {
	a := b.Activity
	s := fmt.Sprintf("%d of %d tokens used; %d call", b.BudgetUsed, b.BudgetTotal, a.Calls)
	if a.Calls != 1 {
		s += "s"
	}
	var tools []string
	for _, t := range a.Tools {
		tools = append(tools, fmt.Sprintf("%s %d", t.Tool, t.Calls))
	}
	if tools != nil {
		s += " (" + strings.Join(tools, ", ") + ")"
	}
	for _, part := range []struct {
		n    int
		text string
	}{{a.Failed, "failed"}, {a.InFlight, "cancelled in flight"}, {a.Lost, "lost in a restart"}} {
		if part.n > 0 {
			s += fmt.Sprintf(", %d %s", part.n, part.text)
		}
	}
	if a.ModelInput+a.ModelOutput > 0 {
		s += fmt.Sprintf(", %d model tokens", a.ModelInput+a.ModelOutput)
	}
	if a.LastError != "" {
		s += "; last error: " + a.LastError
	}
	return s
}

// Activity counts the calls of a branch, for its digest.
type Activity struct {
	// Calls counts completed calls, Failed the failed ones among them.
	Calls  int `json:"calls,omitempty"`
	Failed int `json:"failed,omitempty"`
	// InFlight counts running calls; after an end, the calls that it cancelled.
	InFlight int `json:"in_flight,omitempty"`
	// Lost counts calls that were running when the process died.
	Lost int `json:"lost,omitempty"`
	// Tools counts calls by tool in order of first use. It holds at most maxTools tools; calls of
	// others count in Calls only. It is not to be changed: copies of a branch share it.
	Tools []ToolCount `json:"tools,omitempty"`
	// ModelInput and ModelOutput are the tokens that the endpoint of a model counted, if foldgate ran the
	// branch. They are not part of its budget.
	ModelInput  int `json:"model_input,omitempty"`
	ModelOutput int `json:"model_output,omitempty"`
	// LastError is the newest error of a call, scrubbed and cut.
	LastError string `json:"last_error,omitempty"`
}

// ToolCount is the number of calls of one tool in a branch.
type ToolCount struct {
	Tool  string `json:"tool"`
	Calls int    `json:"calls"`
}

const maxTools = 8 // in Activity.Tools

// fail counts one of the calls as failed.
func (a *Activity) fail(err string) {
	a.Failed++
	a.LastError = err
}

func (a *Activity) add(o CallOutcome) {
	a.ModelInput, a.ModelOutput = a.ModelInput+o.ModelInput, a.ModelOutput+o.ModelOutput
	a.Calls++
	if o.Err != "" {
		a.fail(o.Err)
	}
	if i := slices.IndexFunc(a.Tools, func(t ToolCount) bool { return t.Tool == o.Tool }); i >= 0 {
		a.Tools = slices.Clone(a.Tools)
		a.Tools[i].Calls++
	} else if o.Tool != "" && len(a.Tools) < maxTools {
		a.Tools = append(a.Tools, ToolCount{Tool: o.Tool, Calls: 1})
	}
}
