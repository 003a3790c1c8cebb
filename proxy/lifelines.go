package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// lifelines tie the records of each branch's life together: its push, its status
// records, its conclusion and its pop. They are those of open branches. The zero
// value is ready to use.
type lifelines struct {
	mu        sync.Mutex
	open      map[string]*lifeline
	returning map[string]string // branch to the record of the call that returns it
}

// lifeline is what the later records of an open branch correlate to.
type lifeline struct {
	push        string
	conclusions []string // of its children that returned
	// traceparent is that of what happens in the branch, where it is in a trace
	// of its host's.
	traceparent string
}

// begin notes an open branch.
func (t *lifelines) begin(branch string, l lifeline) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[string]*lifeline{}
	}
	t.open[branch] = &l
}

// knows reports whether a branch is open and its push recorded.
func (t *lifelines) knows(branch string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[branch] != nil
}

// end forgets a branch.
func (t *lifelines) end(branch string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, branch)
}

// concluded notes for its parent that a branch returned.
func (t *lifelines) concluded(parent, record string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.open[parent]; l != nil {
		l.conclusions = append(l.conclusions, record)
	}
}

// causes returns what a record of a branch correlates to: its push, or where
// that is not known its id; for an end also the call that returns it, and for
// a conclusion those of its children.
func (t *lifelines) causes(branch, kind string) trace.IDs {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := trace.IDs{branch}
	l := t.open[branch]
	if l != nil {
		ids[0] = l.push
	}
	if call := t.returning[branch]; call != "" && kind != trace.KindStatus {
		ids = append(ids, call)
	}
	if l != nil && kind == trace.KindConclusion {
		ids = append(ids, l.conclusions...)
	}
	return ids
}

// returns notes the call c as the one that returns a branch until done is
// called. Of a branch that is not the caller's it notes nothing.
func (g *Gateway) returns(c *interceptor.Call, branch string) (done func()) {
	b, _ := g.branches.Resolve(c.Caller(), branch)
	if b.ID == "" {
		return func() {}
	}
	t := &g.lifelines
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.returning == nil {
		t.returning = map[string]string{}
	}
	t.returning[b.ID] = c.Outcome.Record
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.returning[b.ID] == c.Outcome.Record {
			delete(t.returning, b.ID)
		}
	}
}

// branchEvent turns what happens to branches into records. The manager calls
// it outside its locks, one event at a time.
func (g *Gateway) branchEvent(e folding.Event) {
	g.spanEvent(e)
	b := e.Branch
	switch e.Kind {
	case folding.EventCreated:
		cause, _ := e.Cause.(*interceptor.Call)
		g.pushed(b, cause)
	case folding.EventRecovered:
		if !g.lifelines.knows(b.ID) { // its push was not recorded
			g.pushed(b, nil)
		}
		rec := g.status(b, "recovered")
		rec.Audit.Lost = b.Activity.Lost > 0
		g.append(rec)
	case folding.EventWarned:
		g.append(g.status(b, "near_limit"))
	case folding.EventExhausted:
		rec := g.status(b, "exhausted")
		rec.Audit.OverBudget = true
		g.append(rec)
	case folding.EventConcluded, folding.EventLate:
		rec := g.follow(b, trace.KindConclusion, map[string]any{"decision": b.Message})
		rec.Audit.Late = e.Kind == folding.EventLate
		g.append(rec)
		if e.Kind == folding.EventConcluded {
			g.lifelines.concluded(b.ParentID, rec.ID)
			g.popped(b, reasonReturned)
		}
	case folding.EventEnded:
		g.popped(b, b.Reason)
	}
}

// reasonReturned is the reason of the pop of a branch that its agent returned.
const reasonReturned = "returned"

// pushed records that a branch was opened, by the call cause; nil for one that
// a process opened which died before it could record it.
func (g *Gateway) pushed(b folding.Branch, cause *interceptor.Call) {
	rec := branchRecord(b, trace.KindPush, map[string]any{
		"branch_id": b.ID, "parent": b.ParentID, "description": b.Description, "budget": b.BudgetTotal,
		"timeout_seconds": int(b.ExpiresAt.Sub(b.CreatedAt) / time.Second),
	})
	l := lifeline{push: rec.ID}
	if cause != nil {
		rec.CorrelationID = trace.IDs{cause.Outcome.Record}
		rec.Audit.Traceparent, l.traceparent = g.lifelines.trace(b, cause)
		g.openSpan(b, rec.Audit.Traceparent, cause)
	}
	g.lifelines.begin(b.ID, l)
	g.append(rec)
	if b.Prompt != "" {
		g.append(g.follow(b, trace.KindReflection, map[string]any{"thought": b.Prompt}))
	}
}

// status is a record of how much of its budget a branch has used.
func (g *Gateway) status(b folding.Branch, state string) *trace.Record {
	payload := map[string]any{
		"tokens": b.BudgetUsed, "max_tokens": b.BudgetTotal, "messages_in_context": b.Activity.Calls, "status": state,
	}
	if b.Activity.Lost > 0 {
		payload["lost_calls"] = b.Activity.Lost
	}
	return g.follow(b, trace.KindStatus, payload)
}

// popped records that a branch was closed.
func (g *Gateway) popped(b folding.Branch, reason string) {
	payload := map[string]any{"reason": reason, "status": b.Status, "freed_messages": b.Activity.Calls, "freed_tokens": b.BudgetUsed}
	if b.Digest != "" {
		payload["digest"] = b.Digest
	}
	rec := g.follow(b, trace.KindPop, payload)
	rec.Audit.OverBudget = b.Reason == folding.ReasonBudgetExhausted
	rec.Audit.Decision = &trace.Decision{Result: trace.Allowed, Reason: reason} // also where payloads are not stored
	rec.Audit.Tokens = &trace.Tokens{Counter: g.counter.Name(), Used: b.BudgetUsed, Budget: b.BudgetTotal, Freed: b.BudgetUsed - g.counter.Count(b.Message)}
	g.append(rec)
	g.lifelines.end(b.ID)
}

// follow makes a record that correlates to what came before it in the
// branch's life.
func (g *Gateway) follow(b folding.Branch, kind string, payload map[string]any) *trace.Record {
	rec := branchRecord(b, kind, payload)
	rec.CorrelationID = g.lifelines.causes(b.ID, kind)
	return rec
}

// branchRecord is a record in the context of a branch, from foldgate itself.
func branchRecord(b folding.Branch, kind string, payload map[string]any) *trace.Record {
	return &trace.Record{
		ID: trace.NewID(), From: "foldgate", To: []string{"host"}, Kind: kind, Context: b.Context, Payload: rawjson.Marshal(payload),
		Audit: &trace.Audit{Session: b.Session, Principal: b.Principal},
	}
}

// append writes a record about something that has already happened.
func (g *Gateway) append(rec *trace.Record) {
	if err := g.recorder.Append(rec); err != nil {
		g.log.Error("record lost", "kind", rec.Kind, "err", err)
	}
}

// endBranches force-returns the branches of a session that ends.
func (g *Gateway) endBranches(s *session, reason string) {
	if err := g.branches.EndSession(context.WithoutCancel(s.ctx), folding.Caller{Principal: s.Principal, Session: s.ID}, reason); err != nil {
		g.log.Error("branches of an ended session", "session", s.ID, "err", err)
	}
}
