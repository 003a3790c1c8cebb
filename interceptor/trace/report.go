package trace

import "fmt"

// Report is the outcome of [Verify].
type Report struct {
	Files   int    `json:"files"`
	Records uint64 `json:"records"`
	Bytes   int64  `json:"bytes"`
	First   Anchor `json:"first"` // the oldest record there is
	Last    Anchor `json:"last"`
	// Faults are what is wrong, in the order of the journal, at most
	// MaxFaults of them; Total counts all.
	Faults []Fault `json:"faults,omitempty"`
	Total  int     `json:"faults_total"`
	// Notes are what an auditor should know and is no fault: repairs,
	// retention, branches still open, a line being written.
	Notes []Fault `json:"notes,omitempty"`
}

// MaxFaults bounds [Report.Faults] and [Report.Notes].
const MaxFaults = 100

// OK reports whether nothing is wrong.
func (r Report) OK() bool { return r.Total == 0 }

// Fault is one finding and its place.
type Fault struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"` // from 1; 0 where the fault is not in a line
	Seq  uint64 `json:"seq,omitempty"`
	Code string `json:"code"` // one of the Fault constants
	Text string `json:"text"`
}

// String is "file:line: text (code)".
func (f Fault) String() string {
	where := f.File
	if f.Line > 0 {
		where = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if where != "" {
		where += ": "
	}
	return fmt.Sprintf("%s%s (%s)", where, f.Text, f.Code)
}

// Codes of [Fault]. Those of the chain first, then those of the invariants.
const (
	FaultHeadMissing    = "head_missing"    // there are records but no anchor
	FaultHeadUnreadable = "head_unreadable" // the anchor is damaged
	FaultFileMissing    = "file_missing"    // the oldest file that must exist does not
	FaultUnreadable     = "unreadable"      // an input/output error or an endless line
	FaultTorn           = "torn"            // a file but the last ends in the middle of a line
	FaultFormat         = "format"          // a line is no record
	FaultHash           = "hash"            // a line is not what its hash says: it was changed
	FaultSeq            = "seq"             // records are missing, repeated or out of order
	FaultPrev           = "prev"            // a line does not continue the one before
	FaultHead           = "head"            // the anchored record is another one
	FaultTail           = "tail"            // the anchored record is not there: the end was cut off
	FaultAnchor         = "anchor"          // the record an auditor holds is not there or another one
	FaultIndex          = "index"           // an index file is not the one its journal file gives
	FaultSecret         = "secret"          // a scrub rule still finds something

	FaultDuplicateID = "duplicate_id"
	FaultContext     = "context"         // a context is not a valid path
	FaultOrphan      = "orphan_response" // no earlier request in the same context
	FaultPushTwice   = "push_twice"      // a branch was opened again
	FaultPopUnopened = "pop_unopened"    // a branch was closed that was not opened
	FaultPopTwice    = "pop_twice"       // a branch was closed again
	FaultPopOrder    = "pop_order"       // a branch was closed before its child
	FaultClosed      = "closed_branch"   // a message in a closed branch that is not marked late
	FaultTokens      = "tokens_disagree" // a branch's total is less than what it was charged
)

// Codes of [Report.Notes].
const (
	NoteEvent   = "journal_event" // a repair, a gap, retention
	NoteWriting = "writing"       // the last line is incomplete: being written, or torn by a crash
	NoteOpen    = "open_branch"
)
