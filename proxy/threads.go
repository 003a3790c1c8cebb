package proxy

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// threads ties the records of a branch's life together: its push, its status
// records, its conclusion and its pop. Its zero value is ready to use.
type threads struct {
	mu  sync.Mutex
	all map[string]*thread
}

// thread is what the later records of a branch correlate to.
type thread struct {
	push, returning, conclusion string
	// traceparent is that of what happens in the branch, where it is in a trace
	// of its host's.
	traceparent string
}

// of returns the thread of a branch, making it where it is not known: a branch
// that was opened before a restart.
func (t *threads) of(branch string) *thread {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[string]*thread{}
	}
	th := t.all[branch]
	if th == nil {
		th = &thread{}
		t.all[branch] = th
	}
	return th
}

func (t *threads) drop(branch string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, branch)
}

// pushed records that a branch was opened by the call c.
func (g *Gateway) pushed(c *interceptor.Call, b folding.Branch) {
	rec := branchRecord(b, trace.KindPush, map[string]any{
		"branch_id": b.ID, "parent": b.ParentID, "description": b.Description, "budget": b.BudgetTotal,
		"timeout_seconds": int(b.ExpiresAt.Sub(b.CreatedAt) / time.Second),
	})
	rec.CorrelationID = trace.IDs{c.Record}
	rec.Audit.Traceparent = g.threads.trace(b, c)
	g.openSpan(b, rec.Audit.Traceparent, c)
	g.append(rec)
	th := g.threads.of(b.ID)
	g.threads.mu.Lock()
	th.push = rec.ID
	g.threads.mu.Unlock()
	if b.Prompt != "" {
		thought := branchRecord(b, trace.KindReflection, map[string]any{"thought": b.Prompt})
		thought.CorrelationID = trace.IDs{rec.ID}
		g.append(thought)
	}
}

// returning notes which call returns a branch, before its end is recorded.
func (g *Gateway) returning(c *interceptor.Call, branch string) {
	if _, err := g.branches.Resolve(folding.Caller{Principal: c.Principal, Session: c.Session}, branch); err != nil {
		return
	}
	th := g.threads.of(branch)
	g.threads.mu.Lock()
	th.returning = c.Record
	g.threads.mu.Unlock()
}

// branchEvent turns what happens to branches into records. The manager calls
// it outside its locks, one event at a time.
func (g *Gateway) branchEvent(e folding.Event) {
	g.spanEvent(e)
	b := e.Branch
	switch e.Kind {
	case folding.EventWarned, folding.EventExhausted:
		state := map[folding.EventKind]string{folding.EventWarned: "near_limit", folding.EventExhausted: "exhausted"}[e.Kind]
		rec := g.follow(b, trace.KindStatus, map[string]any{
			"tokens": b.BudgetUsed, "max_tokens": b.BudgetTotal, "messages_in_context": b.Activity.Calls, "status": state,
		})
		rec.Audit.OverBudget = e.Kind == folding.EventExhausted
		g.append(rec)
	case folding.EventConcluded, folding.EventLate:
		rec := g.follow(b, trace.KindConclusion, map[string]any{"decision": b.Message})
		rec.Audit.Late = e.Kind == folding.EventLate
		g.threads.mu.Lock()
		for _, child := range e.Children {
			if th := g.threads.all[child]; th != nil && th.conclusion != "" {
				rec.CorrelationID = append(rec.CorrelationID, th.conclusion)
			}
		}
		g.threads.mu.Unlock()
		g.append(rec)
		if e.Kind == folding.EventLate {
			return
		}
		th := g.threads.of(b.ID)
		g.threads.mu.Lock()
		th.conclusion = rec.ID
		g.threads.mu.Unlock()
		g.popped(e, "returned")
	case folding.EventEnded:
		g.popped(e, b.Reason)
	}
}

// popped records that a branch was closed.
func (g *Gateway) popped(e folding.Event, reason string) {
	b := e.Branch
	payload := map[string]any{"reason": reason, "status": b.Status, "freed_messages": b.Activity.Calls, "freed_tokens": b.BudgetUsed}
	if b.Digest != "" {
		payload["digest"] = b.Digest
	}
	rec := g.follow(b, trace.KindPop, payload)
	rec.Audit.OverBudget = b.Reason == folding.ReasonBudgetExhausted
	rec.Audit.Decision = &trace.Decision{Result: trace.Allowed, Reason: reason} // also where payloads are not stored
	rec.Audit.Tokens = &trace.Tokens{Counter: g.counter.Name(), Used: b.BudgetUsed, Budget: b.BudgetTotal, Freed: b.BudgetUsed - g.counter.Count(b.Message)}
	g.append(rec)
	for _, child := range e.Children {
		g.threads.drop(child)
	}
	if b.ParentID == "" {
		g.threads.drop(b.ID)
	}
}

// follow makes a record that correlates to the branch's push, and to the call
// that returns it.
func (g *Gateway) follow(b folding.Branch, kind string, payload map[string]any) *trace.Record {
	rec := branchRecord(b, kind, payload)
	th := g.threads.of(b.ID)
	g.threads.mu.Lock()
	defer g.threads.mu.Unlock()
	push := th.push
	if push == "" {
		push = b.ID // opened before a restart: the context names it
	}
	rec.CorrelationID = trace.IDs{push}
	if th.returning != "" && kind != trace.KindStatus {
		rec.CorrelationID = append(rec.CorrelationID, th.returning)
	}
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

// correlates reads the correlation ids that a host gives with a call.
func correlates(raw json.RawMessage) ([]string, error) {
	ids, _, err := trace.DecodeIDs(raw, trace.Transition)
	return ids, err
}
