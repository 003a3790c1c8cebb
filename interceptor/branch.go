package interceptor

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// BranchRecords writes the spans of branches and their trace records: push, status, conclusion and
// pop. Each correlates to the records before it. It is safe for concurrent use.
type BranchRecords struct {
	Recorder  *Recorder
	Counter   *budget.Counter
	Telemetry *Telemetry  // nil: no spans
	Several   func() bool // whether there are several principals; nil: there are not

	mu   sync.Mutex
	open map[string]openBranch // by id: with a push and no pop yet, or being returned
}

// openBranch holds the records to which the later records of an open branch correlate.
type openBranch struct {
	push        string   // "" once the branch has a pop
	host        string   // that opened the branch, as in the push
	call        string   // the call that returns the branch
	conclusions []string // of its children that returned
	// traceparent is for calls in the branch, if it belongs to a trace of its host.
	traceparent string
}

// Event writes the records of an event. The manager calls it outside its locks, never twice at once.
func (r *BranchRecords) Event(e folding.Event) {
	b := e.Branch
	switch e.Kind {
	case folding.EventCreated:
		cause, _ := e.Cause.(*Call)
		r.push(b, cause)
	case folding.EventRecovered:
		r.Telemetry.branchOpened(b, "", nil)
		if r.known(b.ID).push == "" {
			r.push(b, nil)
		}
		r.status(b, "recovered")
	case folding.EventWarned:
		r.status(b, "near_limit")
	case folding.EventExhausted:
		r.status(b, "exhausted")
	case folding.EventConcluded:
		r.pop(b, reasonReturned, r.conclude(b, false))
	case folding.EventLate:
		r.conclude(b, true)
	case folding.EventEnded:
		r.pop(b, b.Reason, "")
	}
}

const reasonReturned = "returned" // of the pop of a branch that its agent returned

// push records that the call cause opened a branch. cause is nil if the process that opened the
// branch died before it could record that.
func (r *BranchRecords) push(b folding.Branch, cause *Call) {
	rec := r.branchRecord(b, trace.KindPush, map[string]any{
		"branch_id": b.ID, "parent": b.ParentID, "description": b.Description, "budget": b.BudgetTotal,
		"timeout_seconds": int(b.ExpiresAt.Sub(b.CreatedAt) / time.Second),
	})
	inside := ""
	if cause != nil {
		rec.To[0], rec.CorrelationID = cause.Origin.From, trace.IDs{cause.Outcome.Record}
		rec.Audit.Traceparent, inside = r.traceparents(b, cause)
		r.Telemetry.branchOpened(b, rec.Audit.Traceparent, cause)
	}
	r.change(b.ID, func(o *openBranch) { o.push, o.host, o.traceparent = rec.ID, rec.To[0], inside })
	r.Recorder.Note(rec)
	if b.Prompt != "" {
		r.Recorder.Note(r.next(b, trace.KindReflection, map[string]any{"thought": b.Prompt}))
	}
}

// traceparents puts a new branch into the trace of its parent branch, or of the call that opened it.
// It returns the traceparent of the branch, and the one for calls in it.
func (r *BranchRecords) traceparents(b folding.Branch, c *Call) (parent, inside string) {
	if parent = r.known(b.ParentID).traceparent; parent == "" && b.ParentID == "" && c.Origin.Traceparent != "" {
		parent = c.Outgoing()
	}
	if tp, ok := trace.ParseTraceparent(parent); ok {
		tp.Parent = trace.BranchSpanID(b.Context)
		inside = tp.String()
	}
	return parent, inside
}

func (r *BranchRecords) status(b folding.Branch, state string) {
	payload := map[string]any{
		"tokens": b.BudgetUsed, "max_tokens": b.BudgetTotal, "messages_in_context": b.Activity.Calls, "status": state,
	}
	if b.Activity.Lost > 0 {
		payload["lost_calls"] = b.Activity.Lost
	}
	rec := r.next(b, trace.KindStatus, payload)
	rec.Audit.OverBudget = state == "exhausted"
	rec.Audit.Lost = state == "recovered" && b.Activity.Lost > 0
	r.Recorder.Note(rec)
}

// conclude records a branch's message to its parent. It returns the record's id.
func (r *BranchRecords) conclude(b folding.Branch, late bool) string {
	rec := r.next(b, trace.KindConclusion, map[string]any{"decision": b.Message})
	rec.Audit.Late = late
	r.Recorder.Note(rec)
	return rec.ID
}

// pop records that a branch was closed. conclusion is the record of its message, "" without one.
func (r *BranchRecords) pop(b folding.Branch, reason, conclusion string) {
	r.Telemetry.branchEnded(b)
	freed := b.BudgetUsed - r.Counter.Count(b.Message)
	payload := map[string]any{"reason": reason, "status": b.Status, "freed_messages": b.Activity.Calls, "freed_tokens": freed}
	if b.Digest != "" {
		payload["digest"] = b.Digest
	}
	if b.Reason == folding.ReasonOperator || b.Reason == folding.ReasonModelFailed {
		payload["error"] = b.Error // has the words of the operator, or of the endpoint
	}
	rec := r.next(b, trace.KindPop, payload)
	rec.Audit.OverBudget = b.Reason == folding.ReasonBudgetExhausted
	rec.Audit.Decision = &trace.Decision{Result: trace.Allowed, Reason: reason} // also if payloads are not stored
	rec.Audit.Tokens = &trace.Tokens{Counter: r.Recorder.Counter, Used: b.BudgetUsed, Budget: b.BudgetTotal, Freed: freed}
	r.Recorder.Note(rec)
	r.change(b.ID, func(o *openBranch) { *o = openBranch{call: o.call} })
	r.change(b.ParentID, func(o *openBranch) {
		if o.push != "" && conclusion != "" {
			o.conclusions = append(o.conclusions, conclusion)
		}
	})
}

