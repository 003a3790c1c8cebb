package folding

import (
	"time"
)

// Status is where a branch is in its life.
type Status string

// The states: created, then active, then one of the three that are final.
const (
	// StatusCreated is a branch that is not yet durable; nobody knows its id.
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
	// ReasonParentReturning: the parent was returned by the agent.
	ReasonParentReturning = "parent_returning"
	// ReasonParentEnded: the parent was itself ended by force.
	ReasonParentEnded   = "parent_ended"
	ReasonSessionEnded  = "session_ended"
	ReasonShutdown      = "shutdown"
	ReasonStorageFailed = "storage_failed"
)

// Caller is who asks: an authenticated principal ("local" without
// authentication) on a connection. Session is the connection's session id, ""
// where the protocol has none. Thread is the conversation on that connection,
// by the name that its host gave it, "" where it names none: it says which of
// the connection's branches are meant where none is named, and permits nothing.
type Caller struct {
	Principal, Session, Thread string
}

// key is the session or, where there are any, the thread that the caller's
// branches are found under.
func (c Caller) key() sessionKey { return sessionKey{c.Principal, c.Session, c.Thread} }

// Branch is a branch at one moment. It is a copy: changing it changes nothing.
type Branch struct {
	// ID is "br_" and a version 4 UUID. ParentID is "" for a first-level branch.
	ID, ParentID string
	// Principal owns the branch. Session is the session it counts against;
	// Origin is the connection it was created on, which may carry another name.
	Principal, Session, Origin string
	// Context is the path of ids from the first level down to ID.
	Context string
	// Depth is 1 for a first-level branch.
	Depth int
	// Description and Prompt are what the agent gave, cleaned and scrubbed.
	Description, Prompt string

	Status Status
	// Reason is a Reason constant and Error a sentence, both "" unless the
	// branch was ended by force; Digest then sums up what was done in it.
	Reason, Error, Digest string
	// Message is the scrubbed message of branch_return. Late says that it came
	// after a forced end.
	Message string
	Late    bool

	// BudgetUsed and BudgetTotal are tokens; BudgetUsed is live.
	BudgetUsed, BudgetTotal int
	Activity                Activity
	// CompletedAt is zero until the end. All times are UTC with microseconds.
	CreatedAt, ExpiresAt, CompletedAt time.Time
}

// Activity is what was done in a branch, for its digest.
type Activity struct {
	// Calls counts calls that came back, Failed those of them with an error.
	Calls  int `json:"calls,omitempty"`
	Failed int `json:"failed,omitempty"`
	// InFlight counts calls under way; after an end, those that were cancelled.
	InFlight int `json:"in_flight,omitempty"`
	// Lost counts calls that were under way when the process died.
	Lost int `json:"lost,omitempty"`
	// Tools counts calls by tool in order of first use; no more than
	// maxTools, the rest is only in Calls.
	Tools []ToolCount `json:"tools,omitempty"`
	// LastError is the newest error of a call, scrubbed and cut.
	LastError string `json:"last_error,omitempty"`
}

// ToolCount is how often one tool was called in a branch.
type ToolCount struct {
	Tool  string `json:"tool"`
	Calls int    `json:"calls"`
}

// Duration returns how long the branch lived, zero while it lives.
func (b Branch) Duration() time.Duration {
	if b.CompletedAt.IsZero() {
		return 0
	}
	return b.CompletedAt.Sub(b.CreatedAt)
}

// ended returns the error that a use of this finished branch meets.
func (b Branch) ended() *EndedError {
	return &EndedError{BranchID: b.ID, Status: b.Status, Reason: b.Reason, Digest: b.Digest}
}
