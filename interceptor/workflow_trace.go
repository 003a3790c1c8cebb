package interceptor

import (
	"context"
	"encoding/json"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// flowAudit is the form of a record's audit.workflow.
type flowAudit struct {
	Name      string            `json:"name"`
	ContextID string            `json:"context_id,omitempty"`
	Path      string            `json:"path,omitempty"`
	Role      workflow.Role     `json:"role,omitempty"`
	Step      string            `json:"step,omitempty"`
	Attempt   int               `json:"attempt,omitempty"`
	Status    string            `json:"status,omitempty"`
	Evidence  workflow.Evidence `json:"evidence,omitempty"`
	Ambiguous bool              `json:"ambiguous,omitempty"`
	A2A       *a2aIDs           `json:"a2a,omitempty"`
}

// a2aIDs are the ids by which the A2A protocol would know the step.
type a2aIDs struct {
	ContextID string `json:"contextId"`
	TaskID    string `json:"taskId"`
}

// audit is what the trace says of the call's workflow; nil for none.
func (f *WorkflowStep) audit() json.RawMessage {
	if f == nil {
		return nil
	}
	if f.step == nil { // refused: it is in no workflow
		return rawjson.Marshal(flowAudit{Name: f.Rule.Workflow(), Role: f.Rule.Role})
	}
	s := f.step
	a := flowAudit{
		Name: f.Rule.Workflow(), ContextID: s.ID, Path: s.Path, Role: f.Rule.Role, Evidence: s.Evidence, Ambiguous: s.Ambiguous,
	}
	if s.ID != "" {
		a.Step, a.Attempt, a.Status = s.Name, s.Attempt, s.Status
		a.A2A = &a2aIDs{ContextID: s.Root, TaskID: s.ID}
		if s.Foreign != "" {
			a.A2A.ContextID = s.Foreign
		}
	}
	return rawjson.Marshal(a)
}

// began records that a workflow was started, or went on.
func (w *Workflows) began(c *Call, id string) {
	s := c.Target.Workflow.step
	kind := trace.KindFlowProceed
	switch {
	case s.ID == "" || c.Target.Workflow.Rule.Role == workflow.RoleStatus || c.Target.Workflow.Rule.Role == workflow.RoleClose:
		return
	case s.New && s.ID == s.Root:
		kind = trace.KindFlowStart
	}
	payload := map[string]any{"context_id": s.ID, "path": s.Path, "workflow": c.Target.Workflow.Rule.Workflow(), "step": s.Name, "attempt": s.Attempt, "evidence": s.Evidence}
	rec := w.record(c, kind, payload)
	rec.ID, rec.CorrelationID = id, trace.IDs{c.Outcome.Record}
	if s.Started != "" {
		rec.CorrelationID = append(rec.CorrelationID, s.Started)
	}
	w.Recorder.Note(rec)
}

// completed records that a workflow was closed: it correlates to the call, to
// the start and to every step.
func (w *Workflows) completed(ctx context.Context, c *Call) {
	if c.Target.Workflow.step.ID == "" {
		return
	}
	ended, err := w.Engine.Ending(ctx, c.Target.Workflow.step)
	if err != nil {
		w.Log.Error("end of a workflow not recorded", "workflow", c.Target.Workflow.step.Root, "err", err)
		return
	}
	rec := w.record(c, trace.KindFlowComplete, map[string]any{"context_id": ended.ID, "workflow": ended.Workflow, "reason": "closed", "steps": ended.Steps})
	rec.CorrelationID = fanIn(c.Outcome.Record, ended.Records)
	w.Recorder.Note(rec)
}

// Sweep ends all workflows that expired, and records it.
func (w *Workflows) Sweep(ctx context.Context) {
	for w.sweep(ctx) && ctx.Err() == nil {
	}
}

// sweep ends a few workflows that expired, and records it; it reports whether
// there were any.
func (w *Workflows) sweep(ctx context.Context) bool {
	all, err := w.Engine.Expire(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.Log.Error("expired workflows are still kept", "err", err)
		}
		return false
	}
	for _, ended := range all {
		w.Recorder.Note(&trace.Record{
			From: "foldgate", To: []string{"host"}, Kind: trace.KindFlowComplete, CorrelationID: fanIn("", ended.Records),
			Payload: rawjson.Marshal(map[string]any{"context_id": ended.ID, "workflow": ended.Workflow, "reason": "expired", "steps": ended.Steps}),
			Audit: &trace.Audit{
				Session: ended.Session, Principal: ended.Principal,
				Workflow: rawjson.Marshal(flowAudit{Name: ended.Workflow, ContextID: ended.ID, Path: ended.ID}),
			},
		})
	}
	return len(all) > 0
}

// fanIn is what the end of a workflow correlates to, as far as a record can.
func fanIn(call string, records []string) trace.IDs {
	ids := trace.IDs{}
	if call != "" {
		ids = append(ids, call)
	}
	ids = ids.Union(records)
	return ids[:min(len(ids), trace.MaxIDs)]
}

// record is a record about the workflow of c, from foldgate itself.
func (w *Workflows) record(c *Call, kind string, payload map[string]any) *trace.Record {
	return &trace.Record{
		From: "foldgate", To: []string{c.Origin.From}, Kind: kind, Context: c.Attribution.Context, Payload: rawjson.Marshal(payload),
		Audit: &trace.Audit{Session: c.Origin.Session, Principal: c.Origin.Principal, Server: c.Target.Server, Tool: c.Target.Name, Workflow: c.Target.Workflow.audit()},
	}
}