// Memories records the memories that a new branch got, and where they come from. call is the record of the
// call that found them, "" without one.
func (r *BranchRecords) Memories(b folding.Branch, call string, payload map[string]any) {
	rec := r.next(b, trace.KindMemories, payload)
	if call != "" {
		rec.CorrelationID = append(rec.CorrelationID, call)
	}
	r.Recorder.Note(rec)
}

// next returns a record that correlates to the branch's push. An end correlates also to the call
// that returns the branch, and a conclusion to the conclusions of the children.
func (r *BranchRecords) next(b folding.Branch, kind string, payload map[string]any) *trace.Record {
	rec := r.branchRecord(b, kind, payload)
	o := r.known(b.ID)
	if o.push == "" { // the branch has ended: this is a late message
		o.push, o.host = r.recordedPush(b)
	}
	rec.To[0] = cmp.Or(o.host, rec.To[0])
	rec.CorrelationID = trace.IDs{o.push}
	if o.call != "" && kind != trace.KindStatus {
		rec.CorrelationID = append(rec.CorrelationID, o.call)
	}
	if kind == trace.KindConclusion {
		rec.CorrelationID = append(rec.CorrelationID, o.conclusions...)
	}
	return rec
}

const clockSlack = time.Second // the largest difference between the times of files and the clock

// recordedPush returns the id and the host of a branch's push in the journal, or the branch's id
// without one.
func (r *BranchRecords) recordedPush(b folding.Branch) (id, host string) {
	filter := query.Filter{Since: b.CreatedAt.Add(-clockSlack), Kinds: []string{trace.KindPush}}
	for rec, err := range query.Recent(context.Background(), r.Recorder.Journal.Dir(), filter) {
		if err != nil {
			r.Recorder.Log.Warn("the push of a branch was not found in the trace", "branch", b.ID, "err", err)
			break
		}
		if rec.Context == b.Context {
			return rec.ID, hostOf(rec)
		}
	}
	return b.ID, ""
}

// hostOf returns the host in the push, or in a status, of a branch.
func hostOf(r *trace.Record) string { return strings.Join(r.To, "") }

func (r *BranchRecords) branchRecord(b folding.Branch, kind string, payload map[string]any) *trace.Record {
	session := b.Session
	if r.Several != nil && r.Several() && session != b.Origin { // its principal made the name up: it may be another principal's session
		session = b.Principal + "/" + session
	}
	rec := &trace.Record{
		ID: trace.NewID(), From: "foldgate", To: []string{"host"}, Kind: kind, Context: b.Context, Payload: rawjson.Marshal(payload),
		Audit: &trace.Audit{Session: session, Principal: b.Principal},
	}
	if who, _ := ReadClaims(&b); len(who) > 0 {
		rec.Audit.Team = who[len(who)-1].Team
	}
	return rec
}

// Returning notes the call that returns a branch, until done is called. It notes nothing if the
// branch is not the caller's.
func (r *BranchRecords) Returning(m *folding.Manager, c *Call, branch string) (done func()) {
	if b, _ := m.Resolve(c.Caller(), branch); b.ID == "" {
		return func() {}
	}
	r.change(branch, func(o *openBranch) { o.call = c.Outcome.Record })
	return func() {
		r.change(branch, func(o *openBranch) {
			if o.call == c.Outcome.Record {
				o.call = ""
			}
		})
	}
}

// Inherit gives a call without a traceparent that of its branch, to continue the host's trace.
func (r *BranchRecords) Inherit(c *Call) {
	if c.Origin.Traceparent == "" && c.Attribution.Branch != nil {
		c.Origin.Traceparent = r.known(c.Attribution.Branch.ID).traceparent
	}
}

// Join puts a call without a traceparent that names a branch in its arguments, as branch_return
// does, into the branch's trace.
func (r *BranchRecords) Join(m *folding.Manager, c *Call, branch string) {
	if c.Origin.Traceparent != "" || branch == "" {
		return
	}
	if c.Origin.Traceparent = r.known(branch).traceparent; c.Origin.Traceparent != "" || r.Telemetry == nil {
		return
	}
	if b, err := m.Resolve(c.Caller(), branch); err == nil {
		if span := r.Telemetry.branchSpan(b.Context); span != nil {
			c.Origin.Traceparent = traceparent(span.SpanContext())
		}
	}
}

// change changes an open branch. A branch without a push and a call is forgotten.
func (r *BranchRecords) change(branch string, change func(*openBranch)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.open[branch]
	if change(&o); o.push == "" && o.call == "" {
		delete(r.open, branch)
		return
	}
	if r.open == nil {
		r.open = map[string]openBranch{}
	}
	r.open[branch] = o
}

// known returns the open branch, one without a push if the branch is not open.
func (r *BranchRecords) known(branch string) openBranch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open[branch]
}
